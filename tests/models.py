"""A zoo of small hand-written nets, one per way in which real ones move channels around.

``ZOO`` maps a name to a function without arguments that returns ``(model, example_inputs, other_inputs)``: a float64
model in eval mode with every parameter and buffer randomised, a tuple (or dict) of inputs, and a list of the same at
other batch and image sizes. Everything lives at module level, so that it can be pickled.
"""

from __future__ import annotations

import math
import random
from collections import namedtuple
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

Shapes = tuple[tuple[int, ...], ...]
Inputs = Any  # a tuple of tensors, or a dict of keyword arguments
SHAPE, OTHERS = (2, 3, 8, 10), ((1, 3, 12, 8), (3, 3, 16, 20))


@dataclass(frozen=True)
class Case:
    """A net of the zoo; calling it builds the net."""

    name: str
    build: Callable[[], nn.Module]
    shapes: Shapes
    others: tuple[Shapes, ...]
    keywords: tuple[str, ...] = ()
    frozen: bool = False  # some convolution must report a freeze
    branches: bool = False  # other image sizes must raise
    pickles: bool = True  # False: torch itself refuses to pickle the model
    leaf: bool = False  # some submodule must be kept as a leaf

    def __call__(self, seed: int = 0) -> tuple[nn.Module, Inputs, list[Inputs]]:
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            model = self.build().double().eval()
        generator = torch.Generator().manual_seed(seed + 1)
        randomise(model, generator)
        return model, self._inputs(self.shapes, generator), [self._inputs(other, generator) for other in self.others]

    def _inputs(self, shapes: Shapes, generator: torch.Generator) -> Inputs:
        tensors = tuple(torch.randn(*shape, generator=generator, dtype=torch.float64) for shape in shapes)
        return dict(zip(self.keywords, tensors, strict=True)) if self.keywords else tensors


ZOO: dict[str, Case] = {}


def net(*shapes: tuple[int, ...], others: tuple[Any, ...] = OTHERS, **flags: Any) -> Callable[[Any], Any]:
    """Register a class or function that builds a model; ``others`` holds one shape (or tuple of shapes) per entry."""

    def register(build: Any) -> Any:
        name = build.__name__
        assert name not in ZOO, name
        wide = tuple(other if isinstance(other[0], tuple) else (other,) for other in others)
        ZOO[name] = Case(name, build, shapes or (SHAPE,), wide, **flags)
        return build

    return register


@torch.no_grad()
def randomise(model: nn.Module, generator: torch.Generator) -> nn.Module:
    """Every parameter and buffer gets values that no symmetry, zero or one can hide behind."""

    def uniform(tensor: torch.Tensor, low: float, high: float) -> None:
        tensor.copy_(torch.rand(tensor.shape, generator=generator, dtype=tensor.dtype) * (high - low) + low)

    def normal(tensor: torch.Tensor, scale: float) -> None:
        tensor.copy_(torch.randn(tensor.shape, generator=generator, dtype=tensor.dtype) * scale)

    norms = (nn.modules.batchnorm._NormBase, nn.GroupNorm, nn.LayerNorm)
    for module in model.modules():
        for name, tensor in [*module._parameters.items(), *module._buffers.items()]:
            if tensor is None or not tensor.is_floating_point():
                continue
            if "var" in name or (isinstance(module, norms) and name == "weight"):
                uniform(tensor, 0.5, 1.5)
            elif name == "slope" or isinstance(module, nn.PReLU):
                uniform(tensor, 0.1, 0.5)
            elif "scale" in name:
                uniform(tensor, 0.5, 1.5)
            elif "blur" in name:
                uniform(tensor, 0.1, 0.3)
            elif tensor.ndim > 2:
                normal(tensor, 1.4 / math.sqrt(max(tensor[0].numel(), 1)))
            elif tensor.ndim == 2:
                normal(tensor, 1.4 / math.sqrt(tensor.shape[1]))
            else:
                normal(tensor, 0.3)
    return model


def cbr(i: int, o: int, k: int = 3, s: int = 1, g: int = 1) -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(i, o, k, s, k // 2, groups=g, bias=False), nn.BatchNorm2d(o), nn.ReLU())


def cb(i: int, o: int, k: int = 3, s: int = 1, g: int = 1) -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(i, o, k, s, k // 2, groups=g, bias=False), nn.BatchNorm2d(o))


class Wrap(nn.Module):
    """stem -> body -> head: what most nets below need around the part that they are about."""

    def __init__(self, body: nn.Module, width: int = 8, out: int | None = None, bias: bool = True) -> None:
        super().__init__()
        self.stem = cbr(3, width)
        self.body = body
        self.head = nn.Conv2d(width if out is None else out, 4, 1, bias=bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.body(self.stem(x)))


# -------------------------------------------------------------------- chains


@net()
def chain() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 6, 3, padding=1), nn.ReLU(), nn.Conv2d(6, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 4, 1)
    )


@net()
def chain_without_activations() -> nn.Module:
    return nn.Sequential(nn.Conv2d(3, 6, 3), nn.Conv2d(6, 8, 3, bias=False), nn.Conv2d(8, 4, 1))


@net(others=((1, 3, 8, 10), (5, 3, 8, 10)))
class vgg(nn.Module):
    """Flatten with a spatial size > 1 into linear layers."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(cbr(3, 6), nn.MaxPool2d(2), cbr(6, 8), nn.MaxPool2d(2))
        self.classifier = nn.Sequential(nn.Linear(8 * 2 * 2, 12), nn.ReLU(), nn.Dropout(), nn.Linear(12, 5))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.classifier(torch.flatten(self.features(x), 1))


@net(others=((1, 3, 8, 10), (5, 3, 8, 10)))
class flatten_by_view(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = cbr(3, 6, s=2), nn.Conv2d(6, 4, 3, padding=1)
        self.fc = nn.Linear(4 * 4 * 5, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.sigmoid(self.b(self.a(x)))
        return self.fc(x.view(-1, 4 * 4 * 5))


@net()
class mean_pooling(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = cbr(3, 6), cbr(6, 8)
        self.fc = nn.Sequential(nn.Linear(8, 10), nn.ReLU(), nn.Linear(10, 6), nn.Sigmoid(), nn.Linear(6, 5))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.fc(self.b(self.a(x)).mean([2, 3]))


@net()
class adaptive_pooling(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = cbr(3, 6), cbr(6, 8)
        self.pool, self.fc = nn.AdaptiveAvgPool2d(1), nn.Linear(8, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.fc(self.pool(self.b(self.a(x))).flatten(1))


@net()
def adaptive_pooling_larger() -> nn.Module:
    return nn.Sequential(cbr(3, 6), cbr(6, 8), nn.AdaptiveMaxPool2d((2, 3)), nn.Flatten(), nn.Linear(48, 5))


@net()
def odd_activations() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 6, 3, padding=1), nn.Softplus(), nn.Conv2d(6, 8, 3, padding=1), nn.Sigmoid(),
        nn.Conv2d(8, 6, 1), nn.BatchNorm2d(6), nn.Hardsigmoid(), nn.Conv2d(6, 8, 3, padding=1), nn.LogSigmoid(),
        nn.Conv2d(8, 4, 1),
    )  # fmt: skip


@net()
class functional_activations(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Conv2d(3, 6, 3, padding=1), nn.Conv2d(6, 8, 3, padding=1)
        self.c, self.d, self.e = nn.Conv2d(8, 6, 1), nn.Conv2d(6, 6, 3, padding=1), nn.Conv2d(6, 4, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.exp(-self.a(x).abs())
        x = F.softplus(self.b(x)).log()
        x = self.c(x).clamp(0.25, 2.0)
        x = torch.cos(self.d(x)) + 1
        return self.e(1 - x)


@net()
class exponentials(nn.Module):
    """exp, rsqrt and reciprocal of dead channels: infinity must not leak."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = nn.Conv2d(3, 6, 3, padding=1), nn.Conv2d(6, 8, 3, padding=1), nn.Conv2d(8, 4, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = 1 / (self.a(x).square() + 0.5)
        x = torch.rsqrt(self.b(x).abs() + 0.3)
        return self.c(x)


