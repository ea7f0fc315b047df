"""Tables for the terminal, for programs and for papers."""

from __future__ import annotations

import csv
import dataclasses
import io
import statistics
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from rich.console import Console, Group
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from equipoise.methods import lookup, make, registry
from equipoise.settings import describe

FIGURES = {
    "last": "last",
    "avg": "average_without_first",
    "avg+1": "average_with_first",
    "forgets": "forgetting",
}
"""Headings, and what summary.json calls them."""
DIFFERENCES = {"Δ last": "last", "Δ avg": "avg"}
"""Which figures panels show, also as differences from their first line."""
LEGENDS = {
    "avg": "mean over all steps but the first, as in the paper",
    "avg+1": "over all",
    "forgets": "how far old classes fell",
    "Δ": "points above the panel's first line, seed by seed",
}
TO_COME = "…"

Entry = dict[str, Any]
Spread = tuple[float | None, float | None]
"""Mean and standard deviation."""


def in_steps(steps: str) -> str:
    """A number of steps, or their sizes, in words.

    >>> in_steps("5"), in_steps("50,10x5")
    ('5 steps', 'steps of 50,10x5')
    """
    return f"{steps} steps" if steps.isdecimal() else f"steps of {steps}"


def notes(table: dict[str, Any]) -> str:
    """What the columns of a comparison are, and how much its figures may be trusted."""
    headings = [*DIFFERENCES.values(), "Δ"] if table["panels"] else FIGURES
    return f"{_legend(headings)}\n{_trust(table)}"


def _legend(headings: Iterable[str]) -> str:
    return "; ".join(f"{heading}: {LEGENDS[heading]}" for heading in headings if heading in LEGENDS)


def _trust(table: dict[str, Any]) -> str:
    counts = [entry["n"] for entry in table["entries"]] or [0]
    fewest, most = min(counts), max(counts)
    if most < 2:
        return "one seed: differences below a few points mean little"
    seeds = f"{most}" if fewest == most else f"{fewest} to {most}"
    few = ", and fewer than three seeds would bear none" if fewest < 3 else ""
    return f"mean ± sample standard deviation over n = {seeds} seeds; no test of significance is made{few}"


# ---- the terminal


def comparison(table: dict[str, Any], console: Console, to_come: Sequence[str] = ()) -> Group:
    """Top-1 of each entry after each step, and what sums it up; mean ± standard deviation where there are seeds.

    Where the console is too narrow for everything, steps are left out, then figures: none is cut.
    """
    seen = sorted({classes for entry in table["entries"] for classes in entry["seen"]})
    figures = list(DIFFERENCES.values() if table["panels"] else FIGURES)
    choices = [(seen[::-1][::every][::-1], figures) for every in range(1, len(seen) + 1)]
    choices += [([], figures[:count]) for count in range(len(figures), 0, -1)]
    grids = (_grid(table, steps, chosen, to_come) for steps, chosen in choices)
    grid = next((grid for grid in grids if _width(grid, console) <= console.width), None)
    title = Text(f"{table['dataset']}: top-1 % by number of classes learned", style="bold")
    return Group(title, grid or _grid(table, [], figures[:1], to_come))


def _width(grid: Table, console: Console) -> int:
    return console.measure(grid, options=console.options.update(max_width=10_000)).maximum


def _grid(table: dict[str, Any], seen: Sequence[int], figures: Sequence[str], to_come: Sequence[str]) -> Table:
    entries = {entry["label"]: entry for entry in table["entries"]}
    differences = {name: figure for name, figure in DIFFERENCES.items() if table["panels"] and figure in figures}
    counts = ["n"] if any(entry["n"] > 1 for entry in entries.values()) else []
    grid = Table(box=None, pad_edge=False, padding=(0, 1))
    grid.add_column("method", no_wrap=True)
    for heading in [*map(str, seen), *figures, *differences, *counts]:
        grid.add_column(heading, justify="right", no_wrap=True)
    for panel, labels in _panels(table, [*entries, *to_come]):
        indent = "  " if panel else ""
        if panel:
            grid.add_row(f"[bold]{escape(panel)}[/]")
        for label in labels:
            if label in entries:
                entry, first = entries[label], entries.get(labels[0])
                top1 = dict(zip(entry["seen"], entry["top1"], strict=True))
                cells = [f"{top1[classes]:.1f}" if classes in top1 else "" for classes in seen]
                cells += [_figure(_spread(entry, figure)) for figure in figures]
                cells += [_figure(_difference(entry, first, figure), "+") for figure in differences.values()]
                cells += [str(entry["n"]) for _ in counts]
                grid.add_row(indent + escape(label), *cells)
            elif label in to_come:
                grid.add_row(indent + escape(label), *("" for _ in seen), *(TO_COME for _ in figures))
    return grid


def _panels(table: dict[str, Any], labels: Iterable[str]) -> list[tuple[str, list[str]]]:
    """Titles and labels; a comparison without panels is one without a title."""
    if table["panels"]:
        return [(panel["title"], panel["labels"]) for panel in table["panels"]]
    return [("", list(dict.fromkeys(labels)))]


