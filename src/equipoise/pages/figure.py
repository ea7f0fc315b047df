"""Figures of a page. Their text has the page's colour, in light and dark mode."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import altair as alt
import numpy as np

Rows = list[dict[str, Any]]
HEIGHT = 280


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
        return {**self.chart.to_dict(validate=False), "description": f"{self.title}. {self.caption}"}


def chart_of(rows: Rows) -> alt.Chart:
    return alt.Chart(alt.InlineData(rows)).properties(width="container", height=HEIGHT)


def tooltips(*fields: str | alt.Tooltip) -> list[alt.Tooltip]:
    """Return tooltips for these fields, with types: letting Altair infer them takes longer."""
    return [alt.Tooltip(field) if isinstance(field, str) else field for field in fields]


def percent(name: str, title: str, zero: bool = False) -> alt.Y:
    return alt.Y(f"{name}:Q", title=title, scale=alt.Scale(zero=zero, nice=True))


def rounded(value: float | None, digits: int = 1) -> float | None:
    return None if value is None or np.isnan(value) else round(float(value), digits)
