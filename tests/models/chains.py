"""Plain chains: activations, paddings, odd convolutions."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from tests.gates import OUTPUT
from tests.models.case import Wrap, cb, cbr, net


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


@net(gates={"e": OUTPUT})
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


@net(gates={"c": OUTPUT})
class exponentials(nn.Module):
    """exp, rsqrt and reciprocal of dead channels: infinity must not leak."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = nn.Conv2d(3, 6, 3, padding=1), nn.Conv2d(6, 8, 3, padding=1), nn.Conv2d(8, 4, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = 1 / (self.a(x).square() + 0.5)
        x = torch.rsqrt(self.b(x).abs() + 0.3)
        return self.c(x)


@net(gates={"b": OUTPUT})
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


@net(gates={"b": OUTPUT})
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


@net(gates={"d": OUTPUT})
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


class Learned(nn.Module):
    """Pooling with a learned exponent, a learned floor, a learned mean of two."""

    def __init__(self) -> None:
        super().__init__()
        self.other = nn.Conv2d(8, 8, 1)
        self.scale_of_power, self.floor, self.share = (nn.Parameter(torch.zeros(8, 1, 1)) for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.max(torch.lerp(x, self.other(x), self.share), self.floor)
        return x.clamp(min=0.01).pow(self.scale_of_power + 1) + 2 ** torch.logaddexp(x, self.other(x))


@net()
def learned_exponents() -> nn.Module:
    return Wrap(Learned())
