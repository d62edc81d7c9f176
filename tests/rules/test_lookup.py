"""Embedding tables: their columns are pruned, followed and cut; what cannot be cut keeps its channels."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import fxprune
from fxprune.methods.streams import find_streams
from fxprune.save.onnx import to_onnx
from tests.exactness import call, check_export, error, params_of, random_gates
from tests.gates import told_of
from tests.models import randomise

T = torch.Tensor


class Reader(nn.Module):
    """Words in a stream with one block; ``table`` is called as a module, or by ``read``."""

    def __init__(self, table: nn.Module, count: int = 11) -> None:
        super().__init__()
        self.table = table
        self.wide, self.back = nn.Linear(8, 12), nn.Linear(12, 8)
        self.norm, self.head = nn.LayerNorm(8), nn.Linear(8, count)

    def read(self, words: T) -> T:
        return self.table(words)  # type: ignore[no-any-return]

    def forward(self, words: T) -> T:
        x = self.read(words)
        x = x + self.back(F.gelu(self.wide(x)))
        return self.head(self.norm(x))


def built(net: nn.Module) -> nn.Module:
    return randomise(net.double().eval(), torch.Generator().manual_seed(0))


def words(*sizes: tuple[int, int]) -> list[tuple[T]]:
    generator = torch.Generator().manual_seed(1)
    return [(torch.randint(11, size, generator=generator),) for size in sizes]


GIVEN = words((2, 5), (1, 3), (3, 7))
COLUMNS = torch.tensor([1, 0, 1, 1, 0, 0, 1, 0])


def cut(net: nn.Module, **masks: T) -> Any:
    """Gates of all values; closed where ``masks`` say so."""
    wrapped = fxprune.wrap(net, 0.5, example_inputs=GIVEN[0])
    assert error(call(wrapped, GIVEN[0]), call(net, GIVEN[0])) <= 1e-12
    random_gates(wrapped, torch.Generator().manual_seed(2))
    return check_export(wrapped.set_masks(masks), GIVEN)


def test_columns_go_with_the_stream() -> None:
    net = built(Reader(nn.Embedding(11, 8, padding_idx=0, sparse=True)))
    slim = cut(net, table=COLUMNS, back=torch.tensor([1, 1, 0, 0, 0, 0, 0, 0]))
    assert (slim.table.num_embeddings, slim.table.embedding_dim) == (11, 4)
    assert (slim.table.padding_idx, slim.table.sparse) == (0, True)
    assert slim.head.in_features == 5  # one of the block's two is a column of the table as well


def test_a_column_that_nobody_reads_is_gone() -> None:
    class Told(Reader):
        def forward(self, words: T) -> T:
            return self.head(torch.relu(self.wide(self.read(words))))

    net = Told(nn.Embedding(11, 8))
    net.head = nn.Linear(12, 3)
    slim = cut(built(net), table=COLUMNS, wide=torch.arange(12) < 5)
    assert slim.table.embedding_dim == slim.wide.in_features == 4


def test_a_function_becomes_a_module() -> None:
    class Called(Reader):
        def read(self, words: T) -> T:
            return F.embedding(words, self.table.weight, padding_idx=2)  # type: ignore[arg-type]

    slim = cut(built(Called(nn.Embedding(11, 8))), table=COLUMNS, back=torch.zeros(8))
    assert (slim.table.embedding_dim, slim.table.padding_idx) == (4, 2)


class Normed(Reader):
    """The table's rows are shortened where they are read: written to, by the length of the whole row."""

    def __init__(self) -> None:
        super().__init__(nn.Embedding(11, 8, max_norm=1.0))


def computed(net: nn.Module) -> Any:
    return {layer.name: told_of(layer) for layer in fxprune.wrap(net, 0.5, example_inputs=GIVEN[0]).analysis.layers}


def test_max_norm_keeps_all_columns() -> None:
    found = computed(built(Normed()))
    assert "table" not in found
    slim = cut(built(Normed()), wide=torch.arange(12) < 5, back=torch.zeros(8))
    assert slim.table.embedding_dim == 8


class Best(Reader):
    """Its words are made of channels that can go: the largest one's place, or what each of them says."""

    def __init__(self, largest: bool) -> None:
        super().__init__(nn.Embedding(11, 8))
        self.largest, self.said = largest, nn.Linear(1, 8)

    def read(self, words: T) -> T:
        y = torch.relu(self.said(words[..., None].double()))
        x: T = self.table(y.argmax(-1) if self.largest else (y.long() % 11))
        return x + y if self.largest else x.sum(-2) + y


