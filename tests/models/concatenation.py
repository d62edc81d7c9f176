"""Concatenations."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from tests.models.case import cb, cbr, net


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
