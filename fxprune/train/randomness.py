"""All randomness of a step as a function of where training is: what makes resuming exact.

Before each batch is fetched, every generator is seeded from (seed, phase, epoch, batch). A checkpoint then needs no
generator states, and an epoch that is taken up in its middle goes through the same draws as one that never stopped,
whatever drew from which generator in between.
"""

from __future__ import annotations

import contextlib
import hashlib
import random
from collections.abc import Iterable, Iterator

import numpy as np
import torch


def seed_all(*key: int | str, generators: Iterable[torch.Generator] = ()) -> None:
    """Seed Python, NumPy, torch (every device in use) and ``generators`` from ``key``.

    >>> seed_all(0, "prune", 3); first = torch.rand(1)
    >>> seed_all(0, "prune", 3); first == torch.rand(1)
    tensor([True])
    """
    number = int.from_bytes(hashlib.blake2b(repr(key).encode(), digest_size=8).digest(), "little") >> 1
    random.seed(number)
    np.random.seed(number % 2**32)
    torch.default_generator.manual_seed(number)  # torch.manual_seed would also queue a call for every unused device
    if torch.cuda.is_initialized():
        torch.cuda.manual_seed_all(number)
    for generator in generators:
        generator.manual_seed(number)


@contextlib.contextmanager
def preserved(generators: Iterable[torch.Generator] = ()) -> Iterator[None]:
    """What is drawn inside does not show outside."""
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
