"""Small nets of several kinds for pictures of 32x32, for benchmarks that train them first."""

from __future__ import annotations

import sys
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn

sys.path.insert(0, str(Path(__file__).parents[1] / "examples"))
from models import resnet20


def resnet20_32() -> nn.Module:
    """ResNet-20 as in the papers: its stem keeps the size of the picture."""
    net = resnet20()
    net.conv.stride = (1, 1)
    return net


def _conv(inputs: int, outputs: int, size: int = 3, stride: int = 1, groups: int = 1) -> nn.Sequential:
    conv = nn.Conv2d(inputs, outputs, size, stride, size // 2, groups=groups, bias=False)
    return nn.Sequential(conv, nn.BatchNorm2d(outputs))


def vgg() -> nn.Module:
    """Three times two 3x3 convolutions and a pooling layer: 39 million multiply-adds."""
    layers: list[nn.Module] = []
    channels = 3
    for width in (32, 64, 128):
        for _ in range(2):
            layers += [*_conv(channels, width), nn.ReLU()]
            channels = width
        layers.append(nn.MaxPool2d(2))
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(channels * 16, 10))


class Inverted(nn.Module):
    """A 1x1 convolution that widens, a depthwise one, squeeze-and-excite, and a 1x1 that narrows."""

    def __init__(self, inputs: int, outputs: int, stride: int, widen: int = 4) -> None:
        super().__init__()
        hidden = widen * inputs
        self.wide, self.depthwise = _conv(inputs, hidden, 1), _conv(hidden, hidden, 3, stride, hidden)
        self.squeeze, self.excite = nn.Conv2d(hidden, inputs // 2, 1), nn.Conv2d(inputs // 2, hidden, 1)
        self.narrow = _conv(hidden, outputs, 1)
        self.residual = stride == 1 and inputs == outputs

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = F.relu6(self.depthwise(F.relu6(self.wide(x))))
        y = y * torch.sigmoid(self.excite(torch.relu(self.squeeze(y.mean((2, 3), keepdim=True)))))
        y = self.narrow(y)
        return x + y if self.residual else y


def mobilenet() -> nn.Module:
    """MobileNetV2 with squeeze-and-excite, eight blocks: 8 million multiply-adds."""
    blocks: list[nn.Module] = []
    channels = 16
    for width, stride in ((24, 2), (24, 1), (40, 2), (40, 1), (40, 1), (64, 2), (64, 1), (64, 1)):
        blocks.append(Inverted(channels, width, stride))
        channels = width
    head = [*_conv(channels, 192, 1), nn.ReLU6(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(192, 10)]
    return nn.Sequential(_conv(3, 16), nn.ReLU6(), *blocks, *head)


class Dense(nn.Module):
    """Norm, ReLU and a 3x3 convolution, whose output is appended to its input."""

    def __init__(self, inputs: int, growth: int) -> None:
        super().__init__()
        self.norm, self.conv = nn.BatchNorm2d(inputs), nn.Conv2d(inputs, growth, 3, padding=1, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cat([x, self.conv(torch.relu(self.norm(x)))], 1)


def densenet(growth: int = 12, each: int = 4) -> nn.Module:
    """Three times four layers, a 1x1 convolution and pooling between them: 30 million multiply-adds."""
    channels = 2 * growth
    layers: list[nn.Module] = [nn.Conv2d(3, channels, 3, padding=1, bias=False)]
    for block in range(3):
        for _ in range(each):
            layers.append(Dense(channels, growth))
            channels += growth
        if block < 2:
            half = channels // 2
            layers += [nn.BatchNorm2d(channels), nn.ReLU(), nn.Conv2d(channels, half, 1, bias=False), nn.AvgPool2d(2)]
            channels = half
    pooled = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, 10)]
    return nn.Sequential(*layers, nn.BatchNorm2d(channels), nn.ReLU(), *pooled)


NETS = {"resnet20": resnet20_32, "vgg": vgg, "mobilenet": mobilenet, "densenet": densenet}
