"""What a figure of a report is, and what all of them share. Text takes the page's colour, for light and dark alike."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import altair as alt
import numpy as np

Rows = list[dict[str, Any]]
ERRORS = {
    "e_n": "new images told wrong, e(n)",
    "e_on": "old ones taken for new classes, e(o,n)",
    "e_oo": "old ones taken for other old classes, e(o,o)",
}
AFTER, BEFORE, PAPER, FAIR = "after the correction", "before it", "the paper", "fair"
STROKES = {
    AFTER: ("#2a9d8f", [1, 0]),
    BEFORE: ("#e76f51", [6, 3]),
    PAPER: ("#888888", [2, 3]),
    FAIR: ("#888888", [2, 3]),
}
STEP_COLOURS = alt.Scale(scheme=alt.SchemeParams(name="viridis", extent=[0.15, 0.92]))
HEIGHT, ROW = 280, 24


@dataclass(frozen=True)
class Figure:
    """A chart, what it says in words, and its numbers as a table for those who cannot see it."""

    name: str
    title: str
    words: str
    """One or two sentences: what the chart shows, and what it found."""
    chart: alt.Chart | alt.LayerChart
    table: Rows = field(default_factory=list)
    square: bool = False

    def spec(self) -> dict[str, Any]:
        return {**self.chart.to_dict(), "description": f"{self.title}. {self.words}"}  # what a screen reader says


def inline(rows: Rows) -> alt.InlineData:
    return alt.InlineData(values=rows)


def chart_of(rows: Rows) -> alt.Chart:
    return alt.Chart(inline(rows)).properties(width="container", height=HEIGHT)


def percent(name: str, title: str, **scale: Any) -> alt.Y:
    return alt.Y(f"{name}:Q", title=title, scale=alt.Scale(zero=False, nice=True, **scale))


def steps_axis(name: str = "step", title: str = "step") -> alt.X:
    return alt.X(f"{name}:O", title=title, axis=alt.Axis(labelAngle=0))


def strokes(order: Sequence[str]) -> dict[str, Any]:
    """Colour and dashes of lines that are told apart by ``which``, under one legend."""
    colours, dashes = zip(*(STROKES[which] for which in order), strict=True)
    return {
        "color": alt.Color("which:N", title=None, scale=alt.Scale(domain=order, range=colours)),
        "strokeDash": alt.StrokeDash("which:N", title=None, scale=alt.Scale(domain=order, range=dashes)),
    }


def rounded(value: float | None, digits: int = 1) -> float | None:
    return None if value is None or np.isnan(value) else round(float(value), digits)
