"""How fast a slim net is: beside the unpruned net, its own limit, the paper's block, regular blocks, Torch-Pruning.

    python benchmarks/slim_time.py [--nets resnet18 ...] [--volumes 1/2 ...] [--how eager compiled] [--resume]

Channels are chosen at random on budget, so that every block writes to other channels of its stream: the hardest case
for joins. All nets take turns; what is written down are medians over the rounds of the time of the slim net over that
of another one in the same round, with the 95 % interval of the median. Compare ratios, not seconds. Fewer nets are
compiled, which takes a minute each.
"""

from __future__ import annotations

import argparse
import copy
import json
import statistics
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from fractions import Fraction
from math import ceil, sqrt
from pathlib import Path
from typing import Any

import torch
from torch import nn

from algorithm2 import algorithm2
from limit import cut_at_joins, limit
from timing import circumstances, keep_memory
from torch_pruning_tool import cost, pruner
from torchvision_ops import declare_torchvision_ops

sys.path.insert(0, str(Path(__file__).parents[1] / "examples"))
sys.path.insert(0, str(Path(__file__).parents[1]))
import fxprune

RESULT = Path(__file__).parent / "results" / "slim_time"
SIZES = {"resnet18": 128, "resnet50": 128, "wrn16_4": 32}
OTHERS = {
    "ideal": "its own layers (compiled: all between two joins) on tensors that are there already, one add per join; "
    "below 1 because layers of the slim net find in the cache what the one before left there",
    "full": "the unpruned net",
    "algorithm2": "the paper's block: gather, full width of zeros, indexed add",
    "dense": 'regular blocks, connectivity="dense"',
    "torch_pruning": "Torch-Pruning's net of the same volume, local magnitude",
}
AUTO_OTHERS = ("ideal", "dense")
QUICK, WARM = 0.2, 0.01  # seconds; whatever fits into a cache is little beside the first
Net = Callable[[torch.Tensor], Any]
Row = dict[str, Any]


def build(name: str) -> nn.Module:
    declare_torchvision_ops()
    torch.manual_seed(0)
    if name == "wrn16_4":
        from models import wrn

        return wrn(16, 4).eval()
    import torchvision

    model: nn.Module = torchvision.models.get_model(name, weights=None).eval()
    return model


def torch_pruned(model: nn.Module, args: tuple[Any, ...], volume: float) -> nn.Module:
    """All layers lose the same share, in one step: the largest net on budget."""
    limit_, low, high, best = volume * cost(model, args, "volume"), 0.0, 1.0, None
    for _ in range(9):
        ratio, net = (low + high) / 2, copy.deepcopy(model)
        pruner(net, args, "magnitude", "local", 0.0, ratio, 1).step()
        low, high, best = (low, ratio, net) if cost(net, args, "volume") <= limit_ else (ratio, high, best)
    assert best is not None
    return best.eval()


def hardened(model: nn.Module, args: Any, volume: float) -> Any:
    """The same channels for every batch size."""
    wrapped, generator = fxprune.wrap(model, volume, example_inputs=args), torch.Generator().manual_seed(0)
    return wrapped.harden({name: torch.rand(len(gate), generator=generator) for name, gate in wrapped.gates.items()})


def nets_of(model: nn.Module, args: tuple[Any, ...], volume: float) -> dict[str, nn.Module]:
    wrapped = hardened(model, args, volume)
    made: dict[str, nn.Module] = {"slim": fxprune.export(wrapped), "full": model}
    made["algorithm2"] = algorithm2(wrapped)
    made["dense"] = fxprune.export(wrapped, connectivity="dense", verify=False)
    made["torch_pruning"] = torch_pruned(model, args, volume)
    with torch.no_grad():
        expected, found = made["slim"](*args), made["algorithm2"](*args)
    assert torch.allclose(expected, found, atol=1e-3 * float(expected.abs().max())), (
        "Algorithm 2 computes something else"
    )
    memory = torch.channels_last if channels_last(model) else torch.contiguous_format
    return {name: net.eval().to(memory_format=memory) for name, net in made.items()}


def channels_last(model: nn.Module) -> bool:
    return any(p.ndim == 4 and not p.is_contiguous() for p in model.parameters())


def ready(nets: dict[str, nn.Module], x: torch.Tensor) -> dict[str, Net]:
    """Every net, with its limit."""
    return {**nets, "ideal": limit(nets["slim"], x)}


