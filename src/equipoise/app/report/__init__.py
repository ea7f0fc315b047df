"""A self-contained HTML report of a model: classes, confusions, suspects, calibration and growth over time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from equipoise.app.model_dir import PENDING, ModelDir
from equipoise.core import extras
from equipoise.core.directory import Directory
from equipoise.core.files import write_bytes
from equipoise.core.open_dir import check_path
from equipoise.errors import UsageError


@dataclass(frozen=True)
class ModelReport:
    """The files of a report."""

    page: Path
    pictures: list[Path]
    """Figures for a paper."""
    skipped: Sequence[tuple[str, str]] = ()
    """Always empty; reports of comparisons list what could not be shown."""


def report_model(
    place: ModelDir,
    out: Path | None = None,
    figures: Path | None = None,
    formats: str | Sequence[str] = ("svg", "png"),
) -> ModelReport:
    """Write the page of a model next to its directory, which contains nothing but the model.

    Parameters
    ----------
    place
        The model.
    out
        The file to write (default: the name of the directory with ``-report.html``, next to it).
    figures
        Directory for the charts as image files (default: none are written).
    formats
        Formats of the image files: svg, png, pdf.
    """
    for package in ("altair", "jinja2"):
        extras.require(package, "report", "a report")
    from equipoise.app.report.charts import model_figures
    from equipoise.app.report.facts import read_facts
    from equipoise.app.report.page import render_model
    from equipoise.pages.export import check_formats, export_figures

    place.check()
    chosen = check_formats(formats)
    page = default_page(place.path) if out is None else out
    for file in (page, figures):
        if file is None:
            continue
        check_path(file)
        if _inside(file, place.path):
            raise UsageError(f"{file} is inside the model directory, which holds only the model: choose another place")
    facts = read_facts(place)
    charts = model_figures(facts)
    write_bytes(page, render_model(facts, charts).encode(errors="backslashreplace"))
    return ModelReport(page, [] if figures is None else export_figures(charts, figures, chosen))


def default_page(directory: Path) -> Path:
    """Return the file next to a model's directory."""
    name = directory.name if directory.name not in ("", "..") else directory.resolve().name
    return (directory if directory.name == name else directory.resolve()).with_name(f"{name or 'model'}-report.html")


def _inside(file: Path, directory: Path) -> bool:
    return file.resolve().is_relative_to(directory.resolve())


def holds_model(path: Path) -> bool:
    """Return whether a directory holds a model, or the interrupted first step of one, and not a run."""
    directory = Directory(path)
    if any(directory.exists(name) for name in ("metrics.jsonl", "checkpoint", "compare.json")):
        return False
    stored = any(directory.exists(name) for name in ("versions", "model.safetensors"))
    return (directory.exists("config.json") and stored) or directory.exists(PENDING)
