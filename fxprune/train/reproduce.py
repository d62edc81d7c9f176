"""What makes resuming exact: random numbers that depend only on how far training is, and a checksum that tells whether
two networks have the same weights."""

from __future__ import annotations

import contextlib
import hashlib
import random
from collections.abc import Iterable, Iterator

import numpy as np
import torch
from torch import nn


def seed_all(*key: int | str, generators: Iterable[torch.Generator] = ()) -> None:
    """Seed Python, NumPy, torch (every device in use) and ``generators`` from ``key``.

    >>> seed_all(0, "prune", 3); first = torch.rand(1)
    >>> seed_all(0, "prune", 3); first == torch.rand(1)
    tensor([True])
    """
    number = int.from_bytes(hashlib.blake2b(repr(key).encode(), digest_size=8).digest(), "little") >> 1
    random.seed(number)
    np.random.seed(number % 2**32)
    torch.default_generator.manual_seed(number)  # torch.manual_seed would also queue a call for unused devices
    if torch.cuda.is_initialized():
        torch.cuda.manual_seed_all(number)
    for generator in generators:
        generator.manual_seed(number)


@contextlib.contextmanager
def preserved(generators: Iterable[torch.Generator] = ()) -> Iterator[None]:
    """Restore all states of random numbers afterwards."""
    kept = [(generator, generator.get_state()) for generator in generators]
    python, numpy = random.getstate(), np.random.get_state()
    devices = list(range(torch.cuda.device_count())) if torch.cuda.is_initialized() else []
    try:
        with torch.random.fork_rng(devices=devices):
            yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)
        for generator, state in kept:
            generator.set_state(state)


def checksum(net: nn.Module) -> str:
    """A checksum of all names, shapes and values.

    >>> one, other = nn.Linear(2, 2), nn.Linear(2, 2)
    >>> checksum(one) == checksum(one), checksum(one) == checksum(other)
    (True, False)
    """
    digest = hashlib.blake2b(digest_size=16)
    for name, value in net.state_dict().items():
        if not isinstance(value, torch.Tensor):  # the extra state of a module
            digest.update(f"{name} {value!r}".encode())
            continue
        digest.update(f"{name} {tuple(value.shape)} {value.dtype}".encode())
        flat = value.detach().cpu().contiguous().reshape(-1)
        digest.update(flat.view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()
