"""How fast slim transformers are at half of the FLOPs: beside the unpruned net and Torch-Pruning's nets.

    python benchmarks/attention_time.py [--nets vit swin] [--batches 1 8] [--how eager compiled] [--resume]

Channels, heads and places in heads are chosen at random on budget, which is the hardest case for joins: every block
writes to other channels of its stream, so that all of them stay. *Together*, layers of the same width get the same
scores, and whoever writes a stream writes the same channels of it, as in Torch-Pruning's nets. These have about the
same FLOPs, counted by torch; each of its variants cuts all layers by the same share. All nets take turns; what is
written down is as in slim_time.py.
"""

from __future__ import annotations

import argparse
import copy
import json
import statistics
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

from budgets import counted, of_timm
from timing import Row, circumstances, compile_net, in_rounds, keep_memory, ratio, shown, times

sys.path.insert(0, str(Path(__file__).parents[1]))
import fxprune

RESULT = Path(__file__).parent / "results" / "attention_time"
NETS = {"vit": "vit_base_patch16_224", "swin": "swin_tiny_patch4_window7_224"}
SHARE = 1 / 2  # of the FLOPs
NEAR = 0.05  # of these, how far a net of Torch-Pruning may be away; heads are few
OTHERS = {
    "full": "the unpruned net",
    "together": "a slim net whose layers of the same width keep the same channels, so that its stream is narrow",
    "dense": 'the slim net with connectivity="dense": blocks read and write all channels of their stream',
    "heads": "Torch-Pruning: whole heads, hidden layers and (not of Swin) the stream",
    "width": "Torch-Pruning: the width of heads, hidden layers and (not of Swin) the stream",
}
Args = tuple[torch.Tensor, ...]

# ------------------------------------------------------------------------------------------------- Torch-Pruning's nets


def torch_pruned(model: nn.Module, args: Args, kind: str) -> tuple[nn.Module, int] | None:
    """The net nearest to the share among those cut by one ratio, and its FLOPs; None where none is near."""
    limit = SHARE * counted(model, args)["flops"]
    low, high = 0.0, 1.0
    tried: list[tuple[float, int, nn.Module]] = []
    for _ in range(8):
        middle = (low + high) / 2
        net = cut(copy.deepcopy(model), args, kind, middle)
        if not all(getattr(block, "num_heads", 1) for block in net.modules()):  # no head left, which breaks the block
            high = middle
            continue
        flops = counted(net, args)["flops"]
        tried.append((abs(flops / limit - 1), flops, net))
        low, high = (middle, high) if flops > limit else (low, middle)
    off, flops, net = min(tried, key=lambda each: each[0])
    return (net, flops) if off <= NEAR else None


def cut(net: nn.Module, args: Args, kind: str, share: float) -> nn.Module:
    """As its examples do it: the number of heads is told, and set anew in the modules that keep it."""
    import torch_pruning as tp

    blocks = [module for module in net.modules() if hasattr(module, "qkv")]
    windows = hasattr(blocks[0], "relative_position_bias_table")
    kept = [module for module in net.modules() if isinstance(module, nn.Linear)][-1:]
    if windows:  # whose merging of patches it cannot follow
        kept += [part for name, part in net.named_modules() if name.endswith(("proj", "fc2", "reduction"))]
        for block in blocks:  # a table of biases per head, which it takes for channels: no parameter while it looks
            table = block.relative_position_bias_table.detach()
            del block.relative_position_bias_table
            block.relative_position_bias_table = table
    heads = {block.qkv: block.num_heads for block in blocks}
    pruner = tp.pruner.BasePruner(
        net, args, importance=tp.importance.GroupMagnitudeImportance(), global_pruning=False, pruning_ratio=share,
        ignored_layers=kept, num_heads=heads, prune_num_heads=kind == "heads", prune_head_dims=kind == "width",
        head_pruning_ratio=share if kind == "heads" else 0.0, in_channel_groups={}, out_channel_groups={},
    )  # fmt: skip
    pruner.step()
    for block in blocks:
        block.num_heads = pruner.num_heads[block.qkv]
        if hasattr(block, "head_dim"):
            block.head_dim = block.qkv.out_features // (3 * block.num_heads)
            block.attn_dim = block.num_heads * block.head_dim
        if windows:  # whose biases they are does not change the time
            table = block.relative_position_bias_table[:, : block.num_heads].clone()
            del block.relative_position_bias_table
            block.relative_position_bias_table = nn.Parameter(table)
    return net.eval()


# --------------------------------------------------------------------------------------------------------- measuring


def hardened(model: nn.Module, args: Args, seed: Callable[[int, int], int]) -> Any:
    """Random scores, the same ones for units with the same ``seed``."""
    wrapped = fxprune.wrap(model, SHARE, metric="flops", example_inputs=args)
    scores = {
        name: torch.rand(len(gate), generator=torch.Generator().manual_seed(seed(number, len(gate))))
        for number, (name, gate) in enumerate(wrapped.gates.items())
    }
    return wrapped.harden(scores).eval()


