"""Every rule, numerically: a convolution, the op, a convolution; random masks; the slim net equals the gated one."""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import fxprune
from fxprune.analysis.gates import place_gates
from fxprune.analysis.relate import relate
from fxprune.api import analyse
from fxprune.errors import ModelError, RuleError
from fxprune.rules import RULES, Flow, Op, find_rule, rule
from fxprune.rules.registry import Rule
from fxprune.trace import Trace, example_arguments, trace
from fxprune.trace.patches import AutogradFunction
from tests.exactness import check_export, random_masks
from tests.gates import OUTPUT, Gates, check_gates
from tests.rules.sandwich import check_op, sandwich


def preallocated(n: Any, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """What many write instead of a concatenation."""
    out = torch.zeros(x.shape[0], 16, x.shape[2], x.shape[3], dtype=x.dtype)
    out[:, : x.shape[1]] = x
    out[:, 8:] = F.relu(y)
    other = y.new_empty(y.shape[0], 8, *y.shape[2:])
    other[:, ::2] = out[:, 4:12:2]
    other[:, [1, 3, -1, 5]] = y[:, 2:6]
    return other


def overwritten(n: Any, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    x, y = x + 0, y + 0
    x[:, 5:7].zero_()
    x[:, [0, 2]] = 0.5
    x[:, 3] = y[:, 4]
    x[:, 4:2] = 7
    y[:, :2].fill_(1.0)
    y[:, 2:5].copy_(x[:, :1])
    y[:, 6:, 1].copy_(x[:, 6:, 2])
    return x * 2 + y


class Swish(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x)
        return x * torch.sigmoid(x)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> torch.Tensor:
        (x,) = ctx.saved_tensors
        return grads[0] * torch.sigmoid(x) * (1 + x * (1 - torch.sigmoid(x)))


class Shifted(torch.autograd.Function):
    """Zero does not stay zero; the second argument is no tensor."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, by: float) -> torch.Tensor:
        return (x + by).clamp(0, 6)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor, None]:
        return grads[0], None


CASES: dict[str, Callable[..., Any]] = {
    "preallocated": preallocated,
    "overwritten": overwritten,
    "relu": lambda n, x, y: F.relu(x),
    "sigmoid": lambda n, x, y: torch.sigmoid(x),
    "identity": lambda n, x, y: n.identity(x),
    "type_as": lambda n, x, y: x.type_as(y) + y.float().type_as(x),
    "alpha_dropout": lambda n, x, y: F.alpha_dropout(x, 0.5, n.training) + F.feature_alpha_dropout(y, 0.5, n.training),
    "prelu": lambda n, x, y: n.prelu(x),
    "clamp": lambda n, x, y: x.clamp(-0.3, 0.4) + x.clamp_min(0.2),
    "power": lambda n, x, y: x**2 + torch.pow(x.abs() + 1, -0.5),
    "masked_fill": lambda n, x, y: x.masked_fill(y > 0, 0.7) + x.masked_fill(x < 0, 0),
    "softmax": lambda n, x, y: x.softmax(1) + F.normalize(y, dim=1) + F.softmax(x, dim=3),
    "response": lambda n, x, y: F.local_response_norm(x, 3),
    "add": lambda n, x, y: x + y - 0.3,
    "sub": lambda n, x, y: torch.sub(x, y, alpha=2.0) + torch.maximum(x, y),
    "multiply": lambda n, x, y: x * y + x * torch.sigmoid(y),
    "divide": lambda n, x, y: x / (y.abs() + 1) + 2 / (x.abs() + 1),
    "compare": lambda n, x, y: x * (x > y) + (y >= 0.1) * y,
    "where": lambda n, x, y: torch.where(x > 0.2, x, y) + torch.where(y > 0, 0.5, x),
    "addcmul": lambda n, x, y: torch.addcmul(x, x, y, value=0.5),
    "of_several": lambda n, x, y: torch.lerp(x, y, 0.3) + torch.hypot(x, n.shift[:, None, None]),
    "glu": lambda n, x, y: torch.cat([F.glu(x, 1), F.glu(y, 1)], 1),
    "linear": lambda n, x, y: n.linear(x.movedim(1, -1)).movedim(-1, 1),
    "embedding": lambda n, x, y: n.words((x.mean(1) > 0).long()).movedim(-1, 1) + y,
    "matmul": lambda n, x, y: (x.flatten(2) @ (y.flatten(2).mT @ x.flatten(2))).reshape(x.shape),
    "einsum": lambda n, x, y: torch.einsum("bchw,bdhw,d->bc", x, y, n.shift)[..., None, None] + x,
    "tensordot": lambda n, x, y: torch.tensordot(x, n.c.weight[:, :, 0, 0], ([1], [1])).mean(-1)[:, None] + y,
    "attention": lambda n, x, y: F.scaled_dot_product_attention(*(t.flatten(2).mT for t in (x, y, x))).mT.reshape_as(x),
    "batch_norm": lambda n, x, y: n.norm(x + y) + F.batch_norm(x, n.mean, n.variance, n.scale, n.shift),
    "instance_norm": lambda n, x, y: n.instance(x),
    "layer_norm": lambda n, x, y: n.layer(x.movedim(1, -1)).movedim(-1, 1),
    "group_norm": lambda n, x, y: n.group(x + y) + n.group_of_layer(x),
    "pool": lambda n, x, y: F.max_pool2d(x, 3, 1, 1) + F.avg_pool2d(y, 3, 1, 1),
    "unpool": lambda n, x, y: F.max_unpool2d(*F.max_pool2d(x, 2, return_indices=True), 2) + y,
    "resize": lambda n, x, y: F.interpolate(F.avg_pool2d(x, 2), size=y.shape[-2:], mode="bilinear") + y,
    "grid_sample": lambda n, x, y: F.grid_sample(x, n.grid(x), align_corners=False),
    "unfold": lambda n, x, y: F.fold(F.unfold(x, 3, padding=1), (8, 10), 3, padding=1) + y,
    "pixels": lambda n, x, y: F.pixel_unshuffle(F.pixel_shuffle(x, 2), 2) + y,
    "pad": lambda n, x, y: F.pad(x[:, :4], (0, 0, 0, 0, 2, 2)) + F.pad(y, (1, 1, 1, 1), mode="reflect")[..., 2:, 2:],
    "reduce": lambda n, x, y: x * x.mean(1, keepdim=True) + y.amax((2, 3), keepdim=True) + x.max(1, keepdim=True).values
    + y.max(1)[0].unsqueeze(1),
    "move": lambda n, x, y: n.shuffle(x) + x.flip(1) + y.roll(2, 1),
    "getitem": lambda n, x, y: torch.cat([x[:, ::2], y[:, 1:5]], 1),
    "picked": lambda n, x, y: x[:, :, torch.arange(y.shape[2] - 1, -1, -1)] + y,
    "index": lambda n, x, y: x.index_select(1, n.index) + y[:, n.index],
    "index_add": lambda n, x, y: x.index_add(1, n.index[:5], y[:, 2:7]).relu().index_add(1, n.index, x),
    "index_add_moved": lambda n, x, y: x.movedim(1, 3).index_add(3, n.index[:3], y[:, :3].movedim(1, 3)).movedim(3, 1),
    "index_add_twice": lambda n, x, y: x.index_add(1, n.index[:1].expand(2), y[:, :2]),
    "constant_index": lambda n, x, y: x[:, torch.tensor([3, 0, 7, 1, 5, 2, 6, 4])] + y[:, torch.arange(7, -1, -1)],
    "cat": lambda n, x, y: torch.cat([torch.cat([x, y], 0).chunk(2)[0][:, :5], y[:, 5:]], 1),
    "stack": lambda n, x, y: torch.stack([x, y], 2).sum(2),
    "together": lambda n, x, y: torch.slice_scatter(x, y[:, :3], 1, 2, 5),
    "like": lambda n, x, y: x + torch.ones_like(y) * y.mean(1, keepdim=True).expand_as(y),
    "sizes": lambda n, x, y: x.reshape(x.size(0), x.shape[1], -1).mean(2, keepdim=True)[..., None] + y / y.numel(),
}  # fmt: skip

GATES: dict[str, Gates] = {  # see tests/gates.py
    "linear": {"linear": 8},
    "embedding": {"words": 8},
    "glu": {"a": 4, "b": 4},
    "group_norm": {"a": 4},
    "unpool": {"a": "frozen by torch.nn.functional.max_pool2d_with_indices"},
    "index_add_twice": {"a": "frozen by Tensor.index_add", "b": "frozen by Tensor.index_add"},
}
FROZEN: dict[str, tuple[str, ...]] = {
    "unpool": ("torch.nn.functional.max_pool2d_with_indices",),
    "index_add_twice": ("Tensor.index_add",),  # more than one add to a channel
}


@pytest.mark.parametrize("name", CASES)
def test_rule(name: str) -> None:
    check_op(CASES[name], frozen=FROZEN.get(name, ()), gates=GATES.get(name))


class Collection(nn.Module):
    """Its input is a list, a dict, any number of tensors."""

    def __init__(self, forward: Callable[..., Any]) -> None:
        super().__init__()
        self.a, self.b, self.head, self.run = (
            nn.Conv2d(3, 8, 3, padding=1),
            nn.Conv2d(8, 6, 1),
            nn.Conv2d(6, 2, 1),
            forward,
        )

    def use(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return self.head(self.b(self.a(x) + self.a(y))) + x[:, 1:]

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.run(self, *args, **kwargs)


def given(batch: int = 2) -> torch.Tensor:
    return torch.randn(batch, 3, 8, 10, dtype=torch.float64)


COLLECTIONS: dict[str, tuple[Callable[..., Any], Callable[[], Any]]] = {
    "arguments": (lambda n, *xs: n.use(*xs), lambda: (given(), given())),
    "list": (lambda n, xs: n.use(xs[0], xs[1][:, [2, 0, 1]]), lambda: ([given(), given()],)),
    "dict": (lambda n, xs: n.use(xs["a"], xs["b"]), lambda: ({"a": given(), "b": given()},)),
    "nested": (lambda n, xs: n.use(*xs["a"]), lambda: ({"a": (given(), given())},)),
    "keywords": (lambda n, x, y: n.use(x, y), lambda: {"x": given(), "y": given()}),
}


@pytest.mark.parametrize("name", COLLECTIONS)
def test_inputs_that_hold_tensors(name: str) -> None:
    forward, example = COLLECTIONS[name]
    model, inputs = Collection(forward).double().eval(), example()
    wrapped = fxprune.wrap(model, 1 / 2, example_inputs=inputs)
    check_gates(model, wrapped.analysis)
    wrapped.set_masks({"a": torch.tensor([True, False] * 4), "b": torch.tensor([True, True, False] * 2)})
    slim = fxprune.export(wrapped)
    args, kwargs = example_arguments(inputs)
    torch.testing.assert_close(slim(*args, **kwargs), wrapped(*args, **kwargs))


def test_custom_autograd_functions_keep_their_backward() -> None:
    net = sandwich(lambda n, x, y: Swish.apply(x) + Shifted.apply(y, 0.5))
    wrapped = fxprune.wrap(net, 1 / 2, example_inputs=given())
    check_gates(net, wrapped.analysis)
    wrapped.set_masks(random_masks(wrapped, 0.5, torch.Generator().manual_seed(0)))
    slim, x = fxprune.export(wrapped), given(3).requires_grad_()
    torch.testing.assert_close(slim(x), wrapped(x))
    grads = [torch.autograd.grad(net(x).sum(), x)[0] for net in (slim, wrapped)]
    torch.testing.assert_close(*grads)


def test_data_parallel_is_looked_into() -> None:
    model = nn.DataParallel(nn.Sequential(nn.Conv2d(3, 8, 1), nn.ReLU(), nn.Conv2d(8, 2, 1))).double().eval()
    wrapped = fxprune.wrap(model, 1 / 2, example_inputs=given())
    check_gates(model, wrapped.analysis, gates={"module.2": OUTPUT})
    wrapped.set_masks({"module.0": torch.tensor([True, False] * 4)})
    check_export(wrapped, [(given(3),)])


def test_a_random_order_of_channels_freezes_them() -> None:
    net = sandwich(lambda n, x, y: x[:, torch.randperm(8)] + y)
    wrapped = fxprune.wrap(net, 1 / 2, example_inputs=given())
    frozen = "_operator.getitem"
    check_gates(net, wrapped.analysis, (frozen,), {"a": f"frozen by {frozen}"})
    slim, x = fxprune.export(wrapped), given()
    assert not torch.equal(slim(x), slim(x))


def _rules_of(traced: Trace) -> list[Rule]:
    """Those of the ops of a model, each once."""
    found = []
    for node in traced.graph.nodes:
        if node.op.startswith("call"):
            module = traced.root.get_submodule(node.target) if node.op == "call_module" else None
            found.append(find_rule(node, module))
    return list({id(made): made for made in found if made is not None}.values())


def test_every_rule_has_a_case() -> None:
    used = {id(made) for op in CASES.values() for made in _rules_of(trace(sandwich(op), given()))}
    used.add(id(RULES[AutogradFunction]))  # which has a test of its own
    missing = sorted({made.relate.__name__ for made in RULES.values() if id(made) not in used})
    assert not missing, f"rules without a numeric test: {missing}"


def test_a_rule_that_freezes_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A mutation of each rule: what the cases declare of freezes and gates is not true any more."""
    rules, noticed = {}, set()
    for name, op in CASES.items():
        net = sandwich(op)
        analysis = analyse(net, (given(),))
        for made in _rules_of(analysis.channels.trace):
            rules[id(made)] = made.relate.__name__
            with monkeypatch.context() as patch:
                patch.setattr(made, "relate", lambda op: None)
                channels = relate(analysis.channels.trace)
            try:
                changed = replace(analysis, channels=channels, layers=place_gates(channels))
                check_gates(net, changed, FROZEN.get(name, ()), GATES.get(name))
            except (AssertionError, ModelError):  # the latter where no layer is left
                noticed.add(id(made))
    assert [rules[key] for key in rules if key not in noticed] == ["size"]  # which makes no tensor


def test_two_rules_for_one_op_are_refused() -> None:
    with pytest.raises(RuleError, match="two rules"):
        rule(operator.add)(lambda op: op.flow())


def test_adding_a_rule_frees_what_was_frozen() -> None:
    net = nn.Sequential(nn.Conv2d(3, 8, 1), _Sinc(), nn.Conv2d(8, 2, 1)).double()
    x = torch.randn(1, 3, 4, 5, dtype=torch.float64)
    assert fxprune.inspect(net, x).layers[0].gates == 0

    @rule(torch.sinc)
    def sinc(op: Op) -> Flow:
        return Flow(op.flow().ids, clean=False)

    try:
        wrapped = fxprune.wrap(net, 1 / 2, example_inputs=x)
        wrapped.set_masks({"0": torch.tensor([True, False] * 4)})
        check_export(wrapped, [(x,)])
    finally:
        del RULES[torch.sinc]


class _Sinc(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.sinc(x)
