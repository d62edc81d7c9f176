"""Where times were measured, and where they are kept."""

from __future__ import annotations

import hashlib
import json
import os
import platform
from pathlib import Path
from typing import Any

import torch

from fxprune.errors import OptionError

CACHE = "FXPRUNE_CACHE"


def description(device: torch.device) -> dict[str, Any]:
    """All that a time depends on beside the network; no names of hosts or users."""
    return {
        "processor": processor(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "system": f"{platform.system()} {platform.machine()}",
        "torch": torch.__version__,
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else device.type,
    }


def processor() -> str:
    """What the system calls it."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return platform.processor()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor()


def cache_folder() -> Path:
    """``$FXPRUNE_CACHE``, else the user's cache folder."""
    given = os.environ.get(CACHE)
    if given:
        return Path(given)
    base = os.environ.get("XDG_CACHE_HOME")
    try:
        return (Path(base) if base else Path.home() / ".cache") / "fxprune"
    except RuntimeError as error:
        raise OptionError("there is no home folder to keep measured times in", fix=f"set {CACHE} to one") from error


def cache_file(machine: dict[str, Any], network: str) -> Path:
    """The file that holds the times of a network on a machine."""
    text = json.dumps(machine, sort_keys=True) + network
    return cache_folder() / f"latency-{hashlib.sha256(text.encode()).hexdigest()[:20]}.json"
