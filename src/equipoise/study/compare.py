"""Several methods and seeds on one stream: each cell is a run directory of its own, so nothing is done twice."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from equipoise.files import write_json
from equipoise.study.experiment import Result, execute, load_data
from equipoise.study.progress import Reporter
from equipoise.study.recipe import resolve

FIGURES = ("last", "average_without_first", "average_with_first", "forgetting")


def compare(
    dataset: str,
    methods: Sequence[str],
    seeds: Sequence[int],
    out: Path,
    *,
    recipe: str | None = None,
    data_root: str | Path | None = None,
    overrides: Mapping[str, Mapping[str, Any]] | None = None,
    reporter: Reporter | None = None,
) -> dict[str, Any]:
    """Run every method with every seed; returns (and writes to compare.json) the figures of all and their means."""
    plans = [resolve(dataset, method, recipe, seed, overrides) for method in methods for seed in seeds]
    load = cache(lambda: load_data(plans[0], data_root))  # once, for all runs
    table: dict[str, Any] = {"dataset": dataset, "methods": {}}
    for settings in plans:  # all settings were checked before the first run starts
        directory = out / settings.method / f"seed-{settings.seed}"
        result = execute(settings, directory, load, reporter or Reporter())
        entry = table["methods"].setdefault(settings.method, {"seeds": {}})
        entry["seeds"][str(settings.seed)] = _cell(result)
        table["seen"] = [row["seen"] for row in result.rows]
    for entry in table["methods"].values():
        cells = list(entry["seeds"].values())
        entry["mean"] = {name: _mean([cell[name] for cell in cells]) for name in FIGURES}
        entry["std"] = {name: _std([cell[name] for cell in cells]) for name in FIGURES}
        entry["top1"] = [_mean([cell["top1"][i] for cell in cells]) for i in range(len(cells[0]["top1"]))]
    write_json(out / "compare.json", table)
    return table


def _cell(result: Result) -> dict[str, Any]:
    return {
        **result.summary,
        "top1": [row["top1"] for row in result.rows],
        "directory": str(result.directory),
    }


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.mean(known) if known else None


def _std(values: Sequence[float | None]) -> float | None:
    """The sample's standard deviation; None for fewer than two runs."""
    known = [value for value in values if value is not None]
    return statistics.stdev(known) if len(known) > 1 else None
