"""Layers in all their settings, parameters in all their ties."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils import parametrizations

import fxprune
from tests.exactness import call, error
from tests.robustness.adversarial import X, chain, check, conv


class Padded(nn.Module):
    def __init__(self, widths: tuple[int, ...], mode: str = "constant", value: float | None = None) -> None:
        super().__init__()
        self.widths, self.mode, self.value = widths, mode, value

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.pad(x, self.widths, self.mode, self.value)


class Standardised(nn.Conv2d):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        variance, mean = torch.var_mean(self.weight, dim=[1, 2, 3], keepdim=True)
        weight = (self.weight - mean) / torch.sqrt(variance + 1e-5)
        return F.conv2d(x, weight, self.bias, self.stride, self.padding, self.dilation, self.groups)


class FrozenNorm(nn.Module):
    """As torchvision's FrozenBatchNorm2d: buffers, put together in every call."""

    def __init__(self, width: int) -> None:
        super().__init__()
        for name, value in (("weight", 1.0), ("bias", 0.0), ("running_mean", 0.0), ("running_var", 1.0)):
            self.register_buffer(name, torch.full((width,), value))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scale = (self.weight * (self.running_var + 1e-5).rsqrt()).reshape(1, -1, 1, 1)
        return x * scale + (self.bias.reshape(1, -1, 1, 1) - self.running_mean.reshape(1, -1, 1, 1) * scale)


LAYERS: dict[str, Callable[[], nn.Module]] = {
    "stride above kernel": lambda: conv(6, 6, 2, stride=3),
    "even kernel": lambda: conv(6, 6, (2, 4), padding=1, bias=False),
    "dilated, same": lambda: conv(6, 6, 3, padding="same", dilation=2),
    "valid": lambda: conv(6, 6, 3, padding="valid"),
    "reflect": lambda: conv(6, 6, 3, padding=(2, 1), padding_mode="reflect"),
    "replicate, grouped": lambda: conv(6, 6, 3, padding=(2, 1), padding_mode="replicate", groups=3),
    "circular, same": lambda: conv(6, 6, (4, 3), padding="same", padding_mode="circular"),
    "one channel": lambda: nn.Sequential(conv(6, 1, 3, padding=1), conv(1, 6)),
    "transposed": lambda: nn.ConvTranspose2d(6, 6, 3, stride=(3, 2), output_padding=(2, 1), groups=3, dilation=2),
    "transposed, depthwise": lambda: nn.ConvTranspose2d(6, 6, 2, stride=2, groups=6, bias=False),
    "pad with zeros": lambda: Padded((1, 2, 3, 4)),
    "pad with a number": lambda: Padded((1, -2, 3, 0), value=0.7),
    "pad by reflection": lambda: Padded((1, 2, 3, 4), "reflect"),
    "pad with minus infinity": lambda: nn.Sequential(Padded((1, 1, 1, 1), value=-torch.inf), nn.MaxPool2d(3)),
    "ConstantPad2d": lambda: nn.ConstantPad2d((1, 2, 0, 3), 0.3),
    "norm without affine": lambda: nn.BatchNorm2d(6, affine=False),
    "norm without statistics": lambda: nn.BatchNorm2d(6, track_running_stats=False),
    "norm of all batches": lambda: nn.BatchNorm2d(6, momentum=None),
    "frozen norm": lambda: FrozenNorm(6),
    "weight norm": lambda: parametrizations.weight_norm(conv(6, 6, 3)),
    "spectral norm": lambda: parametrizations.spectral_norm(conv(6, 6, 3)),
    "standardised weight": lambda: Standardised(6, 6, 3, groups=2),
}  # fmt: skip


@pytest.mark.parametrize("name", LAYERS)
def test_layers(name: str) -> None:
    check(chain(LAYERS[name](), nn.BatchNorm2d(6)), random="norm" not in name)


@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.parametrize("norm", [nn.utils.weight_norm, nn.utils.spectral_norm])
def test_old_norms_of_weights(norm: Any) -> None:
    check(chain(norm(conv(6, 6, 3)), nn.BatchNorm2d(6)), random=False)


@pytest.mark.parametrize("rank", [1, 3])
@pytest.mark.parametrize("batch", [(2,), ()], ids=["batch", "one sample"])
def test_other_ranks(rank: int, batch: tuple[int, ...]) -> None:
    layer, turned = getattr(nn, f"Conv{rank}d"), getattr(nn, f"ConvTranspose{rank}d")
    net = nn.Sequential(
        layer(3, 6, 3, padding=1), nn.ReLU(), layer(6, 6, 2, groups=2), nn.ReLU(),
        turned(6, 6, 3, stride=2, output_padding=1, groups=3), layer(6, 4, 1),
    )  # fmt: skip
    check(net, torch.randn(*batch, 3, *(6, 5, 4)[:rank]).double())


UNBATCHED: dict[str, Callable[[], nn.Module]] = {
    "instance norm": lambda: nn.InstanceNorm2d(6, affine=True, track_running_stats=True),
    "pools": lambda: nn.Sequential(nn.MaxPool2d(2), nn.AdaptiveAvgPool2d(3)),
    "softmax": nn.Softmax2d,
    "slopes along the height": lambda: nn.PReLU(8),
    "group norm along the height": lambda: nn.GroupNorm(2, 8),
    "pixel shuffle": lambda: nn.Sequential(conv(6, 24), nn.PixelShuffle(2)),
    "gated": lambda: nn.Sequential(conv(6, 12), nn.GLU(0)),
}