@pytest.mark.parametrize("largest", [True, False])
def test_words_that_are_made_of_channels(largest: bool) -> None:
    wrapped = fxprune.wrap(built(Best(largest)), 0.5, example_inputs=GIVEN[0])
    assert ("table" in wrapped.gates) == largest  # else there is one word per channel
    open_ones = {name: torch.ones(len(gate)) for name, gate in wrapped.gates.items()}
    for masks in ({}, {"said": COLUMNS}, {"table": COLUMNS}, {"said": torch.zeros(8)}):
        masks = {name: mask for name, mask in masks.items() if name in open_ones}
        check_export(wrapped.set_masks(open_ones | masks), GIVEN, counted=False)
        wrapped.bank.soften()


def test_a_weight_shared_with_the_last_layer() -> None:
    """Both are cut as they are; the slim net has them apart, and says so."""
    net = Reader(nn.Embedding(11, 8))
    net.head.bias, net.head.weight = None, net.table.weight  # type: ignore[assignment]
    wrapped = fxprune.wrap(built(net), 0.6, metric="params", example_inputs=GIVEN[0])
    assert wrapped.full_cost().params == params_of(net)
    generator = torch.Generator().manual_seed(0)
    wrapped.harden({name: torch.rand(len(gate), generator=generator) for name, gate in wrapped.gates.items()})
    slim = check_export(wrapped, GIVEN)
    assert params_of(slim) == wrapped.cost().params <= 0.6 * params_of(net)


@pytest.mark.parametrize("share", [1 / 2, 1 / 4, 0.15])
def test_budgets_of_parameters_can_be_met(share: float) -> None:
    """Of which the table has nearly all."""
    net = built(Reader(nn.Embedding(2000, 8), count=3))
    wrapped = fxprune.wrap(net, share, metric="params", example_inputs=GIVEN[0])
    slim = fxprune.export(wrapped.harden())
    assert params_of(slim) <= share * params_of(net)


def test_saved_fused_and_as_onnx(tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    import onnxruntime

    net = built(Reader(nn.Embedding(11, 8, padding_idx=0))).float()
    wrapped = fxprune.wrap(net, 0.5, example_inputs=GIVEN[0])
    slim = fxprune.export(wrapped.set_masks({"table": COLUMNS, "back": COLUMNS}), fuse=True)
    fxprune.save(slim, tmp_path / "slim")
    torch.testing.assert_close(fxprune.load(tmp_path / "slim")(*GIVEN[1]), slim(*GIVEN[1]), rtol=0, atol=0)
    session = onnxruntime.InferenceSession(to_onnx(slim, GIVEN[0], {}), providers=["CPUExecutionProvider"])
    (found,) = session.run(None, {session.get_inputs()[0].name: GIVEN[0][0].numpy()})
    torch.testing.assert_close(torch.from_numpy(found), slim(*GIVEN[0]).detach(), rtol=1e-4, atol=1e-5)


def test_methods_see_columns() -> None:
    """One filter per column: its word's entries."""
    net = built(Reader(nn.Embedding(11, 8)))
    wrapped = fxprune.wrap(net, 0.5, example_inputs=GIVEN[0])
    writers = {writer.unit.name: writer for stream in find_streams(wrapped) for writer in stream.writers}
    torch.testing.assert_close(writers["table"].filters, net.table.weight.detach().t())  # type: ignore[union-attr, operator]


def test_cut_without_training() -> None:
    net = built(Reader(nn.Embedding(11, 8))).float()
    batches = [torch.randint(11, (8, 5), generator=torch.Generator().manual_seed(n)) for n in range(4)]
    slim = fxprune.cut(net, batches, budget=1 / 2, metric="params")
    assert params_of(slim) <= params_of(net) / 2
    assert slim.table.embedding_dim < 8  # type: ignore[union-attr]


class Placed(Reader):
    """Places of words that depend on nothing but how many there are: of the words, or of what was read of them."""

    def __init__(self, by_words: bool) -> None:
        super().__init__(nn.Embedding(11, 8))
        self.places, self.by_words = nn.Embedding(9, 8), by_words

    def read(self, words: T) -> T:
        x: T = self.table(words)
        count = words.shape[1] if self.by_words else x.shape[1]
        return x + self.places(torch.arange(count, device=words.device)[None])  # type: ignore[no-any-return]


@pytest.mark.parametrize("by_words", [True, False])
@pytest.mark.parametrize("places", [1 - COLUMNS, COLUMNS, torch.ones(8), torch.zeros(8)])
def test_a_table_without_samples(places: T, by_words: bool) -> None:
    """With an example of one sample nobody sees that places are for all samples."""
    net, example = built(Placed(by_words)), words((1, 5))[0]
    for masks in ({"table": COLUMNS}, {"table": torch.zeros(8)}):
        wrapped = fxprune.wrap(net, 0.5, example_inputs=example)
        assert len(wrapped.gates["places"]) == 8
        random_gates(wrapped, torch.Generator().manual_seed(2))
        wrapped.set_masks({"back": torch.zeros(8), "places": places, **masks})
        check_export(wrapped, [example, *GIVEN], counted=False)
