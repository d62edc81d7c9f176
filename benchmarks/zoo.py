"""Trace, check, inspect and export every model of the zoos; see zoo_models.py for the list.

    python benchmarks/zoo.py [--only PATTERN] [--suite SUITE] [--resume] [--compare-torch-pruning]

Records go to a .jsonl file one by one; --resume skips the models that it holds. In the end it says which models
freeze other ops than in the committed table.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from fnmatch import fnmatchcase
from pathlib import Path

from zoo_check import Record
from zoo_models import MODELS, Model
from zoo_report import changed_freezes, line, markdown, summary
from zoo_workers import run

RESULTS = Path(__file__).parent / "results"


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
    suites = ["torchvision", "pytorchcv", "timm", "transformers", "smp", "all"]
    parser.add_argument("--suite", choices=suites, default="all")
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


def committed() -> list[Record]:
    """The table of the last commit; nothing outside of a repository."""
    shown = subprocess.run(["git", "show", "HEAD:./zoo.json"], cwd=RESULTS, capture_output=True)
    return json.loads(shown.stdout)["models"] if shown.returncode == 0 else []


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
    before = committed()
    changed = changed_freezes(before, slim) or ["the same ops freeze as in the committed table"]
    print("\n".join(changed) if before else "no committed table to compare the freezes with")
    return 0 if all(record["status"] == "ok" for record in ordered) else 1


if __name__ == "__main__":
    sys.exit(main())
