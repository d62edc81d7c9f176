"""The arithmetic of the tables, checked against numbers worked out by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fxprune.compare.figures import draw
from fxprune.compare.plan import TEACHER, Entry, Job, Plan
from fxprune.compare.results import Result, paired, quantile
from fxprune.compare.tables import markdown, write_all

SEEDS = (0, 1, 2)
FIGURES = ["accuracy", "accuracy-flops", "accuracy-labels", "neurons", "metrics"]
ACCURACY = {
    ("bar", "1/2"): (70.0, 71.0, 72.0),
    ("bar", "1/4"): (60.0, 61.0, 62.0),
    ("wm", "1/2"): (70.5, 70.5, 72.0),
    ("wm", "1/4"): (55.0, 55.5, 57.5),
    ("bar, FLOPs", "1/4"): (66.0, 66.5, 67.0),
    ("bar, labels", "1/2"): (68.0, 69.0, 71.0),
    ("wm, labels", "1/2"): (67.0, 66.0, 70.0),
}


def entry(
    name: str, method: str, metric: str = "volume", budgets: tuple[str, ...] = ("1/2", "1/4"), teacher: str = "self"
) -> Entry:
    settings = {"metric": metric, "teacher": teacher, "epochs": [1, 1, 0]}
    return Entry(name, method, None, {text: 1 / int(text[2:]) for text in budgets}, settings, {})


def result(tmp_path: Path, seeds: tuple[int, ...] = SEEDS) -> Result:
    entries = [entry("bar", "bar"), entry("wm", "wm"), entry("bar, FLOPs", "bar", "flops", ("1/4",))]
    entries += [entry(f"{name}, labels", name, budgets=("1/2",), teacher="none") for name in ("wm", "bar")]
    plan = Plan({e.name: e for e in entries}, SEEDS, "bar", {"target": "m:m"}, {"target": "/anywhere/d.py:d"},
                {"epochs": [1, 1]}, tmp_path)  # fmt: skip
    rows = []
    for job in plan.jobs():
        if job.seed not in seeds:
            continue
        if job.entry == TEACHER:
            rows.append({"key": job.key, "entry": TEACHER, "seed": job.seed, "accuracy": 75.0 + job.seed})
        else:
            rows.append(row(job, plan.entries[job.entry]))
    return Result(plan, rows, [], "fxprune compare c.toml")


def row(job: Job, entry: Entry) -> dict[str, Any]:
    full = {"volume": 1000, "flops": 8000, "params": 100}
    cost = {"volume": int(1000 * job.share), "flops": int(8000 * job.share**2), "params": 10}
    return {
        "key": job.key, "entry": job.entry, "seed": job.seed, "machine": {"cores": 2},
        "method": entry.method, "metric": entry.metric,
        "budget": job.budget, "share": job.share, "accuracy": ACCURACY[job.entry, job.budget][job.seed],
        "cost": cost, "full": full, "factor": {name: full[name] / cost[name] for name in full},
        "used": 1.0 if job.seed else 0.98, "latency": {"1": 0.5, "32": 0.25 + job.seed / 100},
        "regular": {"volume": cost["volume"] * 4 // 3} if job.entry == "bar" else None, "reached": None,
        "widths": {"conv": 4, "stage1.conv1": 2}, "full_widths": {"conv": 8, "stage1.conv1": 16},
    }  # fmt: skip


def test_paired_differences() -> None:
    found = paired([60.0, 61.0, 62.0], [55.0, 55.5, 57.5])  # 5, 5.5, 4.5: mean 5, deviation 0.5
    assert found.mean == pytest.approx(5) and found.half == pytest.approx(4.303 * 0.5 / 3**0.5)
    assert found.verdict == "ahead"
    back = paired([55.0, 55.5, 57.5], [60.0, 61.0, 62.0])
    assert back.mean == pytest.approx(-5) and back.verdict == "behind"
    assert paired([1.0], [0.0]).half is None and paired([1.0], [0.0]).verdict == "one seed"
    assert paired([1.0, 1.0], [1.0, 1.0]).verdict == "level"
    assert quantile(1) == 12.706


def test_the_tables(tmp_path: Path) -> None:
    text = markdown(result(tmp_path), [])
    lines = text.splitlines()
    assert "Teachers, accuracy in %: 75.00 (seed 0), 76.00 (seed 1), 77.00 (seed 2)." in lines
    assert "Pruned nets: 21 of 21." in lines and "- machine: cores 2" in lines
    assert "| mean accuracy % | 1/2 | 1/4 |" in lines and "| wm | 71.00 | 56.00 |" in lines
    assert "| bar | 1/4 | 61.00 | 60.00, 61.00, 62.00 | 4.00 | 16.0 | 0.980 to 1.000 | 0.50 | 0.26 |" in lines
    # -0.5, 0.5, 0: mean 0, deviation 0.5; then 5, 5.5, 4.5
    assert "| wm | +0.00 ± 1.24 level | +5.00 ± 1.24 ahead |" in lines
    assert "## Budgets on FLOPs" in lines and "| bar, FLOPs | 66.50 |" in lines
    heads = [line for line in lines if " minus |" in line]  # none over metrics, nor over ways to teach, but for one
    assert heads == ["| bar minus | 1/2 | 1/4 |", "| bar, labels minus | 1/2 |", "| bar minus | 1/2 | 1/4 |"]
    assert "## Budgets on volume, taught by labels alone" in lines and "| wm, labels | +1.67 ± 2.87 level |" in lines
    assert "| bar, labels | +1.67 ± 1.43 ahead | – |" in lines[lines.index("## Other ways to train the reference") :]
    assert "| bar | 1/4 | 333 | 250 | 24.9 |" in lines and "| bar | 1/2 | 666 | 500 | 24.9 |" in lines
    assert "/anywhere" not in text and 'target `"d.py:d"`' in text


def test_one_seed_has_no_interval(tmp_path: Path) -> None:
    text = markdown(result(tmp_path, (1,)), [])
    assert "| wm | +0.50 (one seed) | +5.50 (one seed) |" in text


def test_figures(tmp_path: Path) -> None:
    found = result(tmp_path)
    (tmp_path / "a").mkdir(), (tmp_path / "b").mkdir()
    assert draw(found, tmp_path / "a") == draw(found, tmp_path / "b") == FIGURES
    for name in FIGURES:
        one, other = ((tmp_path / folder / f"{name}.svg").read_bytes() for folder in "ab")
        assert one == other


def test_without_matplotlib(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "matplotlib", None)
    said = write_all(result(tmp_path), tmp_path / "out")
    assert said[0] == "no figures: pip install matplotlib" and "compare.md" in said[1]
    assert not list((tmp_path / "out").glob("*.png"))
