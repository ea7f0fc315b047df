"""The command for reports of runs, comparisons and models."""

from __future__ import annotations

from pathlib import Path

from equipoise.cli.app import STUDIES, Flag, command
from equipoise.cli.models import model_dir
from equipoise.core.output import print_json, say, warn
from equipoise.errors import UsageError


@command(
    STUDIES,
    "report runs/compare",
    "report runs/compare --figures figures/ --formats svg,pdf",
    "report pets --out pets.html",
)
def report(
    directory: Path,
    *,
    out: Path | None = None,
    figures: Path | None = None,
    formats: str | None = None,
    json: Flag = False,
) -> None:
    """Write a self-contained HTML report for a run, a comparison or a model.

    Parameters
    ----------
    directory
        Directory of a run, a comparison or a model. For runs and comparisons, report.html is written into it.
    out
        File to write, for models (default: MODEL-report.html next to the model's directory).
    figures
        Also write every chart as an image file into this directory.
    formats
        Comma-separated formats of the image files: svg, png, pdf (default: svg,png).
    json
        Print what was written as one JSON object.
    """
    from equipoise.app.report import holds_model, report_model
    from equipoise.study.report import report as make_report

    if formats and figures is None:
        raise UsageError("--formats needs --figures DIR: name a directory for the image files")
    is_model, options = holds_model(directory), (figures, formats or "svg,png")
    if out and not is_model:
        raise UsageError("--out applies to models: the report of a run or comparison is written into its directory")
    made = report_model(model_dir(directory), out, *options) if is_model else make_report(directory, *options)
    for name, reason in made.skipped:
        warn(f"equipoise: skipped {name}: {reason}")
    if json:
        skipped = [{"name": name, "reason": reason} for name, reason in made.skipped]
        files = [str(file) for file in made.pictures]
        print_json({"page": str(made.page), "figures": files, "skipped": skipped})
        return
    say(f"report: {made.page}")
    if made.pictures:
        say(f"{len(made.pictures)} figures: {figures}")
