"""Tables for the terminal."""

from __future__ import annotations

import dataclasses
from typing import Any

from rich.console import Console
from rich.table import Table

from equipoise.methods import lookup, make, registry
from equipoise.settings import describe

FIGURES = {
    "last": "last",
    "avg": "average_without_first",
    "avg+1": "average_with_first",
    "forgets": "forgetting",
}
LEGEND = "avg: mean over all steps but the first, as in the paper; avg+1: over all; forgets: how far old classes fell"


def comparison(table: dict[str, Any], console: Console) -> Table:
    """Top-1 of each method after each step, and what sums it up; mean ± standard deviation where there are seeds.

    Where the console is too narrow for every step, some steps are left out: a figure is never cut.
    """
    steps = list(range(len(table["seen"])))
    every = 1
    while True:
        grid = _grid(table, [i for i in steps if (len(steps) - 1 - i) % every == 0])
        if every >= len(steps) or _width(grid, console) <= console.width:
            return grid
        every += 1


def _width(grid: Table, console: Console) -> int:
    return console.measure(grid, options=console.options.update(max_width=10_000)).maximum


def _grid(table: dict[str, Any], steps: list[int]) -> Table:
    methods = table["methods"]
    runs = max(len(entry["seeds"]) for entry in methods.values())
    title = f"{table['dataset']}: top-1 % by number of classes learned"
    title += f", mean ± std over {runs} seeds" if runs > 1 else ""
    grid = Table(title=title, title_justify="left", title_style="bold", box=None, pad_edge=False, padding=(0, 1))
    grid.add_column("method", no_wrap=True)
    for heading in [*(str(table["seen"][i]) for i in steps), *FIGURES]:
        grid.add_column(heading, justify="right", no_wrap=True)
    for name, entry in methods.items():
        sums = [_figure(entry["mean"][figure], entry["std"][figure]) for figure in FIGURES.values()]
        grid.add_row(name, *(f"{entry['top1'][i]:.1f}" for i in steps), *sums)
    return grid


def _figure(mean: float | None, std: float | None) -> str:
    if mean is None:
        return "–"
    return f"{mean:.1f}" if std is None else f"{mean:.1f}±{std:.1f}"


def about(name: str) -> str:
    """What a method does, in one line."""
    cls, _ = lookup(name)
    return cls.abouts.get(name) or (cls.__doc__ or "").strip().splitlines()[0]


def list_methods() -> str:
    """Every method: what it keeps and needs, what it does, and whose it is."""
    lines = []
    for name, (cls, _) in registry().items():
        memory = {"memory": "memory", "everything": "all images", "nothing": "no memory"}[cls.rehearses]
        teacher = ", teacher" if make(name).uses_teacher else ""
        extra = f", {cls.extra}" if cls.extra != "none" else ""
        lines += [f"{name:12} {about(name)}", f"{'':12} {memory}{teacher}{extra}"]
        lines += [f"{'':12} {cls.paper}"] if cls.paper else []
    return "\n".join(lines)


def describe_method(name: str) -> str:
    """The settings of one method, as ``--set method.NAME=VALUE`` takes them."""
    method, docs = make(name), describe(type(make(name)))
    lines = [f"{name}: {about(name)}", *([method.paper] if method.paper else [])]
    for field in dataclasses.fields(method):
        value = getattr(method, field.name)
        lines += [f"  method.{field.name} = {'none' if value is None else value}", f"      {docs[field.name]}"]
    return "\n".join(lines)
