"""Charts of a model."""

from __future__ import annotations

from collections.abc import Sequence

import altair as alt
from altair.utils.schemapi import debug_mode

from equipoise.app.card import counted, describe_step
from equipoise.app.report.facts import ModelFacts, Predictions
from equipoise.engine.results import StepResult
from equipoise.pages.confusion import confusion_figure
from equipoise.pages.figure import Figure, Rows, chart_of, rounded, tooltips

MATRIX = 60
"""Maximum number of classes in a confusion matrix; larger ones are unreadable."""
GROWTH_HEIGHT = 180
LEARNED, CORRECTED = "classes learned", "corrected or forgotten"
SURE = 0.9


@debug_mode(False)  # does not validate every part of every chart
def model_figures(facts: ModelFacts) -> list[Figure]:
    figures = growth(facts.steps) if len(facts.steps) > 1 else []
    if facts.predictions is None:
        return figures
    if len(facts.names) <= MATRIX:
        figures.append(confusions(facts))
    return [*figures, reliability(facts.predictions, facts.ece)]


def growth(steps: Sequence[StepResult]) -> list[Figure]:
    """Return classes, images and accuracy after each step."""
    first, last = steps[0], steps[-1]
    kept, learned = [step.exemplars for step in steps], _learned_images(steps)
    counts, noun = (kept, "images kept") if any(kept) else (learned, "images learned")
    figures = [
        _growth_figure("classes", "Classes", steps, [step.seen for step in steps], "classes"),
        _growth_figure("images", noun.capitalize(), steps, counts, noun),
    ]
    accuracies = [None if step.seen == 1 else step.accuracy for step in steps]
    if sum(value is not None for value in accuracies) > 1:
        caption = f"{rounded(accuracies[-1])} % after step {last.step}"
        if accuracies[0] is not None:
            caption = f"{rounded(first.accuracy)} % after step 1, with {counted(first.seen, 'class')}; {caption}"
            caption += f", with {last.seen}"
        figures.append(_growth_figure("accuracy", "Accuracy", steps, accuracies, "accuracy, %", f"{caption}."))
    return figures


def _learned_images(steps: Sequence[StepResult]) -> list[int]:
    """Return the number of images learned up to each step."""
    counts, total = [], 0
    for step in steps:
        total += step.images if step.kind == "learn" else 0
        counts.append(total)
    return counts


def _growth_figure(
    name: str,
    title: str,
    steps: Sequence[StepResult],
    values: Sequence[float | None],
    unit: str,
    caption: str = "",
) -> Figure:
    rows: Rows = [
        {
            "step": step.step,
            "value": value if isinstance(value, int) else rounded(value),
            "what": describe_step(step),
            "date": step.finished[:10],
            "kind": LEARNED if step.kind == "learn" else CORRECTED,
        }
        for step, value in zip(steps, values, strict=True)
        if value is not None
    ]
    axis = alt.Axis(format="d", tickMinStep=1, grid=False)
    lowest = min(row["value"] for row in rows) - 5  # so that a drop of one point does not look large
    scale = alt.Scale(domain=[max(lowest, 0), 100], nice=True) if name == "accuracy" else alt.Scale(zero=True)
    base = chart_of(rows).properties(height=GROWTH_HEIGHT)
    base = base.encode(
        x=alt.X("step:Q", title="step", axis=axis, scale=alt.Scale(nice=False, padding=12)),
        y=alt.Y("value:Q", title=unit, scale=scale),
    )
    kinds = alt.Scale(domain=[LEARNED, CORRECTED], range=["#2a9d8f", "#e9c46a"])
    corrected = any(row["kind"] == CORRECTED for row in rows)
    legend = alt.Legend(values=[LEARNED, CORRECTED]) if corrected else None
    line = base.mark_line(color="#2a9d8f", interpolate="linear" if name == "accuracy" else "step-after")
    shown = tooltips("step:Q", "date:N", "what:N", alt.Tooltip("value:Q", title=unit))
    points = base.mark_point(filled=True, size=60 if len(rows) <= 50 else 20, opacity=1).encode(
        color=alt.Color("kind:N", title=None, scale=kinds, legend=legend), tooltip=shown
    )
    table: Rows = [{"step": row["step"], unit: row["value"], "what": row["what"]} for row in rows]
    caption = caption or f"{rows[0]['value']:,.0f} after step 1; {rows[-1]['value']:,.0f} after step {steps[-1].step}."
    return Figure(f"growth-{name}", title, caption, line + points, table)


def confusions(facts: ModelFacts) -> Figure:
    """Return the confusion matrix; lines separate classes that were learned in different steps."""
    learned = facts.learned()
    steps = [learned.get(name, (0, 0))[1] for name in facts.config.classes]
    changes = [c for c in range(1, len(steps)) if steps[c] != steps[c - 1]]
    bounds = [0, *changes, len(steps)]
    return confusion_figure("confusion", "Confusion matrix", facts.confusion_matrix(), facts.names, bounds)


def reliability(made: Predictions, ece: float | None) -> Figure:
    """Return the reliability diagram: the accuracy of images of similar confidence."""
    confidence, correct = made.confidence.double(), made.correct.double()
    parts = made.bins()
    rows: Rows = [
        {
            "confidence": rounded(100 * confidence[part].mean().item(), 2),
            "accuracy": rounded(100 * correct[part].mean().item(), 2),
            "images": len(part),
        }
        for part in parts
    ]
    scale, shown = alt.Scale(domain=[0, 100], nice=False, padding=0), tooltips("confidence:Q", "accuracy:Q", "images:Q")
    base = chart_of(rows).encode(
        x=alt.X("confidence:Q", title="confidence, %", scale=scale),
        y=alt.Y("accuracy:Q", title="accuracy, %", scale=scale, stack=False),
        tooltip=shown,
    )
    bars = base.mark_bar(color="#5b8db8", opacity=0.35, width=12)
    ends = alt.Chart(alt.InlineData([{"x": 0, "y": 0}, {"x": 100, "y": 100}]))
    diagonal = ends.mark_line(color="gray", strokeDash=[4, 4], strokeWidth=1.5).encode(x=alt.X("x:Q"), y=alt.Y("y:Q"))
    gaps = base.mark_rule(color="#e76f51", strokeWidth=2).encode(y2=alt.Y2("confidence:Q"))
    points = base.mark_point(filled=True, size=50, color="#2a9d8f", opacity=1)
    sure = made.confidence >= SURE
    caption = (
        f"{counted(len(correct), 'image')} in {counted(len(parts), 'group')} of similar confidence. Bars and points: "
    )
    caption += "accuracy of each group; red: distance from the diagonal, where confidence and accuracy are equal."
    if ece is not None:
        caption += f" The mean distance is {ece:.1f} points (calibration error, ECE)."
    if sure.any():
        hits = 100 * made.correct[sure].double().mean().item()
        caption += (
            f" Of {counted(int(sure.sum()), 'image')} with a confidence of 90 % or more, {hits:.1f} % are correct."
        )
    return Figure("reliability", "Reliability diagram", caption, bars + diagonal + gaps + points, rows, square=True)