def nets_of(name: str) -> tuple[dict[str, nn.Module], dict[str, int]]:
    """All nets that are timed, and their FLOPs per sample."""
    torch.manual_seed(0)
    model, args = of_timm(NETS[name])()
    model = model.eval()
    wrapped = hardened(model, args, lambda number, width: number)
    together = hardened(model, args, lambda number, width: width)
    nets: dict[str, nn.Module] = {
        "slim": fxprune.export(wrapped).eval(),
        "full": model,
        "together": fxprune.export(together).eval(),
        "dense": fxprune.export(wrapped, connectivity="dense", verify=False).eval(),
    }
    flops = {kind: counted(net, args)["flops"] for kind, net in nets.items()}
    for kind in ("heads", "width"):
        net_and_flops = torch_pruned(model, args, kind)
        if net_and_flops is not None:
            nets[kind], flops[kind] = net_and_flops
    return nets, flops


def measured(nets: dict[str, Callable[..., Any]], batch: int, options: argparse.Namespace) -> Row:
    taken = times(nets, torch.randn(batch, 3, 224, 224), options.rounds, options.seconds)
    own = taken.pop("slim")
    return {
        "rounds": len(own),
        "milliseconds": round(1e3 * statistics.median(own), 2),
        "slim_over": {other: ratio(own, spent) for other, spent in taken.items()},
        "over_full": {other: ratio(spent, taken["full"]) for other, spent in {"slim": own, **taken}.items()},
    }


def markdown(result: Row) -> str:
    machine = result["machine"]
    text = [
        "# How fast slim transformers are", "",
        f"Made by `{result['command']}`; do not edit.", "",
        f"{machine['cores']} cores ({machine['processor']}), {machine['threads']} threads, load per core before: "
        f"{result['load_per_core_before']}, torch {machine['torch']}, Torch-Pruning {machine['torch-pruning']}. timm's "
        "nets, untrained, 224x224, cut to 1/2 of the FLOPs (products of attention counted); channels at random. Time "
        "of the slim net over that of another one, the median of interleaved rounds and its 95 % interval; below 1 "
        "the slim net is faster. In brackets: FLOPs over those of the unpruned net.", "",
        *(f"- *{name}*: {what}" for name, what in OTHERS.items()), "",
        "| net | batch | how | slim | " + " | ".join(OTHERS) + " |",
        "| --- | ---: | --- | ---: |" + " ---: |" * len(OTHERS),
    ]  # fmt: skip
    for row in result["rows"]:
        cells = [f"({row['share']['slim']:.3f})"]
        for other in OTHERS:
            over = row["slim_over"].get(other)
            cells.append("" if over is None else f"{shown(over)} ({row['share'][other]:.3f})")
        text.append(f"| {row['net']} | {row['batch']} | {row['how']} | " + " | ".join(cells) + " |")
    return "\n".join(text) + "\n"


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--nets", nargs="+", choices=list(NETS), default=list(NETS))
    parser.add_argument("--batches", nargs="+", type=int, default=[1, 8])
    parser.add_argument("--how", nargs="+", choices=("eager", "compiled"), default=["eager"])
    return in_rounds(parser, 15, 20.0, 1, RESULT).parse_args()


def main() -> None:
    keep_memory()
    options = arguments()
    warnings.simplefilter("ignore")
    torch.set_num_threads(options.threads)
    file: Path = options.out.with_suffix(".json")
    held = json.loads(file.read_text())["rows"] if options.resume and file.exists() else []
    asked = f"--nets {' '.join(options.nets)} --batches {' '.join(map(str, options.batches))} --how "
    asked += f"{' '.join(options.how)} --rounds {options.rounds} --seconds {options.seconds:g}"
    result: Row = {**circumstances("attention_time.py", asked), "rows": held}
    done = {(row["net"], row["batch"], row["how"]) for row in held}
    for name in options.nets:
        left = [(name, batch, how) for how in options.how for batch in options.batches]
        left = [each for each in left if each not in done]
        if not left:
            continue
        nets, flops = nets_of(name)
        for _, batch, how in left:
            ready = {kind: compile_net(net) for kind, net in nets.items()} if how == "compiled" else nets
            row = {"net": NETS[name], "batch": batch, "how": how, **measured(ready, batch, options)}
            row["share"] = {kind: round(each / flops["full"], 4) for kind, each in flops.items()}
            print(json.dumps(row), flush=True)
            held.append({**row, "net": name})
            options.out.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(json.dumps(result, indent=1) + "\n")
            options.out.with_suffix(".md").write_text(markdown(result))
            torch._dynamo.reset()


if __name__ == "__main__":
    main()
