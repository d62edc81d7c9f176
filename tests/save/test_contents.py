"""Every module of torch.nn is written as the call that makes it."""

from __future__ import annotations

from collections import namedtuple
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import nn

from fxprune.errors import ExportError
from fxprune.save.contents import constructor
from fxprune.save.expressions import Records, flat
from fxprune.save.forward import function_name

MODULES: list[tuple[nn.Module, str]] = [
    (nn.Conv1d(4, 8, 3, bias=False), "nn.Conv1d(4, 8, 3, bias=False)"),
    (nn.Conv2d(4, 8, (3, 1), 2, "valid"), 'nn.Conv2d(4, 8, (3, 1), stride=2, padding="valid")'),
    (nn.Conv2d(4, 8, 3, padding="same", dilation=2), 'nn.Conv2d(4, 8, 3, padding="same", dilation=2)'),
    (nn.Conv3d(4, 8, 3, groups=4, padding_mode="circular"), 'nn.Conv3d(4, 8, 3, groups=4, padding_mode="circular")'),
    (nn.ConvTranspose2d(4, 8, 3, 2, 1, 1), "nn.ConvTranspose2d(4, 8, 3, stride=2, padding=1, output_padding=1)"),
    (nn.Linear(3, 4, bias=False), "nn.Linear(3, 4, bias=False)"),
    (nn.Bilinear(2, 3, 4), "nn.Bilinear(2, 3, 4)"),
    (nn.BatchNorm2d(4, 1e-3, None, False), "nn.BatchNorm2d(4, eps=0.001, momentum=None, affine=False)"),
    (nn.BatchNorm1d(4, track_running_stats=False), "nn.BatchNorm1d(4, track_running_stats=False)"),
    (nn.SyncBatchNorm(4), "nn.SyncBatchNorm(4)"),
    (nn.InstanceNorm2d(4, affine=True), "nn.InstanceNorm2d(4, affine=True)"),
    (nn.GroupNorm(2, 4, affine=False), "nn.GroupNorm(2, 4, affine=False)"),
    (nn.LayerNorm(6), "nn.LayerNorm(6)"),
    (nn.LayerNorm([6, 6], bias=False), "nn.LayerNorm((6, 6), bias=False)"),
    (nn.RMSNorm((4, 5), eps=1e-3), "nn.RMSNorm((4, 5), eps=0.001)"),
    (nn.LocalResponseNorm(3, k=2.0), "nn.LocalResponseNorm(3, k=2.0)"),
    (nn.PReLU(4, init=0.1), "nn.PReLU(num_parameters=4, init=0.1)"),
    (nn.ReLU6(), "nn.ReLU6()"),
    (nn.Hardtanh(-2, 2), "nn.Hardtanh(min_val=-2, max_val=2)"),
    (nn.LeakyReLU(0.2, inplace=True), "nn.LeakyReLU(negative_slope=0.2, inplace=True)"),
    (nn.GELU("tanh"), 'nn.GELU(approximate="tanh")'),
    (nn.Softmax(dim=1), "nn.Softmax(dim=1)"),
    (nn.Softplus(2, 10), "nn.Softplus(beta=2, threshold=10)"),
    (nn.Threshold(0.1, float("-inf")), 'nn.Threshold(0.1, float("-inf"))'),
    (nn.GLU(1), "nn.GLU(dim=1)"),
    (nn.Identity(3, unused=True), "nn.Identity()"),
    (nn.Dropout2d(0.1), "nn.Dropout2d(p=0.1)"),
    (nn.MaxPool2d(3, 2, 1, ceil_mode=True), "nn.MaxPool2d(3, stride=2, padding=1, ceil_mode=True)"),
    (nn.MaxPool2d(2, return_indices=True), "nn.MaxPool2d(2, return_indices=True)"),
    (nn.AvgPool2d((2, 1), divisor_override=3), "nn.AvgPool2d((2, 1), divisor_override=3)"),
    (nn.AdaptiveAvgPool2d((None, 3)), "nn.AdaptiveAvgPool2d((None, 3))"),
    (nn.LPPool2d(2, 3), "nn.LPPool2d(2, 3)"),
    (nn.MaxUnpool2d(2), "nn.MaxUnpool2d(2)"),
    (nn.Upsample(scale_factor=2, mode="bilinear", align_corners=True),
     'nn.Upsample(scale_factor=2.0, mode="bilinear", align_corners=True)'),
    (nn.UpsamplingNearest2d(scale_factor=2), "nn.UpsamplingNearest2d(scale_factor=2.0)"),
    (nn.ZeroPad2d(1), "nn.ZeroPad2d(1)"),
    (nn.ReflectionPad2d((1, 2, 0, 1)), "nn.ReflectionPad2d((1, 2, 0, 1))"),
    (nn.ConstantPad1d(1, 0.5), "nn.ConstantPad1d(1, 0.5)"),
    (nn.PixelShuffle(2), "nn.PixelShuffle(2)"),
    (nn.ChannelShuffle(2), "nn.ChannelShuffle(2)"),
    (nn.Flatten(2), "nn.Flatten(start_dim=2)"),
    (nn.Unflatten(1, (2, -1)), "nn.Unflatten(1, (2, -1))"),
    (nn.Unfold(3, padding=1), "nn.Unfold(3, padding=1)"),
    (nn.Embedding(5, 3, padding_idx=1), "nn.Embedding(5, 3, padding_idx=1)"),
    (nn.MultiheadAttention(8, 2, bias=False, batch_first=True),
     "nn.MultiheadAttention(8, 2, bias=False, batch_first=True)"),
    (nn.MultiheadAttention(8, 2, add_bias_kv=True, kdim=4), "nn.MultiheadAttention(8, 2, add_bias_kv=True, kdim=4)"),
    (nn.LSTM(4, 8, 2, batch_first=True, bidirectional=True, proj_size=3),
     "nn.LSTM(4, 8, num_layers=2, batch_first=True, bidirectional=True, proj_size=3)"),
    (nn.GRU(4, 8, bias=False), "nn.GRU(4, 8, bias=False)"),
    (nn.RNN(4, 8, nonlinearity="relu"), 'nn.RNN(4, 8, nonlinearity="relu")'),
    (nn.LSTMCell(4, 8), "nn.LSTMCell(4, 8)"),
    (nn.Sequential(nn.Linear(1, 2), nn.ReLU()), "nn.Sequential(nn.Linear(1, 2), nn.ReLU())"),
]  # fmt: skip


