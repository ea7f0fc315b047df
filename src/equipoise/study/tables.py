"""Tables for the terminal."""

from __future__ import annotations

from typing import Any

from rich.table import Table

FIGURES = {
    "last": "last",
    "avg": "average_without_first",
    "avg+1": "average_with_first",
    "forgets": "forgetting",
}
LEGEND = "avg: mean over all steps but the first, as in the paper; avg+1: over all; forgets: how far old classes fell"


def comparison(table: dict[str, Any]) -> Table:
    """Top-1 of each method after each step, and what sums it up; mean ± standard deviation where there are seeds."""
    methods = table["methods"]
    runs = max(len(entry["seeds"]) for entry in methods.values())
    title = f"{table['dataset']}: top-1 % by number of classes learned"
    title += f", mean ± std over {runs} seeds" if runs > 1 else ""
    grid = Table(title=title, title_justify="left", title_style="bold", box=None, pad_edge=False, padding=(0, 1))
    grid.add_column("method", no_wrap=True)
    for heading in [*map(str, table["seen"]), *FIGURES]:
        grid.add_column(heading, justify="right", no_wrap=True)
    for name, entry in methods.items():
        sums = [_figure(entry["mean"][figure], entry["std"][figure]) for figure in FIGURES.values()]
        grid.add_row(name, *(f"{value:.1f}" for value in entry["top1"]), *sums)
    return grid


def _figure(mean: float | None, std: float | None) -> str:
    if mean is None:
        return "–"
    return f"{mean:.1f}" if std is None else f"{mean:.1f}±{std:.1f}"
