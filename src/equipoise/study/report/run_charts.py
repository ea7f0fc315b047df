"""The figures of one run."""

from __future__ import annotations

import altair as alt
import numpy as np

from equipoise.study.report.facts import by_age, calibration_error, confusion, from_paper, new_share
from equipoise.study.report.figure import (
    AFTER,
    BEFORE,
    ERRORS,
    FAIR,
    PAPER,
    STEP_COLOURS,
    Figure,
    Rows,
    chart_of,
    inline,
    percent,
    rounded,
    steps_axis,
    strokes,
)
from equipoise.study.report.runs import Run

PARTS = ("train", "teacher", "evaluation", "herding", "checkpoint", "other")


def run_figures(run: Run) -> list[Figure]:
    figures = [accuracy(run), errors(run)]
    figures += [fairness(run)] if len(run.rows) > 1 else []
    figures += [norms(run)] if run.said(len(run.rows))[0].norms is not None else []
    figures += confusions(run)
    figures += [age(run)] if len(run.rows) > 1 else []
    return [*figures, calibration(run), cost(run)]


def accuracy(run: Run) -> Figure:
    rows = [{"seen": row["seen"], "top1": row["top1"], "which": AFTER} for row in run.rows]
    if run.corrects:
        rows += [{"seen": row["seen"], "top1": row["top1_uncorrected"], "which": BEFORE} for row in run.rows]
    paper = from_paper(run)
    if paper and paper.curve:
        rows += [
            {"seen": row["seen"], "top1": value, "which": PAPER}
            for row, value in zip(run.rows, paper.curve, strict=False)
        ]
    order = [which for which in (AFTER, BEFORE, PAPER) if any(row["which"] == which for row in rows)]
    base = chart_of(rows).encode(
        x=alt.X("seen:Q", title="classes learned", axis=alt.Axis(values=[row["seen"] for row in run.rows])),
        y=percent("top1", "top-1 accuracy, %"),
        **strokes(order),
        tooltip=["which:N", "seen:Q", alt.Tooltip("top1:Q", format=".1f")],
    )
    last, first = run.rows[-1], run.rows[0]
    words = f"Accuracy on all classes seen so far: {first['top1']:.1f} % after step 1, {last['top1']:.1f} % at the end."
    if run.corrects:
        words += f" Without the correction it would be {last['top1_uncorrected']:.1f} %."
    table = [
        {"classes": row["seen"], AFTER: rounded(row["top1"]), BEFORE: rounded(row["top1_uncorrected"])}
        for row in run.rows
    ]
    chart = base.mark_line() + base.mark_point(filled=True, size=50, opacity=1)
    return Figure("accuracy", "Accuracy as classes arrive", words, chart, table)


def errors(run: Run) -> Figure:
    states = [(AFTER, "")] + ([(BEFORE, "_uncorrected")] if run.corrects else [])
    rows = [
        {"step": row["step"], "when": when, "kind": words, "count": row[f"{name}{suffix}"], "order": i}
        for row in run.rows
        for when, suffix in states
        for i, (name, words) in enumerate(ERRORS.items())
    ]
    chart = (
        chart_of(rows)
        .mark_bar()
        .encode(
            x=steps_axis(),
            xOffset=alt.XOffset("when:N", sort=[BEFORE, AFTER]),
            y=alt.Y("count:Q", title="test images told wrong"),
            color=alt.Color(
                "kind:N",
                title=None,
                sort=list(ERRORS.values()),
                scale=alt.Scale(range=["#e9c46a", "#e76f51", "#5b8db8"]),
            ),
            order="order:Q",
            opacity=alt.Opacity(
                "when:N", sort=[AFTER, BEFORE], legend=None, scale=alt.Scale(domain=[AFTER, BEFORE], range=[1, 0.5])
            ),
            tooltip=["when:N", "kind:N", "count:Q"],
        )
    )
    last = run.rows[-1]
    words = (
        f"What the mistakes are. After the last step {last['e_on']} old images are taken for new classes and "
        f"{last['e_oo']} for other old ones; {last['e_n']} new images are told wrong."
    )
    if run.corrects:
        words += (
            f" Pale, to the left: before the correction, when {last['e_on_uncorrected']} old ones went to new classes."
        )
    table = [{"step": r["step"], "e(n)": r["e_n"], "e(o,n)": r["e_on"], "e(o,o)": r["e_oo"],
              "e(n) before": r["e_n_uncorrected"], "e(o,n) before": r["e_on_uncorrected"],
              "e(o,o) before": r["e_oo_uncorrected"]} for r in run.rows]  # fmt: skip
    return Figure("errors", "What the mistakes are", words, chart, table)