@pytest.mark.parametrize(("module", "expected"), MODULES, ids=[expected for _, expected in MODULES])
def test_constructor(module: nn.Module, expected: str) -> None:
    text = flat(constructor(module, "name"))
    assert text == expected
    rebuilt = eval(text, {"nn": nn})
    assert repr(rebuilt) == repr(module)
    rebuilt.load_state_dict(module.state_dict())


def test_changed_after_it_was_made() -> None:
    """Settings are read off the module as it is; what no constructor gives is refused."""
    module = nn.Conv2d(4, 4, 3)
    module.stride = (2, 2)
    assert flat(constructor(module, "name")) == "nn.Conv2d(4, 4, 3, stride=2)"
    module.weight = nn.Parameter(torch.zeros(3, 4, 3, 3))
    with pytest.raises(ExportError, match="'name'"):
        constructor(module, "name")
    with pytest.raises(ExportError, match="TransformerEncoderLayer"):
        constructor(nn.TransformerEncoderLayer(8, 2, dim_feedforward=4), "name")


def test_functions_that_are_not_torchs() -> None:
    with pytest.raises(ExportError, match=r"test_contents\.mine"):
        function_name(mine)
    with pytest.raises(ExportError, match="sum"):
        function_name(torch.ops.prims.sum.default)


def mine() -> None: ...


Pair = namedtuple("Pair", "left right")


class Clever(Pair):
    def swap(self) -> Any:
        return self.right, self.left


@dataclass
class Plain:
    left: int


@dataclass
class Active:
    left: int

    def double(self) -> int:
        return 2 * self.left


def test_records() -> None:
    records = Records({"Plain"})
    assert (records.name(Pair), records.name(Plain), records.name(Pair)) == ("Pair", "Plain2", "Pair")
    assert records.definitions() == [
        ['Pair = namedtuple("Pair", ["left", "right"])'], ["@dataclass", "class Plain2:", "    left: Any"],
    ]  # fmt: skip
    for kind in (Clever, Active, dict):
        with pytest.raises(ExportError, match=kind.__name__):
            records.name(kind)
