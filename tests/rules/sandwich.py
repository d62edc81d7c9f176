"""A convolution, an op, a convolution: the smallest net in which a rule can go wrong."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

import fxprune
from tests.exactness import check_export, random_gates, random_masks
from tests.gates import Gates, check_gates
from tests.models import randomise

Form = Callable[[Any, torch.Tensor, torch.Tensor], torch.Tensor]  # the net, and what two convolutions computed


class Sandwich(nn.Module):
    """With everything that an op may need at hand."""

    def __init__(self, op: Form) -> None:
        super().__init__()
        self.op = op
        self.a, self.b = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(3, 8, 1)
        self.c, self.head = nn.Conv2d(8, 6, 1), nn.Conv2d(6, 4, 1)
        self.identity, self.prelu, self.norm = nn.Identity(), nn.PReLU(8), nn.BatchNorm2d(8)
        self.linear, self.instance, self.layer = nn.Linear(8, 8), nn.InstanceNorm2d(8, affine=True), nn.LayerNorm(8)
        self.group, self.group_of_layer, self.shuffle = nn.GroupNorm(4, 8), nn.GroupNorm(4, 8), nn.ChannelShuffle(2)
        self.words = nn.Embedding(2, 8)
        self.up, self.plain_norm = nn.ConvTranspose2d(8, 8, 3, 2, 1), nn.BatchNorm2d(8, affine=False)
        self.plain_group, self.pixels = nn.GroupNorm(2, 8, affine=False), nn.GroupNorm(4, 80)
        self.scale, self.shift = nn.Parameter(torch.ones(8)), nn.Parameter(torch.zeros(8))
        self.register_buffer("mean", torch.zeros(8))
        self.register_buffer("variance", torch.ones(8))
        self.register_buffer("index", torch.tensor([3, 0, 7, 1, 5, 2, 6, 4]))

    def grid(self, x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(self.shift[0] + x.mean((1, 2, 3)))[:, None, None, None].expand(-1, 8, 10, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(torch.relu(self.c(self.op(self, self.a(x), self.b(x)))))


def sandwich(op: Form) -> nn.Module:
    model = Sandwich(op).double().eval()
    randomise(model, torch.Generator().manual_seed(0))
    with torch.no_grad():
        model.variance.abs_().add_(0.5)
    return model


def check_op(op: Form, *, counted: bool = True, frozen: tuple[str, ...] = (), gates: Gates | None = None) -> None:
    """Exact at all batch sizes, and at all sizes that the model takes; freezes and gates are as declared."""
    model = sandwich(op)
    examples = [(torch.randn(batch, 3, 8, 10, dtype=torch.float64),) for batch in (2, 3)]
    wrapped = fxprune.wrap(model, 1 / 2, example_inputs=examples[0])
    check_gates(model, wrapped.analysis, frozen, gates)
    for size in ((8, 10), (10, 12), (11, 13), (6, 8)):
        other = torch.randn(2, 3, *size, dtype=torch.float64)
        try:
            expected = model(other), wrapped(other)
        except (RuntimeError, AssertionError, ValueError):
            continue  # the model takes sizes like the example's only
        torch.testing.assert_close(*expected)
        examples.append((other,))
    for density in (0.8, 0.5, 0.2, 0.0):
        generator = torch.Generator().manual_seed(int(10 * density))
        random_gates(wrapped, generator)
        wrapped.set_masks(random_masks(wrapped, density, generator))
        check_export(wrapped, examples, counted=counted)
