"""Self-contained HTML reports of runs and comparisons, and their charts as image files for a paper."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from equipoise.core import extras
from equipoise.core.directory import Directory
from equipoise.errors import RunError, UsageError
from equipoise.study.report.groups import Skipped, is_run, read_comparison
from equipoise.study.report.runs import read_run

PAGE = "report.html"


@dataclass(frozen=True)
class ReportFiles:
    """The files of a report."""

    page: Path
    pictures: list[Path]
    """Figures for a paper."""
    skipped: Skipped
    """What could not be shown, and why."""


def report(
    directory: str | Path, figures: str | Path | None = None, formats: str | Sequence[str] = ("svg", "png")
) -> ReportFiles:
    """Write report.html into the directory of a run or comparison.

    A comparison's page links to the pages of its runs, which are written too.

    Parameters
    ----------
    directory
        A run's directory, or one with runs below it.
    figures
        Directory for the charts as image files (default: none are written).
    formats
        Formats of the image files: svg, png, pdf.

    Returns
    -------
    ReportFiles
        The files, and the runs that could not be shown.
    """
    for package in ("altair", "jinja2"):
        extras.require(package, "report", "a report")
    from equipoise.pages.export import check_formats, export_figures
    from equipoise.study.report.comparison_charts import comparison_figures
    from equipoise.study.report.page import render_comparison, render_run
    from equipoise.study.report.run_charts import run_figures

    chosen = check_formats(formats)
    root, skipped = Directory(Path(directory)), []
    if not root.is_dir():
        raise UsageError(f"{directory} is not a directory: name the directory of a run or comparison")
    if is_run(root):
        try:
            run = read_run(root)
            run.check()
        except RunError as error:
            raise RunError(f"cannot show the run in {directory}: {error}") from error
        charts = run_figures(run)
        text = render_run(run, charts)
    else:
        comparison = read_comparison(root)
        skipped, pages = comparison.skipped, []
        for run in comparison.runs:
            try:
                run.directory.write_text(PAGE, render_run(run, run_figures(run)))
                pages.append(comparison.name(run))
            except RunError as error:
                skipped.append((f"the page of {comparison.name(run)}", str(error)))
        charts = comparison_figures(comparison)
        text = render_comparison(comparison, charts, pages)
    root.write_text(PAGE, text)
    pictures = [] if figures is None else export_figures(charts, Path(figures), chosen)
    return ReportFiles(root.path / PAGE, pictures, skipped)
