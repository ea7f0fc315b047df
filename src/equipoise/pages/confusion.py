"""The confusion matrix of a page, and the errors that a click on it lists."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import altair as alt
import numpy as np

from equipoise.pages.figure import Figure, Rows, chart_of, tooltips
from equipoise.pages.text import name_in_text

Array = np.ndarray[Any, Any]
MOST_CONFUSED = 8
"""Number of classes that a click lists."""


def confusion_figure(name: str, title: str, counts: Array, names: Sequence[str], bounds: Sequence[int]) -> Figure:
    """Return the matrix of ``counts``, where class i (row) is predicted as class j; lines are drawn at ``bounds``."""
    wrong = without_diagonal(counts)
    pairs = [np.unravel_index(i, wrong.shape) for i in np.argsort(-wrong, axis=None, kind="stable")[:5]]
    table: Rows = [
        {"true class": names[i], "predicted as": names[j], "images": int(wrong[i, j])} for i, j in pairs if wrong[i, j]
    ]
    listed = [
        f"{name_in_text(row['true class'])} as {name_in_text(row['predicted as'])} ({row['images']})" for row in table
    ]
    caption = "Stronger colours mean more images, as log(1 + n)."
    caption += f" Most frequent errors: {', '.join(listed)}." if listed else " No image is misclassified."
    return Figure(name, title, caption, _matrix(counts, names, bounds), table, square=True)


def without_diagonal(counts: Array) -> Array:
    """Return the misclassified images of a confusion matrix."""
    wrong = counts.copy()
    np.fill_diagonal(wrong, 0)
    return wrong


def confusion_list(counts: Array) -> list[list[list[int]]]:
    """Return for each class pairs of predicted class and images, the most frequent errors first."""
    wrong = without_diagonal(counts)
    order = np.argsort(-wrong, axis=1, kind="stable")[:, :MOST_CONFUSED]
    return [[[int(j), int(row[j])] for j in others if row[j]] for row, others in zip(wrong, order, strict=True)]


def _matrix(counts: Array, names: Sequence[str], bounds: Sequence[int]) -> alt.LayerChart:
    cells: Rows = [{"t": int(i), "p": int(j), "n": int(counts[i, j])} for i, j in zip(*counts.nonzero(), strict=True)]
    known = alt.LookupData(alt.InlineData([{"c": c, "name": name} for c, name in enumerate(names)]), "c", ["name"])
    axis, domain = alt.Axis(values=list(bounds), format="d", grid=False), alt.Scale(domain=[0, len(names)], nice=False)
    squares = chart_of(cells).mark_rect(color="#e76f51", strokeWidth=0)
    squares = squares.transform_calculate(t2="datum.t + 1", p2="datum.p + 1", depth="log(1 + datum.n)")
    squares = squares.transform_lookup("t", known, as_=["true class"])
    matrix = squares.transform_lookup("p", known, as_=["predicted as"]).encode(
        x=alt.X("p:Q", title="predicted class", scale=domain, axis=axis),
        x2=alt.X2("p2:Q"),
        y=alt.Y("t:Q", title="true class", scale=alt.Scale(domain=[len(names), 0], nice=False), axis=axis),
        y2=alt.Y2("t2:Q"),
        opacity=alt.Opacity("depth:Q", legend=None, scale=alt.Scale(range=[0.12, 1], zero=True)),
        tooltip=tooltips("true class:N", "predicted as:N", alt.Tooltip("n:Q", title="images")),
    )
    lines = alt.Chart(alt.InlineData([{"at": bound} for bound in bounds[1:-1]]))
    lines = lines.mark_rule(color="gray", opacity=0.5, strokeDash=[2, 2])
    chart: alt.LayerChart = matrix + lines.encode(x=alt.X("at:Q", scale=domain)) + lines.encode(y=alt.Y("at:Q"))
    return chart
