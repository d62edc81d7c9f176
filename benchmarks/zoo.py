"""Trace, check and inspect every model of the zoos; see zoo_models.py for the list.

    python benchmarks/zoo.py [--only PATTERN] [--suite SUITE] [--resume] [--compare-torch-pruning]

Every parameter and buffer is randomised and everything runs in float64, so that a traced graph that computes what the
model computes is no coincidence. Records go to a .jsonl file one by one; --resume skips the models that it holds.
"""

from __future__ import annotations

import argparse
import copy
import gc
import json
import math
import multiprocessing
import queue
import re
import statistics
import sys
import threading
import time
import traceback
import warnings
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from fnmatch import fnmatchcase
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_flatten

sys.path.insert(0, str(Path(__file__).parents[1]))
import fxprune
from fxprune.errors import FxPruneError, ModelError
from fxprune.tracing import graph_module, trace
from zoo_models import MODELS, Model

Record = dict[str, Any]
TOLERANCE = 1e-9
RESULTS = Path(__file__).parent / "results"

# ------------------------------------------------------------------------------------------------------- one model


def randomise(model: nn.Module) -> None:
    """Random numbers in every floating parameter and buffer, of a size that neither explodes nor vanishes."""
    norms = (nn.modules.batchnorm._NormBase, nn.GroupNorm, nn.LayerNorm, nn.LocalResponseNorm)
    with torch.no_grad():
        for module in model.modules():
            for name, parameter in module.named_parameters(recurse=False):
                if name == "weight" and (isinstance(module, norms) or parameter.ndim == 0):
                    parameter.uniform_(0.5, 1.5)
                elif isinstance(module, nn.PReLU):
                    parameter.uniform_(0.1, 0.4)
                elif parameter.ndim < 2:
                    parameter.normal_(0, 0.3)
                else:
                    parameter.normal_(0, 1 / math.sqrt(_fan_in(module, parameter)))
            for name, buffer in module.named_buffers(recurse=False):
                if not buffer.is_floating_point():
                    continue
                if name == "running_mean":
                    buffer.normal_(0, 0.3)
                elif name == "running_var":
                    buffer.uniform_(0.5, 1.5)
                else:
                    buffer.add_(torch.randn_like(buffer), alpha=0.3)