def fairness(run: Run) -> Figure:
    rows: Rows = []
    table: Rows = []
    for row in run.rows[1:]:
        old = row["seen"] - row["new"]
        after, before = run.said(row["step"])
        (share, fair), (share_before, _) = new_share(after, old), new_share(before, old)
        rows += [
            {"step": row["step"], "share": share, "which": AFTER},
            {"step": row["step"], "share": fair, "which": FAIR},
        ]
        rows += [{"step": row["step"], "share": share_before, "which": BEFORE}] if run.corrects else []
        table.append({"step": row["step"], "fair": rounded(fair), AFTER: rounded(share), BEFORE: rounded(share_before)})
    order = [AFTER, BEFORE, FAIR] if run.corrects else [AFTER, FAIR]
    base = chart_of(rows).encode(
        x=steps_axis(),
        y=alt.Y("share:Q", title="predictions that name a new class, %", scale=alt.Scale(domain=[0, 100])),
        **strokes(order),
        tooltip=["which:N", "step:O", alt.Tooltip("share:Q", format=".1f")],
    )
    end = table[-1]
    words = (
        f"How biased the model is. {end['fair']} % of the last test images are of new classes, "
        f"and {end[AFTER]} % of the predictions name one"
    )
    words += f"; before the correction it was {end[BEFORE]} %." if run.corrects else "."
    chart = base.mark_line() + base.mark_point(filled=True, size=50, opacity=1)
    return Figure("fairness", "Does it favour the new?", words, chart, table)


def norms(run: Run) -> Figure:
    rows: Rows = []
    for row in run.rows:
        after, before = run.said(row["step"])
        for when, said in ((AFTER, after), (BEFORE, before)) if run.corrects else ((AFTER, after),):
            if said.norms is not None:
                rows += [
                    {
                        "at": row["step"],
                        "when": when,
                        "class": c,
                        "norm": rounded(value, 4),
                        "learned": int(run.step_of[c]),
                    }
                    for c, value in enumerate(said.norms)
                ]
    at = alt.param(
        name="at", value=len(run.rows), bind=alt.binding_range(min=1, max=len(run.rows), step=1, name="after step ")
    )
    names = inline([{"class": c, "name": name} for c, name in enumerate(run.names)])
    chart = (
        chart_of(rows)
        .mark_point(filled=True, size=45, opacity=1)
        .transform_filter("datum.at == at")
        .transform_lookup("class", alt.LookupData(names, "class", ["name"]))
        .encode(
            x=alt.X(
                "class:Q", title="class, in the order learned", scale=alt.Scale(nice=False),
                axis=alt.Axis(tickMinStep=1),
            ),
            y=alt.Y("norm:Q", title=f"L{run.norm} norm of the class's weights"),
            color=alt.Color("learned:O", title="learned in step", scale=STEP_COLOURS),
            shape=alt.Shape(
                "when:N", title=None, sort=[AFTER, BEFORE],
                scale=alt.Scale(domain=[AFTER, BEFORE], range=["circle", "triangle-up"]),
            ),
            tooltip=["name:N", "when:N", "learned:O", alt.Tooltip("norm:Q", format=".3f")],
        )
        .add_params(at)
    )  # fmt: skip
    last = run.rows[-1]
    words = "Norm of the weights of each class, after the step that the slider names."
    if last.get("norms_old") is not None and last.get("norms_new") is not None:
        means = f"{last['norms_old']:.3g} for old classes and {last['norms_new']:.3g} for new ones"
        words += f" Training the last step left a mean of {means}."
    if last["gamma"] is not None:
        words += f" The correction multiplied the new ones by γ = {last['gamma']:.3f}."
    table = [{"step": r["step"], "old": rounded(r.get("norms_old"), 4), "new": rounded(r.get("norms_new"), 4),
              "γ": rounded(r["gamma"], 4)} for r in run.rows]  # fmt: skip
    return Figure("norms", "Weights of old and new classes", words, chart, table)


