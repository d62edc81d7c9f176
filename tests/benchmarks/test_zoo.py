from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

pytest.importorskip("torchvision")
pytest.importorskip("pytorchcv")
from dataclasses import replace

import zoo_check
from zoo_models import MODELS, Model, families_of_pytorchcv, image
from zoo_report import changed_freezes

COMMITTED = json.loads((Path(__file__).parents[2] / "benchmarks/results/zoo.json").read_text())["models"]
BY_KEY = {entry.key: entry for entry in MODELS}
FAST = {
    "torchvision/resnet18": 64,
    "torchvision/mobilenet_v3_small": 64,
    "torchvision/shufflenet_v2_x0_5": 64,
    "torchvision/googlenet": 64,
    "pytorchcv/resnet20_cifar10": 32,
    "pytorchcv/densenet40_k12_bc_cifar10": 32,
    "pytorchcv/hrnet_w18_small_v1": 224,
}


def assert_equal(entry: Model) -> None:
    record = zoo_check.check(entry)
    assert record["status"] == "ok", f"{record['status']}: {record['reason']}"
    assert record["difference"] <= zoo_check.TOLERANCE and record["difference_other_batch"] <= zoo_check.TOLERANCE
    # Nothing is counted twice: what fxprune counts is what the model's layers write, but for logits.
    if "volume" in record:
        assert 0 <= record["prunable"] <= 1
        assert record["volume"] <= record["conv_volume"]
    assert not changed_freezes(COMMITTED, [record])


@pytest.mark.parametrize("key", FAST)
def test_traced_graph_computes_what_the_model_computes(key: str) -> None:
    entry = replace(BY_KEY[key], inputs=image(FAST[key]))
    assert_equal(entry)


def test_every_pytorchcv_family_is_in_the_list() -> None:
    families = families_of_pytorchcv()
    listed = {entry.family: entry.name for entry in MODELS if entry.suite == "pytorchcv"}
    assert set(families) == set(listed)
    assert all(name in families[family] for family, name in listed.items())


def test_a_wrong_graph_is_noticed() -> None:
    right, wrong = torch.ones(2, 3, dtype=torch.float64), torch.ones(2, 3, dtype=torch.float64)
    wrong[0, 0] += 1e-6
    assert zoo_check.difference([right], [right]) == 0
    assert zoo_check.difference({"out": right}, {"out": wrong}) > zoo_check.TOLERANCE
    assert zoo_check.difference(right, right[:1]) == float("inf")
    assert zoo_check.difference(right, right * float("nan")) == float("inf")


def test_a_changed_freeze_is_told() -> None:
    def run(*ops: str) -> list[zoo_check.Record]:
        return [{"suite": "a", "name": "net", "freezes": [{"op": op, "why": "no rule"} for op in ops]}]

    assert changed_freezes(run("lu", "qr"), run("qr", "lu")) == []
    assert changed_freezes(run("lu"), run("qr", "qr")) == [
        "a/net freezes now, 2 x qr: no rule",
        "a/net freezes no more, 1 x lu: no rule",
    ]
    assert changed_freezes([{"suite": "a", "name": "other", "freezes": []}], run("qr")) == []  # a new model
    assert changed_freezes(run("lu"), [{"suite": "a", "name": "net"}]) == []  # not inspected: a failure


@pytest.mark.zoo
@pytest.mark.parametrize("key", BY_KEY)
def test_zoo(key: str) -> None:
    assert_equal(BY_KEY[key])
