"""A comparison as CSV and LaTeX."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from equipoise.core.escape import csv_line
from equipoise.core.open_dir import printable
from equipoise.engine.metrics import TOP1, Metric
from equipoise.study.tables import Entry, figures_of, in_steps, legend, panels, spread_note, spread_of


def comparison_csv(lines: Sequence[dict[str, Any]]) -> str:
    """Return one line per run and step; a metric that only some methods have is empty for the others."""
    names = list(dict.fromkeys(name for line in lines for name in line))
    rows: list[list[Any]] = [names, *([line.get(name) for name in names] for line in lines)]
    return "".join(f"{csv_line(row)}\n" for row in rows)


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
    return "".join(LATEX.get(character, character) for character in printable(text))


def comparison_latex(table: dict[str, Any], metric: Metric = TOP1) -> str:
    """Return a booktabs table: one row per method; one column per step, or two for each number of steps."""
    entries = table["entries"]
    streams = list(dict.fromkeys(entry["steps"] for entry in entries))
    several = len(streams) > 1
    headings = ["last", "avg"]
    if len(streams) == 1:  # the column "last" would repeat the last step's
        headings = [*map(str, entries[0]["seen"]), *(heading for heading in figures_of(metric) if heading != "last")]
    columns = [(steps, heading) for steps in streams for heading in headings]
    name = "method" if several else "label"
    found = {(entry[name], entry["steps"]): entry for entry in entries}
    rules, body = [], []
    if several:
        width = len(headings)
        groups = [f"\\multicolumn{{{width}}}{{c}}{{{_latex(in_steps(steps))}}}" for steps in streams]
        spans = [f"\\cmidrule(lr){{{2 + i * width}-{1 + i * width + width}}}" for i in range(len(streams))]
        rules = [_row(["", *groups]), " ".join(spans)]
    for panel, labels in panels(table, (entry[name] for entry in entries)):
        body += [r"\midrule"]
        body += [f"\\multicolumn{{{len(columns) + 1}}}{{l}}{{\\emph{{{_latex(panel)}}}}} \\\\"] if panel else []
        for label in labels:
            mine = [(found.get((label, steps)), heading) for steps, heading in columns]
            if any(entry for entry, _ in mine):
                body.append(_row([_latex(label), *(_number(entry, heading, metric) for entry, heading in mine)]))
    stream = "" if several else "".join(f", in {in_steps(steps)}" for steps in streams)
    caption = f"{metric.title.capitalize()} accuracy in % on all classes of {table['dataset']} learned so far{stream}; "
    caption += f"{spread_note(table)}; {legend(headings if columns else [])}."
    lines = [
        r"% needs \usepackage{booktabs}",
        r"\begin{table}",
        r"\centering",
        f"\\caption{{{_latex(caption)}}}",
        f"\\begin{{tabular}}{{l{'r' * len(columns)}}}",
        r"\toprule",
        *rules,
        _row(["method", *(heading for _, heading in columns)]),
        *body,
        r"\bottomrule",
        r"\end{tabular}",
        r"\end{table}",
    ]
    return "\n".join(lines) + "\n"


def _row(cells: Iterable[str]) -> str:
    return " & ".join(cells) + r" \\"


def _number(entry: Entry | None, heading: str, metric: Metric) -> str:
    """Return a metric of an entry, or its accuracy after the number of classes in the heading."""
    mean = std = None
    figures = figures_of(metric)
    if entry and heading in figures:
        mean, std = spread_of(entry, figures[heading])
    elif entry:
        step = entry["seen"].index(int(heading))
        mean, std = entry[metric.accuracy][step], entry[f"{metric.accuracy}_std"][step]
    if mean is None:
        return "--"
    return f"{mean:.1f}" if std is None else f"${mean:.1f} \\pm {std:.1f}$"
