"""Tables for the terminal."""

from __future__ import annotations

from typing import Any

from rich.table import Table


def comparison(table: dict[str, Any]) -> Table:
    """Top-1 of each method after each step, and the averages; mean ± standard deviation where there are seeds."""
    methods = table["methods"]
    runs = max(len(entry["seeds"]) for entry in methods.values())
    title = f"top-1 % on {table['dataset']}" + (f", mean ± std over {runs} seeds" if runs > 1 else "")
    grid = Table(title=title, title_justify="left", box=None, pad_edge=False, padding=(0, 1))
    grid.add_column("method")
    for step in range(1, 1 + max(len(entry["top1"]) for entry in methods.values())):
        grid.add_column(f"step {step}", justify="right")
    for name in ("last", "avg, no step 1", "avg, all", "forgetting"):
        grid.add_column(name, justify="right")
    figures = ("last", "average_without_first", "average_with_first", "forgetting")
    for name, entry in methods.items():
        cells = [_figure(entry["mean"][figure], entry["std"][figure]) for figure in figures]
        grid.add_row(name, *(f"{value:.1f}" for value in entry["top1"]), *cells)
    return grid


def _figure(mean: float | None, std: float | None) -> str:
    if mean is None:
        return "–"
    return f"{mean:.1f}" if std is None else f"{mean:.1f} ± {std:.1f}"