def ready_compiled(nets: dict[str, nn.Module], x: torch.Tensor, full: Net) -> dict[str, Net]:
    """Fewer of them, compiled."""
    made = {"full": full, **{name: compile_net(nets[name]) for name in ("slim", "dense")}}
    same = [name for name in ("slim", "dense") if nets[name].report.widths == nets["auto"].report.widths]
    made["auto"] = made[same[0]] if same else compile_net(nets["auto"])
    cut, inputs = cut_at_joins(nets["slim"], x)
    ideal = compile_net(cut.eval())
    return {**made, "ideal": lambda _: ideal(*inputs)}


def compile_net(net: nn.Module) -> nn.Module:
    """As it is meant for inference: weights are constants, batch norms folded. (Without it inductor of torch 2.13 fails
    on a CPU in channels-last, with the unpruned nets, too.)"""
    torch._inductor.config.freezing = True
    made: nn.Module = torch.compile(net, dynamic=False)  # type: ignore[assignment]
    return made


def times(nets: dict[str, Net], x: torch.Tensor, rounds: int, seconds: float) -> dict[str, list[float]]:
    """Seconds per net, in turns; at least ``rounds`` of them, more while there are ``seconds`` left.

    A quick net runs for a while before each of its turns: else whoever took the turn before decides what is in the
    cache, and nets that share their weights (the limit is made of the slim net's layers) warm each other.
    """
    taken: dict[str, list[float]] = {name: [] for name in nets}
    with torch.inference_mode():
        for net in nets.values():
            for _ in range(5):
                net(x)
        once = {name: _seconds(net, x) for name, net in nets.items()}
        before = {name: ceil(WARM / spent) if spent < QUICK else 0 for name, spent in once.items()}
        begin, number = time.perf_counter(), 0
        while number < rounds or (time.perf_counter() - begin < seconds and number < 20 * rounds):
            number += 1
            for name, net in nets.items():
                for _ in range(before[name]):
                    net(x)
                taken[name].append(_seconds(net, x))
    return taken


def _seconds(net: Net, x: torch.Tensor) -> float:
    start = time.perf_counter()
    net(x)
    return time.perf_counter() - start


def ratio(one: list[float], other: list[float]) -> Row:
    """Of the slim net's time to another's: the median over the rounds, and its 95 % interval by order statistics."""
    sorted_ = sorted(a / b for a, b in zip(one, other, strict=True))
    count = len(sorted_)
    reach = 0.98 * sqrt(count)
    low, high = max(int(count / 2 - reach), 0), min(int(count / 2 + reach), count - 1)
    return {
        "median": round(statistics.median(sorted_), 4),
        "interval": [round(sorted_[low], 4), round(sorted_[high], 4)],
    }


HOW = {"eager": ((False, True), (False, False)), "compiled": ((True, True),)}  # compiled, channels-last


KEY = ("net", "volume", "batch", "compiled", "channels_last")


def key(row: Row) -> tuple[Any, ...]:
    return tuple(row[name] for name in KEY)


def measured(name: str, options: argparse.Namespace, done: set[tuple[Any, ...]]) -> Iterator[Row]:
    model, size = build(name), SIZES[name]
    ways = [way for how in options.how for way in HOW[how] if way[1] or not options.channels_last]
    for last in (True, False):
        memory = torch.channels_last if last else torch.contiguous_format
        placed = copy.deepcopy(model).to(memory_format=memory)
        full = compile_net(placed)  # once per batch size, not per volume
        for volume in options.volumes:
            nets = None
            for batch in options.batches:
                left = [way for way in ways if way[1] == last and (name, volume, batch, *way) not in done]
                if not left:
                    continue
                nets = nets or nets_of(placed, (torch.zeros(1, 3, size, size),), float(Fraction(volume)))
                x = torch.randn(batch, 3, size, size).to(memory_format=memory)
                wrapped = hardened(placed, x, float(Fraction(volume)))
                for compiled, _ in left:
                    how = {"verify": False, "prepare": compile_net if compiled else None}
                    nets["auto"] = fxprune.export(wrapped, connectivity="auto", **how).eval()
                    made = ready_compiled(nets, x, full) if compiled else ready(nets, x)
                    about = {"net": name, "size": size, "volume": volume, "batch": batch, "channels_last": last}
                    yield {**about, "compiled": compiled, **timed(made, x, options), "joins": nets["slim"].report.joins}
        torch._dynamo.reset()


def timed(nets: dict[str, Net], x: torch.Tensor, options: argparse.Namespace) -> Row:
    taken = times(nets, x, options.rounds, options.seconds)
    own = taken.pop("slim")
    return {
        "rounds": len(own),
        "milliseconds": round(1e3 * statistics.median(own), 3),
        "slim_over": {other: ratio(own, spent) for other, spent in taken.items()},
        "auto_over": {other: ratio(taken["auto"], taken[other]) for other in AUTO_OTHERS},
    }


