"""What changes the resolution."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from tests.gates import DEPTHWISE, OUTPUT
from tests.models.case import cb, cbr, net


@net(gates={"last": OUTPUT})
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


@net((2, 3, 8, 12), gates={"head": 4})
class pixel_unshuffle(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c, self.head = cbr(12, 6), nn.Conv2d(6, 3, 1), cbr(12, 8), nn.Conv2d(8, 4, 1)
        self.unshuffle = nn.PixelUnshuffle(2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.softplus(self.b(self.a(self.unshuffle(x))))
        return F.pixel_shuffle(self.head(self.c(F.pixel_unshuffle(x, 2))), 2)


@net((2, 3, 8, 12), gates={"c": OUTPUT})
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


@net(gates={"blur6": DEPTHWISE, "blur": DEPTHWISE})
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


@net((1, 3, 8, 10), others=((3, 3, 8, 10), (2, 3, 12, 14)))
class resized_table(nn.Module):
    """A table of positions, resized to the map that it is added to (PVT): one sample does not tell it from a branch."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c, self.head = cbr(3, 6), cbr(6, 8), cbr(8, 6), nn.Conv2d(6, 4, 1)
        self.table, self.other = nn.Parameter(torch.randn(1, 6, 4, 4)), nn.Parameter(torch.randn(1, 8, 4, 4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.a(x)
        x = self.b(F.interpolate(self.table, size=x.shape[2:], mode="bilinear") + x)
        x = self.c(x + F.interpolate(self.other, size=x.shape[2:], mode="bilinear"))
        return self.head(x)
