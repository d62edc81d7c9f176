"""Layers that users derive from torch's own, and parts that are put together inside forward()."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from tests.gates import OUTPUT
from tests.models.case import net


class PaddedConv(nn.Conv2d):
    """A convolution that holds the padding before it and the activation behind it."""

    def __init__(self, inputs: int, outputs: int, **settings: Any) -> None:
        super().__init__(inputs, outputs, 3, **settings)
        self.static_padding, self.act = nn.ZeroPad2d((0, 2, 1, 1)), nn.PReLU(outputs)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.conv2d(self.static_padding(x), self.weight, self.bias, self.stride, groups=self.groups)
        return self.act(x)


@net()
def layers_with_parts() -> nn.Module:
    depthwise, last = PaddedConv(8, 8, groups=8), PaddedConv(8, 6)
    return nn.Sequential(PaddedConv(3, 8, bias=False), nn.BatchNorm2d(8), depthwise, last, nn.Conv2d(6, 4, 1))


@net(gates={"body.0": OUTPUT})
class parts_of_a_sequence(nn.Module):
    """Both ways of calling some of the layers make a new module in every call."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 6, 3), nn.ReLU())
        self.head = nn.Conv2d(6, 4, 1)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        early = self.body[:3](x)
        late = nn.Sequential(*list(self.body)[3:], nn.MaxPool2d(2))(early)
        return self.head(late), early.mean((2, 3))
