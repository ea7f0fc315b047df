"""The figures of a comparison."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import altair as alt
import numpy as np

from equipoise.study.report.facts import from_paper, new_share
from equipoise.study.report.figure import ERRORS, ROW, Figure, Rows, chart_of, percent, rounded
from equipoise.study.report.runs import Group


def group_figures(groups: Sequence[Group], panels: Sequence[dict[str, Any]]) -> list[Figure]:
    figures = [curves(groups)]
    figures += [small_multiple(number, panel, groups) for number, panel in enumerate(panels, 1)]
    return [*figures, last_errors(groups), biases(groups), times(groups)]


def _curve_rows(groups: Sequence[Group]) -> Rows:
    rows: Rows = []
    for group in groups:
        values = group.values("top1")
        spread = values.std(0, ddof=1) if len(values) > 1 else np.zeros(values.shape[1])
        for seen, mean, std in zip(group.seen, values.mean(0), spread, strict=True):
            rows.append({"label": group.label, "seen": seen, "top1": mean, "low": max(mean - std, 0.0),
                         "high": min(mean + std, 100.0),
                         "std": std, "n": len(values), "from": "measured"})  # fmt: skip
    return rows


def _curve_chart(rows: Rows, labels: Sequence[str], height: int = 360) -> alt.LayerChart:
    pick = alt.selection_point(fields=["label"], bind="legend")
    base = (
        chart_of(rows)
        .properties(height=height)
        .encode(
            x=alt.X("seen:Q", title="classes learned", axis=alt.Axis(values=sorted({row["seen"] for row in rows}))),
            color=alt.Color(
                "label:N",
                title=None,
                sort=list(labels),
                legend=alt.Legend(symbolOpacity=1),
                scale=alt.Scale(scheme="tableau10" if len(labels) <= 10 else "tableau20"),
            ),
            opacity=alt.condition(pick, alt.value(1), alt.value(0.12)),
        )
    )
    measured = "datum.from == 'measured'"
    band = base.transform_filter(measured).mark_area(opacity=0.15).encode(
        y="low:Q", y2="high:Q", opacity=alt.condition(pick, alt.value(0.15), alt.value(0.03)))  # fmt: skip
    tooltip = [alt.Tooltip("label:N"), "seen:Q", alt.Tooltip("top1:Q", format=".1f"),
               alt.Tooltip("std:Q", format=".1f"), "n:Q"]  # fmt: skip
    line = base.transform_filter(measured).mark_line(point=True).encode(
        y=percent("top1", "top-1 accuracy, %"), tooltip=tooltip)  # fmt: skip
    layers: alt.LayerChart = band + line
    if any(row["from"] == "paper" for row in rows):
        layers += base.transform_filter("datum.from == 'paper'").mark_line(strokeDash=[2, 3]).encode(y="top1:Q")
    return layers.add_params(pick)


def curves(groups: Sequence[Group]) -> Figure:
    rows = _curve_rows(groups)
    with_paper = False
    for group in groups:
        paper = from_paper(group.runs[0])
        if paper and paper.curve:
            with_paper = True
            rows += [
                {"label": group.label, "seen": seen, "top1": value, "from": "paper"}
                for seen, value in zip(group.seen, paper.curve, strict=False)
            ]
    lasts = [group.values("top1")[:, -1].mean() for group in groups]
    runs = max(len(group.runs) for group in groups)
    words = f"At the last step the figures lie between {min(lasts):.1f} and {max(lasts):.1f} %."
    words += (
        f" Bands: mean ± standard deviation over up to {runs} seeds."
        if runs > 1
        else " One seed each: small differences mean little."
    )
    words += " Dotted: the paper." if with_paper else ""
    table = [
        {"method": row["label"], "classes": row["seen"], "top-1": rounded(row["top1"]), "std": rounded(row["std"])}
        for row in rows
        if row["from"] == "measured"
    ]
    return Figure("curves", "Accuracy as classes arrive", words, _curve_chart(rows, [g.label for g in groups]), table)


def small_multiple(number: int, panel: dict[str, Any], groups: Sequence[Group]) -> Figure:
    mine = [group for group in groups if group.label in panel["labels"]]
    rows = _curve_rows(mine)
    lasts = [f"{group.label} {group.values('top1')[:, -1].mean():.1f}" for group in mine]
    words = f"At the last step: {'; '.join(lasts)}."
    table = [{"setting": r["label"], "classes": r["seen"], "top-1": rounded(r["top1"])} for r in rows]
    return Figure(f"panel-{number}", str(panel["title"]), words, _curve_chart(rows, panel["labels"], 240), table)


def last_errors(groups: Sequence[Group]) -> Figure:
    rows = [
        {"label": g.label, "kind": words, "count": float(g.values(name)[:, -1].mean()), "order": i}
        for g in groups
        for i, (name, words) in enumerate(ERRORS.items())
    ]
    chart = (
        chart_of(rows)
        .properties(height=ROW * len(groups))
        .mark_bar()
        .encode(
            y=alt.Y("label:N", title=None, sort=[g.label for g in groups]),
            x=alt.X("count:Q", title="test images told wrong after the last step"),
            color=alt.Color("kind:N", title=None, sort=list(ERRORS.values()),
                            scale=alt.Scale(range=["#e9c46a", "#e76f51", "#5b8db8"])),
            order="order:Q",
            tooltip=["label:N", "kind:N", alt.Tooltip("count:Q", format=".1f")],
        )
    )  # fmt: skip
    table = [
        {"method": g.label, **{short: rounded(g.values(name)[:, -1].mean()) for name, short in
                               (("e_n", "e(n)"), ("e_on", "e(o,n)"), ("e_oo", "e(o,o)"))}} for g in groups
    ]  # fmt: skip
    words = "Mistakes after the last step: mean over seeds."
    return Figure("last-errors", "What the mistakes are", words, chart, table)


def biases(groups: Sequence[Group]) -> Figure:
    rows: Rows = []
    fair = 0.0
    for group in groups:
        shares = []
        for run in group.runs:
            last = run.rows[-1]
            share, fair = new_share(run.said(last["step"])[0], last["seen"] - last["new"])
            shares.append(share)
        rows.append({"label": group.label, "share": float(np.mean(shares)), "fair": fair})
    base = (
        chart_of(rows)
        .properties(height=ROW * len(groups))
        .encode(y=alt.Y("label:N", title=None, sort=[g.label for g in groups]))
    )
    bars = base.mark_bar(color="#5b8db8").encode(
        x=alt.X("share:Q", title="predictions that name a new class, %", scale=alt.Scale(domain=[0, 100])),
        tooltip=["label:N", alt.Tooltip("share:Q", format=".1f"), alt.Tooltip("fair:Q", format=".1f")],
    )
    ticks = base.mark_tick(color="#e76f51", thickness=3, size=18).encode(x="fair:Q")
    words = (
        "After the last step. The tick marks the share that would be fair: that of new classes among the test images."
    )
    table = [{"method": r["label"], "share": rounded(r["share"]), "fair": rounded(r["fair"])} for r in rows]
    return Figure("biases", "Who favours the new?", words, bars + ticks, table)


def times(groups: Sequence[Group]) -> Figure:
    rows: Rows = [{"label": g.label, "seconds": float(g.values("seconds").sum(1).mean())} for g in groups]
    chart = (
        chart_of(rows)
        .properties(height=ROW * len(groups))
        .mark_bar(color="#2a9d8f")
        .encode(
            y=alt.Y("label:N", title=None, sort=[g.label for g in groups]),
            x=alt.X("seconds:Q", title="seconds a run"),
            tooltip=["label:N", alt.Tooltip("seconds:Q", format=".1f")],
        )
    )
    slowest = max(rows, key=lambda row: row["seconds"])
    words = f"Time of a whole run, mean over seeds; {slowest['label']} took longest, {slowest['seconds']:.0f} seconds."
    return Figure(
        "times", "What it costs", words, chart, [{"method": r["label"], "seconds": rounded(r["seconds"])} for r in rows]
    )
