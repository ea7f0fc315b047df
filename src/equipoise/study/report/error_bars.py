"""Bars of misclassified images, by kind."""

from __future__ import annotations

import altair as alt

from equipoise.pages.figure import Rows, chart_of
from equipoise.study.report.analysis import ERRORS

COLOURS = ["#e9c46a", "#e76f51", "#5b8db8"]


def error_bars(rows: Rows) -> alt.Chart:
    """Return stacked bars of the rows that ``error_rows`` makes, without axes."""
    kinds = alt.Color("kind:N", title=None, sort=list(ERRORS.values()), scale=alt.Scale(range=COLOURS))
    bars: alt.Chart = chart_of(rows).mark_bar().encode(color=kinds, order=alt.Order("order:Q"))
    return bars
