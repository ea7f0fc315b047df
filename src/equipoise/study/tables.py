"""A comparison as a table for the terminal, with its legend."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from typing import Any

from rich.console import Console, Group
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from equipoise.engine.metrics import TOP1, Metric
from equipoise.pages.text import one_decimal

DIFFERENCES = {"Δ last": "last", "Δ avg": "avg"}
"""Metrics that panels also show as differences from their first line."""
LEGENDS = {
    "avg": "mean over all steps but the first, as in the paper",
    "avg+1": "mean over all steps",
    "forgets": "mean loss of accuracy of old classes",
    "Δ": "difference from the panel's first line in points, seed by seed",
}
PENDING = "…"

Entry = dict[str, Any]
Spread = tuple[float | None, float | None]
"""Mean and standard deviation."""


def in_steps(steps: str) -> str:
    """Describe a number of steps or their sizes.

    >>> in_steps("5"), in_steps("50,10x5")
    ('5 steps', 'steps of 50,10x5')
    """
    if not steps.isdecimal():
        return f"steps of {steps}"
    return f"{steps} step" + ("s" if steps != "1" else "")


def figures_of(metric: Metric) -> dict[str, str]:
    """Return column headings and their keys in summary.json."""
    keys = {"last": metric.last, "avg": metric.average_without_first, "avg+1": metric.average_with_first}
    return keys | ({"forgets": metric.forgetting} if metric.forgetting else {})


def notes(table: dict[str, Any], metric: Metric = TOP1) -> str:
    """Explain the columns of a comparison and the spread of its values."""
    headings = [*DIFFERENCES.values(), "Δ"] if table["panels"] else figures_of(metric)
    return f"{legend(headings)}\n{spread_note(table)}"


def legend(headings: Iterable[str]) -> str:
    """Explain the given columns."""
    return "; ".join(f"{heading}: {LEGENDS[heading]}" for heading in headings if heading in LEGENDS)


def spread_note(table: dict[str, Any]) -> str:
    """Describe over how many seeds values are averaged."""
    counts = [entry["n"] for entry in table["entries"]] or [0]
    fewest, most = min(counts), max(counts)
    if most == 0:
        return "no run finished"
    if most < 2:
        return "one seed: differences of a few points are not meaningful"
    seeds = f"{most}" if fewest == most else f"{fewest} to {most}"
    few = "; fewer than three seeds are too few for one" if fewest < 3 else ""
    return f"mean ± sample standard deviation over n = {seeds} seeds; no significance test is made{few}"


def comparison(table: dict[str, Any], console: Console, pending: Sequence[str] = (), metric: Metric = TOP1) -> Group:
    """Return a table of the accuracy after each step and its summary, with mean ± standard deviation over seeds.

    On a narrow console, columns of steps are dropped first, then other metrics.
    """
    seen = sorted({classes for entry in table["entries"] for classes in entry["seen"]})
    figures = list(DIFFERENCES.values() if table["panels"] else figures_of(metric))
    choices = [(seen[::-1][::every][::-1], figures) for every in range(1, len(seen) + 1)]
    choices += [([], figures[:count]) for count in range(len(figures), 0, -1)]
    options = console.options.update(max_width=10_000)
    for steps, chosen in choices:
        grid = _grid(table, steps, chosen, pending, metric)
        if console.measure(grid, options=options).maximum <= console.width:
            break
    title = Text(f"{table['dataset']}: {metric.title} % by number of classes learned", style="bold")
    shown = {column.header for column in grid.columns}
    if shown >= {*map(str, seen), *figures}:
        return Group(title, grid)
    return Group(title, grid, Text("some columns do not fit the terminal", style="dim"))


def _grid(
    table: dict[str, Any], seen: Sequence[int], figures: Sequence[str], pending: Sequence[str], metric: Metric
) -> Table:
    entries = {entry["label"]: entry for entry in table["entries"]}
    differences = {name: figure for name, figure in DIFFERENCES.items() if table["panels"] and figure in figures}
    keys = figures_of(metric)
    counts = ["n"] if any(entry["n"] > 1 for entry in entries.values()) else []
    grid = Table(box=None, pad_edge=False, padding=(0, 1))
    grid.add_column("method", no_wrap=True)
    for heading in [*map(str, seen), *figures, *differences, *counts]:
        grid.add_column(heading, justify="right", no_wrap=True)
    for panel, labels in panels(table, [*entries, *pending]):
        indent = "  " if panel else ""
        if panel:
            grid.add_row(f"[bold]{escape(panel)}[/]")
        for label in labels:
            if label in entries:
                entry, first = entries[label], entries.get(labels[0])
                accuracy = dict(zip(entry["seen"], entry[metric.accuracy], strict=True))
                cells = [one_decimal(accuracy[classes]) if classes in accuracy else "" for classes in seen]
                cells += [_figure(spread_of(entry, keys[figure])) for figure in figures]
                cells += [_figure(_difference(entry, first, keys[figure]), "+") for figure in differences.values()]
                cells += [str(entry["n"]) for _ in counts]
                grid.add_row(indent + escape(label), *cells)
            elif label in pending:
                grid.add_row(indent + escape(label), *("" for _ in seen), *(PENDING for _ in figures))
    return grid


def panels(table: dict[str, Any], labels: Iterable[str]) -> list[tuple[str, list[str]]]:
    """Return titles and labels; a comparison without panels is one panel without a title."""
    if table["panels"]:
        return [(panel["title"], panel["labels"]) for panel in table["panels"]]
    return [("", list(dict.fromkeys(labels)))]


def spread_of(entry: Entry, key: str) -> Spread:
    """Return mean and standard deviation of a metric of summary.json."""
    return entry["mean"][key], entry["std"][key]


def mean_std(values: Iterable[float | None]) -> Spread:
    """Return the mean of the known values, and their sample standard deviation if there are two."""
    known = [value for value in values if value is not None]
    return statistics.mean(known) if known else None, statistics.stdev(known) if len(known) > 1 else None


def _difference(entry: Entry, first: Entry | None, key: str) -> Spread:
    """Return the difference from the first entry, over the seeds that both have."""
    if first is None or entry is first:
        return None, None
    base = {run["seed"]: run[key] for run in first["runs"]}
    pairs = [(run[key], base.get(run["seed"])) for run in entry["runs"]]
    return mean_std(mine - other for mine, other in pairs if mine is not None and other is not None)


def _figure(spread: Spread, sign: str = "") -> str:
    mean, std = spread
    return one_decimal(mean, sign) + ("" if std is None else f"±{std:.1f}")