def confusions(run: Run) -> list[Figure]:
    after, before = run.said(len(run.rows))
    states = [("confusion", AFTER, after)]
    states += [("confusion-before", "before the correction", before)] if run.corrects else []
    bounds = [{"at": int(b)} for b in np.cumsum([0, *run.sizes])]
    names = inline([{"c": c, "name": name} for c, name in enumerate(run.names)])
    figures = []
    for name, when, said in states:
        counts = confusion(said, run.seen)
        cells = [{"t": int(i), "p": int(j), "n": int(counts[i, j])} for i, j in zip(*counts.nonzero(), strict=True)]
        domain = alt.Scale(domain=[0, run.seen], nice=False)
        matrix = (
            chart_of(cells)
            .mark_rect(color="#e76f51", strokeWidth=0)
            .transform_calculate(t2="datum.t + 1", p2="datum.p + 1", depth="log(1 + datum.n)")
            .transform_lookup("t", alt.LookupData(names, "c", ["name"]), as_=["true class"])
            .transform_lookup("p", alt.LookupData(names, "c", ["name"]), as_=["taken for"])
            .encode(
                x=alt.X("p:Q", title="said", scale=domain, axis=alt.Axis(values=[b["at"] for b in bounds], grid=False)),
                x2="p2:Q",
                y=alt.Y("t:Q", title="true", scale=alt.Scale(domain=[run.seen, 0], nice=False),
                        axis=alt.Axis(values=[b["at"] for b in bounds], grid=False)),
                y2="t2:Q",
                opacity=alt.Opacity("depth:Q", legend=None, scale=alt.Scale(range=[0.12, 1], zero=True)),
                tooltip=[alt.Tooltip("true class:N"), alt.Tooltip("taken for:N"), alt.Tooltip("n:Q", title="images")],
            )
        )  # fmt: skip
        lines = alt.Chart(inline(bounds[1:-1])).mark_rule(color="gray", opacity=0.5, strokeDash=[2, 2])
        chart = matrix + lines.encode(x=alt.X("at:Q", scale=domain)) + lines.encode(y="at:Q")
        wrong = counts - np.diag(counts.diagonal())
        worst = [np.unravel_index(i, wrong.shape) for i in np.argsort(-wrong, axis=None, kind="stable")[:5]]
        listed = [f"{_short(run.names[i])} as {_short(run.names[j])} ({wrong[i, j]})" for i, j in worst if wrong[i, j]]
        words = "The stronger the colour, the more images: log(1 + n). "
        words += f"Most often mistaken: {', '.join(listed) or 'nothing'}."
        title = f"Confusion {when}" if run.corrects else "Confusion"
        table = [
            {"true": run.names[i], "said": run.names[j], "images": int(wrong[i, j])} for i, j in worst if wrong[i, j]
        ]
        figures.append(Figure(name, title, words, chart, table, square=True))
    return figures


def _short(name: str) -> str:
    return name if len(name) <= 40 else name[:39] + "…"


