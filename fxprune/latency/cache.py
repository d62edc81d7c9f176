"""Measured times are kept in files: a network is measured once per machine, and a resumed run uses the same times."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import platform
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fxprune.cost.latency import Latency, Line, Meeting, Table
from fxprune.errors import OptionError
from fxprune.files import write_atomically

CACHE = "FXPRUNE_CACHE"


def description(device: torch.device) -> dict[str, Any]:
    """What a time depends on beside the network, without names of hosts or users."""
    return {
        "processor": processor(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "system": f"{platform.system()} {platform.machine()}",
        "torch": torch.__version__,
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else device.type,
    }


def processor() -> str:
    """The name of the processor, as the system tells it."""
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


PARTS = {"tables": Table, "lines": Line, "meetings": Meeting}
NUMBERS = ("scale", "rest", "power")  # and parts: in the order of Latency's fields


def as_json(latency: Latency, machine: dict[str, Any]) -> str:
    def plain(part: Any) -> dict[str, Any]:
        return {name: value.tolist() if isinstance(value, np.ndarray) else value for name, value in vars(part).items()}

    parts = {name: [plain(part) for part in getattr(latency, name)] for name in PARTS}
    return json.dumps({"machine": machine, **{name: getattr(latency, name) for name in NUMBERS}, **parts})


def from_json(text: str) -> Latency:
    """``ValueError`` or its kin where the file is damaged."""
    held = json.loads(text)
    parts: Any = (tuple(_part(kind, entry) for entry in held[name]) for name, kind in PARTS.items())
    return Latency(*parts, *(float(held[name]) for name in NUMBERS))


def _part(kind: Any, entry: dict[str, Any]) -> Any:
    def typed(field: Any, value: Any) -> Any:
        types = {"Ids": np.int64, "Floats": np.float64}
        return np.array(value, dtype=types[field.type]) if field.type in types else value

    return kind(**{field.name: typed(field, entry[field.name]) for field in fields(kind)})


def read(path: Path) -> Latency | None:
    """The times measured before; None if there is no such file, or it cannot be read."""
    try:
        return from_json(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, KeyError, TypeError):
        return None


def write(path: Path, latency: Latency, machine: dict[str, Any]) -> None:
    """Keep the times; where no file can be written, they are measured again the next time."""
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, as_json(latency, machine))
