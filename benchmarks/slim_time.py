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
import warnings
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path
from typing import Any

import torch
from torch import nn

from algorithm2 import algorithm2
from limit import cut_at_joins, limit
from timing import QUICK, WARM, Net, Row, circumstances, compile_net, in_rounds, keep_memory, ratio, shown, times
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
    nets: dict[str, nn.Module] = {"slim": fxprune.export(wrapped), "full": model}
    nets["algorithm2"] = algorithm2(wrapped)
    nets["dense"] = fxprune.export(wrapped, connectivity="dense", verify=False)
    nets["torch_pruning"] = torch_pruned(model, args, volume)
    with torch.no_grad():
        expected, other = nets["slim"](*args), nets["algorithm2"](*args)
    assert torch.allclose(expected, other, atol=1e-3 * float(expected.abs().max())), (
        "Algorithm 2 computes something else"
    )
    memory = torch.channels_last if channels_last(model) else torch.contiguous_format
    return {name: net.eval().to(memory_format=memory) for name, net in nets.items()}


def channels_last(model: nn.Module) -> bool:
    return any(p.ndim == 4 and not p.is_contiguous() for p in model.parameters())


def ready(nets: dict[str, nn.Module], x: torch.Tensor) -> dict[str, Net]:
    """Every net, with its limit."""
    return {**nets, "ideal": limit(nets["slim"], x)}


def ready_compiled(nets: dict[str, nn.Module], x: torch.Tensor, full: Net) -> dict[str, Net]:
    """Fewer of them, compiled."""
    ready_nets = {"full": full, **{name: compile_net(nets[name]) for name in ("slim", "dense")}}
    same = [name for name in ("slim", "dense") if nets[name].report.widths == nets["auto"].report.widths]
    ready_nets["auto"] = ready_nets[same[0]] if same else compile_net(nets["auto"])
    cut, inputs = cut_at_joins(nets["slim"], x)
    ideal = compile_net(cut.eval())
    return {**ready_nets, "ideal": lambda _: ideal(*inputs)}


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
                    rivals = ready_compiled(nets, x, full) if compiled else ready(nets, x)
                    about = {"net": name, "size": size, "volume": volume, "batch": batch, "channels_last": last}
                    row = {**about, "compiled": compiled, **timed(rivals, x, options)}
                    yield {**row, "joins": nets["slim"].report.joins}
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
    parts = [f"{name} {over['median']:.2f}" for name, over in row["slim_over"].items()]
    return f"{row['net']} {row['volume']} batch {row['batch']} {_how(row)}: " + ", ".join(parts)


def markdown(result: Row) -> str:
    machine = result["machine"]
    text = [
        "# How fast slim nets are", "",
        f"Made by `{result['command']}`; do not edit.", "",
        f"{machine['cores']} cores ({machine['processor']}), {machine['threads']} threads, load per core before: "
        f"{result['load_per_core_before']}, Python {machine['python']}, torch {machine['torch']}, Torch-Pruning "
        f"{machine['torch-pruning']}. Time of the slim net over that of another one, the median of interleaved rounds "
        "and its 95 % interval; below 1 the slim net is faster. A net of less than "
        f"{1e3 * QUICK:.0f} ms runs for {1e3 * WARM:.0f} ms before each timing, and the process keeps the memory that "
        "it freed. Channels are chosen at random, on budget.", "",
        *(f"- *{name}*: {what}" for name, what in OTHERS.items()),
        '- *auto/ideal*, *auto/dense*: `connectivity="auto"` over the limit of the mixed net, and over `"dense"`; '
        "eager nets chose among eager ones, compiled nets among compiled ones",
    ]  # fmt: skip
    for name in dict.fromkeys(row["net"] for row in result["rows"]):
        rows = [row for row in result["rows"] if row["net"] == name]
        text += ["", f"## {name}, {rows[0]['size']}x{rows[0]['size']} pictures", ""]
        names = [*OTHERS, *(f"auto/{other}" for other in AUTO_OTHERS)]
        text += ["| volume | batch | how | " + " | ".join(names) + " | joins |"]
        text += ["| --- | ---: | --- |" + " ---: |" * len(names) + " --- |"]
        for row in rows:
            cells = [shown(row["slim_over"].get(other)) for other in OTHERS]
            cells += [shown(row["auto_over"].get(other)) for other in AUTO_OTHERS]
            joins = ", ".join(f"{count} {kind}" for kind, count in row["joins"].items())
            text.append(f"| {row['volume']} | {row['batch']} | {_how(row)} | " + " | ".join(cells) + f" | {joins} |")
    return "\n".join(text) + "\n"


def _order(row: Row) -> tuple[Any, ...]:
    volume = -Fraction(row["volume"])
    return list(SIZES).index(row["net"]), volume, row["batch"], row["compiled"], not row["channels_last"]


def _how(row: Row) -> str:
    return ("compiled" if row["compiled"] else "eager") + (", channels-last" if row["channels_last"] else "")


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--nets", nargs="+", choices=list(SIZES), default=list(SIZES))
    parser.add_argument("--volumes", nargs="+", default=["1/2", "1/4", "1/8", "1/16"])
    parser.add_argument("--batches", nargs="+", type=int, default=[1, 32])
    parser.add_argument("--how", nargs="+", choices=list(HOW), default=list(HOW))
    parser.add_argument("--channels-last", action="store_true", help="that format only")
    return in_rounds(parser, 50, 5.0, torch.get_num_threads(), RESULT).parse_args()


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
    result: Row = {**circumstances("slim_time.py", asked), "rows": before}
    if before:
        result["command"] = f"{held['command']} && {result['command']} --resume"
    for name in options.nets:
        for row in measured(name, options, set(map(key, before))):
            print(line(row), flush=True)
            result["rows"].append(row)
            result["rows"].sort(key=_order)
            options.out.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(json.dumps(result, indent=1) + "\n")
            options.out.with_suffix(".md").write_text(markdown(result))


if __name__ == "__main__":
    main()
