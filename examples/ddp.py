"""Pruning on several devices: one process each, every one with its part of the batch.

    torchrun --nproc_per_node=2 examples/ddp.py [--budget 0.25] [--epochs 6] [--out result.pt]

All that is special: the network is wrapped before DistributedDataParallel takes it, ``progress`` and ``budget_loss``
are those of the wrapped network inside, and every process draws the same gates (its generator has the same seed). The
gates then move alike everywhere, so that masks, costs and the slim net are the same on every rank. Without batch
statistics (this net has group norms) the result is that of one process with the whole batch, up to rounding.
"""

from __future__ import annotations

import argparse
import gc
import os

import torch
import torch.distributed as dist
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import fxprune

BATCH = 64


class Net(nn.Module):
    """A residual net for 8x8 digits, without batch norms."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.stem = nn.Conv2d(1, width, 3, padding=1)
        self.one, self.two = nn.Conv2d(width, width, 3, padding=1), nn.Conv2d(width, width, 3, padding=1)
        self.norm = nn.GroupNorm(width, width)
        self.down, self.head = nn.Conv2d(width, 2 * width, 3, 2, 1), nn.Linear(2 * width, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.relu(self.stem(x))
        x = torch.relu(x + self.two(torch.relu(self.norm(self.one(x)))))
        out: torch.Tensor = self.head(torch.relu(self.down(x)).mean((2, 3)))
        return out


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--budget", type=float, default=0.25)
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--double", action="store_true", help="in float64")
    parser.add_argument("--out", help="where rank 0 writes the gates and the slim net's state")
    options = parser.parse_args()
    torch.set_default_dtype(torch.float64 if options.double else torch.float32)
    if "RANK" not in os.environ:  # set by torchrun
        train(options, rank=0, world=1)
        return
    dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
    train(options, dist.get_rank(), dist.get_world_size())
    # The group's threads end with its last owner. Left to the end of the interpreter, a thread that lets go of a tensor
    # then aborts the process.
    gc.collect()
    dist.barrier()
    dist.destroy_process_group()


def train(options: argparse.Namespace, rank: int, world: int) -> None:
    parallel = dist.is_initialized()
    device = torch.device("cpu")
    if torch.cuda.is_available():
        device = torch.device("cuda", rank % torch.cuda.device_count())

    digits = load_digits()
    pictures = torch.tensor(digits.images / 16, dtype=torch.get_default_dtype()).unsqueeze(1)
    labels = torch.from_numpy(digits.target)

    torch.manual_seed(0)  # the same weights everywhere
    net = fxprune.wrap(Net().to(device), options.budget, example_inputs=pictures[:1].to(device)).train()
    net.bank.generator = torch.Generator(device).manual_seed(0)  # and the same gates
    model = DistributedDataParallel(net) if parallel else net
    optimizer = torch.optim.Adam(net.parameter_groups(lr=3e-3, weight_decay=1e-4))

    order, steps = torch.Generator().manual_seed(0), len(labels) // BATCH
    for epoch in range(options.epochs):
        shuffled = torch.randperm(len(labels), generator=order)
        for step in range(steps):
            whole = shuffled[step * BATCH : (step + 1) * BATCH]
            mine = whole.chunk(world)[rank]
            net.progress = (epoch * steps + step) / (options.epochs * steps)
            output = model(pictures[mine].to(device))
            loss = F.cross_entropy(output, labels[mine].to(device)) + net.budget_loss()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    net.progress = 1.0
    slim = fxprune.export(net.harden().eval())

    mine = torch.cat([net.bank.log_alpha.detach().cpu(), torch.from_numpy(net.masks()).float()])
    if parallel:
        every = [torch.empty_like(mine) for _ in range(world)]
        dist.all_gather(every, mine)
        assert all(torch.equal(other, mine) for other in every), "the ranks disagree"
    if rank == 0:
        found = slim(pictures.to(device)).argmax(1).cpu()
        print(f"{world} process(es): volume {net.cost().volume:,} of {net.full_cost().volume:,}, "
              f"{float((found == labels).float().mean()):.1%} of the digits right")  # fmt: skip
        if options.out:
            torch.save({"gates": mine, "volume": net.cost().volume, "slim": slim.state_dict()}, options.out)


if __name__ == "__main__":
    main()
