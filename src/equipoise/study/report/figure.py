"""A figure of a report, and what all figures share. Text has the page's colour, in light and dark mode alike."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import altair as alt
import numpy as np

Rows = list[dict[str, Any]]
ERRORS = {
    "e_n": "new images misclassified, e(n)",
    "e_on": "old images predicted as new classes, e(o,n)",
    "e_oo": "old images predicted as other old classes, e(o,o)",
}
ERROR_COLOURS = ["#e9c46a", "#e76f51", "#5b8db8"]
RUN, AFTER, BEFORE = "this run", "after the correction", "before the correction"
PAPER, TRUE_SHARE = "paper", "test images of new classes"
STROKES = {
    RUN: ("#2a9d8f", [1, 0]),
    AFTER: ("#2a9d8f", [1, 0]),
    BEFORE: ("#e76f51", [6, 3]),
    PAPER: ("#888888", [2, 3]),
    TRUE_SHARE: ("#888888", [2, 3]),
}
HEIGHT, ROW = 280, 24


@dataclass(frozen=True)
class Figure:
    """A chart, its caption, and its data as a table for readers who cannot see it."""

    name: str
    title: str
    caption: str
    """One or two sentences: what the chart shows, and the main finding."""
    chart: alt.Chart | alt.LayerChart
    table: Rows = field(default_factory=list)
    square: bool = False

    def spec(self) -> dict[str, Any]:
        """Return the Vega-Lite specification; a screen reader reads its description."""
        return {**self.chart.to_dict(), "description": f"{self.title}. {self.caption}"}


def inline(rows: Rows) -> alt.InlineData:
    return alt.InlineData(values=rows)


def chart_of(rows: Rows) -> alt.Chart:
    return alt.Chart(inline(rows)).properties(width="container", height=HEIGHT)


def percent(name: str, title: str, zero: bool = False) -> alt.Y:
    return alt.Y(f"{name}:Q", title=title, scale=alt.Scale(zero=zero, nice=True))


def steps_axis(name: str = "step", title: str = "step") -> alt.X:
    return alt.X(f"{name}:O", title=title, axis=alt.Axis(labelAngle=0))


def learned_in() -> alt.Color:
    """Return the colour for the step in which a class was learned."""
    scale = alt.Scale(scheme=alt.SchemeParams(name="viridis", extent=[0.15, 0.92]))
    return alt.Color("learned:O", title="learned in step", scale=scale, legend=alt.Legend(columns=10))


def strokes(order: Sequence[str]) -> dict[str, Any]:
    """Return colours and dashes of lines that ``which`` distinguishes, with one legend."""
    colours, dashes = zip(*(STROKES[which] for which in order), strict=True)
    legend = alt.Legend(symbolType="stroke", symbolSize=300, symbolStrokeWidth=2)
    return {
        "color": alt.Color("which:N", title=None, scale=alt.Scale(domain=order, range=colours), legend=legend),
        "strokeDash": alt.StrokeDash("which:N", title=None, scale=alt.Scale(domain=order, range=dashes), legend=legend),
    }


def rounded(value: float | None, digits: int = 1) -> float | None:
    return None if value is None or np.isnan(value) else round(float(value), digits)
