"""Charts of the documentation site, drawn by the code of the reports from the runs in results/."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import altair as alt
import numpy as np

from equipoise.pages.figure import Figure, Rows, chart_of, percent, rounded, tooltips
from equipoise.study.report import comparison_charts, run_charts
from equipoise.study.report.groups import RunGroup
from equipoise.study.report.runs import RunRecord, read_run

RUNS = Path(__file__).parent.parent / "results" / "lite"
SEEDS = {"ce": 3, "ce+kd": 3, "ce+wa": 3, "wa": 3, "joint": 1}
"""How many runs of a method there are."""


@cache
def run(name: str) -> RunRecord:
    return read_run(RUNS / name)


def groups(*methods: str, seeds: int = 3) -> list[RunGroup]:
    counts = {method: min(seeds, SEEDS[method]) for method in methods}
    return [RunGroup(method, [run(f"{method}-{seed}") for seed in range(count)]) for method, count in counts.items()]


def forgetting() -> Figure:
    """Draw the accuracy on the classes of each step, as it falls while others are learned."""
    record = run("ce-0")
    rows: Rows = []
    for step in record.steps:
        for learned, value in enumerate(step.per_step, 1):
            rows.append({"seen": step.seen, "accuracy": value, "learned": learned})
    first = [row["accuracy"] for row in rows if row["learned"] == 1]
    chart = chart_of(rows).mark_line(point=True)
    chart = chart.encode(
        x=alt.X(
            "seen:Q", title="classes learned", axis=alt.Axis(values=[step.seen for step in record.steps], format="d")
        ),
        y=percent("accuracy", "top-1 accuracy on the step's classes, %", zero=True),
        color=alt.Color("learned:O", title="learned in step", scale=alt.Scale(scheme="viridis")),
        tooltip=tooltips("learned:O", "seen:Q", alt.Tooltip("accuracy:Q", format=".1f")),
    )
    caption = f"Plain training (ce): the first 20 classes start at {first[0]:.1f} % and end at {first[-1]:.1f} %."
    table: Rows = [
        {"classes": step.seen, **{f"step {n}": rounded(value) for n, value in enumerate(step.per_step, 1)}}
        for step in record.steps
    ]
    headings = {key: None for row in table for key in row}
    return Figure("forgetting", "Accuracy on each step's classes", caption, chart, [headings | row for row in table])


DIGITS = Path(__file__).parent.parent / "docs" / "assets" / "digits.json"
"""Accuracies on digits by number of classes, as ``python tools/site_figures.py`` has computed them."""
CLASSIFIERS: dict[str, dict[str, Any]] = {
    "ridge: closed form": {"method": "ridge"},
    "ce: trained, 100 exemplars": {"method": "ce", "memory": 100},
    "ce: trained, 20 exemplars": {"method": "ce", "memory": 20},
    "finetune: trained, no exemplars": {"method": "finetune", "memory": 0},
}
PAIRS = range(2, 11, 2)
"""Numbers of digits learned after each step."""


def learn_digits() -> dict[str, list[float]]:
    """Learn scikit-learn's digits in five steps; every third image is for evaluation."""
    import torch
    from sklearn.datasets import load_digits

    import equipoise as eq

    torch.set_num_threads(1)
    X, y = load_digits(return_X_y=True)
    held_out = np.arange(len(y)) % 3 == 0
    found: dict[str, list[float]] = {}
    for label, options in CLASSIFIERS.items():
        classifier = eq.IncrementalClassifier(seed=0, **options)
        found[label] = []
        for seen in PAIRS:
            step = ~held_out & (y >= seen - 2) & (y < seen)
            classifier.partial_fit(X[step], y[step])
            known = held_out & (y < seen)
            found[label].append(round(100 * float(classifier.score(X[known], y[known])), 1))
    return found


def closed_form() -> Figure:
    """Draw the accuracy of a closed-form classifier and of trained networks on digits, learned in steps."""
    found: dict[str, list[float]] = json.loads(DIGITS.read_text(encoding="utf-8"))
    rows: Rows = [
        {"label": label, "seen": seen, "accuracy": value}
        for label, values in found.items()
        for seen, value in zip(PAIRS, values, strict=True)
    ]
    chart = chart_of(rows).mark_line(point=True)
    chart = chart.encode(
        x=alt.X("seen:Q", title="classes learned", axis=alt.Axis(values=list(PAIRS), format="d")),
        y=percent("accuracy", "top-1 accuracy, %", zero=True),
        color=alt.Color("label:N", title=None, sort=list(found), legend=alt.Legend(columns=2)),
        tooltip=tooltips("label:N", "seen:Q", alt.Tooltip("accuracy:Q", format=".1f")),
    )
    caption = (
        "Ten handwritten digits in five steps (scikit-learn's digits, 64 features, seed 0), accuracy on other images. "
    )
    caption += (
        "After the last step: " + "; ".join(f"{label}, {values[-1]:.1f} %" for label, values in found.items()) + "."
    )
    table: Rows = [
        {"classes": seen, **{label: values[at] for label, values in found.items()}} for at, seen in enumerate(PAIRS)
    ]
    return Figure("closed-form", "Digits in five steps", caption, chart, table)


def named(name: str, make: Callable[[], Figure]) -> Callable[[], Figure]:
    """Return a figure under another name: a page may show the same chart of two runs."""
    return lambda: replace(make(), name=name)


FIGURES: dict[str, Callable[[], Figure]] = {
    "forgetting": forgetting,
    "ce-and-joint": named("ce-and-joint", lambda: comparison_charts.curves(groups("joint", "ce"), paper=False)),
    "ce-kd-fairness": named("ce-kd-fairness", lambda: run_charts.fairness(run("ce+kd-0"))),
    "ce-kd-errors": named("ce-kd-errors", lambda: run_charts.errors(run("ce+kd-0"))),
    "norms": named("norms", lambda: run_charts.norms(run("ce+kd-0"))),
    "wa-errors": named("wa-errors", lambda: run_charts.errors(run("wa-0"))),
    "biases": named("biases", lambda: comparison_charts.biases(groups("ce", "ce+kd", "ce+wa", "wa", seeds=1))),
    "wa-confusion": named("wa-confusion", lambda: run_charts.confusions(run("wa-0"))[0]),
    "wa-confusion-before": named("wa-confusion-before", lambda: run_charts.confusions(run("wa-0"))[1]),
    "wa-curves": named(
        "wa-curves", lambda: comparison_charts.curves(groups("wa", "ce+wa", "ce+kd", "ce"), paper=False)
    ),
    "closed-form": closed_form,
}
"""The charts, by the names that pages use."""


if __name__ == "__main__":
    DIGITS.write_text(json.dumps(learn_digits(), indent=1) + "\n", encoding="utf-8")
    print(f"wrote {DIGITS.name}")
