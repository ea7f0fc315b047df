"""Charts of a comparison."""

from __future__ import annotations

from collections.abc import Sequence

import altair as alt
import numpy as np
from altair.utils.schemapi import debug_mode

from equipoise.engine.metrics import TOP1, TOP5, Metric
from equipoise.engine.progress import duration
from equipoise.pages.figure import Figure, Rows, chart_of, percent, rounded, tooltips
from equipoise.study.report.analysis import ERRORS, error_cells, error_rows, new_share
from equipoise.study.report.error_bars import error_bars
from equipoise.study.report.groups import Comparison, Panel, RunGroup
from equipoise.study.report.paper import paper_curve

ROW = 24
"""Height of a bar in pixels."""


@debug_mode(False)  # does not validate every part of every chart
def comparison_figures(comparison: Comparison) -> list[Figure]:
    groups, metrics = comparison.groups, metrics_drawn(comparison)
    figures = [curves(groups, metric) for metric in metrics]
    for number, panel in enumerate(comparison.panels, 1):
        figures += [panel_figure(number, panel, groups, metric) for metric in metrics]
    return [*figures, last_errors(groups), biases(groups), times(groups)]


def metrics_drawn(comparison: Comparison) -> list[Metric]:
    """Return the metrics that get charts; with ten classes or fewer, top-5 accuracy is nearly 100 % for all methods."""
    return [TOP1, TOP5] if comparison.seen > 10 else [TOP1]


def _named(name: str, metric: Metric) -> str:
    """Return the name of a figure, which is also that of its file."""
    return name if metric is TOP1 else f"{name}-top5"


def _curve_rows(groups: Sequence[RunGroup], metric: Metric) -> Rows:
    rows: Rows = []
    for group in groups:
        values = group.values(metric.accuracy)
        spread = values.std(0, ddof=1) if len(values) > 1 else np.zeros(values.shape[1])
        for seen, mean, std in zip(group.seen, values.mean(0), spread, strict=True):
            band = {"low": max(mean - std, 0.0), "high": min(mean + std, 100.0), "std": std}
            rows.append(
                {"label": group.label, "seen": seen, "accuracy": mean, **band, "n": len(values), "from": "measured"}
            )
    return rows


def _curve_chart(rows: Rows, labels: Sequence[str], metric: Metric, height: int = 360) -> alt.LayerChart:
    pick, seen = alt.selection_point(fields=["label"], bind="legend"), sorted({row["seen"] for row in rows})
    scale = alt.Scale(scheme="tableau10" if len(labels) <= 10 else "tableau20")
    legend = alt.Legend(symbolOpacity=1)
    chart = chart_of(rows).properties(height=height)
    base = chart.encode(
        x=alt.X("seen:Q", title="classes learned", axis=alt.Axis(values=seen, format="d")),
        color=alt.Color("label:N", title=None, sort=list(labels), legend=legend, scale=scale),
        opacity=alt.condition(pick, alt.value(1), alt.value(0.12)),
    )
    measured = base.transform_filter("datum.from == 'measured'")
    faint = alt.condition(pick, alt.value(0.15), alt.value(0.03))
    band = measured.mark_area(opacity=0.15).encode(y=alt.Y("low:Q"), y2=alt.Y2("high:Q"), opacity=faint)
    accuracy, std = (alt.Tooltip(f"{name}:Q", format=".1f") for name in ("accuracy", "std"))
    line = measured.mark_line(point=True).encode(
        y=percent("accuracy", f"{metric.title} accuracy, %"),
        tooltip=tooltips("label:N", "seen:Q", accuracy, std, "n:Q"),
    )
    layers: alt.LayerChart = band + line
    if any(row["from"] == "paper" for row in rows):
        layers += (
            base.transform_filter("datum.from == 'paper'").mark_line(strokeDash=[2, 3]).encode(y=alt.Y("accuracy:Q"))
        )
    return layers.add_params(pick)


