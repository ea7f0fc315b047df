"""Fill the templates of a run and a comparison."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from equipoise.errors import RunError
from equipoise.pages.figure import Figure
from equipoise.pages.render import render
from equipoise.study.report import comparison_tables, run_tables
from equipoise.study.report.comparison_charts import metrics_drawn
from equipoise.study.report.groups import Comparison
from equipoise.study.report.paper import paper_result
from equipoise.study.report.runs import RunRecord
from equipoise.study.report.thumbnails import read_gallery
from equipoise.study.run_dir import flat_settings


def render_run(run: RunRecord, figures: Sequence[Figure]) -> str:
    gallery, gallery_error = None, ""
    try:
        gallery = read_gallery(run.directory, run.seen) if run.summary else None
    except RunError as error:
        gallery_error = str(error)
    return render(
        __package__,
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
    return render(
        __package__,
        "comparison",
        figures,
        title=comparison_tables.title(comparison),
        protocol=comparison_tables.protocol(comparison),
        skipped=comparison.skipped,
        rows=comparison_tables.method_table(comparison, pages),
        summary=run_tables.summary_titles(comparison.seen),
        all_gains=[comparison_tables.gains(comparison.groups, metric) for metric in metrics_drawn(comparison)],
        seeds=max(len(group.runs) for group in comparison.groups),
        provenance=run_tables.provenance(first),
        settings=flat_settings(common),
    )
