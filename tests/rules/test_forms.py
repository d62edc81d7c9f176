"""Less usual ways to write an op, and what they do at sizes other than the example's."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import fxprune
from tests.exactness import random_masks
from tests.gates import DEPTHWISE, OUTPUT, Gates, check_gates
from tests.rules.sandwich import Form, check_op, sandwich

FORMS: dict[str, Form] = {
    "axis": lambda n, x, y: torch.cat([x, y], axis=1).chunk(2, 1)[0] + y.mean(axis=(2, 3), keepdims=True),
    "sum over an axis": lambda n, x, y: x * y.sum(axis=1, keepdim=True) + x.amax(axis=1, keepdims=True),
    "an extreme over an axis": lambda n, x, y: torch.max(x, axis=1, keepdim=True).values + torch.softmax(y, dim=1),
    "uncorrected": lambda n, x, y: x * y.std(False) + x.var((2, 3), False, keepdim=True),
    "shape by name": lambda n, x, y: torch.reshape(x, shape=(x.size(0), 8, -1)).reshape(shape=y.shape) + y,
    "size by name": lambda n, x, y: x.view(size=(x.size(0), -1)).view(size=y.shape).expand(size=y.shape) + y,
    "input by name": lambda n, x, y: n.norm(input=F.relu(input=x)) + torch.sigmoid(input=y),
    "a product by name": lambda n, x, y: torch.matmul(x.flatten(2), other=torch.bmm(y.flatten(2).mT, mat2=x.flatten(2)))
    .reshape(x.shape),
    "a bound by name": lambda n, x, y: x.clamp_min(min=0) + y.clamp_max(max=0.5) + y.clamp(max=0.1),
    "a computed bound": lambda n, x, y: torch.clamp(x, max=y) + torch.clamp(y, min=x.mean((1, 2, 3), keepdim=True)),
    "a condition by name": lambda n, x, y: x.where(condition=y > 0, other=y) + torch.where(x > 0, input=x, other=y),
    "normalised together": lambda n, x, y: F.normalize(x, dim=(1, 2, 3)) + F.normalize(y, dim=(2, 3)),
    "a crop to the other's size": lambda n, x, y: x[:, :, : y.shape[2], : y.shape[3]] + y,
    "a crop that is none here": lambda n, x, y: x[..., :8, :10].narrow(2, 0, 8) + y[:, :, :8, :10],
    "a split that is none here": lambda n, x, y: x.split(10, 3)[0] + y.split(10, 3)[0],
    "a crop behind a shuffle": lambda n, x, y: n.shuffle(x)[:, 1:7, :8, :10].repeat(1, 2, 1, 1)[:, :8]
    + y[..., :8, :10],
    "up to a size": lambda n, x, y: n.up(F.avg_pool2d(x, 2), output_size=y.shape[-2:]) + y,
    "padded on all sides": lambda n, x, y: F.pad(
        x[:, :5, :-1, :-2], (0, y.size(3) - x.size(3) + 2, 1, y.size(2) - x.size(2), 0, y.size(1) - 5)
    ) + y,
    "padded with a number": lambda n, x, y: torch.constant_pad_nd(x, (1, 1), 5.0)[..., 1:-1] + torch.constant_pad_nd(
        y, (0, 1), 2.0
    )[..., 1:],
    "a norm behind an identity": lambda n, x, y: n.norm(z := n.identity(x)) + z,
    "a norm without parameters, twice": lambda n, x, y: n.plain_norm(x) + n.plain_norm(y),
    "a group norm without parameters, twice": lambda n, x, y: n.plain_group(x) + n.plain_group(y),
    "a group norm of positions": lambda n, x, y: n.pixels(x.flatten(2).mT).mT.reshape(y.shape) + y,
    "an instance norm of positions": lambda n, x, y: F.instance_norm(x.flatten(2).mT).mT.reshape(y.shape) + y,
    "a conditional norm": lambda n, x, y: F.layer_norm(x, (10,), weight=y.mean((0, 1, 2))) + F.instance_norm(
        x, weight=y.mean((0, 2, 3)), bias=y.amax((0, 2, 3))
    ),
    "a conditional bias": lambda n, x, y: F.conv2d(x, n.c.weight[:, :, :1, :1].mean(0)[None].expand(8, -1, -1, -1),
                                                   y.mean((0, 2, 3))),
    "a dead operand that spreads": lambda n, x, y: (x > y.mean((1, 2, 3), keepdim=True)) * y,
    "the larger of two": lambda n, x, y: torch.max(x, y.mean((1, 2, 3), keepdim=True))
    + torch.max(x, n.shift[:, None, None]),
    "a product that spreads": lambda n, x, y: torch.addcmul(x.mean(1, keepdim=True), x, y),
    "a dead tensor's type": lambda n, x, y: x + y * torch.ones(1, device=y.device, dtype=y.dtype).type_as(y),
    "a yes and a number": lambda n, x, y: (x > 0) + y,
    "a constant of more axes": lambda n, x, y: (x.mean((2, 3)) * n.c.weight[:, :, 0] .transpose(1, 2)).mean(0)
    [..., None, None] + (n.c.weight[:, :, 0].mT - x.mean((2, 3))).sum(0)[..., None, None] + y,
    "not trained": lambda n, x, y: x.detach().requires_grad_(False) + y,
    "data": lambda n, x, y: n.norm(x.data) + x,
    "a blur": lambda n, x, y: F.conv2d(x, n.scale[0].expand(8, 1, 3, 3), padding=1, groups=x.shape[1]) + y,
    "padding from a size": lambda n, x, y: y
    + F.conv2d(x, n.c.weight[:, :, :1, :1], padding=x.shape[2] // 8)[..., 1:-1, 1:-1].mean(1, keepdim=True),
}  # fmt: skip


NO_LAYERS = ("a conditional bias", "padding from a size")  # calls of conv2d that are none, and count for nothing
NORMS = ("torch.nn.functional.layer_norm", "torch.nn.functional.instance_norm")
GATES: dict[str, Gates] = {  # see tests/gates.py
    "a group norm without parameters, twice": {"a": 2, "b": 2},
    "a conditional norm": {"a": f"frozen by {NORMS[0]}", "b": f"frozen by {NORMS[0]}"},
    "a conditional bias": {"a": "frozen by torch.conv2d", "b": "frozen by torch.conv2d"},
    "a blur": {"scale": DEPTHWISE},
    "padding from a size": {"a": "frozen by torch.conv2d"},
}
FROZEN: dict[str, tuple[str, ...]] = {"a conditional norm": NORMS} | dict.fromkeys(NO_LAYERS, ("torch.conv2d",))


@pytest.mark.parametrize("name", FORMS)
def test_form(name: str) -> None:
    check_op(FORMS[name], counted=name not in NO_LAYERS, frozen=FROZEN.get(name, ()), gates=GATES.get(name))


def test_what_comes_out_is_not_pruned() -> None:
    """However its positions are averaged."""

    class Head(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Conv2d(3, 8, 1), nn.Conv2d(8, 4, 1)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.b(self.a(x)).mean(axis=(2, 3))

    assert set(fxprune.wrap(Head(), 1 / 2, example_inputs=torch.zeros(2, 3, 4, 4)).gates) == {"a"}


def test_alpha_dropout_of_dead_channels_is_dead() -> None:
    net = sandwich(lambda n, x, y: F.alpha_dropout(x, 0.5, True)).train()
    wrapped = fxprune.wrap(net, 1 / 2, example_inputs=torch.randn(2, 3, 8, 10, dtype=torch.float64))
    check_gates(net, wrapped.analysis)
    wrapped.set_masks({"a": torch.tensor([True, False] * 4)})
    seen: list[torch.Tensor] = []
    wrapped.get_submodule("c").register_forward_pre_hook(lambda _, args: seen.append(args[0]))
    wrapped(torch.randn(2, 3, 8, 10, dtype=torch.float64))
    assert not seen[0][:, 1::2].any() and seen[0][:, ::2].any()


def test_a_constant_of_many_uses_is_computed_once() -> None:
    """Otherwise each step doubles the time: forty of them would never end."""

    def orthogonal(n: Any, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        weight = n.c.weight[:, :, 0, 0]
        for _ in range(40):
            weight = weight - 0.01 * weight @ weight.T @ weight
        return F.conv2d(x, (weight.T @ weight)[..., None, None]) + y

    check_op(orthogonal, gates={"c_conv2d": 8})


@pytest.mark.parametrize("noise", ["batch", "sample"])
def test_samples_that_do_not_lie_on_the_first_axis(noise: str) -> None:
    class Windows(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b, self.head = nn.Conv2d(3, 8, 1), nn.Linear(8, 8), nn.Linear(8, 2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = self.a(x).unflatten(2, (2, -1)).permute(0, 2, 3, 4, 1).flatten(0, 1)  # two windows of each sample
            return self.head(self.b(y)).mean((1, 2))

    model = Windows()
    wrapped = fxprune.wrap(model, 1 / 2, example_inputs=torch.zeros(2, 3, 4, 4), noise=noise).train()
    check_gates(model, wrapped.analysis, gates={"b": 8, "head": OUTPUT})
    assert wrapped(torch.randn(3, 3, 4, 4)).shape == (6, 2)
    wrapped.set_masks(random_masks(wrapped, 0.5, torch.Generator().manual_seed(0)))
    assert fxprune.export(wrapped).report.error < 1e-9
