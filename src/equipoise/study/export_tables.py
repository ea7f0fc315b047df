"""A comparison as CSV and LaTeX."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from equipoise.study.tables import FIGURES, Entry, Spread, in_steps, legend, panels, spread_note, spread_of


def comparison_csv(lines: Sequence[dict[str, Any]]) -> str:
    """Return one line per run and step; a figure that only some methods have is empty for the others."""
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


@dataclass(frozen=True)
class Column:
    """A column of the LaTeX table: a figure of the entries with the given number of steps."""

    steps: str
    heading: str
    spread: Callable[[Entry], Spread]


def comparison_latex(table: dict[str, Any]) -> str:
    """Return a booktabs table: one row per method; one column per step, or two for each number of steps."""
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
    for panel, labels in panels(table, (entry[name] for entry in entries)):
        body += [r"\midrule"]
        body += [f"\\multicolumn{{{len(columns) + 1}}}{{l}}{{\\emph{{{_latex(panel)}}}}} \\\\"] if panel else []
        for label in labels:
            mine = [(column, found.get((label, column.steps))) for column in columns]
            if any(entry for _, entry in mine):
                body.append(_row([_latex(label), *(_number(column, entry) for column, entry in mine)]))
    stream = "" if several else "".join(f", in {in_steps(steps)}" for steps in streams)
    caption = f"Top-1 accuracy in % on all classes of {table['dataset']} learned so far{stream}; {spread_note(table)}; "
    caption += f"{legend(dict.fromkeys(column.heading for column in columns))}."
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
        return Column(steps, heading, lambda entry: spread_of(entry, heading))

    def after(step: int, classes: int) -> Column:
        return Column(steps, str(classes), lambda entry: (entry["accuracy"][step], entry["accuracy_std"][step]))

    if several:
        return [figure("last"), figure("avg")]
    seen = next(entry["seen"] for entry in entries if entry["steps"] == steps)
    sums = [heading for heading in FIGURES if heading != "last"]  # it is the last step's column
    return [*(after(step, classes) for step, classes in enumerate(seen)), *map(figure, sums)]


def _row(cells: Iterable[str]) -> str:
    return " & ".join(cells) + r" \\"


def _number(column: Column, entry: Entry | None) -> str:
    mean, std = column.spread(entry) if entry else (None, None)
    if mean is None:
        return "--"
    return f"{mean:.1f}" if std is None else f"${mean:.1f} \\pm {std:.1f}$"
