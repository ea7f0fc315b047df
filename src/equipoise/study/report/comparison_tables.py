"""Tables and sentences for the page of a comparison."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any
from urllib.parse import quote

from equipoise.engine.metrics import TOP1, Metric
from equipoise.pages.text import one_decimal
from equipoise.study.report.groups import Comparison, RunGroup
from equipoise.study.report.paper import paper_curve, paper_result
from equipoise.study.report.run_tables import summary_titles
from equipoise.study.tables import mean_std


def title(comparison: Comparison) -> str:
    """Describe what is compared."""
    groups = comparison.groups
    methods = list(dict.fromkeys(group.runs[0].method for group in groups))
    datasets = " and ".join(dict.fromkeys(group.runs[0].settings["dataset"] for group in groups))
    if len(methods) == 1:
        return f"{len(groups)} variants of {methods[0]} on {datasets}"
    return f"{len(methods)} methods on {datasets}"


def protocol(comparison: Comparison) -> str:
    """Describe what all runs have in common."""
    runs = comparison.runs
    found = {
        "{} classes": {run.seen for run in runs},
        "{} steps": {len(run.steps) for run in runs},
        "recipe {}": {run.settings["recipe"] for run in runs},
        "memory {}": {run.settings["memory"]["size"] for run in runs},
    }
    seeds = max(len(group.runs) for group in comparison.groups)
    common = [words.format(*values) for words, values in found.items() if len(values) == 1]
    return " · ".join([*common, f"{seeds} seed{'s' if seeds > 1 else ''}"])


def method_table(comparison: Comparison, pages: Collection[str]) -> list[dict[str, Any]]:
    """Return a row per group; ``pages`` names the runs that have a page of their own."""
    rows = []
    for group in comparison.groups:
        paper = paper_result(group.runs[0])
        cells = {}
        for key in summary_titles(comparison.seen):
            mean, std = mean_std((run.summary or {}).get(key) for run in group.runs)
            cells[key] = {"mean": mean, "std": std, "paper": paper.figure(key) if paper else None}
        names = {run.settings["seed"]: comparison.name(run) for run in group.runs}
        links = {seed: f"{quote(name)}/report.html" for seed, name in names.items() if name in pages}
        seconds = float(group.values("seconds").sum(1).mean())
        rows.append({"label": group.label, "n": len(group.runs), "cells": cells, "pages": links, "seconds": seconds})
    return rows


def gains(groups: Sequence[RunGroup], metric: Metric = TOP1) -> dict[str, Any] | None:
    """Return Table 2 of the paper: the accuracy after each step, and its difference from plain cross-entropy."""
    base = next((group for group in groups if group.label in ("ce", "replay")), None)
    if base is None or len({tuple(group.seen) for group in groups}) != 1:
        return None
    reference = base.values(metric.accuracy).mean(0)
    rows = []
    for group in groups:
        values = group.values(metric.accuracy).mean(0)
        curve, paper = paper_curve(group.runs[0], metric), paper_result(group.runs[0])
        row = [_gain(value, value - under, group is base) for value, under in zip(values, reference, strict=True)]
        if len(values) > 1:
            row.append(_gain(values[1:].mean(), values[1:].mean() - reference[1:].mean(), group is base))
        published = [*map(one_decimal, curve), one_decimal(paper.average)] if paper and curve else None
        rows.append({"label": group.label, "cells": row, "paper": published})
    return {"metric": metric.title, "seen": base.seen, "base": base.label, "rows": rows}


def _gain(value: float, gain: float, is_base: bool) -> dict[str, str]:
    return {"value": f"{value:.1f}", "gain": "" if is_base else f"{gain:+.1f}"}