def curves(groups: Sequence[RunGroup], metric: Metric = TOP1, paper: bool = True) -> Figure:
    """Draw the accuracy after each step; ``paper`` adds the paper's curves."""
    measured = _curve_rows(groups, metric)
    published: Rows = [
        {"label": group.label, "seen": seen, "accuracy": value, "from": "paper"}
        for group in groups
        for seen, value in zip(group.seen, paper_curve(group.runs[0], metric) if paper else (), strict=False)
    ]
    lasts = [group.values(metric.accuracy)[:, -1].mean() for group in groups]
    runs = max(len(group.runs) for group in groups)
    caption = f"After the last step, {metric.title} accuracies are between {min(lasts):.1f} and {max(lasts):.1f} %."
    bands = f" Bands: mean ± standard deviation over up to {runs} seeds."
    caption += bands if runs > 1 else " One seed each: small differences are not meaningful."
    caption += " Dotted: the paper." if published else ""
    table = [
        {
            "method": row["label"],
            "classes": row["seen"],
            metric.title: rounded(row["accuracy"]),
            "std": rounded(row["std"]),
        }
        for row in measured
    ]
    chart = _curve_chart([*measured, *published], [group.label for group in groups], metric)
    title = "Accuracy as classes arrive" if metric is TOP1 else "Top-5 accuracy as classes arrive"
    return Figure(_named("curves", metric), title, caption, chart, table)


def panel_figure(number: int, panel: Panel, groups: Sequence[RunGroup], metric: Metric) -> Figure:
    mine = [group for group in groups if group.label in panel.labels]
    rows = _curve_rows(mine, metric)
    lasts = [f"{group.label} {group.values(metric.accuracy)[:, -1].mean():.1f} %" for group in mine]
    caption = f"After the last step: {'; '.join(lasts)}."
    table = [{"setting": row["label"], "classes": row["seen"], metric.title: rounded(row["accuracy"])} for row in rows]
    title = panel.title if metric is TOP1 else f"{panel.title}, {metric.title}"
    return Figure(
        _named(f"panel-{number}", metric), title, caption, _curve_chart(rows, panel.labels, metric, 240), table
    )


def _by_label(chart: alt.Chart, groups: Sequence[RunGroup]) -> alt.Chart:
    """Draw a chart with one line per group."""
    labels = alt.Y("label:N", title=None, sort=[group.label for group in groups])
    return chart.properties(height=ROW * len(groups)).encode(y=labels)


def last_errors(groups: Sequence[RunGroup]) -> Figure:
    rows: Rows = []
    table: Rows = []
    for group in groups:
        counts = {name: float(group.values(f"errors.{name}")[:, -1].mean()) for name in ERRORS}
        rows += error_rows(counts, label=group.label)
        cells = error_cells(counts)
        table.append({"method": group.label, **{heading: rounded(count) for heading, count in cells.items()}})
    chart = _by_label(error_bars(rows), groups).encode(
        x=alt.X("count:Q", title="misclassified test images after the last step"),
        tooltip=tooltips("label:N", "kind:N", alt.Tooltip("count:Q", format=".1f")),
    )
    caption = "Misclassified images after the last step, mean over seeds."
    return Figure("last-errors", "Misclassified images", caption, chart, table)


def biases(groups: Sequence[RunGroup]) -> Figure:
    rows: Rows = []
    table: Rows = []
    for group in groups:
        ends = [(run, run.steps[-1]) for run in group.runs]
        shares = [new_share(run.predictions(last.step)[0], last.seen - last.new) for run, last in ends]
        share, true_share = np.mean(shares, axis=0).tolist()
        rows.append({"label": group.label, "share": share, "true": true_share})
        table.append({"method": group.label, "predictions": rounded(share), "test images": rounded(true_share)})
    base = _by_label(chart_of(rows), groups)
    bars = base.mark_bar(color="#5b8db8").encode(
        x=alt.X("share:Q", title="predictions of new classes, %", scale=alt.Scale(domain=[0, 100])),
        tooltip=tooltips("label:N", alt.Tooltip("share:Q", format=".1f"), alt.Tooltip("true:Q", format=".1f")),
    )
    ticks = base.mark_tick(color="#e76f51", thickness=3, size=18, opacity=1).encode(x=alt.X("true:Q"))
    caption = "After the last step. A fair model reaches the tick: the share of new classes among the test images."
    return Figure("biases", "Bias towards new classes", caption, bars + ticks, table)


def times(groups: Sequence[RunGroup]) -> Figure:
    rows: Rows = [{"label": group.label, "seconds": float(group.values("seconds").sum(1).mean())} for group in groups]
    chart = _by_label(chart_of(rows).mark_bar(color="#2a9d8f"), groups).encode(
        x=alt.X("seconds:Q", title="seconds per run"),
        tooltip=tooltips("label:N", alt.Tooltip("seconds:Q", format=".1f")),
    )
    slowest = max(rows, key=lambda row: row["seconds"])
    caption = f"Mean over seeds. The slowest is {slowest['label']} with {duration(slowest['seconds'])}."
    table = [{"method": row["label"], "seconds": rounded(row["seconds"])} for row in rows]
    return Figure("times", "Time per run", caption, chart, table)
