"""Attention of torch's own layers, written out: what it computes, and what its projections are called."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import fxprune
from fxprune.trace import graph_module, trace


def values(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(sum(shape)))


X, KEYS, VALUES = values(2, 5, 8), values(2, 4, 6), values(2, 4, 7)
CAUSAL = torch.triu(torch.full((5, 5), -math.inf, dtype=torch.float64), 1)
PADDING = torch.arange(5) >= torch.tensor([[3], [5]])
ADDED = torch.zeros(2, 5, dtype=torch.float64).masked_fill(PADDING, -math.inf)


class Attends(nn.Module):
    def __init__(self, call: Callable[..., Any], kind: Any = nn.MultiheadAttention, **settings: Any) -> None:
        super().__init__()
        self.attention, self.call = kind(8, 2, **settings), call

    def forward(self, *tensors: torch.Tensor) -> Any:
        return self.call(self.attention, *tensors)


def on_itself(**how: Any) -> Callable[..., Any]:
    return lambda attention, x, **more: attention(x, x, x, **how, **more)


def with_mask(**how: Any) -> Callable[..., Any]:
    return lambda attention, x, mask: attention(x, x, x, attn_mask=mask, **how)


def with_padding(**how: Any) -> Callable[..., Any]:
    return lambda attention, x, padding: attention(x, x, x, key_padding_mask=padding, **how)


def across(attention: Any, x: Any, keys: Any, more: Any) -> Any:
    return attention(x, keys, more)


class Pools(nn.MultiheadAttention):
    """CLIP's way: a layer that hands its parameters to torch's function."""

    def forward(self, x: torch.Tensor) -> Any:  # type: ignore[override]
        return F.multi_head_attention_forward(
            x, x, x, 8, 2, self.in_proj_weight, self.in_proj_bias, None, None, False, 0.2, self.out_proj.weight,
            self.out_proj.bias, training=self.training, need_weights=False,
        )  # fmt: skip


FIRST = {"batch_first": True}
USES: dict[str, tuple[dict[str, Any], Callable[..., Any], tuple[torch.Tensor, ...]]] = {
    "weights, averaged": (FIRST, on_itself(), (X,)),
    "weights of each head": ({}, on_itself(average_attn_weights=False), (X,)),
    "no weights": ({}, on_itself(need_weights=False), (X,)),
    "weights that nobody reads": (FIRST, lambda *given: on_itself()(*given)[0], (X,)),
    "no biases": ({"bias": False}, on_itself(need_weights=False), (X,)),
    "one sample": ({}, on_itself(), (X[0],)),
    "one sample, masked": (FIRST, with_mask(key_padding_mask=ADDED[0]), (X[0], CAUSAL)),
    "one sample, a mask for each head": ({}, with_mask(), (X[0], values(2, 5, 5))),
    "other keys and values": ({"kdim": 6, "vdim": 7, **FIRST}, across, (X, KEYS, VALUES)),
    "other keys, tokens first": ({"kdim": 6, "vdim": 7, "bias": False}, across, tuple(
        tensor.transpose(0, 1) for tensor in (X, KEYS, VALUES))),
    "mask": (FIRST, with_mask(), (X, CAUSAL)),
    "mask of bools": (FIRST, with_mask(need_weights=False), (X, CAUSAL < 0)),
    "mask that is a constant": (FIRST, on_itself(attn_mask=CAUSAL), (X,)),
    "mask of bools that is a constant": (FIRST, on_itself(attn_mask=CAUSAL < 0), (X,)),
    "mask for each head": (FIRST, with_mask(need_weights=False), (X, values(4, 5, 5))),
    "causal": (FIRST, with_mask(is_causal=True, need_weights=False), (X, CAUSAL)),
    "causal, with weights": (FIRST, with_mask(is_causal=True), (X, CAUSAL)),
    "padding": (FIRST, with_padding(), (X, PADDING)),
    "padding, added": (FIRST, with_padding(), (X, values(2, 5))),
    "padding, causal": (FIRST, with_padding(attn_mask=CAUSAL, is_causal=True, need_weights=False), (X, ADDED)),
    "dropout": ({"dropout": 0.3}, on_itself(), (X,)),
    "dropout, no weights": ({"dropout": 0.3, **FIRST}, on_itself(need_weights=False), (X,)),
    "as a function": ({"kind": Pools}, lambda attention, x: attention(x), (X,)),
}  # fmt: skip


@pytest.mark.parametrize("use", USES)
@pytest.mark.parametrize("training", [False, True])
def test_attention_computes_what_it_did(use: str, training: bool) -> None:
    settings, call, inputs = USES[use]
    model = Attends(call, **settings).double().eval()
    tracing = trace(model, inputs)
    assert not tracing.leaves and not tracing.specialisations
    traced = graph_module(tracing, model)
    assert dict(traced.named_parameters()).keys() == dict(model.named_parameters()).keys()
    model.train(training), traced.train(training)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        expected = model(*inputs)
        torch.manual_seed(0)
        torch.testing.assert_close(traced(*inputs), expected)
    used = traced(*inputs)
    (used if isinstance(used, torch.Tensor) else used[0]).sum().backward()
    assert all(parameter.grad is not None for parameter in traced.parameters())


@pytest.mark.parametrize("settings", [{"add_bias_kv": True}, {"add_zero_attn": True}])
def test_keys_that_no_projection_writes_keep_attention_whole(settings: Any) -> None:
    model = nn.Sequential(nn.Linear(8, 8), Attends(lambda *given: on_itself()(*given)[0], **settings)).double().eval()
    (leaf,) = trace(model, X).leaves
    assert leaf.path == "1.attention" and leaf.type == "MultiheadAttention" and "add_bias_kv" in leaf.reason
    (freeze,) = fxprune.inspect(model, X).freezes
    assert freeze.op == "MultiheadAttention (1.attention)"


class Doubled(nn.MultiheadAttention):
    """One of its own: traced as any other module."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        return 2 * super().forward(x, x, x, need_weights=False)[0]


