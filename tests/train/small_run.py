"""A short run on real handwriting, in this process or as a command: python small_run.py FOLDER WORKERS."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

ROOT = Path(__file__).parents[2]
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))  # as a command

import fxprune  # noqa: E402


def _example(name: str) -> ModuleType:
    """By its path: there are other modules of these names."""
    spec = importlib.util.spec_from_file_location(f"examples_{name}", ROOT / "examples" / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


loaders = _example("handwriting").loaders
resnet8 = _example("models").resnet8
STEPS_PER_EPOCH = 10


def small_net(seed: int = 0) -> torch.nn.Module:
    torch.manual_seed(seed)
    net: torch.nn.Module = resnet8(width=4)
    return net


def small_run(folder: Path | None, workers: int = 0, **changes: Any) -> fxprune.Pruned:
    """30 steps of teacher training, 20 of pruning, 20 of fine-tuning."""
    train, val = loaders(16, workers, most=200)
    options: dict[str, Any] = {"teacher": "train", "epochs": (2, 1, 1), "progress": False, **changes}
    return fxprune.prune(small_net(), train, val, budget=1 / 2, run=folder, **options)


if __name__ == "__main__":
    torch.set_num_threads(1)
    print(small_run(Path(sys.argv[1]), int(sys.argv[2]), checkpoint_minutes=0, progress=True))
