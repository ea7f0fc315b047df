"""Tables and sentences for the page of a run."""

from __future__ import annotations

from typing import Any

from equipoise.engine.metrics import METRICS, TOP1, metrics_for
from equipoise.engine.progress import duration
from equipoise.pages.confusion import confusion_list, without_diagonal
from equipoise.pages.text import one_decimal
from equipoise.study.report.analysis import confusion
from equipoise.study.report.paper import paper_result
from equipoise.study.report.runs import RunRecord
from equipoise.study.tables import figures_of

TITLES = {
    "last": "last step",
    "avg": "average without step 1",
    "avg+1": "average with step 1",
    "forgets": "forgetting",
}


def summary_titles(classes: int) -> dict[str, str]:
    """Return the metrics of summary.json that a page shows, with their titles."""
    return {
        key: TITLES[heading] if metric is TOP1 else f"{metric.title}, {TITLES[heading]}"
        for metric in metrics_for(classes)
        for heading, key in figures_of(metric).items()
    }


def headline(run: RunRecord) -> list[dict[str, str]]:
    """Return the most important metrics, next to the paper's if it reports the same."""
    paper = paper_result(run)
    summary = run.summary
    if summary is None:
        summary = {metric.last: getattr(run.steps[-1], metric.accuracy) for metric in METRICS.values()}
    cards = [
        _card(title, summary.get(key), paper.figure(key) if paper else None)
        for key, title in summary_titles(run.seen).items()
    ]
    seconds = sum(step.seconds for step in run.steps)
    return [*cards, {"name": "time", "value": duration(seconds), "paper": ""}]


def _card(name: str, value: float | None, paper: float | None) -> dict[str, str]:
    return {"name": name, "value": one_decimal(value), "paper": "" if paper is None else f"paper {paper:.1f}"}


def conclusion(run: RunRecord) -> str:
    """Describe the result in a sentence or two."""
    last = run.steps[-1]
    old = last.seen - last.new
    if not old:
        return f"The model has learned {last.seen} classes and reaches an accuracy of {last.accuracy:.1f} %."
    made, _ = run.predictions(len(run.steps))
    correct, is_old = made.top1 == made.labels, made.labels < old
    on_old, on_new = (one_decimal(100 * correct[mask].mean() if mask.any() else None) for mask in (is_old, ~is_old))
    text = (
        f"The model has learned {last.seen} classes in {len(run.steps)} steps and reaches an accuracy of "
        f"{last.accuracy:.1f} %: {on_old} % on the {old} old classes and {on_new} % on the {last.new} newest."
    )
    if run.corrected and last.accuracy is not None and last.accuracy_uncorrected is not None:
        text += f" The correction changed it by {last.accuracy - last.accuracy_uncorrected:+.1f} points."
    return text


def class_table(run: RunRecord) -> list[dict[str, Any]]:
    """Return one row per class: when it was learned, its accuracy then and now, and its most frequent error."""
    wrong = without_diagonal(confusion(run.predictions(len(run.steps))[0], run.seen))
    table = []
    for c, name in enumerate(run.names):
        learned = int(run.step_of[c])
        then, now = run.steps[learned - 1].per_class[c].accuracy, run.steps[-1].per_class[c].accuracy
        change = None if then is None or now is None else now - then
        row = {"name": name, "learned": learned, "then": then, "now": now, "change": change}
        other, images = int(wrong[c].argmax()), int(wrong[c].max())
        table.append({**row, "predicted_as": run.names[other] if images else "", "images": images})
    return table


def confusion_lists(run: RunRecord) -> dict[str, Any]:
    """Return what a click on a confusion matrix shows: pairs of predicted class and images, most frequent first."""
    made = zip(("confusion", "confusion-before"), run.predictions(len(run.steps)), strict=True)
    listed = {name: confusion_list(confusion(predictions, run.seen)) for name, predictions in made}
    return {"names": run.names, "steps": run.step_of.tolist(), "predicted_as": listed}


def provenance(run: RunRecord) -> dict[str, str]:
    """Return the command, versions and machine of a run."""
    config = run.config
    versions = ", ".join(f"{name} {version}" for name, version in config.get("versions", {}).items())
    machine = config.get("machine", {})
    cores = f"{machine.get('cores', '?')} cores"
    return {
        "command": config.get("command", ""),
        "equipoise": f"{config.get('equipoise', '')}, commit {config.get('commit') or 'unknown'}",
        "versions": f"Python {config.get('python', '')}, {versions}",
        "machine": ", ".join(str(part) for part in (machine.get("system"), cores, machine.get("cpu")) if part),
    }
