"""Write docs/results.md, its figures and the README's tables from the runs in this folder alone: `make results`."""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, cast

import altair as alt
import jinja2
import numpy as np
from claims import LITTLE, GroupMeans, check_claims, old_error_rate
from plan import ABLATIONS, FAMILY, LONG, LONGER, OTHERS, REINITIALISED, RUNS

from equipoise.learn.backbones import Architecture
from equipoise.pages.export import to_svg
from equipoise.pages.figure import Figure, Rows, chart_of, percent
from equipoise.pages.text import one_decimal
from equipoise.study.report.analysis import confusion
from equipoise.study.report.comparison_charts import curves, last_errors
from equipoise.study.report.comparison_tables import gains
from equipoise.study.report.groups import RunGroup
from equipoise.study.report.paper import paper_result, published
from equipoise.study.report.runs import Array, RunRecord, read_run

HERE = Path(__file__).parent
BEGIN, END = "<!-- `make results` writes {} -->\n", "<!-- to here -->\n"
"""Around each part of the README that is generated."""
PARTS = ("opening", "readme")
"""Templates of these parts."""
PRECISIONS = {"32": "32 bits", "bf16": "bfloat16"}

Runs = dict[str, RunRecord]
Groups = dict[str, RunGroup]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=HERE.parent, help="where to write README.md and docs/")
    out = parser.parse_args().out
    for name, text in render(HERE, (HERE.parent / "README.md").read_text(encoding="utf-8")).items():
        (out / name).parent.mkdir(parents=True, exist_ok=True)
        (out / name).write_text(text, encoding="utf-8")


def render(folder: Path, readme: str) -> dict[str, str]:
    """Return every generated file by its path in the repository."""
    runs = {name: read_run(folder / name) for name in RUNS if (folder / name / "summary.json").exists()}
    lite = {label: group for label in (*FAMILY, *OTHERS) if (group := group_of(runs, label))}
    longer = [(recipe, group) for recipe, method, _ in LONGER if (group := group_of(runs, method, recipe))]
    pictures = make_pictures(runs, lite, longer)
    environment = jinja2.Environment(  # noqa: S701 (Markdown, from our own files)
        loader=jinja2.FileSystemLoader(HERE), undefined=jinja2.StrictUndefined,
        trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True,
    )  # fmt: skip
    environment.filters |= {"one": one_decimal, "row": row_of}
    values = {**table_values(runs, lite, longer), **claim_values(runs, lite, longer), "pictures": pictures}
    page, *parts = (environment.get_template(f"{name}.md.jinja").render(values) for name in ("page", *PARTS))
    for name, text in zip(PARTS, parts, strict=True):
        before, rest = readme.split(BEGIN.format(name))  # fails if the README has lost a mark
        _, after = rest.split(END, 1)
        readme = before + BEGIN.format(name) + text + END + after
    files = {f"docs/results/{name}.svg": svg for name, svg in pictures.items()}
    return files | {"docs/results.md": page, "README.md": readme}


def make_pictures(runs: Runs, lite: Groups, longer: Sequence[tuple[str, RunGroup]]) -> dict[str, str]:
    """Return the figures as SVG by name."""
    drawn = sorted((lite[label] for label in (*FAMILY, "joint") if label in lite), key=average, reverse=True)
    figures = [curves(drawn), last_errors(list(lite.values()))] if drawn else []
    figures += [norms(runs["lite/ce+kd-0"])] if "lite/ce+kd-0" in runs else []
    times = {recipe: group for recipe, group in [("lite", lite.get("wa")), *longer] if group and group.label == "wa"}
    figures += [budgets(times)] if len(times) > 1 else []
    pictures = {figure.name: to_svg(figure) for figure in figures}
    firsts = {label: group.runs[0] for label, group in lite.items()}
    matrices = {label: run for label, run in firsts.items() if run.directory.is_dir("predictions")}
    return pictures | ({"confusions": confusions(matrices)} if matrices else {})


def table_values(runs: Runs, lite: Groups, longer: Sequence[tuple[str, RunGroup]]) -> dict[str, Any]:
    """Return what the templates show in tables."""
    family = [RunGroup(label, lite[label].runs[:1]) for label in FAMILY if label in lite]
    methods = {label: method_row(label, group) for label, group in lite.items()}
    return {
        "methods": list(methods.values()),
        "by": methods,
        "gains": gains(family),
        "errors": [row for group in family for row in error_rows(group.runs[0])],
        "norms": [step for step in runs["lite/ce+kd-0"].steps if step.norms_old] if "lite/ce+kd-0" in runs else [],
        "ablations": ablation_rows(runs["lite/wa-0"], ablation_groups(runs)) if "lite/wa-0" in runs else [],
        "longer": [{**method_row(group.label, group), "recipe": recipe} for recipe, group in longer],
        "paper": published()["cifar100"],
        "weights": {name: weights(name) for name in ("fast", "fast-wide", "resnet32")},
        "recipe": runs["lite/wa-0"].settings["train"] if "lite/wa-0" in runs else None,
        "last": {name: run.steps[-1] for name, run in runs.items()},
        "average": {name: average(RunGroup(name, [run])) for name, run in runs.items()},
        "runs": [run_row(name, run) for name, run in runs.items()],
        "missing": [name for name in RUNS if name not in runs],
        "software": software(runs.values()),
    }


