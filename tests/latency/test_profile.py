from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

import fxprune
from examples.models import resnet8
from fxprune.cli import main
from fxprune.count import count
from fxprune.latency.profile import profile

NET = ["examples/models.py:resnet8", "--arg", "width=8", "--input", "1x3x16x16"]


def test_every_convolution_is_there_with_its_work() -> None:
    net, x = resnet8(width=8).eval(), torch.zeros(2, 3, 16, 16)
    found = profile(net, ((x,), {}), rounds=3)
    convolutions = [op for op in found.ops if op.kind == "convolution"]
    assert sum(op.flops for op in convolutions) == 2 * count(net, (x,), {}).convolutions.flops  # of two pictures
    assert [op.layer for op in convolutions][:2] == ["conv", "stage1.conv1"]
    assert sum(op.kind == "join" for op in found.ops) == 3
    assert found.seconds > 0 and sum(found.by_kind.values()) == pytest.approx(1)
    conv = convolutions[1]
    size = 4 * (2 * 8 * 64 + 8 * 8 * 9 + 2 * 8 * 64)
    assert conv.bytes == size and conv.intensity == pytest.approx(conv.flops / size)


class Named(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(4, 3, 1, 1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.conv2d(x, weight=self.weight)


def test_arguments_by_name() -> None:
    (op,) = profile(Named(), ((torch.zeros(1, 3, 2, 2),), {}), rounds=2).ops
    assert op.flops == 2 * 12 * 4


def test_a_saved_slim_net(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    wrapped = fxprune.wrap(resnet8(width=8), 1 / 4, example_inputs=torch.zeros(1, 3, 16, 16))
    fxprune.save(fxprune.export(wrapped.harden()), tmp_path / "slim")
    assert main(["profile", str(tmp_path / "slim"), "--input", "1x3x16x16", "--rounds", "2"]) == 0
    said = capsys.readouterr().out
    assert "stage1.conv1" in said and "Lost to joins" in said


def test_json_and_the_slowest_only(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["profile", *NET, "--json", "--rounds", "2", "--channels-last"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["schema"] == "fxprune.profile/1" and found["machine"]["threads"] and len(found["ops"]) > 20
    assert main(["profile", *NET, "--rounds", "2", "--top", "3"]) == 0
    assert len(capsys.readouterr().out.splitlines()) <= 10


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (["--input", "1x5x16x16"], "rejects these inputs"),
        (["--rounds", "0"], "too few"),
        (["--threads", "-1"], "too few"),
    ],
)
def test_mistakes_are_told(change: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = NET[:3] + (change if change[0] == "--input" else [*NET[3:], *change])
    assert main(["profile", *arguments]) == 2
    assert said in capsys.readouterr().err


def test_a_folder_that_is_not_there(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["profile", "runs/missing/", "--input", "1x3x16x16"]) == 2
    assert "there is no folder runs/missing/" in capsys.readouterr().err
