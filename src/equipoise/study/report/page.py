"""Render the page of a run or comparison: one HTML file with everything in it."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import cache, partial
from importlib import resources
from typing import Any

import jinja2
from markupsafe import Markup

from equipoise.engine.progress import duration
from equipoise.errors import RunError
from equipoise.study.report import comparison_tables, run_tables
from equipoise.study.report.figure import Figure
from equipoise.study.report.groups import Comparison
from equipoise.study.report.paper import paper_result
from equipoise.study.report.runs import RunRecord
from equipoise.study.report.thumbnails import read_gallery
from equipoise.study.run_dir import flat_settings
from equipoise.study.tables import one_decimal

SCRIPTS = ("vega", "vega-lite", "vega-embed")


def render_run(run: RunRecord, figures: Sequence[Figure]) -> str:
    gallery, gallery_error = None, ""
    try:
        gallery = read_gallery(run.directory, run.seen) if run.summary else None
    except RunError as error:
        gallery_error = str(error)
    return _render(
        "run",
        figures,
        title=f"{run.method} on {run.settings['dataset']}",
        run=run,
        headline=run_tables.headline(run),
        paper=paper_result(run),
        conclusion=run_tables.conclusion(run),
        classes=run_tables.class_table(run),
        gallery=gallery,
        gallery_error=gallery_error,
        confusions=run_tables.confusion_lists(run),
        provenance=run_tables.provenance(run),
        settings=flat_settings(run.settings),
    )


def render_comparison(comparison: Comparison, figures: Sequence[Figure], pages: Collection[str]) -> str:
    """Render a comparison; ``pages`` names the runs that have a page of their own."""
    first = comparison.runs[0]
    common = {name: value for name, value in first.settings.items() if name not in ("method", "seed", "fields")}
    return _render(
        "comparison",
        figures,
        title=comparison_tables.title(comparison),
        protocol=comparison_tables.protocol(comparison),
        skipped=comparison.skipped,
        rows=comparison_tables.method_table(comparison, pages),
        summary=run_tables.SUMMARY,
        gains=comparison_tables.gains(comparison.groups),
        panels=comparison.panels,
        seeds=max(len(group.runs) for group in comparison.groups),
        provenance=run_tables.provenance(first),
        settings=flat_settings(common),
    )


def _render(template: str, figures: Sequence[Figure], **values: Any) -> str:
    named = {figure.name: figure for figure in figures}
    return _environment().get_template(f"{template}.html").render(figures=named, **values)


@cache
def _environment() -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader(__package__),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    environment.policies["json.dumps_kwargs"] = {"ensure_ascii": False, "separators": (",", ":")}
    environment.filters |= {"one": one_decimal, "signed": partial(one_decimal, sign="+")}
    environment.globals |= {"duration": duration, "scripts": [_script(name) for name in SCRIPTS]}
    return environment


def _script(name: str) -> Markup:
    text = (resources.files(__package__) / "vendor" / f"{name}.min.js").read_text(encoding="utf-8")
    return Markup(text)  # noqa: S704 (our own file)
