"""Rows of the tables on the page."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from claims import old_error_rate, old_images
from plan import RUNS
from stored import Groups, Stored

from equipoise.engine.metrics import TOP1, Metric
from equipoise.learn.backbones import Architecture
from equipoise.pages.text import one_decimal
from equipoise.study.report.groups import RunGroup
from equipoise.study.report.paper import paper_result, published
from equipoise.study.report.runs import RunRecord

PRECISIONS = {"32": "32 bits", "bf16": "bfloat16"}
Row = dict[str, Any]


def average(group: RunGroup, metric: Metric = TOP1) -> float:
    """Return the mean accuracy over seeds and all steps but the first."""
    return float(group.values(metric.accuracy)[:, 1:].mean())


def method_row(label: str, group: RunGroup, metric: Metric = TOP1, outdated: bool = False) -> Row:
    tops = group.values(metric.accuracy)
    averages = tops[:, 1:].mean(1)
    first = group.runs[0]
    uncorrected = group.values(f"{metric.accuracy}_uncorrected")[:, 1:] if first.corrected else None
    return {
        "label": label,
        "seeds": [run.settings["seed"] for run in group.runs],
        "tops": tops.mean(0).tolist(),
        "each": tops.tolist(),
        "average": average(group, metric),
        "averages": averages.tolist(),
        "uncorrected": None if uncorrected is None else float(uncorrected.mean()),
        "spread": float(averages.std(ddof=1)) if len(averages) > 1 else None,
        "paper": paper_result(first),
        "minutes": [minutes(run) for run in group.runs],
        "train": first.settings["train"],
        "fields": first.settings["fields"],
        "backbone": first.settings["net"]["backbone"],
        "precisions": [precision(run) for run in group.runs],
        "epochs": first.settings["train"]["epochs"],
        "first_epochs": first.settings["train"]["first_epochs"],
        "mark": " †" if outdated else "",
    }


def ablation_rows(usual: RunGroup, ablations: Groups, metric: Metric = TOP1) -> list[Row]:
    """Return the recipe's own choices, then each other choice and the difference it makes."""
    base = method_row("usual", RunGroup("usual", usual.runs[:1]), metric)
    rows = [base, *(method_row(label, group, metric) for label, group in ablations.items())]
    return [{**row, "change": row["average"] - base["average"]} for row in rows]


def error_rows(run: RunRecord) -> list[Row]:
    """Return the errors after the last step, before and after the correction, and those of Table 1 of the paper."""
    last, kinds = run.steps[-1], ("e_n", "e_o", "e_on", "e_oo")
    counts = [("", last.errors)]
    if run.corrected:
        counts = [(", before the correction", last.errors_uncorrected), *counts]
    rows = [{"when": when, **{kind: getattr(errors, kind) for kind in kinds}} for when, errors in counts]
    theirs = published()["cifar100"]["errors"].get(run.method)
    if theirs:
        rows.append({"when": " in the paper", **theirs})
    images = old_images(last)
    return [{"label": run.method, **row, "rate": old_error_rate(row["e_oo"], row["e_on"], images)} for row in rows]


def steps_row(name: str, run: RunRecord) -> Row:
    """Return the finished steps of one run, which may be in progress, beside the paper's."""
    paper = paper_result(run)
    curve = paper.curve if paper and paper.curve else []
    done = len(run.steps)
    return {
        "name": name,
        "label": run.method,
        "planned": run.planned,
        "tops": [step.accuracy for step in run.steps] + [None] * (run.planned - done),
        "average": average(RunGroup(name, [run])) if run.summary is not None else None,
        "paper": paper,
        "minutes": minutes(run),
        "done": done,
        "steps": [
            {
                "seen": step.seen,
                "top1": step.accuracy,
                "top5": step.accuracy_top5,
                "uncorrected": step.accuracy_uncorrected if step.gamma is not None else None,
                "gamma": step.gamma,
                "paper": curve[place] if place < len(curve) else None,
                "minutes": step.seconds / 60,
            }
            for place, step in enumerate(run.steps)
        ],
        "train": run.settings["train"],
        "backbone": run.settings["net"]["backbone"],
        "precision": precision(run),
        **origin(run),
    }


def run_row(name: str, run: RunRecord, metric: Metric, outdated: bool) -> Row:
    """Return a row of the list of all runs."""
    return {
        "name": name,
        "mark": " †" if outdated else "",
        "command": RUNS[name].command,
        "average": average(RunGroup(name, [run]), metric) if len(run.steps) > 1 else None,
        "last": getattr(run.steps[-1], metric.accuracy),
        "steps": f"{len(run.steps)} of {run.planned}" if run.summary is None else str(run.planned),
        "minutes": minutes(run),
        **origin(run),
    }


def origin(run: RunRecord) -> Row:
    """Return the machine and the commit that a run was made with."""
    commit = run.config.get("commit") or "unknown"
    machine = run.config.get("machine", {})
    return {
        "machine": f"{machine.get('cores', '?')} of {machine.get('cpu', 'an unknown processor')}",
        "cores": machine.get("cores", 1),
        "precision": run.config["settings"].get("runtime", {}).get("precision", "32"),
        "commit": commit[:10] + "+" * commit.endswith("+"),
    }


def minutes(run: RunRecord) -> float:
    return sum(step.seconds for step in run.steps) / 60


def precision(run: RunRecord) -> str:
    name = str(run.settings["runtime"]["precision"])
    return PRECISIONS.get(name, name)


def table_4(by_steps: Mapping[int, Groups], methods: Sequence[str], stored: Stored) -> list[Row]:
    """Return the averages for each number of steps, ours and the paper's; joint training: after the last step."""
    paper = published()["cifar100"]
    rows = []
    for label in methods:
        cells = []
        for steps, groups in by_steps.items():
            group = groups.get(label)
            if label == "joint":
                ours, theirs = group and float(group.values("accuracy")[:, -1].mean()), paper["joint"]
            else:
                ours, theirs = group and average(group), paper["averages"].get(str(steps), {}).get(label)
            mark = " †" if group and stored.is_outdated(group.runs) else ""
            planned = steps == 5 or f"steps-{steps}/{label}-0" in RUNS
            cells.append({"ours": ours, "paper": theirs, "mark": mark, "planned": planned})
        rows.append({"label": label, "cells": cells})
    return rows


def by_classes(groups: Groups) -> Row:
    """Return the accuracy after each step: one row per step, one column per method."""
    first = next(iter(groups.values()))
    columns = [group.values("accuracy").mean(0).tolist() for group in groups.values()]
    return {"labels": list(groups), "rows": list(zip(first.seen, zip(*columns, strict=True), strict=True))}


def weights(backbone: str) -> str:
    """Return the millions of weights of a network for the images of CIFAR."""
    return f"{sum(p.numel() for p in Architecture(backbone, (3, 32, 32))().parameters()) / 1e6:.1f}"


def software(runs: Iterable[RunRecord]) -> list[str]:
    """Return the versions that the runs were made with, without repetition."""
    return sorted({f"Python {run.config['python']}, PyTorch {run.config['versions']['torch']}" for run in runs})


def row_of(cells: Sequence[float | None]) -> str:
    return " | ".join(one_decimal(cell) for cell in cells)