def _spread(entry: Entry, figure: str) -> Spread:
    return entry["mean"][FIGURES[figure]], entry["std"][FIGURES[figure]]


def _difference(entry: Entry, first: Entry | None, figure: str) -> Spread:
    """How far ``entry`` is above the first, over the seeds that both have."""
    if first is None or entry is first:
        return None, None
    base = {run["seed"]: run[FIGURES[figure]] for run in first["runs"]}
    pairs = [(run[FIGURES[figure]], base.get(run["seed"])) for run in entry["runs"]]
    found = [mine - other for mine, other in pairs if mine is not None and other is not None]
    return statistics.mean(found) if found else None, statistics.stdev(found) if len(found) > 1 else None


def _figure(spread: Spread, sign: str = "") -> str:
    mean, std = spread
    if mean is None:
        return "–"
    return f"{mean:{sign}.1f}" if std is None else f"{mean:{sign}.1f}±{std:.1f}"


# ---- files


def comparison_csv(lines: Sequence[dict[str, Any]]) -> str:
    """One line a run and step; a figure that only some methods have is empty for the others."""
    text = io.StringIO()
    names = list(dict.fromkeys(name for line in lines for name in line))
    writer = csv.DictWriter(text, names, lineterminator="\n")
    writer.writeheader()
    writer.writerows(lines)
    return text.getvalue()


LATEX = {
    "\\": r"\textbackslash{}",
    **{character: f"\\{character}" for character in "&%$#_{}"},
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "±": r"$\pm$",
}


def _latex(text: str) -> str:
    """
    >>> print(_latex("50% of my_method & ±"))
    50\\% of my\\_method \\& $\\pm$
    """
    return "".join(LATEX.get(character, character) for character in text)


@dataclasses.dataclass(frozen=True)
class Column:
    """A column of the LaTeX table: entries with this number of steps, and what is told of them."""

    steps: str
    heading: str
    spread: Callable[[Entry], Spread]


def comparison_latex(table: dict[str, Any]) -> str:
    """A booktabs table: a line a method; a column a step, or two for each number of steps where there are several."""
    entries = table["entries"]
    streams = list(dict.fromkeys(entry["steps"] for entry in entries))
    several = len(streams) > 1
    columns = [column for steps in streams for column in _columns(entries, steps, several)]
    name = "method" if several else "label"
    found = {(entry[name], entry["steps"]): entry for entry in entries}
    rules, body = [], []
    if several:
        width = len(columns) // len(streams)
        groups = [f"\\multicolumn{{{width}}}{{c}}{{{_latex(in_steps(steps))}}}" for steps in streams]
        spans = [f"\\cmidrule(lr){{{2 + i * width}-{1 + i * width + width}}}" for i in range(len(streams))]
        rules = [_row(["", *groups]), " ".join(spans)]
    for panel, labels in _panels(table, (entry[name] for entry in entries)):
        body += [r"\midrule"]
        body += [f"\\multicolumn{{{len(columns) + 1}}}{{l}}{{\\emph{{{_latex(panel)}}}}} \\\\"] if panel else []
        for label in labels:
            mine = [(column, found.get((label, column.steps))) for column in columns]
            if any(entry for _, entry in mine):
                body.append(_row([_latex(label), *(_number(column, entry) for column, entry in mine)]))
    stream = "" if several else "".join(f", in {in_steps(steps)}" for steps in streams)
    caption = f"Top-1 accuracy in % on all classes of {table['dataset']} learned so far{stream}; {_trust(table)}; "
    caption += f"{_legend(dict.fromkeys(column.heading for column in columns))}."
    lines = [
        r"% needs \usepackage{booktabs}",
        r"\begin{table}",
        r"\centering",
        f"\\caption{{{_latex(caption)}}}",
        f"\\begin{{tabular}}{{l{'r' * len(columns)}}}",
        r"\toprule",
        *rules,
        _row(["method", *(column.heading for column in columns)]),
        *body,
        r"\bottomrule",
        r"\end{tabular}",
        r"\end{table}",
    ]
    return "\n".join(lines) + "\n"


def _columns(entries: Sequence[Entry], steps: str, several: bool) -> list[Column]:
    def figure(heading: str) -> Column:
        return Column(steps, heading, lambda entry: _spread(entry, heading))

    def after(step: int, classes: int) -> Column:
        return Column(steps, str(classes), lambda entry: (entry["top1"][step], entry["top1_std"][step]))

    if several:
        return [figure("last"), figure("avg")]
    seen = next(entry["seen"] for entry in entries if entry["steps"] == steps)
    sums = [heading for heading in FIGURES if heading != "last"]  # which is the last step's column
    return [*(after(step, classes) for step, classes in enumerate(seen)), *map(figure, sums)]


def _row(cells: Iterable[str]) -> str:
    return " & ".join(cells) + r" \\"


def _number(column: Column, entry: Entry | None) -> str:
    mean, std = column.spread(entry) if entry else (None, None)
    if mean is None:
        return "--"
    return f"{mean:.1f}" if std is None else f"${mean:.1f} \\pm {std:.1f}$"


# ---- methods


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