@net()
class logarithm(nn.Module):
    """log(0) = -inf in every dead channel."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Conv2d(3, 6, 3, padding=1), nn.Conv2d(6, 4, 3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.b(
            torch.log(torch.abs(self.a(x))).clamp(min=-3) + torch.sqrt(self.a(x).abs()).reciprocal().clamp(max=5)
        )


@net()
def prelu() -> nn.Module:
    return nn.Sequential(
        cb(3, 6), nn.PReLU(6), nn.Conv2d(6, 8, 3, padding=1), nn.PReLU(8), cb(8, 6), nn.PReLU(), nn.Conv2d(6, 4, 1)
    )


@net()
class prelu_functional(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = cb(3, 6), nn.Conv2d(6, 4, 1)
        self.slope = nn.Parameter(torch.rand(6))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.b(F.prelu(self.a(x), self.slope))


@net(others=((1, 3, 20, 16), (3, 3, 16, 24)))
def odd_convolutions() -> nn.Module:
    """Reflect, circular, replicate padding, dilation, stride > kernel."""
    return nn.Sequential(
        nn.Conv2d(3, 6, 3, padding=2, padding_mode="reflect"), nn.ReLU(),
        nn.Conv2d(6, 8, (3, 5), padding=(1, 2), padding_mode="circular"), nn.Sigmoid(),
        nn.Conv2d(8, 6, 3, padding=2, dilation=2, padding_mode="replicate"), nn.ReLU(),
        nn.Conv2d(6, 8, (1, 2), stride=(2, 3)), nn.Softplus(), nn.Conv2d(8, 6, 3, padding="same", dilation=(1, 2)),
        nn.ReLU(), nn.Conv2d(6, 4, 2, padding=1),
    )  # fmt: skip


@net()
class padding(nn.Module):
    """Asymmetric zero, constant and reflection padding between convolutions."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = nn.Conv2d(3, 6, 3), nn.Conv2d(6, 8, 3), nn.Conv2d(8, 6, 3)
        self.zero, self.reflect, self.d = (
            nn.ZeroPad2d((1, 0, 2, 1)),
            nn.ReflectionPad2d((2, 1, 0, 1)),
            nn.Conv2d(6, 4, 2),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.a(self.zero(x))
        x = self.b(F.pad(x, (0, 2, 1, 1), value=0.7))
        x = self.c(self.reflect(torch.sigmoid(x)))
        return self.d(F.pad(x, (1, 0, 0, 1), mode="replicate"))


@net()
def one_channel() -> nn.Module:
    return nn.Sequential(nn.Conv2d(3, 1, 3, padding=1), nn.Sigmoid(), nn.Conv2d(1, 6, 3, padding=1), nn.ReLU(),
                         nn.Conv2d(6, 1, 1), nn.BatchNorm2d(1), nn.ReLU(), nn.Conv2d(1, 4, 1))  # fmt: skip


@net((2, 1, 8, 10), others=((1, 1, 9, 7),))
def one_channel_input() -> nn.Module:
    return nn.Sequential(cbr(1, 6), cbr(6, 1), cbr(1, 6), nn.Conv2d(6, 1, 1))


@net((2, 3, 24), others=((1, 3, 17), (3, 3, 40)))
def one_dimension() -> nn.Module:
    return nn.Sequential(
        nn.Conv1d(3, 6, 5, padding=2), nn.BatchNorm1d(6), nn.ReLU(), nn.MaxPool1d(2), nn.Conv1d(6, 8, 3, dilation=2),
        nn.Sigmoid(), nn.ConvTranspose1d(8, 6, 3, stride=2), nn.GELU(), nn.AvgPool1d(2), nn.Conv1d(6, 4, 1),
    )  # fmt: skip


@net((2, 2, 6, 5, 4), others=((1, 2, 4, 7, 6),))
def three_dimensions() -> nn.Module:
    return nn.Sequential(
        nn.Conv3d(2, 6, 3, padding=1), nn.BatchNorm3d(6), nn.ReLU(), nn.Conv3d(6, 6, 3, padding=1, groups=6),
        nn.BatchNorm3d(6), nn.SiLU(), nn.AvgPool3d(2), nn.Conv3d(6, 5, 1), nn.Softplus(),
        nn.ConvTranspose3d(5, 4, 2, 2), nn.ReLU(), nn.Upsample(scale_factor=2, mode="trilinear"), nn.Conv3d(4, 3, 1),
    )  # fmt: skip


# -------------------------------------------------------------------- residual streams


class PostBlock(nn.Module):
    def __init__(self, i: int, o: int, s: int = 1) -> None:
        super().__init__()
        self.a, self.b = cbr(i, o, s=s), cb(o, o)
        self.short = nn.Identity() if i == o and s == 1 else cb(i, o, 1, s)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.relu(self.b(self.a(x)) + self.short(x))


@net()
def resnet() -> nn.Module:
    """Post-activation, with pooling blocks."""
    body = nn.Sequential(PostBlock(6, 6), PostBlock(6, 8, 2), PostBlock(8, 8), PostBlock(8, 6), PostBlock(6, 6))
    return nn.Sequential(cbr(3, 6), body, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(6, 5))


class PreBlock(nn.Module):
    def __init__(self, i: int, o: int, s: int = 1) -> None:
        super().__init__()
        self.n1, self.a, self.n2 = nn.BatchNorm2d(i), nn.Conv2d(i, o, 3, s, 1), nn.BatchNorm2d(o)
        self.b = nn.Conv2d(o, o, 3, 1, 1, bias=False)
        self.short = None if i == o and s == 1 else nn.Conv2d(i, o, 1, s)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = F.relu(self.n1(x))
        short = x if self.short is None else self.short(y)
        return self.b(F.relu(self.n2(self.a(y)))) + short


@net()
class preactivation(nn.Module):
    """Batch norm on the stream: a dead channel's bias would come back to life there."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 6, 3, padding=1)
        self.body = nn.Sequential(PreBlock(6, 6), PreBlock(6, 6), PreBlock(6, 8, 2), PreBlock(8, 8))
        self.norm, self.fc = nn.BatchNorm2d(8), nn.Linear(8, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.fc(F.relu(self.norm(self.body(self.stem(x)))).mean((2, 3)))


@net()
class inplace_residual(nn.Module):
    """relu_ changes x, which is read again."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.a, self.b, self.c = cb(3, 6), nn.Conv2d(6, 6, 3, padding=1), cb(6, 6), nn.Conv2d(6, 4, 1)
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.stem(x)
        y = self.relu(x)
        y = y + self.a(x)
        z = self.b(y).add_(x)
        z += 0.5 * y
        F.relu_(z)
        z.mul_(0.7).sub_(y)
        return self.c(z)


@net()
class option_a(nn.Module):
    """Zero-padded shortcut: strided slicing and padding along channels."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.a, self.b = cbr(3, 4), cbr(4, 8, s=2), cb(8, 8)
        self.c, self.d, self.head = cbr(8, 10, s=2), cb(10, 10), nn.Conv2d(10, 4, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.stem(x)
        x = F.relu(self.b(self.a(x)) + F.pad(x[:, :, ::2, ::2], (0, 0, 0, 0, 2, 2)))
        x = F.relu(self.d(self.c(x)) + F.pad(x[:, :, ::2, ::2], (0, 0, 0, 0, 0, 2), "constant", 0))
        return self.head(x)


@net()
class zero_cat_shortcut(nn.Module):
    """Option A written with a concatenation of zeros."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.a, self.head = cbr(3, 4), cb(4, 8, s=2), nn.Conv2d(8, 4, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.stem(x)
        y = F.avg_pool2d(x, 2)
        return self.head(torch.sigmoid(self.a(x) + torch.cat([y, torch.zeros_like(y)], 1)))


@net()
class joins(nn.Module):
    """maximum, minimum, where, sub, div between branches."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = cbr(3, 6)
        self.a, self.b, self.c, self.d = cb(6, 6), nn.Conv2d(6, 6, 1), nn.Conv2d(6, 6, 3, padding=1), cb(6, 6)
        self.e, self.f, self.head = nn.Conv2d(6, 6, 1), cb(6, 6), nn.Conv2d(6, 4, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.stem(x)
        a, b, c, d = self.a(x), self.b(x), self.c(x), self.d(x)
        m = torch.maximum(a, b) - torch.minimum(c, d)
        m = torch.where(a > 0, m, self.e(m))
        m = m / (1 + self.f(m).abs())
        return self.head(m - torch.max(a, d))


@net()
class division(nn.Module):
    """Dividing by a branch whose channels can die."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.a, self.b, self.head = cbr(3, 6), cb(6, 6), cb(6, 6), nn.Conv2d(6, 4, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.stem(x)
        return self.head(torch.div(self.a(x), self.b(x).abs() + 0.5) + self.a(x) / torch.exp(self.b(x)))


@net()
class where_mask(nn.Module):
    """where and masked_fill with a constant in the other branch."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.a, self.b, self.head = cbr(3, 6), cb(6, 6), cb(6, 6), nn.Conv2d(6, 4, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.stem(x)
        a = self.a(x)
        a = torch.where(a > 0.1, a, 0.3)
        b = self.b(a).masked_fill(a > 0.5, -0.2)
        return self.head(b + 0.25)


@net()
class gated_tanh(nn.Module):
    """WaveNet's sigmoid * tanh."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.a, self.b, self.skip, self.head = (
            cbr(3, 6),
            cb(6, 6),
            cb(6, 6),
            nn.Conv2d(6, 6, 1),
            nn.Conv2d(6, 4, 1),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.stem(x)
        return self.head(x + self.skip(torch.tanh(self.a(x)) * torch.sigmoid(self.b(x))))


@net()
class parameters(nn.Module):
    """Per-channel parameters added and multiplied, layer scale, a learned scalar."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.a, self.b, self.head = cbr(3, 6), nn.Conv2d(6, 6, 3, padding=1), cb(6, 6), nn.Conv2d(6, 4, 1)
        self.layer_scale = nn.Parameter(torch.ones(6, 1, 1))
        self.offset = nn.Parameter(torch.zeros(1, 6, 1, 1))
        self.gain = nn.Parameter(torch.ones(()))
        self.register_buffer("mean", torch.zeros(1, 3, 1, 1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.stem(x - self.mean)
        x = x + self.layer_scale * self.a(x)
        x = self.b(x + self.offset) * self.gain + x
        return self.head(x * self.layer_scale.abs().reshape(1, 6, 1, 1) - self.offset)


# -------------------------------------------------------------------- concatenations


@net()
class densenet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 6, 3, padding=1)
        widths = [6, 10, 14]
        self.layers = nn.ModuleList(
            nn.Sequential(nn.BatchNorm2d(w), nn.ReLU(), nn.Conv2d(w, 8, 1), nn.BatchNorm2d(8), nn.ReLU(), cb(8, 4)[0])
            for w in widths
        )
        self.transition = nn.Sequential(nn.BatchNorm2d(18), nn.ReLU(), nn.Conv2d(18, 9, 1), nn.AvgPool2d(2))
        self.norm, self.fc = nn.BatchNorm2d(9), nn.Linear(9, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        features = [self.stem(x)]
        for layer in self.layers:
            features.append(layer(torch.cat(features, 1)))
        x = self.transition(torch.cat(features, 1))
        return self.fc(F.adaptive_avg_pool2d(F.relu(self.norm(x)), (1, 1)).view(x.size(0), -1))


@net()
class inception(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem, self.a, self.b = cbr(3, 6), cbr(6, 4, 1), nn.Sequential(cbr(6, 4, 1), cbr(4, 6))
        self.c, self.d = nn.Sequential(cbr(6, 4, 1), cbr(4, 4, 5)), cbr(6, 3, 1)
        self.tail, self.fc = cbr(17, 6), nn.Linear(6, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.stem(x)
        x = torch.cat([self.a(x), self.b(x), self.c(x), self.d(F.max_pool2d(x, 3, 1, 1))], dim=-3)
        return self.fc(self.tail(x).mean((-2, -1)))


@net()
class ghost(nn.Module):
    """A convolution and a depthwise one of it, concatenated."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.a, self.cheap = cbr(3, 6), cbr(6, 4, 1), cbr(4, 4, 3, g=4)
        self.b, self.cheap2, self.head = cb(8, 3, 1), cb(3, 3, 3, g=3), nn.Conv2d(6, 4, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.stem(x)
        y = self.a(x)
        y = torch.cat([y, self.cheap(y)], 1)
        z = self.b(y)
        z = torch.cat([z, self.cheap2(z)], 1)[:, :6]
        return self.head(z + x)


@net((2, 3, 8, 12))
class unet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.d1, self.d2, self.d3 = cbr(3, 4), cbr(4, 6), cbr(6, 8)
        self.up2, self.u2 = nn.ConvTranspose2d(8, 6, 2, stride=2), cbr(12, 6)
        self.up1, self.u1 = nn.ConvTranspose2d(6, 4, 3, stride=2, padding=1, output_padding=1, bias=False), cbr(8, 4)
        self.head = nn.Conv2d(4, 2, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        a = self.d1(x)
        b = self.d2(F.max_pool2d(a, 2))
        c = self.d3(F.max_pool2d(b, 2))
        y = self.u2(torch.cat([self.up2(c), b], 1))
        return torch.sigmoid(self.head(self.u1(torch.cat([a, self.up1(y)], dim=1))))


@net(others=((1, 3, 11, 9), (3, 3, 7, 13)))
class unet_resize(nn.Module):
    """Interpolates to the size of the skip connection; odd sizes."""

    def __init__(self) -> None:
        super().__init__()
        self.d1, self.d2, self.d3 = cbr(3, 4), cbr(4, 6, s=2), cbr(6, 8, s=2)
        self.u2, self.u1, self.head = cbr(14, 6), cbr(10, 4), nn.Conv2d(4, 2, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        a = self.d1(x)
        b = self.d2(a)
        c = self.d3(b)
        c = F.interpolate(c, size=b.shape[-2:], mode="bilinear", align_corners=False)
        y = self.u2(torch.cat([c, b], 1))
        y = F.interpolate(y, size=(a.size(2), a.shape[3]), mode="nearest")
        return F.interpolate(self.head(self.u1(torch.cat([y, a], 1))), size=x.shape[2:], mode="bicubic")


@net()
class grouped_transposed(nn.Module):
    """Grouped and depthwise transposed convolutions."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.a = cbr(3, 8), nn.ConvTranspose2d(8, 12, 3, stride=2, groups=4)
        self.b, self.c = nn.ConvTranspose2d(12, 12, 2, groups=12), nn.ConvTranspose2d(12, 6, 1, dilation=2)
        self.head = nn.Conv2d(6, 4, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.sigmoid(self.a(self.stem(x)))
        x = F.relu(self.b(x))
        return self.head(F.relu(self.c(x, output_size=None)))


@net()
class cat_batch(nn.Module):
    """Two branches run as one batch, then taken apart."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.a, self.shared, self.head = cbr(3, 6), cb(6, 6), cbr(6, 6), nn.Conv2d(12, 4, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.stem(x)
        y = self.shared(torch.cat([x, torch.sigmoid(self.a(x))], dim=0))
        left, right = y.chunk(2, dim=0)
        return self.head(torch.cat([left, right - left], 1))


@net()
class cat_space(nn.Module):
    """Feature maps side by side, with different living channels in each."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.a, self.b, self.c, self.head = cbr(3, 6), cbr(6, 6), cb(6, 6), cbr(6, 6), nn.Conv2d(6, 4, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.stem(x)
        y = torch.cat([self.a(x), self.b(x)], dim=2)
        y = torch.cat([y, torch.sigmoid(y)], -1)
        return self.head(self.c(y))


# -------------------------------------------------------------------- attention


@net()
class squeeze_excite(nn.Module):
    """In convolution form, on a depthwise inverted residual."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.expand, self.dw = cbr(3, 6), cbr(6, 12, 1), cbr(12, 12, 3, g=12)
        self.reduce, self.excite = nn.Conv2d(12, 4, 1), nn.Conv2d(4, 12, 1)
        self.project, self.head = cb(12, 6, 1), nn.Conv2d(6, 4, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.stem(x)
        y = self.dw(self.expand(x))
        s = F.adaptive_avg_pool2d(y, 1)
        y = y * torch.sigmoid(self.excite(F.silu(self.reduce(s))))
        return self.head(x + self.project(y))


@net()
class squeeze_excite_linear(nn.Module):
    """view(b, c), Linear, view(b, c, 1, 1), expand_as."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.a = cbr(3, 6), cb(6, 8)
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Sequential(nn.Linear(8, 4, bias=False), nn.ReLU(), nn.Linear(4, 8), nn.Sigmoid())
        self.b, self.head = cbr(8, 6), nn.Conv2d(6, 4, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.stem(x)
        y = self.a(x)
        b, c, _, _ = y.size()
        s = self.fc(self.pool(y).view(b, c)).view(b, c, 1, 1)
        return self.head(x + self.b(y * s.expand_as(y)))


@net()
class efficient_attention(nn.Module):
    """ECA: a 1-D convolution along the channels."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.a, self.head = cbr(3, 6), cb(6, 8), nn.Conv2d(8, 4, 1)
        self.eca = nn.Conv1d(1, 1, 3, padding=1, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.a(self.stem(x))
        s = y.mean((2, 3), keepdim=True)
        s = self.eca(s.squeeze(-1).transpose(-1, -2)).transpose(-1, -2).unsqueeze(-1)
        return self.head(F.relu(y * torch.sigmoid(s).expand_as(y)))


@net()
class cbam(nn.Module):
    """Mean and maximum over space, then over channels."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.a, self.head = cbr(3, 6), cb(6, 8), nn.Conv2d(8, 4, 1)
        self.fc = nn.Sequential(nn.Conv2d(8, 4, 1, bias=False), nn.ReLU(), nn.Conv2d(4, 8, 1, bias=False))
        self.spatial = nn.Conv2d(2, 1, 3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.a(self.stem(x))
        y = y * torch.sigmoid(self.fc(F.adaptive_avg_pool2d(y, 1)) + self.fc(F.adaptive_max_pool2d(y, 1)))
        m, _ = torch.max(y, dim=1, keepdim=True)
        y = y * torch.sigmoid(self.spatial(torch.cat([torch.mean(y, dim=1, keepdim=True), m], 1)))
        return self.head(y)


@net()
class channel_statistics(nn.Module):
    """Reductions over the channel axis of every kind."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.a, self.head = cbr(3, 6), cb(6, 8), nn.Conv2d(8, 4, 1)
        self.b = nn.Conv2d(7, 8, 3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.a(self.stem(x))
        parts = [
            y.sum(1, keepdim=True),
            y.amax(1, keepdim=True),
            y.min(dim=1, keepdim=True).values,
            y.mean(1).unsqueeze(1),
        ]
        parts += [y.std(1, keepdim=True), y.norm(dim=1, keepdim=True), torch.logsumexp(y, 1, keepdim=True)]
        return self.head(y + self.b(torch.cat(parts, 1)))


@net()
class non_local(nn.Module):
    """Spatial self-attention: view, permute, matmul, softmax."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.q, self.k, self.v = cbr(3, 6), nn.Conv2d(6, 4, 1), nn.Conv2d(6, 4, 1), nn.Conv2d(6, 5, 1)
        self.out, self.head = cb(5, 6, 1), nn.Conv2d(6, 4, 1)
        self.gain = nn.Parameter(torch.ones(1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.stem(x)
        b, _, h, w = x.shape
        q = self.q(x).view(b, -1, h * w).permute(0, 2, 1)
        k = self.k(x).view(b, 4, h * w)
        attention = torch.softmax(torch.bmm(q, k) / 2, dim=-1)
        v = self.v(x).flatten(2).transpose(1, 2)
        y = (attention @ v).transpose(1, 2).contiguous().view(b, 5, h, w)
        return self.head(x + self.gain * self.out(y))


@net()
class gram(nn.Module):
    """Channel attention: matmul over space gives channels x channels (DANet)."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.a, self.head = cbr(3, 6), cb(6, 8), nn.Conv2d(8, 4, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.a(self.stem(x))
        b, c, h, w = y.size()
        q, k = y.view(b, c, -1), y.view(b, c, -1).permute(0, 2, 1)
        energy = torch.bmm(q, k) / (h * w)
        attention = torch.softmax(torch.max(energy, -1, keepdim=True)[0].expand_as(energy) - energy, dim=-1)
        return self.head(y + torch.bmm(attention, q).view(b, c, h, w))


@net()
class context(nn.Module):
    """GCNet: a softmax over positions, a matmul that pools, layer norm on the context."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.mask, self.head = cbr(3, 6), nn.Conv2d(6, 1, 1), nn.Conv2d(6, 4, 1)
        self.add = nn.Sequential(nn.Conv2d(6, 4, 1), nn.LayerNorm([4, 1, 1]), nn.ReLU(), nn.Conv2d(4, 6, 1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.stem(x)
        b, c, h, w = x.shape
        mask = self.mask(x).view(b, 1, h * w, 1).softmax(2)
        pooled = torch.matmul(x.view(b, c, h * w).unsqueeze(1), mask).view(b, c, 1, 1)
        return self.head(x + self.add(pooled))


@net()
class selective_kernels(nn.Module):
    """Stacked branches, softmax over branches, sum."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.a, self.b = cbr(3, 6), cbr(6, 8, 3), cbr(6, 8, 5)
        self.reduce = nn.Sequential(nn.Linear(8, 4), nn.ReLU())
        self.heads = nn.ModuleList([nn.Linear(4, 8), nn.Linear(4, 8)])
        self.head = nn.Conv2d(8, 4, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.stem(x)
        branches = torch.stack([self.a(x), self.b(x)], dim=1)
        z = self.reduce(branches.sum(1).mean((-1, -2)))
        weights = torch.softmax(torch.stack([head(z) for head in self.heads], 1), dim=1)
        return self.head((branches * weights[:, :, :, None, None]).sum(dim=1))


@net()
class split_attention(nn.Module):
    """ResNeSt: view to five dimensions, sum over the radix."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.a = cbr(3, 6), cbr(6, 12, 3, g=2)
        self.fc1, self.fc2 = nn.Sequential(nn.Conv2d(6, 4, 1), nn.BatchNorm2d(4), nn.ReLU()), nn.Conv2d(4, 12, 1)
        self.project, self.head = cb(6, 6, 1), nn.Conv2d(6, 4, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.stem(x)
        y = self.a(x)
        b, c, h, w = y.shape
        y = y.reshape(b, 2, c // 2, h, w)
        gap = F.adaptive_avg_pool2d(y.sum(dim=1), 1)
        attention = self.fc2(self.fc1(gap)).view(b, 1, 2, -1).transpose(1, 2)
        attention = F.softmax(attention, dim=1).reshape(b, -1, 1, 1)
        y = (y * attention.reshape(b, 2, c // 2, 1, 1)).sum(dim=1).contiguous()
        return self.head(x + self.project(y))


@net()
class multi_head(nn.Module):
    """Attention with heads over tokens, qkv by one 1x1 convolution."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.qkv, self.out, self.head = (
            cbr(3, 8),
            nn.Conv2d(8, 24, 1),
            nn.Conv2d(8, 8, 1),
            nn.Conv2d(8, 4, 1),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.stem(x)
        b, c, h, w = x.shape
        q, k, v = self.qkv(x).reshape(b, 3, 2, c // 2, h * w).unbind(1)
        attention = torch.softmax(q.transpose(-2, -1) @ k * 0.5, dim=-1)
        y = (v @ attention.transpose(-2, -1)).reshape(b, c, h, w)
        return self.head(x + self.out(y))


@net(frozen=True)
class einsum(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem, self.a, self.b = cbr(3, 6), cbr(6, 6), cb(6, 5)
        self.matrix, self.head = nn.Parameter(torch.rand(6, 5)), nn.Conv2d(6, 4, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.a(self.stem(x))
        return self.head(torch.einsum("bdhw,cd->bchw", self.b(x), self.matrix) + x)


# -------------------------------------------------------------------- depthwise, groups, shuffles, splits


class InvertedResidual(nn.Module):
    def __init__(self, i: int, o: int, s: int) -> None:
        super().__init__()
        self.expand, self.dw, self.project = cbr(i, 2 * i, 1), cbr(2 * i, 2 * i, 3, s, 2 * i), cb(2 * i, o, 1)
        self.residual = i == o and s == 1

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.project(self.dw(self.expand(x)))
        return x + y if self.residual else y


@net()
def mobilenet() -> nn.Module:
    return nn.Sequential(
        cbr(3, 6), cbr(6, 6, 3, g=6), InvertedResidual(6, 6, 1), InvertedResidual(6, 8, 2), InvertedResidual(8, 8, 1),
        nn.Conv2d(8, 4, 1),
    )  # fmt: skip


@net()
def depthwise_multiplier() -> nn.Module:
    return nn.Sequential(
        cbr(3, 5), nn.Conv2d(5, 10, 3, padding=1, groups=5), nn.BatchNorm2d(10), nn.Sigmoid(), cbr(10, 6, 1),
        nn.Conv2d(6, 12, 3, padding=1, groups=6), nn.ReLU(), nn.Conv2d(12, 12, 3, padding=1, groups=12, bias=False),
        nn.Conv2d(12, 4, 1),
    )  # fmt: skip


@net()
def depthwise_on_input() -> nn.Module:
    """Depthwise on the image itself and as the last layer."""
    return nn.Sequential(nn.Conv2d(3, 6, 3, padding=1, groups=3), nn.ReLU(), cbr(6, 6), nn.Conv2d(6, 6, 3, groups=6))


@net()
def resnext() -> nn.Module:
    return nn.Sequential(cbr(3, 8), Bottleneck(8, 8, 4), Bottleneck(8, 12, 2), nn.Conv2d(8, 4, 1))


class Bottleneck(nn.Module):
    def __init__(self, width: int, inner: int, groups: int) -> None:
        super().__init__()
        self.a, self.b, self.c = cbr(width, inner, 1), cbr(inner, inner, 3, g=groups), cb(inner, width, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.relu(x + self.c(self.b(self.a(x))))


@net()
def uneven_groups() -> nn.Module:
    """Grouped convolutions in a row, of different group counts and widths."""
    return nn.Sequential(
        cbr(3, 8), nn.Conv2d(8, 12, 3, padding=1, groups=4), nn.Sigmoid(), nn.Conv2d(12, 6, 1, groups=2), nn.ReLU(),
        nn.Conv2d(6, 12, 3, groups=3, bias=False), nn.BatchNorm2d(12), nn.ReLU(), nn.Conv2d(12, 4, 1, groups=4),
    )  # fmt: skip


def shuffle(x: torch.Tensor, groups: int) -> torch.Tensor:
    b, c, h, w = x.size()
    return torch.transpose(x.view(b, groups, c // groups, h, w), 1, 2).contiguous().view(b, -1, h, w)


class Shuffle1(nn.Module):
    def __init__(self, width: int, groups: int) -> None:
        super().__init__()
        self.groups = groups
        self.a, self.dw, self.b = (
            cbr(width, width, 1, g=groups),
            cb(width, width, 3, g=width),
            cb(width, width, 1, g=groups),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.relu(x + self.b(self.dw(shuffle(self.a(x), self.groups))))


@net()
def shufflenet_v1() -> nn.Module:
    return nn.Sequential(cbr(3, 8), Shuffle1(8, 2), Shuffle1(8, 4), nn.ChannelShuffle(2), nn.Conv2d(8, 4, 1))


class Shuffle2(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        half = width // 2
        self.branch = nn.Sequential(cbr(half, half, 1), cb(half, half, 3, g=half), cbr(half, half, 1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        a, b = x.chunk(2, dim=1)
        return shuffle(torch.cat((a, self.branch(b)), dim=1), 2)


class Shuffle2Down(nn.Module):
    def __init__(self, i: int, o: int) -> None:
        super().__init__()
        self.a = nn.Sequential(cb(i, i, 3, 2, i), cbr(i, o // 2, 1))
        self.b = nn.Sequential(cbr(i, o // 2, 1), cb(o // 2, o // 2, 3, 2, o // 2), cbr(o // 2, o // 2, 1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return shuffle(torch.cat((self.a(x), self.b(x)), dim=1), 2)


@net()
def shufflenet_v2() -> nn.Module:
    return nn.Sequential(
        cbr(3, 6), Shuffle2Down(6, 8), Shuffle2(8), Shuffle2(8), Shuffle2(8), nn.Conv2d(8, 6, 1),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(6, 5),
    )  # fmt: skip


@net()
class res2net(nn.Module):
    """Splits with a running sum."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.a = cbr(3, 6), cbr(6, 12, 1)
        self.convs = nn.ModuleList(cbr(3, 3) for _ in range(3))
        self.b, self.head = cb(12, 6, 1), nn.Conv2d(6, 4, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.stem(x)
        parts = torch.split(self.a(x), 3, 1)
        done, running = [parts[0]], None
        for conv, part in zip(self.convs, parts[1:], strict=True):
            running = conv(part if running is None else running + part)
            done.append(running)
        return self.head(F.relu(x + self.b(torch.cat(done, 1))))


@net()
class csp(nn.Module):
    """Split, a residual stream in one half, concatenation (C2f collects every step)."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.a = cbr(3, 6), cbr(6, 8, 1)
        self.steps = nn.ModuleList(nn.Sequential(cbr(4, 4), cbr(4, 4)) for _ in range(2))
        self.b, self.head = cbr(16, 6, 1), nn.Conv2d(6, 4, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = list(self.a(self.stem(x)).split((4, 4), 1))
        y.extend(y[-1] + step(y[-1]) for step in self.steps)
        return self.head(self.b(torch.cat(y, 1)))


@net()
class mixconv(nn.Module):
    """A split of channels over depthwise kernels of different size."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.a, self.head = cbr(3, 6), cbr(6, 9, 1), nn.Conv2d(9, 4, 1)
        self.sizes = [4, 3, 2]
        self.convs = nn.ModuleList(
            nn.Conv2d(n, n, k, padding=k // 2, groups=n) for n, k in zip(self.sizes, (3, 5, 1), strict=True)
        )
        self.norm = nn.BatchNorm2d(9)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.split(self.a(self.stem(x)), self.sizes, dim=1)
        y = torch.cat([conv(part) for conv, part in zip(self.convs, y, strict=True)], 1)
        return self.head(torch.sigmoid(self.norm(y)))


@net()
class slices(nn.Module):
    """Channel slices, flips, rolls, repeats and an interleaved selection."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.a, self.b, self.head = cbr(3, 8), cb(8, 8), nn.Conv2d(12, 6, 1), nn.Conv2d(6, 4, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.stem(x)
        y = self.a(x)
        y = torch.sigmoid(y[:, ::2]) * y[:, 1::2] + x[:, -4:] - x.narrow(1, 1, 4)
        y = torch.cat([y, torch.flip(y, [1]), torch.roll(y, 1, 1)], 1)
        z = self.b(y) + y[:, :3].repeat(1, 2, 1, 1) - y[:, 3:6].repeat_interleave(2, dim=1)
        return self.head(z)


class OctaveConv(nn.Module):
    def __init__(self, ih: int, il: int, oh: int, ol: int) -> None:
        super().__init__()
        self.hh, self.hl = nn.Conv2d(ih, oh, 3, padding=1), nn.Conv2d(ih, ol, 3, padding=1)
        self.lh, self.ll = nn.Conv2d(il, oh, 3, padding=1), nn.Conv2d(il, ol, 3, padding=1)
        self.nh, self.nl = nn.BatchNorm2d(oh), nn.BatchNorm2d(ol)

    def forward(self, pair: tuple[torch.Tensor, torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
        h, low = pair
        oh = self.hh(h) + F.interpolate(self.lh(low), scale_factor=2)
        ol = self.ll(low) + self.hl(F.avg_pool2d(h, 2))
        return F.relu(self.nh(oh)), F.relu(self.nl(ol))


@net()
class octave(nn.Module):
    """Features travel as tuples of two resolutions."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.low = cbr(3, 5), cbr(3, 4, s=2)
        self.a, self.b, self.head = OctaveConv(5, 4, 6, 4), OctaveConv(6, 4, 6, 3), nn.Conv2d(9, 4, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h, low = self.b(self.a((self.stem(x), self.low(x))))
        return self.head(torch.cat([F.max_pool2d(h, 2), low], 1))


@net()
class glu(nn.Module):
    """F.glu, nn.GLU and a chunked one."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.a, self.b, self.c = cbr(3, 6), nn.Conv2d(6, 12, 3, padding=1), cb(6, 8), nn.Conv2d(4, 12, 1)
        self.glu, self.head = nn.GLU(dim=1), nn.Conv2d(6, 4, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.stem(x)
        x = x + F.glu(self.a(x), dim=1)
        y = self.glu(self.b(x))
        left, right = torch.chunk(self.c(y), 2, 1)
        return self.head(left * right.sigmoid() + x)


@net()
class simple_gate(nn.Module):
    """NAFNet: x1 * x2 without any activation, simplified channel attention, scaled residuals."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.norm, self.a, self.dw = (
            nn.Conv2d(3, 6, 3, padding=1),
            nn.BatchNorm2d(6),
            nn.Conv2d(6, 12, 1),
            nn.Conv2d(12, 12, 3, 1, 1, groups=12),
        )
        self.sca, self.b, self.head = (
            nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Conv2d(6, 6, 1)),
            nn.Conv2d(6, 6, 1),
            nn.Conv2d(6, 4, 1),
        )
        self.beta_scale = nn.Parameter(torch.zeros(1, 6, 1, 1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.stem(x)
        y = self.dw(self.a(self.norm(x)))
        y1, y2 = y.chunk(2, dim=1)
        y = y1 * y2
        y = self.b(y * self.sca(y))
        return self.head(x + y * self.beta_scale)


# -------------------------------------------------------------------- norms


@net()
def group_norm() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), nn.GroupNorm(4, 8), nn.ReLU(), nn.Conv2d(8, 6, 3, padding=1), nn.GroupNorm(6, 6),
        nn.ReLU(), nn.Conv2d(6, 6, 1), nn.GroupNorm(1, 6), nn.ReLU(), nn.Conv2d(6, 4, 1),
    )  # fmt: skip


@net()
class group_norm_residual(nn.Module):
    """Group norm on a stream and behind a concatenation."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.a, self.n, self.b = (
            nn.Conv2d(3, 6, 3, padding=1),
            nn.Conv2d(6, 6, 1),
            nn.GroupNorm(3, 6),
            nn.Conv2d(6, 6, 1),
        )
        self.m, self.head = nn.GroupNorm(4, 12), nn.Conv2d(12, 4, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.stem(x)
        x = x + self.a(x)
        x = self.n(x)
        return self.head(F.relu(self.m(torch.cat([x, self.b(x)], 1))))


@net()
def instance_norm() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 6, 3, padding=1), nn.InstanceNorm2d(6, affine=True), nn.ReLU(), nn.Conv2d(6, 8, 3, padding=1),
        nn.InstanceNorm2d(8), nn.ReLU(), nn.Conv2d(8, 6, 1),
        nn.InstanceNorm2d(6, affine=True, track_running_stats=True), nn.Softplus(), nn.Conv2d(6, 4, 1),
    )  # fmt: skip


class ConvNeXtBlock(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.dw, self.norm = nn.Conv2d(width, width, 3, padding=1, groups=width), nn.LayerNorm(width)
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)
        self.layer_scale = nn.Parameter(torch.ones(width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.norm(self.dw(x).permute(0, 2, 3, 1))
        y = self.layer_scale * self.down(F.gelu(self.up(y)))
        return x + y.permute(0, 3, 1, 2)


class LayerNormFirst(nn.Module):
    """Channels-first layer norm by hand."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.scale, self.bias = nn.Parameter(torch.ones(width)), nn.Parameter(torch.zeros(width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        u = x.mean(1, keepdim=True)
        s = (x - u).pow(2).mean(1, keepdim=True)
        x = (x - u) / torch.sqrt(s + 1e-6)
        return self.scale[:, None, None] * x + self.bias[:, None, None]


class LayerNormLast(nn.LayerNorm):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.layer_norm(x.permute(0, 2, 3, 1), self.normalized_shape, self.weight, self.bias, self.eps)
        return x.permute(0, 3, 1, 2)


@net()
def convnext() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 6, 2, 2), LayerNormLast(6), ConvNeXtBlock(6), ConvNeXtBlock(6), LayerNormFirst(6),
        nn.Conv2d(6, 8, 2, 2), ConvNeXtBlock(8), nn.AdaptiveAvgPool2d(1), LayerNormFirst(8),
        nn.Flatten(), nn.Linear(8, 5),
    )  # fmt: skip


@net()
def layer_norm_by_hand() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 6, 3, padding=1),
        LayerNormFirst(6),
        nn.ReLU(),
        nn.Conv2d(6, 6, 1),
        LayerNormFirst(6),
        nn.Conv2d(6, 4, 1),
    )


class FrozenBatchNorm(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        for name in ("weight", "bias", "running_mean", "running_var"):
            self.register_buffer(name, torch.rand(width) + 0.5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        w, b = self.weight.reshape(1, -1, 1, 1), self.bias.reshape(1, -1, 1, 1)
        rv, rm = self.running_var.reshape(1, -1, 1, 1), self.running_mean.reshape(1, -1, 1, 1)
        scale = w * (rv + 1e-5).rsqrt()
        return x * scale + (b - rm * scale)


@net()
def frozen_batch_norm() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 6, 3, padding=1), FrozenBatchNorm(6), nn.ReLU(), PostFrozen(6), nn.Conv2d(6, 4, 1)
    )


class PostFrozen(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.a, self.n = nn.Conv2d(width, width, 3, padding=1), FrozenBatchNorm(width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.relu(x + self.n(self.a(x)))


@net()
class functional_norm(nn.Module):
    """F.batch_norm and F.dropout with self.training; F.instance_norm, F.group_norm."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c, self.head = (
            nn.Conv2d(3, 6, 3, padding=1),
            nn.Conv2d(6, 8, 1),
            nn.Conv2d(8, 6, 1),
            nn.Conv2d(6, 4, 1),
        )
        self.norm_scale, self.bias = nn.Parameter(torch.ones(6)), nn.Parameter(torch.zeros(6))
        self.register_buffer("mean", torch.zeros(6))
        self.register_buffer("var", torch.ones(6))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.batch_norm(self.a(x), self.mean, self.var, self.norm_scale, self.bias, self.training, 0.1, 1e-5)
        x = F.dropout(F.relu(x), 0.5, self.training)
        x = F.instance_norm(self.b(x))
        x = F.group_norm(self.c(F.dropout2d(x, training=self.training)), 3)
        if self.training:
            x = x + 1
        return self.head(F.relu(x))


@net()
def batch_norm_without_affine() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 6, 3), nn.BatchNorm2d(6, affine=False), nn.ReLU(), nn.Conv2d(6, 6, 1),
        nn.BatchNorm2d(6, track_running_stats=False), nn.ReLU(), nn.LocalResponseNorm(3), nn.Conv2d(6, 4, 1),
    )  # fmt: skip


@net()
class normalised(nn.Module):
    """L2 normalisation and softmax over the channels."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.head = cbr(3, 6), nn.Conv2d(6, 6, 1), nn.Conv2d(6, 4, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.normalize(self.a(x), dim=1)
        x = x * torch.softmax(self.b(x), 1)
        return self.head(x / (x.norm(dim=1, keepdim=True) + 0.1))


# -------------------------------------------------------------------- resolution


@net()
class pixel_shuffle(nn.Module):
    """Super-resolution with a global skip."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.a, self.b = (
            nn.Conv2d(3, 6, 3, padding=1),
            nn.Conv2d(6, 6, 3, padding=1),
            nn.Conv2d(6, 6, 3, padding=1),
        )
        self.up, self.shuffle, self.mid, self.last = (
            nn.Conv2d(6, 16, 3, padding=1),
            nn.PixelShuffle(2),
            nn.Conv2d(4, 12, 3, padding=1),
            nn.Conv2d(3, 3, 1),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.stem(x)
        y = y + self.b(F.relu(self.a(y)))
        y = torch.sigmoid(self.shuffle(self.up(y)))
        y = F.pixel_shuffle(self.mid(y), 2)
        return self.last(y) + F.interpolate(x, scale_factor=4, mode="bilinear")


@net((2, 3, 8, 12))
class pixel_unshuffle(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c, self.head = cbr(12, 6), nn.Conv2d(6, 3, 1), cbr(12, 8), nn.Conv2d(8, 4, 1)
        self.unshuffle = nn.PixelUnshuffle(2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.softplus(self.b(self.a(self.unshuffle(x))))
        return F.pixel_shuffle(self.head(self.c(F.pixel_unshuffle(x, 2))), 2)


@net((2, 3, 8, 12))
class focus(nn.Module):
    """Space to depth by strided slices (YOLOv5), patch merging by reshape (Swin)."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = cbr(12, 4), cbr(16, 6, 1), nn.Conv2d(6, 4, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.cat([x[..., ::2, ::2], x[..., 1::2, ::2], x[..., ::2, 1::2], x[..., 1::2, 1::2]], 1)
        x = self.a(x)
        b, c, h, w = x.shape
        x = x.reshape(b, c, h // 2, 2, w // 2, 2).permute(0, 1, 3, 5, 2, 4).reshape(b, 4 * c, h // 2, w // 2)
        return self.c(self.b(x))


@net()
class unpool(nn.Module):
    """Max-pooling with indices and its inverse."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = cbr(3, 6), cbr(6, 6), cbr(6, 6)
        self.pool, self.unpool, self.head = nn.MaxPool2d(2, return_indices=True), nn.MaxUnpool2d(2), nn.Conv2d(6, 4, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x, indices = self.pool(self.a(x))
        return self.head(self.c(self.unpool(self.b(x), indices)))


@net()
class blur_pool(nn.Module):
    """F.conv2d on a buffer, depthwise, with reflection padding."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.head = cbr(3, 6), cb(6, 8), nn.Conv2d(8, 4, 1)
        self.register_buffer("blur6", torch.rand(6, 1, 3, 3))
        self.register_buffer("blur", torch.rand(1, 1, 3, 3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.a(x)
        x = F.conv2d(F.pad(x, (1, 1, 1, 1), mode="reflect"), self.blur6, stride=2, groups=x.shape[1])
        x = torch.sigmoid(self.b(x))
        x = F.conv2d(x, self.blur.expand(8, -1, -1, -1), padding=1, groups=8)
        return self.head(x)


# -------------------------------------------------------------------- sharing


@net()
class fpn(nn.Module):
    """One module called three times, a dict of outputs."""

    def __init__(self) -> None:
        super().__init__()
        self.c1, self.c2, self.c3 = cbr(3, 4), cbr(4, 6, s=2), cbr(6, 8, s=2)
        self.l1, self.l2, self.l3 = nn.Conv2d(4, 6, 1), nn.Conv2d(6, 6, 1), nn.Conv2d(8, 6, 1)
        self.smooth, self.tower = nn.Conv2d(6, 6, 3, padding=1), nn.Sequential(cbr(6, 6), nn.Conv2d(6, 4, 1))
        self.score = nn.Conv2d(6, 2, 3, padding=1)

    def forward(self, x: torch.Tensor) -> dict[str, Any]:
        a = self.c1(x)
        b = self.c2(a)
        c = self.c3(b)
        p3 = self.l3(c)
        p2 = self.l2(b) + F.interpolate(p3, size=b.shape[-2:])
        p1 = self.l1(a) + F.interpolate(p2, scale_factor=2.0, mode="nearest")
        levels = [self.smooth(p) for p in (p1, p2, p3)]
        return {
            "boxes": [self.tower(p) for p in levels],
            "scores": {str(n): self.score(F.relu(p)) for n, p in enumerate(levels)},
        }


@net((2, 3, 8, 10), (2, 3, 8, 10), others=(((1, 3, 12, 8), (1, 3, 12, 8)), ((3, 3, 9, 7), (3, 3, 9, 7))))
class siamese(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.backbone = nn.Sequential(cbr(3, 6), cbr(6, 8), nn.Conv2d(8, 6, 1))
        self.head = nn.Sequential(cbr(12, 6, 1), nn.Conv2d(6, 4, 1))

    def forward(self, left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
        a, b = self.backbone(left), self.backbone(right)
        return self.head(torch.cat([(a - b).abs(), a * b], 1))


@net()
class tied(nn.Module):
    """One convolution called twice with different batch norms, in a recurrent loop."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.conv, self.n1, self.n2 = (
            cbr(3, 6),
            nn.Conv2d(6, 6, 3, padding=1),
            nn.BatchNorm2d(6),
            nn.BatchNorm2d(6),
        )
        self.norm, self.a, self.head = nn.BatchNorm2d(6), nn.Conv2d(6, 6, 1), nn.Conv2d(6, 4, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.stem(x)
        y = F.relu(self.n1(self.conv(x)))
        y = torch.sigmoid(self.n2(self.conv(y)))
        z = self.norm(self.a(y)) + self.norm(x)
        return self.head(z)


@net()
class recurrent(nn.Module):
    """One block of convolution and norm applied three times to its own output, with and without the norm."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.block, self.plain = cbr(3, 6), cbr(6, 6), nn.Conv2d(6, 6, 1)
        self.norm, self.head = nn.BatchNorm2d(6), nn.Conv2d(6, 4, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.stem(x)
        for _ in range(3):
            x = x + self.block(x)
        return self.head(self.norm(self.plain(x)) + self.plain(torch.sigmoid(x)))


@net()
class shared_weight(nn.Module):
    """One parameter, two dilations (TridentNet)."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.head = cbr(3, 6), nn.Conv2d(8, 4, 1)
        self.weight, self.bias = nn.Parameter(torch.rand(8, 6, 3, 3)), nn.Parameter(torch.rand(8))
        self.norm = nn.BatchNorm2d(8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.stem(x)
        a = F.conv2d(x, self.weight, self.bias, padding=1)
        b = F.conv2d(x, self.weight, self.bias, padding=2, dilation=2)
        return self.head(F.relu(self.norm(a)) + torch.sigmoid(b))


@net()
class shared_parameter(nn.Module):
    """Two modules that hold the same parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.a, self.b, self.head = (
            cbr(3, 6),
            nn.Conv2d(6, 6, 3, padding=1),
            nn.Conv2d(6, 6, 3, padding=1),
            nn.Conv2d(6, 4, 1),
        )
        self.b.weight = self.a.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(F.relu(self.b(torch.sigmoid(self.a(self.stem(x))))))


class StandardisedConv(nn.Conv2d):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        w = self.weight
        mean, std = w.mean((1, 2, 3), keepdim=True), w.std((1, 2, 3), keepdim=True)
        return F.conv2d(x, (w - mean) / (std + 1e-5), self.bias, self.stride, self.padding, self.dilation, self.groups)


@net()
def weight_standardised() -> nn.Module:
    return nn.Sequential(
        StandardisedConv(3, 6, 3, padding=1), nn.BatchNorm2d(6), nn.ReLU(), StandardisedConv(6, 8, 3, padding=1),
        nn.GroupNorm(4, 8), nn.ReLU(), StandardisedConv(8, 8, 3, padding=1, groups=2, bias=False), nn.Sigmoid(),
        StandardisedConv(8, 4, 1),
    )  # fmt: skip


@net(pickles=False)
def parametrized() -> nn.Module:
    weight_norm = nn.utils.parametrizations.weight_norm
    return nn.Sequential(
        weight_norm(nn.Conv2d(3, 6, 3, padding=1)), nn.ReLU(), weight_norm(nn.Conv2d(6, 8, 3, padding=1)), nn.Sigmoid(),
        nn.Conv2d(8, 4, 1),
    )  # fmt: skip


# -------------------------------------------------------------------- inputs, outputs, Python

Named = namedtuple("Named", ["logits", "features"])


@dataclass
class Output:
    logits: torch.Tensor
    hidden: list[torch.Tensor]


class Trunk(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = cbr(3, 6), cbr(6, 8), nn.Conv2d(8, 6, 1)

    def features(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        a = self.a(x)
        b = self.b(a)
        return a, b, self.c(b)


@net()
class outputs_list(Trunk):
    def forward(self, x: torch.Tensor) -> list[torch.Tensor]:
        a, b, c = self.features(x)
        return [c, a, F.softplus(b)]


@net()
class outputs_nested(Trunk):
    def forward(self, x: torch.Tensor) -> dict[str, Any]:
        a, b, c = self.features(x)
        return {"out": (c, [b * 2, {"deep": a.mean((2, 3))}]), "input": x, "none": None, "number": 3}


@net()
class outputs_named(Trunk):
    def forward(self, x: torch.Tensor) -> Named:
        a, _, c = self.features(x)
        return Named(logits=c.mean((2, 3)), features=a)


@net()
class outputs_dataclass(Trunk):
    def forward(self, x: torch.Tensor) -> Output:
        a, b, c = self.features(x)
        return Output(logits=c, hidden=[a, b])


@net()
class stream_is_output(nn.Module):
    """A residual stream that is itself an output, and sums of two prunable branches."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.a, self.b, self.c = cbr(3, 6), cb(6, 6), cb(6, 6), cb(6, 6)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x = self.stem(x)
        y = x + self.a(x)
        return torch.sigmoid(y), self.b(y) + self.c(y)


@net((2, 3, 8, 10), (2, 2, 8, 10), others=(((1, 3, 12, 8), (1, 2, 12, 8)),), keywords=("image", "extra"))
class keyword_inputs(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.head = cbr(3, 6), cbr(2, 4), nn.Conv2d(10, 4, 1)

    def forward(self, extra: torch.Tensor, image: torch.Tensor, factor: float = 0.5) -> torch.Tensor:
        return self.head(torch.cat([self.a(image) * factor, torch.sigmoid(self.b(extra))], 1))


@net(others=((3, 3, 8, 10), (2, 3, 12, 16)), branches=True)
class branch_on_size(nn.Module):
    """A Python branch on the image's size."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.head = cbr(3, 6), cbr(6, 6), nn.Conv2d(6, 4, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.a(x)
        x = self.b(x) if x.shape[-1] > 11 else F.relu(self.b(x) - 1)
        return self.head(x)


@net()
class size_arithmetic(nn.Module):
    """x.size(1) in arithmetic, shapes as factors, coordinates from the size."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.head = cbr(3, 6), cb(8, 6), nn.Conv2d(6, 4, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.a(x)
        b, _, h, w = x.shape
        ys = torch.linspace(-1, 1, h, dtype=x.dtype, device=x.device).view(1, 1, h, 1).expand(b, 1, h, w)
        xs = torch.arange(w, dtype=x.dtype, device=x.device).view(1, 1, 1, w).expand(b, 1, h, w) / w
        y = self.b(torch.cat([x, ys, xs], 1)) * (x.size(1) ** -0.5)
        y = y.reshape(b, x.size(1) // 2, 2, h, w).mean(2) / math.sqrt(x.size(1))
        return self.head(torch.cat([y, x[:, : x.size(1) // 2]], 1) * (h * w / x[0].numel() + y.shape[1]))


def cumulative(x: torch.Tensor) -> torch.Tensor:
    return torch.cumprod(1 + 0.1 * x, dim=1)


@net(frozen=True)
class unknown_op(nn.Module):
    """Ops without a rule keep what reaches them."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c, self.head = cbr(3, 6), cb(6, 6), cbr(6, 6), nn.Conv2d(6, 4, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.a(x)
        x = cumulative(self.b(x)) + x
        y = torch.linalg.vector_norm(self.c(x), dim=1, keepdim=True)
        return self.head(x / (1 + y))


@torch.fx.wrap
def odd_function(x: torch.Tensor, power: int) -> torch.Tensor:
    if float(x.detach().double().sum()) > 1e9:
        return x
    return x.cumsum(1) * power


@net(frozen=True, leaf=True)
class wrapped_function(nn.Module):
    """torch.fx.wrap'ed code that cannot be traced into."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.head = cbr(3, 6), cbr(6, 6), nn.Conv2d(6, 4, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.b(odd_function(self.a(x), 2)))


class DataDependent(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(width, width, 3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if x.sum() > 0:
            return self.conv(x)
        return self.conv(-x) * 2


@net(frozen=True, leaf=True)
def untraceable() -> nn.Module:
    """A submodule with a data-dependent branch becomes a leaf."""
    return nn.Sequential(cbr(3, 6), cbr(6, 6), DataDependent(6), cbr(6, 6), nn.Conv2d(6, 4, 1))


@net()
class channels_last_detour(nn.Module):
    """Permute, linear with a norm, permute back; movedim and a matmul with a parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.fc, self.b, self.head = cbr(3, 6), nn.Linear(6, 8), nn.Conv2d(8, 6, 1), nn.Conv2d(5, 4, 1)
        self.matrix = nn.Parameter(torch.rand(6, 5))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.a(x)
        y = torch.sigmoid(self.fc(x.permute(0, 2, 3, 1))).permute(0, 3, 1, 2)
        y = torch.movedim(self.b(y), 1, -1) @ self.matrix
        return self.head(y.movedim(-1, 1))


@net()
class dynamic_filter(nn.Module):
    """The kernel is computed from the input (CondConv with one expert mixture per batch would need groups=b)."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.kernel, self.head = cbr(3, 6), cbr(6, 6), nn.Linear(6, 6 * 9), nn.Conv2d(6, 4, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.b(self.a(x))
        b, c, h, w = x.shape
        kernel = self.kernel(x.mean((2, 3))).reshape(b * c, 1, 3, 3)
        y = F.conv2d(x.reshape(1, b * c, h, w), kernel, padding=1, groups=b * c).reshape(b, c, h, w)
        return self.head(y)


@net()
class unfolded(nn.Module):
    """F.unfold as im2col, then a matmul."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.head = cbr(3, 4), nn.Conv2d(5, 4, 1)
        self.kernel = nn.Parameter(torch.rand(5, 4 * 9))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.a(x)
        patches = F.unfold(x, 3, padding=1)
        return self.head((self.kernel @ patches).view(x.shape[0], 5, x.shape[2], x.shape[3]))


@net()
class tokens(nn.Module):
    """A hybrid: convolutional stem, tokens, an MLP mixer over channels, a class token."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.patch = cbr(3, 6), nn.Conv2d(6, 8, 2, 2)
        self.token, self.norm = nn.Parameter(torch.zeros(1, 1, 8)), nn.LayerNorm(8)
        self.mlp, self.fc = nn.Sequential(nn.Linear(8, 12), nn.GELU(), nn.Linear(12, 8)), nn.Linear(8, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.patch(self.stem(x)).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(x.shape[0], -1, -1), x], 1)
        x = x + self.mlp(self.norm(x))
        return self.fc(x[:, 0] + x.mean(1))


@net()
class tied_autoencoder(nn.Module):
    """The decoder is the encoder's weight, the other way around."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Conv2d(3, 6, 3, padding=1), nn.Conv2d(6, 6, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.relu(self.b(F.relu(self.a(x))))
        x = F.relu(F.conv_transpose2d(x, self.b.weight))
        return F.conv_transpose2d(x, self.a.weight, padding=1)


@net()
class borrowed_kernels(nn.Module):
    """Functional convolutions whose kernels are made from another layer's weight, before and after its own call."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.head = nn.Conv2d(3, 6, 3, padding=1), nn.Conv2d(6, 6, 3, padding=1), nn.Conv2d(6, 4, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.relu(self.a(x))
        x = F.conv2d(x, self.a.weight.new_ones(6, 1, 3, 3) / 9, padding=1, groups=6)
        y = F.conv2d(x, self.b.weight, self.b.bias, padding=1) + F.conv2d(x, self.b.weight, padding=1)
        y = y + F.conv2d(x, (self.b.weight - self.b.weight.mean()).sum((2, 3), keepdim=True)) + self.b(x)
        return self.head(F.relu(y))


@net()
class stochastic_depth(nn.Module):
    """Random in training only, the identity in eval mode."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.a, self.drop, self.head = cbr(3, 6), cb(6, 6), DropPath(), nn.Conv2d(6, 4, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.stem(x)
        return self.head(F.relu(x + self.drop(self.a(x))))


class DropPath(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if not self.training:
            return x
        return x * float(random.random() < 0.5)


def leaves(tree: Any) -> list[torch.Tensor]:
    """Every tensor of a nested output, in order; dataclasses included."""
    if isinstance(tree, torch.Tensor):
        return [tree]
    if isinstance(tree, dict):
        return [leaf for entry in tree.values() for leaf in leaves(entry)]
    if isinstance(tree, (list, tuple)):
        return [leaf for entry in tree for leaf in leaves(entry)]
    if hasattr(tree, "__dataclass_fields__"):
        return [leaf for name in tree.__dataclass_fields__ for leaf in leaves(getattr(tree, name))]
    return []