def _fan_in(module: nn.Module, parameter: torch.Tensor) -> int:
    if isinstance(module, nn.modules.conv._ConvTransposeNd):
        return max(parameter.shape[0] // module.groups * parameter[0, 0].numel() // math.prod(module.stride), 1)
    return max(parameter.numel() // parameter.shape[0], 1)


class ConvVolume(TorchFunctionMode):
    """Counts what the convolutions write per sample, in total and while one of ``leaves`` runs."""

    def __init__(self, model: nn.Module, leaves: Iterable[str] = ()) -> None:
        super().__init__()
        self.total = self.inside = self.depth = 0
        self.handles = []
        for path in leaves:
            module = model.get_submodule(path)
            self.handles += [module.register_forward_pre_hook(self._enter), module.register_forward_hook(self._leave)]

    def _enter(self, *_: Any) -> None:
        self.depth += 1

    def _leave(self, *_: Any) -> None:
        self.depth -= 1

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        if re.fullmatch(r"conv(_transpose)?[123]d", getattr(func, "__name__", "")):
            volume = made.numel() // made.shape[0]
            self.total += volume
            self.inside += volume if self.depth else 0
        return made

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        for handle in self.handles:
            handle.remove()


def tensors(tree: Any) -> list[torch.Tensor]:
    if hasattr(tree, "__dataclass_fields__"):
        tree = vars(tree)
    return [leaf for leaf in tree_flatten(tree)[0] if isinstance(leaf, torch.Tensor)]


def difference(one: Any, other: Any) -> float:
    """The largest max|a - b| / max|a| over the tensors of two nested outputs; infinite where they do not match."""
    left, right = tensors(one), tensors(other)
    if [(t.shape, t.dtype) for t in left] != [(t.shape, t.dtype) for t in right]:
        return math.inf
    return max((_relative(a, b) for a, b in zip(left, right, strict=True)), default=math.inf)


def _relative(one: torch.Tensor, other: torch.Tensor) -> float:
    if one.numel() == 0:
        return 0.0
    a, b = one.double(), other.double()
    found = ((a - b).abs().max() / a.abs().max().clamp_min(1e-300)).item()
    return math.inf if math.isnan(found) else found


def finite(tree: Any) -> bool:
    return all(bool(torch.isfinite(tensor).all()) for tensor in tensors(tree) if tensor.is_floating_point())


def place(source: str | None) -> str | None:
    """``site-packages/torchvision/models/x.py:1`` without what comes before the package."""
    if source is None:
        return None
    path = source.replace("\\", "/")
    return path.rpartition("site-packages/")[2] if "site-packages/" in path else "/".join(path.split("/")[-2:])


def one_line(error: BaseException, limit: int = 300) -> str:
    if isinstance(error, FxPruneError):
        where = f" at {place(error.where)}" if error.where else ""
        return f"{error.cause}{where}"[:limit]
    text = re.sub(r"/\S*/site-packages/", "", str(error)).strip().splitlines()
    return f"{type(error).__name__}: {text[0] if text else ''}"[:limit]


@contextmanager
def precision(entry: Model) -> Iterator[None]:
    """Some models make float32 tensors in forward(), whatever they are given: let these be float64 too."""
    if not entry.makes_floats:
        yield
        return
    single, default = torch.Tensor.float, torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    torch.Tensor.float = torch.Tensor.double  # type: ignore[method-assign, assignment]
    try:
        yield
    finally:
        torch.Tensor.float = single  # type: ignore[method-assign]
        torch.set_default_dtype(default)


def prepared(entry: Model) -> nn.Module:
    torch.manual_seed(zlib.crc32(entry.key.encode()))
    model = entry.build().double().eval()
    randomise(model)
    return model


def check(entry: Model) -> Record:
    """Everything that is measured of one model."""
    record: Record = {
        "suite": entry.suite, "family": entry.family, "name": entry.name, "input": entry.input, "status": "ok",
        "reason": "",
    }  # fmt: skip
    started = time.perf_counter()
    with warnings.catch_warnings(), torch.no_grad(), precision(entry):
        warnings.simplefilter("ignore")
        try:
            _check(entry, record)
        except Exception as error:
            if record["status"] == "ok":
                record["status"] = "error"
            record["reason"] = one_line(error)
            record["traceback"] = traceback.format_exc()[-3000:]
    record["seconds"] = round(time.perf_counter() - started, 2)
    return record


@contextmanager
def stage(record: Record, status: str) -> Iterator[None]:
    """An error inside gets this status."""
    record["status"] = status
    yield
    record["status"] = "ok"


def _check(entry: Model, record: Record) -> None:
    with stage(record, "model cannot be built"):
        model = prepared(entry)
    example, other_batch = entry.example(entry.batches[0]), entry.example(entry.batches[1])
    with stage(record, "model itself fails"):
        expected = model(*example)
    with stage(record, "trace fails"):
        begin = time.perf_counter()
        traced = trace(model, example)
        record["trace_seconds"] = round(time.perf_counter() - begin, 3)
    record["nodes"] = len(traced.graph.nodes)
    record["specialisations"] = len(traced.specialisations)
    record["leaves"] = [{**asdict(leaf), "source": place(leaf.source)} for leaf in traced.leaves]
    with ConvVolume(model, [leaf.path for leaf in traced.leaves if leaf.type != "function"]) as counted:
        varied = model(*entry.example(entry.batches[0]))
    record["conv_volume"] = counted.total
    record["leaf_share"] = counted.inside / max(counted.total, 1)
    with stage(record, "inspect fails"):
        try:
            begin = time.perf_counter()
            seen = fxprune.inspect(model, example)
            record["inspect_seconds"] = round(time.perf_counter() - begin, 3)
        except ModelError as error:
            record["note"] = error.cause
        else:
            record["volume"] = seen.cost["volume"]
            record["prunable"] = seen.prunable
            record["smallest_budget"] = seen.smallest_budget
            record["freezes"] = [
                {
                    "op": freeze.op, "why": freeze.why, "source": place(freeze.source),
                    "volume_share": freeze.volume_share, "layers": len(freeze.layers),
                }
                for freeze in seen.freezes
            ]  # fmt: skip
            record["ungated"] = _ungated(seen)
    record["outputs"] = len(tensors(expected))
    record["variation"] = difference(expected, varied)
    with stage(record, "graph cannot be built or run"):
        graph = graph_module(traced, model)
        record["difference"] = difference(expected, graph(*example))
    del traced
    if not finite(expected):
        record.update(status="not finite", reason="the randomised model's output is not finite")
        return
    if record["variation"] < 1e-6:
        record.update(status="constant", reason=f"the output hardly depends on the input ({record['variation']:.1e})")
    if not record["difference"] <= TOLERANCE:
        reason = f"relative difference {record['difference']:.1e} at batch {entry.batches[0]}"
        record.update(status="differs", reason=reason)
        return
    if record.get("prunable"):
        _check_export(model, example, record)
    with stage(record, "model itself fails at another batch size"):
        expected = model(*other_batch)
    with stage(record, "graph fails at another batch size"):
        record["difference_other_batch"] = difference(expected, graph(*other_batch))
    if not record["difference_other_batch"] <= TOLERANCE:
        reason = f"relative difference {record['difference_other_batch']:.1e} at batch {entry.batches[1]}"
        record.update(status="differs at another batch size", reason=reason)
    if not record.get("export_difference", 0.0) <= TOLERANCE:
        reason = f"relative difference {record['export_difference']:.1e} of the slim net under random masks"
        record.update(status="slim net differs", reason=reason)


REMOVED = (0.5, 0.9)  # shares of the gates that are closed, at random


def _check_export(model: nn.Module, example: Any, record: Record) -> None:
    """Under random masks the slim net must compute what the gated one computes."""
    with stage(record, "wrap or export fails"):
        begin = time.perf_counter()
        wrapped = fxprune.wrap(model, 1.0, example_inputs=example)
        generator = torch.Generator().manual_seed(0)
        counts = {name: len(gate) for name, gate in wrapped.gates.items()}
        differences = []
        for share in REMOVED:
            wrapped.set_masks({name: torch.rand(count, generator=generator) >= share for name, count in counts.items()})
            slim = fxprune.export(wrapped, verify=False)
            differences.append(difference(wrapped(*example), slim(*example)))
        record["export_seconds"] = round(time.perf_counter() - begin, 3)
        record["export_difference"] = max(differences)


def _ungated(seen: Any) -> dict[str, float]:
    """Share of the volume that cannot be pruned, by reason; what dies with something else can be."""
    found: dict[str, float] = {}
    for layer in seen.layers:
        if layer.prunable < 1:
            reason = layer.ungated or "?"
            found[reason] = found.get(reason, 0.0) + layer.volume_share * (1 - layer.prunable)
    return dict(sorted(found.items(), key=lambda entry: -entry[1])[:8])


def compare_torch_pruning(entry: Model) -> Record:
    """Does Torch-Pruning build its dependency graph?"""
    import torch_pruning

    model = copy.deepcopy(prepared(entry)).float()
    example = entry.example(entry.batches[0])
    example = tuple(t.float() if isinstance(t, torch.Tensor) and t.is_floating_point() else t for t in example)
    begin = time.perf_counter()
    with warnings.catch_warnings(), torch.enable_grad():
        warnings.simplefilter("ignore")
        try:
            torch_pruning.DependencyGraph().build_dependency(model, example_inputs=example)
        except Exception as error:
            return {"ok": False, "reason": one_line(error)}
    return {"ok": True, "seconds": round(time.perf_counter() - begin, 3)}


# ------------------------------------------------------------------------------------- workers that can be given up

TASKS: dict[str, Callable[[Model], Record]] = {"check": check, "torch_pruning": compare_torch_pruning}


def _serve(pipe: Connection, threads: int) -> None:
    torch.set_num_threads(threads)
    torch.set_grad_enabled(False)
    while (task := pipe.recv()) is not None:
        name, entry = task
        pipe.send(TASKS[name](entry))
        gc.collect()


class Worker:
    """A process that does one task after another; one that takes too long is ended with it."""

    def __init__(self, threads: int) -> None:
        self.threads = threads
        self.process: Any = None

    def run(self, task: str, entry: Model, timeout: float) -> Record | str:
        """The task's answer, or why there is none."""
        if self.process is None:
            context = multiprocessing.get_context("spawn")
            self.pipe, theirs = context.Pipe()
            self.process = context.Process(target=_serve, args=(theirs, self.threads), daemon=True)
            self.process.start()
            theirs.close()
            timeout += 60  # importing the zoos
        self.pipe.send((task, entry))
        try:
            if self.pipe.poll(timeout):
                answer: Record = self.pipe.recv()
                return answer
            reason = f"took more than {timeout:.0f} s"
        except EOFError:
            self.process.join(10)
            reason = f"the process died (exit code {self.process.exitcode})"
        self.process.kill()
        self.process.join()
        self.close()
        return reason

    def close(self) -> None:
        if self.process is not None:
            if self.process.is_alive():
                self.pipe.send(None)
                self.process.join(10)
            self.pipe.close()
            self.process = None


def run(models: list[Model], jobs: int, timeout: float, torch_pruning: bool) -> Iterator[Record]:
    """Records in the order in which they get ready."""
    todo: queue.SimpleQueue[Model] = queue.SimpleQueue()
    for entry in models:
        todo.put(entry)
    done: queue.SimpleQueue[Record | None] = queue.SimpleQueue()
    threads = max((torch.get_num_threads() + jobs - 1) // jobs, 1)

    def work() -> None:
        worker = Worker(threads)
        try:
            one_after_another(worker)
        finally:
            worker.close()
            done.put(None)

    def one_after_another(worker: Worker) -> None:
        while True:
            try:
                entry = todo.get_nowait()
            except queue.Empty:
                return
            record = worker.run("check", entry, timeout)
            if isinstance(record, str):
                basics = {"suite": entry.suite, "family": entry.family, "name": entry.name, "input": entry.input}
                record = {**basics, "status": "gave up", "reason": record}
            if torch_pruning:
                answer = worker.run("torch_pruning", entry, timeout)
                record["torch_pruning"] = {"ok": False, "reason": answer} if isinstance(answer, str) else answer
            done.put(record)

    for _ in range(jobs):
        threading.Thread(target=work, daemon=True).start()
    running = jobs
    while running:
        record = done.get()
        if record is None:
            running -= 1
        else:
            yield record


# ----------------------------------------------------------------------------------------------------------- output


def summary(records: list[Record]) -> Record:
    shares = [record["prunable"] for record in records if "prunable" in record]
    return {
        "models": len(records),
        "traced": sum("nodes" in record for record in records),
        "equal_at_example_batch": sum(record.get("difference", math.inf) <= TOLERANCE for record in records),
        "equal_at_both_batches": sum(_equal(record) for record in records),
        "inspected": len(shares),
        "exported": sum("export_difference" in record for record in records),
        "exported_exactly": sum(record.get("export_difference", math.inf) <= TOLERANCE for record in records),
        "without_leaves": sum("nodes" in record and not record["leaves"] for record in records),
        "median_prunable": statistics.median(shares) if shares else None,
        "prunable_below_95_percent": sum(share < 0.95 for share in shares),
    }


def _equal(record: Record) -> bool:
    return max(record.get("difference", math.inf), record.get("difference_other_batch", math.inf)) <= TOLERANCE


def markdown(records: list[Record]) -> str:
    lines = ["# Model zoo", "", "Made by `python benchmarks/zoo.py`; do not edit.", ""]
    lines += [
        "Every parameter and buffer is random, everything runs in float64; *equal* means that the traced graph's",
        f"outputs differ from the model's by at most {TOLERANCE:.0e} of the largest one, at the example's batch size",
        "and at another one. *Prunable*: the share of the convolutions' output volume that can go. *Exported exactly*:",
        "with half of all gates closed at random, and with nine tenths of them, the slim net equals the gated one",
        "within the same tolerance.",
        "",
    ]  # fmt: skip
    suites = list(dict.fromkeys(record["suite"] for record in records))
    lines += ["| | " + " | ".join(suites) + " | all |", "| --- |" + " ---: |" * (len(suites) + 1)]
    columns = [summary([r for r in records if r["suite"] == suite]) for suite in suites] + [summary(records)]
    labels = {
        "models": "models", "traced": "traced", "equal_at_both_batches": "equal at both batch sizes",
        "without_leaves": "traced without a leaf", "inspected": "inspected", "median_prunable": "median prunable share",
        "prunable_below_95_percent": "prunable share below 95 %", "exported": "exported under both masks",
        "exported_exactly": "of these exactly",
    }  # fmt: skip
    for key, label in labels.items():
        cells = [_percent(column[key]) if key == "median_prunable" else str(column[key]) for column in columns]
        lines.append(f"| {label} | " + " | ".join(cells) + " |")
    failed = [record for record in records if record["status"] != "ok"]
    if failed:
        lines += ["", "## Failures", "", "| model | status | reason |", "| --- | --- | --- |"]
        lines += [f"| {r['name']} ({r['suite']}) | {r['status']} | {_cell(r['reason'])} |" for r in failed]
    below = sorted((r for r in records if r.get("prunable", 1.0) < 0.95), key=lambda r: r["prunable"])
    if below:
        lines += ["", "## Prunable share below 95 %", ""]
        lines += ["| model | prunable | what keeps the rest |", "| --- | ---: | --- |"]
        lines += [f"| {r['name']} ({r['suite']}) | {_percent(r['prunable'])} | {_cell(_keeps(r))} |" for r in below]
    leaves = [record for record in records if record.get("leaves")]
    if leaves:
        lines += ["", "## Leaves", "", "| model | volume in leaves | leaves |", "| --- | ---: | --- |"]
        for r in leaves:
            texts = [f"`{x['path']}` ({x['type']}): {x['reason']} at {x['source']}" for x in r["leaves"][:3]]
            shown = "; ".join(texts)
            more = f"; and {len(r['leaves']) - 3} more" if len(r["leaves"]) > 3 else ""
            lines.append(f"| {r['name']} ({r['suite']}) | {_percent(r['leaf_share'])} | {_cell(shown + more)} |")
    compared = any("torch_pruning" in record for record in records)
    heads = ["family", "model", "input", "equal", "nodes", "trace s", "inspect s", "prunable", "smallest budget"]
    heads += ["leaves", "freezes", "Torch-Pruning"] if compared else ["leaves", "freezes"]
    for suite in suites:
        lines += ["", f"## {suite}", "", "| " + " | ".join(heads) + " |", "| --- " * len(heads) + "|"]
        for r in records:
            if r["suite"] == suite:
                lines.append("| " + " | ".join(_row(r, compared)) + " |")
    return "\n".join(lines) + "\n"


def _row(r: Record, compared: bool) -> list[str]:
    equal = "yes" if _equal(r) else "**no**"
    smallest = _percent(r["smallest_budget"]["volume"], 2) if "smallest_budget" in r else "–"
    cells = [
        r["family"], r["name"], r["input"], equal, str(r.get("nodes", "–")), str(r.get("trace_seconds", "–")),
        str(r.get("inspect_seconds", "–")), _percent(r.get("prunable")), smallest, str(len(r.get("leaves", []))),
        str(len(r.get("freezes", []))),
    ]  # fmt: skip
    if compared:
        answer = r.get("torch_pruning")
        cells.append("–" if answer is None else "builds" if answer["ok"] else _cell("fails: " + answer["reason"][:80]))
    return cells


def _keeps(r: Record) -> str:
    parts = [f"{reason}: {_percent(share)}" for reason, share in r.get("ungated", {}).items() if share >= 0.005]
    sources = {f["source"] for f in r.get("freezes", []) if f["volume_share"] > 0 and f["source"]}
    return "; ".join(parts[:5]) + (f" ({', '.join(sorted(sources)[:4])})" if sources else "")


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


def _percent(share: float | None, digits: int = 1) -> str:
    return "–" if share is None else f"{100 * share:.{digits}f} %"


def line(r: Record) -> str:
    state = "ok" if r["status"] == "ok" else f"{r['status'].upper()}: {r['reason']}"
    return f"{r['suite'] + '/' + r['name']:45} {_percent(r.get('prunable')):>8} {r.get('seconds', 0):6.1f} s  {state}"


@contextmanager
def progress(total: int) -> Iterator[Callable[[Record], None]]:
    """A bar on a terminal, a line per model in a pipe."""
    if not sys.stdout.isatty():
        yield lambda record: print(line(record), flush=True)
        return
    from rich.progress import MofNCompleteColumn, Progress, TimeElapsedColumn

    with Progress(*Progress.get_default_columns(), MofNCompleteColumn(), TimeElapsedColumn()) as bar:
        task = bar.add_task("models", total=total)

        def advance(record: Record) -> None:
            if record["status"] != "ok":
                bar.console.print(line(record), markup=False, highlight=False)
            bar.update(task, advance=1, description=record["name"])

        yield advance


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--only", default="*", metavar="PATTERN", help="of names or families, '|' between several")
    parser.add_argument("--suite", choices=["torchvision", "pytorchcv", "timm", "transformers", "all"], default="all")
    parser.add_argument("--json", type=Path, default=RESULTS / "zoo.json", metavar="OUT", help="a .jsonl is beside it")
    parser.add_argument("--markdown", type=Path, metavar="OUT", help="default: beside the JSON file")
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument("--timeout", type=float, default=180, help="seconds per model")
    parser.add_argument("--resume", action="store_true", help="skip models that the .jsonl file holds already")
    parser.add_argument("--retry", action="store_true", help="with --resume: run those that failed again")
    parser.add_argument("--compare-torch-pruning", action="store_true", help="does it build a graph?")
    return parser.parse_args()


def selected(only: str, suite: str) -> list[Model]:
    def matches(entry: Model) -> bool:
        texts = (entry.name, entry.family, entry.key)
        return any(fnmatchcase(text, pattern) for pattern in only.split("|") for text in texts)

    return [entry for entry in MODELS if suite in ("all", entry.suite) and matches(entry)]


def main() -> int:
    options = arguments()
    log: Path = options.json.with_suffix(".jsonl")
    log.parent.mkdir(parents=True, exist_ok=True)
    records: dict[str, Record] = {}
    if options.resume and log.exists():
        for text in log.read_text().splitlines():
            record = json.loads(text)
            records[f"{record['suite']}/{record['name']}"] = record
    if options.retry:
        records = {key: record for key, record in records.items() if record["status"] == "ok"}
    chosen = selected(options.only, options.suite)
    missing = [entry for entry in chosen if entry.key not in records]
    with log.open("a" if options.resume else "w") as stream, progress(len(missing)) as advance:
        for record in run(missing, max(options.jobs, 1), options.timeout, options.compare_torch_pruning):
            stream.write(json.dumps(record) + "\n")
            stream.flush()
            records[f"{record['suite']}/{record['name']}"] = record
            advance(record)
    ordered = [records[entry.key] for entry in MODELS if entry.key in records]
    slim = [{key: value for key, value in record.items() if key != "traceback"} for record in ordered]
    totals = summary(slim)
    options.json.write_text(json.dumps({"summary": totals, "models": slim}, indent=1) + "\n")
    (options.markdown or options.json.with_suffix(".md")).write_text(markdown(slim))
    print(json.dumps(totals))
    return 0 if all(record["status"] == "ok" for record in ordered) else 1


if __name__ == "__main__":
    sys.exit(main())
