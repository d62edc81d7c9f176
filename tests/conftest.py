from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))
from torchvision_ops import declare_torchvision_ops

declare_torchvision_ops()
torch.set_num_threads(2)


@pytest.fixture(autouse=True)
def seed() -> None:
    torch.manual_seed(0)
