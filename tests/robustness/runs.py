"""A small run, and what is done to its files."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import fxprune
from fxprune.errors import FxPruneError

X = torch.linspace(-1, 1, 2 * 16).reshape(2, 1, 4, 4)
DATA = [(X + number / 10, torch.tensor([0, 1])) for number in range(3)]


def net() -> nn.Module:
    torch.manual_seed(1)
    conv = nn.Conv2d(1, 6, 3, bias=False)
    return nn.Sequential(conv, nn.BatchNorm2d(6), nn.ReLU(), nn.Conv2d(6, 4, 1), nn.Flatten(), nn.Linear(16, 3))


def pruned(folder: Path, **changes: Any) -> torch.Tensor:
    """What the slim net of a run says; one that was cut off goes on."""
    options: dict[str, Any] = {"budget": 1 / 2, "epochs": (1, 1, 0), "teacher": "train", "progress": False, **changes}
    made = fxprune.prune(net(), DATA, DATA, run=folder, **options)
    return made.slim(X).detach()


def told(call: Callable[[], Any], *words: str) -> None:
    """An error of ours: one sentence, and what to do."""
    with pytest.raises(FxPruneError) as caught:
        call()
    said = caught.value
    assert said.cause and said.fix and "\n" not in said.cause, str(said)
    for word in words:
        assert word in str(said), str(said)


def swap(file: Path, other: Path) -> None:
    shutil.copyfile(other, file)


def as_folder(file: Path) -> None:
    file.unlink()
    file.mkdir()


def as_loop(file: Path) -> None:
    file.unlink()
    file.symlink_to(file)