def claim_values(runs: Runs, lite: Groups, longer: Sequence[tuple[str, RunGroup]]) -> dict[str, Any]:
    """Return what the templates say about the paper's claims."""
    long = {method: group for method in LONG if (group := group_of(runs, method, "long"))}
    fast = {group.label: group for recipe, group in longer if recipe == "fast"}
    reinitialised = {method: group for method in REINITIALISED if (group := group_of(runs, method, "redraw"))}
    if "redraw/wa-norm-1-0" in runs:
        reinitialised["norm-1"] = RunGroup("norm-1", [runs["redraw/wa-norm-1-0"]])
    return {
        "claims": check_claims(lite | ablation_groups(runs)),
        "long": [method_row(label, group) for label, group in long.items()],
        "other_claims": [
            ("four times the epochs", check_claims(long, lite)),
            ("`cifar100-fast`", check_claims(fast, lite)),
            ("head reinitialised", check_claims(reinitialised, lite)),
        ],
        "little": LITTLE,
        "of": GroupMeans(lite).last,
    }


def group_of(runs: Runs, method: str, recipe: str = "lite") -> RunGroup | None:
    """Return all seeds of a method."""
    seeds = [runs[name] for seed in range(3) if (name := f"{recipe}/{method}-{seed}") in runs]
    return RunGroup(method, seeds) if seeds else None


def ablation_groups(runs: Runs) -> Groups:
    names = {name: f"lite/wa-{name}-0" for name in ABLATIONS}
    return {label: RunGroup(label, [runs[name]]) for label, name in names.items() if name in runs}


def average(group: RunGroup) -> float:
    """Return the mean accuracy over seeds and all steps but the first."""
    return float(group.values("accuracy")[:, 1:].mean())


# ---- rows of tables


def method_row(label: str, group: RunGroup) -> dict[str, Any]:
    tops = group.values("accuracy")
    averages = tops[:, 1:].mean(1)
    first = group.runs[0]
    return {
        "label": label,
        "seeds": [run.settings["seed"] for run in group.runs],
        "tops": tops.mean(0).tolist(),
        "each": tops.tolist(),
        "average": average(group),
        "averages": averages.tolist(),
        "uncorrected": float(group.values("accuracy_uncorrected")[:, 1:].mean()) if first.corrected else None,
        "spread": float(averages.std(ddof=1)) if len(averages) > 1 else None,
        "paper": paper_result(first),
        "minutes": [minutes(run) for run in group.runs],
        "backbone": first.settings["net"]["backbone"],
        "precisions": [PRECISIONS[run.settings["runtime"]["precision"]] for run in group.runs],
        "epochs": first.settings["train"]["epochs"],
        "first_epochs": first.settings["train"]["first_epochs"],
    }


def ablation_rows(usual: RunRecord, ablations: Groups) -> list[dict[str, Any]]:
    """Return the recipe's own choices, then each other choice and the difference it makes."""
    base = method_row("usual", RunGroup("usual", [usual]))
    rows = [base, *(method_row(label, group) for label, group in ablations.items())]
    return [{**row, "change": row["average"] - base["average"]} for row in rows]


def error_rows(run: RunRecord) -> list[dict[str, Any]]:
    """Return the errors after the last step, before and after the correction, and those of Table 1 of the paper."""
    last, kinds = run.steps[-1], ("e_n", "e_o", "e_on", "e_oo")
    counts = [("", last.errors)]
    if run.corrected:
        counts = [(", before the correction", last.errors_uncorrected), *counts]
    rows = [{"when": when, **{kind: getattr(errors, kind) for kind in kinds}} for when, errors in counts]
    theirs = published()["cifar100"]["errors"].get(run.method)
    if theirs:
        rows.append({"when": " in the paper", **theirs})
    return [{"label": run.method, **row, "rate": old_error_rate(row["e_oo"], row["e_on"])} for row in rows]


def run_row(name: str, run: RunRecord) -> dict[str, Any]:
    commit = run.config.get("commit") or "unknown"
    return {
        "name": name,
        "command": f"equipoise run cifar100 --data-root DIR {' '.join(RUNS[name])}",
        "average": average(RunGroup(name, [run])),
        "last": run.steps[-1].accuracy,
        "minutes": minutes(run),
        "machine": f"{run.config['machine']['cores']} of {run.config['machine'].get('cpu', 'an unknown processor')}",
        "commit": commit[:10] + "+" * commit.endswith("+"),
    }


def minutes(run: RunRecord) -> float:
    return sum(step.seconds for step in run.steps) / 60


def weights(backbone: str) -> str:
    """Return the millions of weights of a network for the images of CIFAR."""
    return f"{sum(p.numel() for p in Architecture(backbone, (3, 32, 32))().parameters()) / 1e6:.1f}"


def software(runs: Iterable[RunRecord]) -> list[str]:
    """Return the versions that the runs were made with, without repetition."""
    return sorted({f"Python {run.config['python']}, PyTorch {run.config['versions']['torch']}" for run in runs})


def row_of(cells: Sequence[float | None]) -> str:
    return " | ".join(one_decimal(cell) for cell in cells)


# ---- figures that no report has


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


if __name__ == "__main__":
    main()