def test_a_subclass_and_a_hook_are_what_they_are() -> None:
    own = Doubled(8, 2, batch_first=True).double().eval()
    hooked = Attends(on_itself(need_weights=False), **FIRST).double().eval()
    hooked.attention.register_forward_hook(lambda module, given, output: (output[0] * 3, None))
    for net in (own, hooked):
        tracing = trace(net, X)
        assert not tracing.leaves
        torch.testing.assert_close(graph_module(tracing, net)(X), net(X))


@pytest.fixture
def off_the_fast_path() -> Iterator[None]:
    before = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    yield
    torch.backends.mha.set_fastpath_enabled(before)


LAYER = {"dim_feedforward": 12, "batch_first": True}


def encoder(count: int, **settings: Any) -> nn.Module:
    layer = nn.TransformerEncoderLayer(8, 2, **LAYER, **settings)
    return nn.TransformerEncoder(layer, count, norm=nn.LayerNorm(8), enable_nested_tensor=False)


STACKS: dict[str, tuple[Callable[[], nn.Module], dict[str, torch.Tensor]]] = {
    "layer": (lambda: nn.TransformerEncoderLayer(8, 2, **LAYER), {"src": X}),
    "encoder": (lambda: encoder(2, activation="gelu", norm_first=True), {"src": X}),
    "encoder, masks": (lambda: encoder(1), {"src": X, "mask": CAUSAL, "src_key_padding_mask": ADDED}),
    "decoder": (lambda: nn.TransformerDecoder(nn.TransformerDecoderLayer(8, 2, **LAYER), 2),
                {"tgt": X, "memory": values(2, 4, 8), "tgt_mask": CAUSAL < 0}),
    "transformer": (lambda: nn.Transformer(8, 2, 1, 1, **LAYER), {"src": values(2, 4, 8), "tgt": X}),
    "tokens first": (lambda: nn.Transformer(8, 2, 1, 1, 12), {"src": values(4, 2, 8), "tgt": values(5, 2, 8)}),
}  # fmt: skip


@pytest.mark.filterwarnings("ignore:enable_nested_tensor")
@pytest.mark.usefixtures("off_the_fast_path")
@pytest.mark.parametrize("stack", STACKS)
def test_transformers_of_torch_are_looked_into(stack: str) -> None:
    build, inputs = STACKS[stack]
    model = build().double().eval()
    tracing = trace(model, inputs)
    assert not tracing.leaves
    traced = graph_module(tracing, model)
    for training in (False, True):
        for module in [*model.train(training).modules(), *traced.train(training).modules()]:
            if isinstance(module, nn.Dropout):  # drops by how a tensor lies in memory
                module.p = 0.0
        with torch.random.fork_rng():
            torch.manual_seed(0)
            expected = model(**inputs)
            torch.manual_seed(0)
            torch.testing.assert_close(traced(**inputs), expected)


def test_the_fast_path_is_as_it_was() -> None:
    before = torch.backends.mha.get_fastpath_enabled()
    trace(nn.TransformerEncoderLayer(8, 2, **LAYER).eval(), X.float())
    assert torch.backends.mha.get_fastpath_enabled() is before


def test_each_projection_is_a_layer_with_a_name() -> None:
    model = nn.Sequential(nn.TransformerEncoderLayer(8, 2, **LAYER), nn.Linear(8, 3)).double().eval()
    wrapped = fxprune.wrap(model, budget=0.7, example_inputs=X)
    gates = [f"0.self_attn.{name}" for name in ("q_proj.queries", "v_proj.heads", "v_proj.values", "out_proj")]
    assert list(wrapped.gates) == [*gates, "0.linear1", "0.linear2"]
    names = [f"0.self_attn.{name}" for name in ("q_proj", "k_proj", "v_proj", "out_proj")]
    wrapped.load_state_dict(model.state_dict(), strict=False)
    wrapped.harden()
    slim = fxprune.export(wrapped)
    torch.testing.assert_close(slim(X), wrapped.eval()(X))
    assert all(type(slim.get_submodule(name)) is nn.Linear for name in names)
