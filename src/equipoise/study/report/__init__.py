"""One self-contained HTML page from a run or a comparison, and its figures for a paper."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from equipoise.errors import RunError, UsageError
from equipoise.files import read_json, write_text
from equipoise.study.report.runs import Group, Run, open_directory

NEEDED = "a report needs the package altair: pip install 'equipoise[report]'"


@dataclass(frozen=True)
class Report:
    """What was made."""

    page: Path
    pictures: list[Path]
    left_out: list[tuple[str, str]]
    """Run directories that could not be shown, and why."""


def available() -> bool:
    """Whether pages can be made here."""
    return find_spec("altair") is not None


def report(
    directory: str | Path, figures: str | Path | None = None, formats: str | Sequence[str] = ("svg", "png")
) -> Report:
    """Write ``report.html`` into a run's or a comparison's directory; ``figures`` is where pictures for a paper go.

    A comparison's page links to its runs' own pages, which are written too.
    """
    if not available():
        raise UsageError(NEEDED)
    from equipoise.study.report.comparison_charts import group_figures
    from equipoise.study.report.page import render_comparison, render_run
    from equipoise.study.report.run_charts import run_figures

    root = Path(directory)
    run, groups, left_out = open_directory(root)
    if run is not None:
        charts = run_figures(run)
        text = render_run(run, charts)
    else:
        groups, panels, others = _as_compared(root, groups)
        left_out += others
        charts = group_figures(groups, panels)
        text = render_comparison(groups, left_out, charts, panels, root)
        for one in (each for group in groups for each in group.runs):
            write_text(one.directory / "report.html", render_run(one, run_figures(one)))
    write_text(root / "report.html", text)
    pictures = []
    if figures is not None:
        from equipoise.study.report.export import export

        listed = formats.split(",") if isinstance(formats, str) else formats
        pictures = export(charts, Path(figures), [name.strip().lower() for name in listed if name.strip()])
    return Report(root / "report.html", pictures, left_out)


Left = list[tuple[str, str]]


def _as_compared(root: Path, groups: list[Group]) -> tuple[list[Group], list[dict[str, Any]], Left]:
    """Labels, order and panels as the comparison in ``root`` has them, and which runs it does not have."""
    try:
        table = read_json(root / "compare.json")
        labels = {run["directory"]: entry["label"] for entry in table["entries"] for run in entry["runs"]}
        panels = table["panels"] or []
    except (RunError, KeyError, TypeError):
        return groups, [], []
    runs = {run.directory.relative_to(root).as_posix(): run for group in groups for run in group.runs}
    named: dict[str, list[Run]] = {}
    for name, label in labels.items():
        named.setdefault(label, []).extend([runs[name]] if name in runs else [])
    if not any(named.values()):  # all that it names are ruins: better what there is than nothing
        return groups, [], []
    panels = [panel for panel in panels if any(named.get(label) for label in panel["labels"])]
    others = [(name, "it is not in compare.json, the last comparison made here") for name in runs if name not in labels]
    return [Group(label, found) for label, found in named.items() if found], panels, others
