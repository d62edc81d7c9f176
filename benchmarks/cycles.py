"""Wrap, train, harden, export, save and load again and again in one process: does anything grow?

    python benchmarks/cycles.py [--cycles 200]

Memory is the resident set after each cycle, files are the descriptors that are open (both from /proc, so Linux only).
oneDNN is switched off: it keeps memory for convolutions of every new width, in plain torch, too, and each cycle has new
ones; --onednn leaves it on.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import sys
import tempfile
from pathlib import Path

import torch
import torch.nn.functional as F

sys.path.insert(0, str(Path(__file__).parents[1] / "examples"))
from models import resnet8

import fxprune
from fxprune.compare.worker import machine

RESULTS = Path(__file__).parent / "results"
SETTLED = 10  # cycles until caches are filled


def cycle(seed: int, folder: Path) -> None:
    torch.manual_seed(seed)
    x, y = torch.randn(16, 3, 16, 16), torch.randint(0, 10, (16,))
    net = fxprune.wrap(resnet8(width=16), budget=1 / 4, example_inputs=x)
    optimizer = torch.optim.SGD(net.parameter_groups(lr=0.1))
    for step in range(5):
        net.progress = step / 4
        loss = F.cross_entropy(net(x), y) + net.budget_loss()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    slim = fxprune.export(net.eval())
    path = folder / str(seed)
    fxprune.save(slim, path)
    torch.testing.assert_close(fxprune.load(path)(x), slim(x))


def resident() -> float:
    """In MiB."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--cycles", type=int, default=200)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--onednn", action="store_true", help="leave oneDNN on")
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    torch.backends.mkldnn.set_flags(options.onednn)
    memory, files = [], []
    with tempfile.TemporaryDirectory() as folder:
        for number in range(options.cycles):
            cycle(number, Path(folder))
            gc.collect()
            memory.append(round(resident(), 1))
            files.append(len(os.listdir("/proc/self/fd")))
    settled = memory[min(SETTLED, len(memory)) - 1 :]
    growth = max(settled) / settled[0] - 1
    flat = growth <= 0.05 and files[-1] <= files[min(SETTLED, len(files)) - 1]
    result = {"cycles": options.cycles, "growth": round(growth, 4), "memory": memory, "files": files, "flat": flat}
    (options.out / "cycles.json").write_text(json.dumps({**result, "machine": machine()}) + "\n")
    lines = [
        f"# {options.cycles} cycles in one process",
        "",
        f"`python benchmarks/cycles.py --cycles {options.cycles}`: wrap, five training steps, export, save and load of",
        f"a ResNet-8. Resident memory after cycle {SETTLED}: {settled[0]:.0f} MiB; the most after that:",
        f"{max(settled):.0f} MiB ({100 * growth:+.1f} %). Open files after the first cycle: {files[0]}, after the",
        f"last: {files[-1]}. oneDNN was {'on' if options.onednn else 'off'}: it keeps memory for convolutions of every",
        "new width, in plain torch, too, and each cycle has new ones.",
        "",
        f"{machine()}",
    ]
    (options.out / "cycles.md").write_text("\n".join(lines) + "\n")
    print("\n".join(lines))
    return 0 if flat else 1


if __name__ == "__main__":
    sys.exit(main())
