"""Small real models, as plain PyTorch: ``fxprune inspect examples/models.py:resnet8 --input 1x3x32x32``."""

from __future__ import annotations

import torch
from torch import nn


class BasicBlock(nn.Module):
    """Two 3x3 convolutions beside an identity, or beside a 1x1 convolution where the shape changes."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or inputs != outputs:
            self.shortcut = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.relu(self.bn1(self.conv1(x)))
        y = self.bn2(self.conv2(y))
        return torch.relu(y + self.shortcut(x))


class ResNet8(nn.Module):
    """A stem that halves the picture and three stages of one block each, ``width``, 2 and 4 times ``width`` wide."""

    def __init__(self, width: int, classes: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, width, 3, stride=2, padding=1, bias=False)
        self.bn = nn.BatchNorm2d(width)
        self.stage1: nn.Module = BasicBlock(width, width, 1)
        self.stage2: nn.Module = BasicBlock(width, 2 * width, 2)
        self.stage3: nn.Module = BasicBlock(2 * width, 4 * width, 2)
        self.fc = nn.Linear(4 * width, classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.relu(self.bn(self.conv(x)))
        x = self.stage3(self.stage2(self.stage1(x)))
        logits: torch.Tensor = self.fc(x.mean((2, 3)))
        return logits


class ResNet20(ResNet8):
    """The same with three blocks a stage: there is depth to spare."""

    def __init__(self, width: int, classes: int) -> None:
        super().__init__(width, classes)
        self.stage1 = nn.Sequential(self.stage1, *(BasicBlock(width, width, 1) for _ in range(2)))
        self.stage2 = nn.Sequential(self.stage2, *(BasicBlock(2 * width, 2 * width, 1) for _ in range(2)))
        self.stage3 = nn.Sequential(self.stage3, *(BasicBlock(4 * width, 4 * width, 1) for _ in range(2)))


def resnet8(width: int = 32, classes: int = 10) -> ResNet8:
    """ResNet-8 for 32x32 pictures: volume 43,008 and 12.3 million multiply-adds at the default width."""
    return ResNet8(width, classes)


def resnet20(width: int = 16, classes: int = 10) -> ResNet20:
    """ResNet-20 for 32x32 pictures: nine blocks, three of which change the shape."""
    return ResNet20(width, classes)


class PreActivationBlock(nn.Module):
    """Norm and ReLU before each convolution; a 1x1 shortcut reads what the first convolution reads."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.bn1 = nn.BatchNorm2d(inputs)
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.shortcut = nn.Conv2d(inputs, outputs, 1, stride, bias=False) if inputs != outputs else None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.relu(self.bn1(x))
        shortcut = x if self.shortcut is None else self.shortcut(y)
        y = torch.relu(self.bn2(self.conv1(y)))
        out: torch.Tensor = self.conv2(y) + shortcut
        return out


class WideResNet(nn.Module):
    """Wide-ResNet (Zagoruyko and Komodakis): three groups of ``(depth - 4) / 6`` pre-activation blocks."""

    def __init__(self, depth: int, width: int, classes: int) -> None:
        super().__init__()
        if depth % 6 != 4:
            raise ValueError(f"the depth of a wide ResNet is 6 n + 4 (10, 16, 22, 28 ...), not {depth}")
        self.conv = nn.Conv2d(3, 16, 3, padding=1, bias=False)
        channels = 16
        groups = []
        for group in range(3):
            blocks = []
            for block in range(depth // 6):
                stride = 2 if group > 0 and block == 0 else 1
                blocks.append(PreActivationBlock(channels, 16 * width * 2**group, stride))
                channels = 16 * width * 2**group
            groups.append(nn.Sequential(*blocks))
        self.groups = nn.Sequential(*groups)
        self.bn = nn.BatchNorm2d(channels)
        self.fc = nn.Linear(channels, classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.relu(self.bn(self.groups(self.conv(x))))
        logits: torch.Tensor = self.fc(x.mean((2, 3)))
        return logits


def wrn(depth: int = 28, width: int = 12, classes: int = 10) -> WideResNet:
    """WRN-depth-width for 32x32 pictures; WRN-28-12 has a volume of 3,112,960 and 1.5088e10 FLOPs."""
    return WideResNet(depth, width, classes)
