"""Charts of a run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any, TypeVar

import altair as alt
import numpy as np
from altair.utils.schemapi import debug_mode

from equipoise.engine.metrics import TOP1
from equipoise.engine.progress import duration
from equipoise.pages.confusion import confusion_figure
from equipoise.pages.figure import Figure, Rows, chart_of, percent, rounded, tooltips
from equipoise.study.report import analysis
from equipoise.study.report.error_bars import error_bars
from equipoise.study.report.paper import paper_curve
from equipoise.study.report.runs import RunRecord, StepPredictions

T = TypeVar("T")
PARTS = ("train", "teacher", "evaluation", "herding", "checkpoint", "other")
RUN, AFTER, BEFORE = "this run", "after the correction", "before the correction"
PAPER, TRUE_SHARE = "paper", "test images of new classes"
STROKES = {
    RUN: ("#2a9d8f", [1, 0]),
    AFTER: ("#2a9d8f", [1, 0]),
    BEFORE: ("#e76f51", [6, 3]),
    PAPER: ("#888888", [2, 3]),
    TRUE_SHARE: ("#888888", [2, 3]),
}


@debug_mode(False)  # does not validate every part of every chart
def run_figures(run: RunRecord) -> list[Figure]:
    figures = [accuracy(run), errors(run)]
    figures += [fairness(run)] if len(run.steps) > 1 else []
    figures += [norms(run)] if run.predictions(len(run.steps))[0].norms is not None else []
    figures += confusions(run)
    figures += [age(run)] if len(run.steps) > 1 else []
    return [*figures, calibration(run), cost(run)]


def _states(run: RunRecord, after: T, before: T) -> list[tuple[str, T]]:
    """Name the series: after and before the correction, or only the run itself if there is no correction."""
    return [(AFTER, after), (BEFORE, before)] if run.corrected else [(RUN, after)]


def _lines(rows: Rows, order: Sequence[str], **encodings: Any) -> alt.LayerChart:
    """Draw lines with points; ``which`` distinguishes them by colour and dashes, with one legend."""
    colours, dashes = zip(*(STROKES[which] for which in order), strict=True)
    legend = alt.Legend(symbolType="stroke", symbolSize=300, symbolStrokeWidth=2)
    base = chart_of(rows).encode(
        color=alt.Color("which:N", title=None, scale=alt.Scale(domain=order, range=colours), legend=legend),
        strokeDash=alt.StrokeDash("which:N", title=None, scale=alt.Scale(domain=order, range=dashes), legend=legend),
        **encodings,
    )
    lines: alt.LayerChart = base.mark_line() + base.mark_point(filled=True, size=50, opacity=1)
    return lines


def _steps_axis(name: str = "step", title: str = "step") -> alt.X:
    return alt.X(f"{name}:O", title=title, axis=alt.Axis(labelAngle=0))


def _learned_in() -> alt.Color:
    """Return the colour for the step in which a class was learned."""
    scale = alt.Scale(scheme=alt.SchemeParams(name="viridis", extent=[0.15, 0.92]))
    return alt.Color("learned:O", title="learned in step", scale=scale, legend=alt.Legend(columns=10))


def accuracy(run: RunRecord) -> Figure:
    last, first = run.steps[-1], run.steps[0]
    rows: Rows = []
    table: Rows = []
    for step in run.steps:
        found = _states(run, step.accuracy, step.accuracy_uncorrected)
        rows += [{"seen": step.seen, "accuracy": value, "which": which} for which, value in found]
        table.append({"classes": step.seen, **{which: rounded(value) for which, value in found}})
    for step, value in zip(run.steps, paper_curve(run, TOP1), strict=False):
        rows.append({"seen": step.seen, "accuracy": value, "which": PAPER})
    chart = _lines(
        rows,
        [which for which in (RUN, AFTER, BEFORE, PAPER) if any(row["which"] == which for row in rows)],
        x=alt.X("seen:Q", title="classes learned", axis=alt.Axis(values=[step.seen for step in run.steps], format="d")),
        y=percent("accuracy", "top-1 accuracy, %", zero=len(run.steps) == 1),
        tooltip=tooltips("which:N", "seen:Q", alt.Tooltip("accuracy:Q", format=".1f")),
    )
    caption = (
        f"Accuracy on all classes seen so far: {first.accuracy:.1f} % after step 1, {last.accuracy:.1f} % at the end."
    )
    if run.corrected:
        caption += f" Without the correction it would be {last.accuracy_uncorrected:.1f} %."
    return Figure("accuracy", "Accuracy as classes arrive", caption, chart, table)


def errors(run: RunRecord) -> Figure:
    rows: Rows = []
    table: Rows = []
    for step in run.steps:
        table.append({"step": step.step})
        for when, counts in _states(run, step.errors, step.errors_uncorrected):
            rows += analysis.error_rows(asdict(counts), step=step.step, when=when)
            table[-1] |= analysis.error_cells(asdict(counts), " before" if when == BEFORE else "")
    chart = error_bars(rows).encode(
        x=_steps_axis(),
        xOffset=alt.XOffset("when:N", sort=[BEFORE, AFTER]),
        y=alt.Y("count:Q", title="misclassified test images"),
        opacity=alt.condition(f"datum.when == '{BEFORE}'", alt.value(0.5), alt.value(1)),
        tooltip=tooltips("when:N", "kind:N", "count:Q"),
    )
    last = run.steps[-1]
    caption = (
        f"After the last step, {last.errors.e_on} old images are predicted as new classes, {last.errors.e_oo} as other "
        f"old classes, and {last.errors.e_n} new images are misclassified."
    )
    if run.corrected:
        before = last.errors_uncorrected.e_on
        caption += f" Pale bars: before the correction, which had {before} old images predicted as new classes."
    return Figure("errors", "Misclassified images", caption, chart, table)


def fairness(run: RunRecord) -> Figure:
    rows: Rows = []
    table: Rows = []
    for step in run.steps[1:]:
        found = {}
        for which, made in _states(run, *run.predictions(step.step)):
            found[which], true_share = analysis.new_share(made, step.seen - step.new)
        found[TRUE_SHARE] = true_share
        rows += [{"step": step.step, "share": share, "which": which} for which, share in found.items()]
        shares = {which: rounded(share) for which, share in found.items()}
        table.append({"step": step.step, TRUE_SHARE: shares[TRUE_SHARE], **shares})
    chart = _lines(
        rows,
        list(found),
        x=_steps_axis(),
        y=alt.Y("share:Q", title="predictions of new classes, %", scale=alt.Scale(domain=[0, 100])),
        tooltip=tooltips("which:N", "step:O", alt.Tooltip("share:Q", format=".1f")),
    )
    end = table[-1]
    caption = (
        f"A fair model predicts new classes as often as they occur. After the last step they are {end[TRUE_SHARE]} % "
        f"of the test images and {end[next(iter(found))]} % of the predictions"
    )
    caption += f"; before the correction, {end[BEFORE]} %." if run.corrected else "."
    return Figure("fairness", "Bias towards new classes", caption, chart, table)


def norms(run: RunRecord) -> Figure:
    rows: Rows = [
        {"at": step.step, "when": when, "class": c, "norm": rounded(value, 4), "learned": int(run.step_of[c])}
        for step in run.steps
        for when, made in _states(run, *run.predictions(step.step))
        for c, value in enumerate(() if made.norms is None else made.norms)
    ]
    slider = alt.binding_range(min=1, max=len(run.steps), step=1, name="after step ")
    at = alt.param(name="at", value=len(run.steps), bind=slider if len(run.steps) > 1 else alt.Undefined)
    names = alt.InlineData([{"class": c, "name": name} for c, name in enumerate(run.names)])
    shapes = alt.Scale(domain=[RUN, AFTER, BEFORE], range=["circle", "circle", "triangle-up"])
    shape = alt.Shape("when:N", title=None, scale=shapes, legend=alt.Legend(values=[AFTER, BEFORE]))
    points = chart_of(rows).mark_point(filled=True, size=45, opacity=1).transform_filter("datum.at == at")
    points = points.transform_lookup("class", alt.LookupData(names, "class", ["name"])).add_params(at)
    order = alt.X("class:Q", title="class, in the order learned", scale=alt.Scale(nice=False))
    chart = points.encode(
        x=order.axis(tickMinStep=1),
        y=alt.Y("norm:Q", title=f"L{run.norm} norm of the class's weights"),
        color=_learned_in(),
        shape=shape if run.corrected else alt.value("circle"),
        tooltip=tooltips("name:N", "when:N", "learned:O", alt.Tooltip("norm:Q", format=".3f")),
    )
    last = run.steps[-1]
    caption = "Norm of the weights of each class"
    caption += " after the step that the slider selects." if len(run.steps) > 1 else "."
    if last.norms_old is not None and last.norms_new is not None:
        means = f"{last.norms_old:.3g} for old classes and {last.norms_new:.3g} for new ones"
        caption += f" The mean after training the last step is {means}."
    if last.gamma is not None:
        caption += f" The correction multiplies the weights of new classes by γ = {last.gamma:.3f}."
    figures = {"old": "norms_old", "new": "norms_new", "γ": "gamma"}
    table: Rows = [
        {"step": step.step, **{heading: rounded(getattr(step, name), 4) for heading, name in figures.items()}}
        for step in run.steps
    ]
    return Figure("norms", "Weight norms of old and new classes", caption, chart, table)


def confusions(run: RunRecord) -> list[Figure]:
    after, before = run.predictions(len(run.steps))
    if not run.corrected:
        return [_confusion_figure(run, "confusion", "Confusion matrix", after)]
    return [
        _confusion_figure(run, "confusion", f"Confusion matrix {AFTER}", after),
        _confusion_figure(run, "confusion-before", f"Confusion matrix {BEFORE}", before),
    ]


def _confusion_figure(run: RunRecord, name: str, title: str, made: StepPredictions) -> Figure:
    bounds = [0, *(step.seen for step in run.steps)]
    return confusion_figure(name, title, analysis.confusion(made, run.seen), run.names, bounds)


def age(run: RunRecord) -> Figure:
    rows = analysis.accuracy_by_age(run)
    base = chart_of(rows).encode(x=_steps_axis("age", "steps since a class was learned"))
    lines = base.mark_line(point=True).encode(
        y=percent("accuracy", "accuracy, %"),
        color=_learned_in(),
        tooltip=tooltips("learned:O", "age:O", alt.Tooltip("accuracy:Q", format=".1f")),
    )
    mean = base.mark_line(color="gray", strokeDash=[4, 4]).encode(y=alt.Y("mean(accuracy):Q"))
    ages = sorted({row["age"] for row in rows})
    means = {age: float(np.mean([row["accuracy"] for row in rows if row["age"] == age])) for age in ages}
    oldest = ages[-1]
    caption = (
        f"Mean accuracy of classes: {means[ages[0]]:.1f} % when they are new and {means[oldest]:.1f} % "
        f"{oldest} step{'s' if oldest > 1 else ''} later. Dashed: mean over all steps."
    )
    table: Rows = [{"age": age, "mean accuracy": rounded(value)} for age, value in means.items()]
    return Figure("age", "Accuracy of classes as they age", caption, lines + mean, table)


def calibration(run: RunRecord) -> Figure:
    rows: Rows = []
    table: Rows = []
    for step in run.steps:
        made, _ = run.predictions(step.step)
        is_old = made.labels < step.seen - step.new
        masks = {"old classes": is_old, "new classes": ~is_old}
        found = {which: analysis.calibration_error(made, mask) for which, mask in masks.items()}
        rows += [{"step": step.step, "which": which, "ece": ece} for which, ece in found.items() if ece is not None]
        table.append({"step": step.step, **{which: rounded(ece) for which, ece in found.items()}})
    colours = alt.Scale(domain=["old classes", "new classes"], range=["#5b8db8", "#e76f51"])
    lines = chart_of(rows).mark_line(point=True)
    chart = lines.encode(
        x=_steps_axis(),
        y=alt.Y("ece:Q", title="expected calibration error, points"),
        color=alt.Color("which:N", title=None, scale=colours),
        tooltip=tooltips("which:N", "step:O", alt.Tooltip("ece:Q", format=".1f")),
    )
    shown = [f"{rounded(ece)} points for {which}" for which, ece in found.items() if ece is not None]
    caption = f"Mean gap between confidence and accuracy (0 is best) after the last step: {' and '.join(shown)}."
    return Figure("calibration", "Calibration", caption, chart, table)


def cost(run: RunRecord) -> Figure:
    rows: Rows = []
    table: Rows = []
    for step in run.steps:
        found = step.seconds_by_part or {"train": step.seconds}
        for order, part in enumerate(PARTS):
            if part in found:
                rows.append({"step": step.step, "part": part, "seconds": found[part], "order": order})
        cells = {"images/s": rounded(step.images_per_second, 0), "peak MB": rounded(step.memory_peak_mb or None, 0)}
        table.append({"step": step.step, **{part: rounded(found.get(part), 2) for part in PARTS}, **cells})
    bars = chart_of(rows).mark_bar()
    chart = bars.encode(
        x=_steps_axis(),
        y=alt.Y("seconds:Q", title="seconds"),
        color=alt.Color("part:N", title=None, scale=alt.Scale(domain=list(PARTS), scheme="tableau10")),
        order=alt.Order("order:Q"),
        tooltip=tooltips("part:N", alt.Tooltip("seconds:Q", format=".2f")),
    )
    total = sum(step.seconds for step in run.steps)
    peak = max(step.memory_peak_mb for step in run.steps)
    caption = f"{duration(total)} in total" + (f", with a peak memory of {peak:,.0f} MB." if peak else ".")
    return Figure("cost", "Time per step", caption, chart, table)
