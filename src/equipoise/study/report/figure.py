"""A figure of a report, and what all figures share. Text has the page's colour, in light and dark mode alike."""

from __future__ import annotations

from collections.abc import Mapping
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


def chart_of(rows: Rows) -> alt.Chart:
    return alt.Chart(alt.InlineData(rows)).properties(width="container", height=HEIGHT)


def error_bars(rows: Rows) -> alt.Chart:
    """Return stacked bars of the rows that ``error_rows`` makes, without axes."""
    kinds = alt.Color("kind:N", title=None, sort=list(ERRORS.values()), scale=alt.Scale(range=ERROR_COLOURS))
    return chart_of(rows).mark_bar().encode(color=kinds, order="order:Q")


def error_rows(counts: Mapping[str, float], **where: Any) -> Rows:
    """Return a row per kind of misclassified images; ``where`` names the bar."""
    kinds = enumerate(ERRORS.items())
    return [{**where, "kind": words, "count": counts[name], "order": order} for order, (name, words) in kinds]


def error_cells(counts: Mapping[str, float], suffix: str = "") -> dict[str, float]:
    """Return the counts by the symbols of the paper, such as e(n)."""
    return {f"{words.rpartition(', ')[2]}{suffix}": counts[name] for name, words in ERRORS.items()}


def percent(name: str, title: str, zero: bool = False) -> alt.Y:
    return alt.Y(f"{name}:Q", title=title, scale=alt.Scale(zero=zero, nice=True))


def rounded(value: float | None, digits: int = 1) -> float | None:
    return None if value is None or np.isnan(value) else round(float(value), digits)