def age(run: Run) -> Figure:
    rows = by_age(run)
    base = chart_of(rows).encode(x=alt.X("age:O", title="steps since a class was learned", axis=alt.Axis(labelAngle=0)))
    lines = base.mark_line(point=True).encode(
        y=percent("accuracy", "accuracy, %"),
        color=alt.Color("learned:O", title="learned in step", scale=STEP_COLOURS),
        tooltip=["learned:O", "age:O", alt.Tooltip("accuracy:Q", format=".1f")],
    )
    mean = base.mark_line(color="gray", strokeDash=[4, 4]).encode(y="mean(accuracy):Q")
    ages: dict[int, list[float]] = {}
    for row in rows:
        ages.setdefault(row["age"], []).append(row["accuracy"])
    means = {a: float(np.mean(values)) for a, values in sorted(ages.items())}
    oldest = max(means)
    words = (
        f"Classes are told right {means[0]:.1f} % of the time when they are new, and {means[oldest]:.1f} % "
        f"when {oldest} steps have passed. Dashed: the mean over all."
    )
    return Figure(
        "age", "What becomes of a class as it ages", words, lines + mean,
        [{"age": a, "mean accuracy": rounded(value)} for a, value in means.items()],
    )  # fmt: skip


def calibration(run: Run) -> Figure:
    rows: Rows = []
    table: Rows = []
    for row in run.rows:
        after, _ = run.said(row["step"])
        is_old = after.labels < row["seen"] - row["new"]
        found = {"old classes": calibration_error(after, is_old), "new classes": calibration_error(after, ~is_old)}
        rows += [
            {"step": row["step"], "which": which, "ece": value} for which, value in found.items() if value is not None
        ]
        table.append({"step": row["step"], **{which: rounded(value) for which, value in found.items()}})
    chart = (
        chart_of(rows)
        .mark_line(point=True)
        .encode(
            x=steps_axis(),
            y=alt.Y("ece:Q", title="calibration error, points"),
            color=alt.Color("which:N", title=None, scale=alt.Scale(
                domain=["old classes", "new classes"], range=["#5b8db8", "#e76f51"])),
            tooltip=["which:N", "step:O", alt.Tooltip("ece:Q", format=".1f")],
        )
    )  # fmt: skip
    end = table[-1]
    told = [f"{end[which]} points for {which}" for which in ("old classes", "new classes") if end[which] is not None]
    words = f"How far confidence and accuracy lie apart (0 is perfect): {' and '.join(told)} after the last step."
    return Figure("calibration", "Does it know how sure it is?", words, chart, table)


def cost(run: Run) -> Figure:
    rows = [
        {"step": row["step"], "part": part, "seconds": seconds, "order": PARTS.index(part)}
        for row in run.rows
        for part, seconds in row.get("seconds_by_part", {"train": row["seconds"]}).items()
    ]
    chart = (
        chart_of(rows)
        .mark_bar()
        .encode(
            x=steps_axis(),
            y=alt.Y("seconds:Q", title="seconds"),
            color=alt.Color("part:N", title=None, scale=alt.Scale(domain=list(PARTS), scheme="tableau10")),
            order="order:Q",
            tooltip=["part:N", alt.Tooltip("seconds:Q", format=".2f")],
        )
    )  # fmt: skip
    total = sum(row["seconds"] for row in run.rows)
    peak = max((row.get("memory_peak_mb", 0.0) for row in run.rows), default=0.0)
    words = f"{total:.0f} seconds in all" + (f"; at most {peak:,.0f} MB of memory were in use." if peak else ".")
    table = [
        {"step": r["step"], **{part: rounded(r.get("seconds_by_part", {}).get(part), 2) for part in PARTS},
         "images/s": rounded(r["images_per_second"], 0), "peak MB": rounded(r.get("memory_peak_mb"), 0)}
        for r in run.rows
    ]  # fmt: skip
    return Figure("cost", "Where the time went", words, chart, table)