@pytest.mark.parametrize("name", UNBATCHED)
def test_one_sample_without_a_batch(name: str) -> None:
    check(chain(UNBATCHED[name]()), X[0])


def test_maps_of_one_pixel() -> None:
    check(chain(nn.BatchNorm2d(6), conv(6, 6, 3, padding=1)), torch.randn(4, 3, 1, 1).double())


# ---------------------------------------------------------------- one parameter in several places


class Tied(nn.Module):
    """Two layers that have something in common."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.how = how
        self.stem, self.head = conv(3, 6, 3, padding=1), conv(6, 4)
        self.a, self.b = conv(6, 6, 3, padding=1), conv(6, 6, 3, padding=1, bias=False)
        if how == "weight":
            self.b.weight = self.a.weight
        elif how == "name":
            self.again = self.a.weight
        elif how == "memory":
            self.again = nn.Parameter(self.a.weight.data[:, :, :1])
        elif how == "slices":
            self.both = nn.Parameter(torch.randn(12, 6, 3, 3))
        elif how == "copy":
            self.register_buffer("again", self.a.weight.detach())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.stem(x).relu()
        if self.how == "slices":
            x = F.conv2d(x, self.both[:6], padding=1) + F.conv2d(x, self.both[6:], padding=1)
        elif self.how == "flipped":
            x = self.a(x) + F.conv2d(x, self.a.weight.flip(2), self.a.bias, padding=1)
        elif self.how == "module":
            x = self.a(x) + self.a(x * 2)
        elif hasattr(self, "again"):
            x = self.a(x) + F.conv2d(x, self.again, padding=(0 if self.how == "memory" else 1, 1))[:, :, :8]
        else:
            x = self.a(x) + self.b(x * 2)
        return self.head(x.relu())


@pytest.mark.parametrize("how", ["weight", "name", "memory", "slices", "flipped", "copy", "module"])
def test_shared_parameters(how: str) -> None:
    check(Tied(how))


# ---------------------------------------------------------------- types of numbers


def test_half_precision() -> None:
    for dtype in (torch.float16, torch.bfloat16):
        net = chain(nn.BatchNorm2d(6)).to(dtype).eval()
        wrapped = fxprune.wrap(net, 0.8, example_inputs=X.to(dtype)).harden()
        slim, x = fxprune.export(wrapped), X.to(dtype)
        assert slim.report.error < 1e-9 and error(call(slim, (x,)), call(wrapped, (x,))) < 0.05


class Casting(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.order = nn.Parameter(torch.arange(3), requires_grad=False)  # the first parameter is no float
        self.a, self.b, self.c = conv(3, 6, 3), conv(6, 6, 3).bfloat16(), conv(6, 4)
        self.register_buffer("scale", torch.rand(1, 6, 1, 1) + 0.5, persistent=False)
        self.plain = torch.rand(1, 6, 1, 1) + 0.5

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.a(x[:, self.order].float()).to(torch.bfloat16)
        x = self.b(x).to(dtype=torch.float32) * self.scale.sqrt() / self.plain.sqrt()
        return self.c(x + torch.zeros(1, dtype=torch.float32))


def test_a_model_that_casts_is_compared_in_double_precision() -> None:
    wrapped = fxprune.wrap(Casting(), 0.8, example_inputs=X.float())
    assert wrapped.bank.log_alpha.dtype == torch.float32
    assert fxprune.export(wrapped.harden()).report.error < 1e-9


def test_buffers_in_single_precision_are_compared_in_double_precision() -> None:
    net = chain(FrozenNorm(6)).eval()
    net[2].running_var.uniform_(0.5, 1.5)
    wrapped = fxprune.wrap(net, 0.8, example_inputs=X.float()).harden()
    assert fxprune.export(wrapped).report.error < 1e-9
    slim = fxprune.export(wrapped.double())
    assert {tensor.dtype for tensor in slim.state_dict().values()} == {torch.float64}


class Complex(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.phase = nn.Parameter(torch.randn(1, 6, 1, 1, dtype=torch.complex128))
        self.a, self.b, self.c = conv(3, 6, 3).double(), conv(6, 5, 3, dtype=torch.complex128), conv(5, 4).double()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.a(x)
        return self.c(self.b(torch.tanh(x * self.phase)).abs())


def test_complex_numbers() -> None:
    check(Complex(), random=False)


class Stored(nn.Module):
    """No parameter at all."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("first", torch.randn(6, 3, 3, 3))
        self.register_buffer("second", torch.randn(4, 6, 1, 1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.conv2d(F.conv2d(x, self.first).relu(), self.second)


def test_weights_that_are_buffers() -> None:
    check(Stored(), train=False)


def test_checkpoints_of_the_original_hold_no_passing_tensors() -> None:
    model = Casting()
    wrapped = fxprune.wrap(model, 0.8, example_inputs=X.float())
    wrapped.load_state_dict(model.state_dict())
    own = {name for name in wrapped.state_dict() if not name.startswith("fxprune_")}
    assert own == set(model.state_dict())
