"""The figures of the page as SVG."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import cast

import altair as alt
import numpy as np
from plan import FAMILY
from rows import average, minutes
from stored import Groups, Runs

from equipoise.engine.metrics import TOP1, Metric
from equipoise.pages.export import to_svg
from equipoise.pages.figure import Figure, Rows, chart_of, percent
from equipoise.study.report.analysis import confusion
from equipoise.study.report.comparison_charts import curves, last_errors
from equipoise.study.report.groups import RunGroup
from equipoise.study.report.paper import published
from equipoise.study.report.runs import Array, RunRecord

CHARTED = ("wa", "ce+kd", "ce", "bic", "icarl")
"""Methods in the small charts, in the order in which they are run, so that a method always has the same colour."""
SMALL = 220
"""Height of a small chart in pixels."""
CHOICES = {
    "usual": "as in the recipe",
    "clip-off": "weights not clipped",
    "norm-1": "norm 1",
    "bias": "with a bias",
    "random": "random exemplars",
}


def five_step_figures(runs: Runs, lite: Groups, longer: Sequence[tuple[str, RunGroup]]) -> dict[str, str]:
    """Draw what the page shows for five steps, by name."""
    drawn = sorted((lite[label] for label in (*FAMILY, "joint") if label in lite), key=average, reverse=True)
    figures = [curves(drawn), last_errors(list(lite.values()))] if drawn else []
    figures += [norms(runs["lite/ce+kd-0"])] if "lite/ce+kd-0" in runs else []
    times = {recipe: group for recipe, group in [("lite", lite.get("wa")), *longer] if group and group.label == "wa"}
    figures += [budgets(times)] if len(times) > 1 else []
    pictures = {figure.name: to_svg(figure) for figure in figures}
    firsts = {label: group.runs[0] for label, group in lite.items()}
    matrices = {label: run for label, run in firsts.items() if run.directory.is_dir("predictions")}
    return pictures | ({"confusions": confusions(matrices)} if matrices else {})


def step_figures(by_steps: Mapping[int, Groups]) -> dict[str, str]:
    """Draw a small chart for each number of steps, once there are runs with other numbers than five."""
    if not any(groups for steps, groups in by_steps.items() if steps != 5):
        return {}
    found = {}
    for steps, groups in by_steps.items():
        drawn = [groups[label] for label in CHARTED if label in groups]
        if drawn:
            found[f"curves-{steps}"] = small(f"curves-{steps}", f"Accuracy with {steps} steps", curves(drawn))
    return found


def choice_figure(name: str, usual: RunGroup, ablations: Groups, metric: Metric = TOP1) -> dict[str, str]:
    """Draw Figure 6 of the paper in one chart: wa, and each other choice."""
    groups = {"usual": RunGroup("usual", usual.runs[:1]), **ablations}
    drawn = [RunGroup(CHOICES[label], group.runs) for label, group in groups.items()]
    return {name: small(name, "Choices within WA", curves(drawn, metric, paper=False))}


def small(name: str, title: str, figure: Figure) -> str:
    """Return a figure as SVG under another name, less high."""
    chart = cast("alt.LayerChart", figure.chart).properties(height=SMALL)
    return to_svg(replace(figure, name=name, title=title, chart=chart))


def norms(run: RunRecord) -> Figure:
    """Draw Figure 4 of the paper: the weight norm of every class after each step's training."""
    rows: Rows = [
        {"step": step, "class": c, "norm": round(float(norm), 3), "which": "new" if c >= seen - new else "old"}
        for step, seen, new in ((step.step, step.seen, step.new) for step in run.steps)
        for c, norm in enumerate(cast("Array", run.predictions(step)[1].norms))  # before any correction
    ]
    chart = chart_of(rows).mark_point(filled=True, size=14, opacity=1).encode(
        x=alt.X("step:O", title="step, with its classes in the order learned",
                axis=alt.Axis(labelAngle=0), scale=alt.Scale(paddingInner=0.1)),
        xOffset=alt.XOffset("class:Q", scale=alt.Scale(nice=False)),
        y=alt.Y("norm:Q", title=f"L{run.norm} norm of a class's weights"),
        color=alt.Color("which:N", title=None, sort=["old", "new"], scale=alt.Scale(range=["#2a9d8f", "#e76f51"])),
    )  # fmt: skip
    return Figure("norms", f"Weight norms of the head, {run.method}", "After training.", chart)


def budgets(groups: Groups) -> Figure:
    """Draw accuracy against minutes."""
    rows: Rows = [
        {
            "recipe": recipe,
            "minutes": statistics.mean(minutes(run) * run.config["machine"]["cores"] for run in group.runs),
            "average": average(group),
        }
        for recipe, group in groups.items()
    ]
    line = chart_of(rows).mark_line(point=alt.OverlayMarkDef(color="#2a9d8f"), color="#2a9d8f").encode(
        x=alt.X("minutes:Q", title="minutes × cores", scale=alt.Scale(zero=True)),
        y=percent("average", "average of steps 2–5, %"),
    )  # fmt: skip
    names = line.mark_text(dx=-4, dy=-10, align="right", color="#333333").encode(text="recipe:N")
    goal = alt.Chart(alt.InlineData(values=[{"average": published()["cifar100"]["averages"]["5"]["wa"]}]))
    rule = goal.mark_rule(strokeDash=[2, 3], color="#888888").encode(y="average:Q")
    caption = f"Dotted: the paper ({published()['cifar100']['budget']})."
    return Figure("budgets", "Accuracy against time, wa", caption, line + names + rule)


def confusions(runs: Runs, side: int = 300, levels: int = 8) -> str:
    """Draw confusion matrices after the last step; one path per shade keeps the file small."""
    parts = []
    tables = {label: confusion(run.predictions(len(run.steps))[0], run.seen) for label, run in runs.items()}
    darkest = np.log1p(max(counts.max() for counts in tables.values()))
    for place, (label, counts) in enumerate(tables.items()):
        depth = np.ceil(np.log1p(counts) / darkest * levels).astype(int)
        x, y = 10 + (place % 2) * (side + 30), 30 + (place // 2) * (side + 50)
        shades = [
            f'<path fill-opacity="{level / levels:.3f}" d="'
            + "".join(f"M{j} {i}h1v1h-1z" for i, j in zip(*(depth == level).nonzero(), strict=True))
            + '"/>'
            for level in range(1, levels + 1)
            if (depth == level).any()
        ]
        parts.append(f'<text x="{x}" y="{y - 8}">{label}</text>')
        transform = f"translate({x} {y}) scale({side / len(counts):g})"
        parts.append(f'<g transform="{transform}" fill="#c8553d">{"".join(shades)}</g>')
        parts.append(f'<rect x="{x}" y="{y}" width="{side}" height="{side}" fill="none" stroke="#888"/>')
    width, height = 2 * side + 50, ((len(runs) + 1) // 2) * (side + 50) + 10
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}"'
    style = ' font-family="DejaVu Sans, sans-serif" font-size="14">'
    return f'{head}{style}<rect width="100%" height="100%" fill="white"/>{"".join(parts)}</svg>\n'
