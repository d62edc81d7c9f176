"""Pages to test with, made without a network: a residual one of any size, and what is left of it."""

from __future__ import annotations

from typing import Any

from fxprune.analysis.inspection import FreezeInfo, Inspection, LayerInfo
from fxprune.report.facts import ReportData, Survivor
from fxprune.trace.tracer import Leaf, Specialisation

CHANNELS = 16


def layer(name: str, channels: int = CHANNELS, **more: Any) -> LayerInfo:
    facts: dict[str, Any] = {
        "name": name, "channels": channels, "gates": channels, "grain": "channel", "calls": 1, "area": 64,
        "volume": 64 * channels, "volume_share": 0.01, "flops": 1000 * channels, "flops_share": 0.01,
        "params": 90 * channels, "prunable": 1.0, "writes": (), "streams": (), "guarded": None, "ungated": None,
        "source": "net.py:3",
    }  # fmt: skip
    return LayerInfo(**{**facts, **more})


def residual(stages: int = 2, blocks: int = 2, model: str = "Residual", stem: str = "stem") -> Inspection:
    """A stem, and blocks of two convolutions and an add: three nodes each, and two more for input and output."""
    nodes: dict[str, dict[str, Any]] = {"x": {"kind": "input", "label": "x", "module": "", "source": None}}
    nodes["stem"] = {"kind": "conv", "label": stem, "module": stem, "source": "net.py:1"}
    edges, layers, adds, last = [("x", "stem")], [layer(stem, guarded="every way to the output passes it")], [], "stem"
    for stage in range(1, stages + 1):
        for block in range(blocks):
            path = f"layer{stage}.{block}"
            first, second, add = (f"{part}_{stage}_{block}" for part in ("conv1", "conv2", "add"))
            for node, part in ((first, "conv1"), (second, "conv2")):
                nodes[node] = {"kind": "conv", "label": f"{path}.{part}", "module": f"{path}.{part}", "source": None}
                layers.append(layer(f"{path}.{part}"))
            nodes[add] = {"kind": "add", "label": add, "module": path, "source": "net.py:9"}
            edges += [(last, first), (first, second), (second, add), (last, add)]
            adds.append(add)
            last = add
    nodes["output"] = {"kind": "output", "label": "output", "module": "", "source": None}
    edges.append((last, "output"))
    cost = {"volume": 64 * CHANNELS * len(layers), "flops": 16000 * len(layers), "params": 1440 * len(layers)}
    return Inspection(
        model=model,
        inputs=("1x3x32x32",),
        cost=cost,
        smallest={metric: count // 20 for metric, count in cost.items()},
        smallest_budget=dict.fromkeys(cost, 0.05),
        prunable=1.0,
        layers=tuple(layers),
        streams={"S1": tuple(adds)},
        pooling_blocks=(),
        freezes=(FreezeInfo("renorm", "torch.renorm", "no rule", None, (layers[-1].name,), 0.1, 0.1, "add a rule"),),
        leaves=(Leaf("opaque", "Opaque", "asked for", None),),
        specialisations=(Specialisation("size", "value", 32, "net.py:5"),),
        edges=tuple(edges),
        nodes=nodes,
    )


def log(epochs: int = 3, batches: int = 10) -> tuple[dict[str, Any], ...]:
    rows = []
    for phase in ("teacher", "prune", "fine-tune"):
        for step in range(1, epochs * batches + 1):
            done = step / (epochs * batches)
            cost = {"V": 1000 * (1 - 0.75 * done), "b": 1020 * (1 - 0.75 * done)} if phase == "prune" else {}
            measured = 0.5 + 0.4 * done if step % batches == 0 else None
            row = {"phase": phase, "epoch": (step - 1) // batches + 1, "step": step, "loss": 2 - done}
            rows.append({**row, "V": None, "b": None, **cost, "accuracy": measured, "lr": 1e-3, "seconds": float(step)})
    return tuple(rows)


def page(seen: Inspection | None = None, **more: Any) -> ReportData:
    """A finished run: every other channel lives, the last block is gone, joins are of all kinds in turn."""
    seen = seen or residual()
    gone = {info.name for info in seen.layers[-2:]}
    masks = {info.name: ("00" if info.name in gone else "10") * (CHANNELS // 2) for info in seen.layers}
    left = {
        info.name: Survivor(mask, 64 * mask.count("1"), 1000 * mask.count("1"), 90 * mask.count("1"))
        for info, mask in ((info, masks[info.name]) for info in seen.layers)
    }
    adds = [name for name, node in seen.nodes.items() if node["kind"] == "add"]
    kinds = ("plain", "slice", "scatter", "concat")
    joins = {name: kinds[n % 4] for n, name in enumerate(adds[:-1])} | {adds[-1]: "through"}
    facts: dict[str, Any] = {
        "model": seen.model, "inspection": seen, "run": "first", "stage": "finished",
        "budget": {"volume": 0.5}, "before": seen.cost,
        "after": {m: sum(getattr(each, m) for each in left.values()) for m in ("volume", "flops", "params")},
        "accuracy": {"before": 0.91, "hardened": 0.8, "exported": 0.8, "after": 0.9},
        "layers": left, "streams": dict.fromkeys(adds, "10" * (CHANNELS // 2)), "joins": joins,
        "certificate": {"error": 5e-16, "tolerance": 1e-9, "batches": [4, 5], "dtype": "float64", "fused": 0},
        "settings": {"epochs": [3, 2, 1], "batches": 10, "optimizer": "Adam(lr=0.001)", "seed": 0},
        "seconds": 754.0, "log": log(),
    }  # fmt: skip
    return ReportData(**{**facts, **more})