def line(row: Row) -> str:
    parts = [f"{name} {found['median']:.2f}" for name, found in row["slim_over"].items()]
    return f"{row['net']} {row['volume']} batch {row['batch']} {_how(row)}: " + ", ".join(parts)


def markdown(found: Row) -> str:
    machine = found["machine"]
    text = [
        "# How fast slim nets are", "",
        f"Made by `{found['command']}`; do not edit.", "",
        f"{machine['cores']} cores ({machine['processor']}), {machine['threads']} threads, load per core before: "
        f"{found['load_per_core_before']}, Python {machine['python']}, torch {machine['torch']}, Torch-Pruning "
        f"{machine['torch-pruning']}. Time of the slim net over that of another one, the median of interleaved rounds "
        "and its 95 % interval; below 1 the slim net is faster. A net of less than "
        f"{1e3 * QUICK:.0f} ms runs for {1e3 * WARM:.0f} ms before each timing, and the process keeps the memory that "
        "it freed. Channels are chosen at random, on budget.", "",
        *(f"- *{name}*: {what}" for name, what in OTHERS.items()),
        '- *auto/ideal*, *auto/dense*: `connectivity="auto"` over the limit of the mixed net, and over `"dense"`; '
        "eager nets chose among eager ones, compiled nets among compiled ones",
    ]  # fmt: skip
    for name in dict.fromkeys(row["net"] for row in found["rows"]):
        rows = [row for row in found["rows"] if row["net"] == name]
        text += ["", f"## {name}, {rows[0]['size']}x{rows[0]['size']} pictures", ""]
        names = [*OTHERS, *(f"auto/{other}" for other in AUTO_OTHERS)]
        text += ["| volume | batch | how | " + " | ".join(names) + " | joins |"]
        text += ["| --- | ---: | --- |" + " ---: |" * len(names) + " --- |"]
        for row in rows:
            cells = [_cell(row["slim_over"].get(other)) for other in OTHERS]
            cells += [_cell(row["auto_over"].get(other)) for other in AUTO_OTHERS]
            joins = ", ".join(f"{count} {kind}" for kind, count in row["joins"].items())
            text.append(f"| {row['volume']} | {row['batch']} | {_how(row)} | " + " | ".join(cells) + f" | {joins} |")
    return "\n".join(text) + "\n"


def _order(row: Row) -> tuple[Any, ...]:
    volume = -Fraction(row["volume"])
    return list(SIZES).index(row["net"]), volume, row["batch"], row["compiled"], not row["channels_last"]


def _cell(found: Row | None) -> str:
    return "" if found is None else f"{found['median']:.2f} ({found['interval'][0]:.2f} to {found['interval'][1]:.2f})"


def _how(row: Row) -> str:
    return ("compiled" if row["compiled"] else "eager") + (", channels-last" if row["channels_last"] else "")


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--nets", nargs="+", choices=list(SIZES), default=list(SIZES))
    parser.add_argument("--volumes", nargs="+", default=["1/2", "1/4", "1/8", "1/16"])
    parser.add_argument("--batches", nargs="+", type=int, default=[1, 32])
    parser.add_argument("--how", nargs="+", choices=list(HOW), default=list(HOW))
    parser.add_argument("--channels-last", action="store_true", help="that format only")
    parser.add_argument("--resume", action="store_true", help="go on with what the .json file holds")
    parser.add_argument("--rounds", type=int, default=50, help="at least")
    parser.add_argument("--seconds", type=float, default=5.0, help="more rounds as long as they take less")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--out", type=Path, default=RESULT, help="path without .json and .md")
    return parser.parse_args()


def main() -> None:
    keep_memory()
    options = arguments()
    warnings.simplefilter("ignore")
    torch.set_num_threads(options.threads)
    file = options.out.with_suffix(".json")
    held = json.loads(file.read_text()) if options.resume and file.exists() else {"rows": []}
    before = held["rows"]
    asked = f"--nets {' '.join(options.nets)} --how {' '.join(options.how)} --volumes {' '.join(options.volumes)} "
    asked += f"--batches {' '.join(map(str, options.batches))} --rounds {options.rounds} --seconds {options.seconds:g}"
    asked += " --channels-last" if options.channels_last else ""
    found: Row = {**circumstances("slim_time.py", asked), "rows": before}
    if before:
        found["command"] = f"{held['command']} && {found['command']} --resume"
    for name in options.nets:
        for row in measured(name, options, set(map(key, before))):
            print(line(row), flush=True)
            found["rows"].append(row)
            found["rows"].sort(key=_order)
            options.out.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(json.dumps(found, indent=1) + "\n")
            options.out.with_suffix(".md").write_text(markdown(found))


if __name__ == "__main__":
    main()
