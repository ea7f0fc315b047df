"""Write docs/results.md, its figures and the README's table from the runs in this folder alone: `make results`."""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, cast

import altair as alt
import jinja2
import numpy as np
from claims import LITTLE, Figures, asked, confused
from plan import ABLATIONS, FAMILY, LONG, LONGER, OTHERS, REDRAWN, RUNS

from equipoise.core.files import read_json
from equipoise.learn.backbones.base import Architecture
from equipoise.study.report.comparison_charts import curves, last_errors
from equipoise.study.report.export import picture
from equipoise.study.report.facts import confusion, from_paper, published
from equipoise.study.report.figure import Figure, Rows, chart_of, percent
from equipoise.study.report.page import gains
from equipoise.study.report.runs import Array, Group, Run

HERE = Path(__file__).parent
BEGIN, END = "<!-- `make results` writes {} -->\n", "<!-- to here -->\n"
"""Around each part that the README takes from the runs."""
PARTS = ("opening", "readme")
"""Templates of these parts."""
PRECISIONS = {"32": "32 bits", "bf16": "bfloat16"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=HERE.parent, help="which README.md and docs/ are written")
    out = parser.parse_args().out
    for name, text in render(HERE, (HERE.parent / "README.md").read_text(encoding="utf-8")).items():
        (out / name).parent.mkdir(parents=True, exist_ok=True)
        (out / name).write_text(text, encoding="utf-8")


def render(folder: Path, readme: str) -> dict[str, str]:
    """Every file that is written, by its path in the repository."""
    runs = {name: read(folder / name) for name in RUNS if (folder / name / "summary.json").exists()}
    lite = {label: group for label in (*FAMILY, *OTHERS) if (group := group_of(runs, label))}
    ablations = {name: Group(name, [runs[f"lite/wa-{name}-0"]]) for name in ABLATIONS if f"lite/wa-{name}-0" in runs}
    long = {method: group for method in LONG if (group := group_of(runs, method, "long"))}
    longer = [(recipe, group) for recipe, method, _ in LONGER if (group := group_of(runs, method, recipe))]
    redrawn = {method: group for method in REDRAWN if (group := group_of(runs, method, "redraw"))}
    if "redraw/wa-norm-1-0" in runs:
        redrawn["norm-1"] = Group("norm-1", [runs["redraw/wa-norm-1-0"]])
    fast = {group.label: group for recipe, group in longer if recipe == "fast"}
    firsts = {label: group.runs[0] for label, group in lite.items()}
    family = [Group(label, [firsts[label]]) for label in FAMILY if label in firsts]
    drawn = sorted((lite[label] for label in (*FAMILY, "joint") if label in lite), key=average, reverse=True)
    figures = [curves(drawn), last_errors(list(lite.values()))] if drawn else []
    figures += [norms(runs["lite/ce+kd-0"])] if "lite/ce+kd-0" in runs else []
    times = {recipe: group for recipe, group in [("lite", lite.get("wa")), *longer] if group and group.label == "wa"}
    figures += [budgets(times)] if len(times) > 1 else []
    matrices = {label: run for label, run in firsts.items() if (run.directory / "predictions").exists()}
    pictures = {figure.name: picture(figure) for figure in figures}
    pictures |= {"confusions": confusions(matrices)} if matrices else {}
    environment = jinja2.Environment(  # noqa: S701 (Markdown, from our own files)
        loader=jinja2.FileSystemLoader(HERE), undefined=jinja2.StrictUndefined,
        trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True,
    )  # fmt: skip
    environment.filters |= {"one": one, "row": row_of}
    by = {label: method_row(label, group) for label, group in lite.items()}
    words: dict[str, Any] = {
        "methods": list(by.values()),
        "by": by,
        "gains": gains(family),
        "errors": [row for group in family for row in error_rows(group.runs[0])],
        "norms": [row for row in runs["lite/ce+kd-0"].rows if row["norms_old"]] if "lite/ce+kd-0" in runs else [],
        "ablations": ablation_rows(runs["lite/wa-0"], ablations) if "lite/wa-0" in runs else [],
        "longer": [{**method_row(group.label, group), "recipe": recipe} for recipe, group in longer],
        "paper": published()["cifar100"],
        "claims": asked(lite | ablations),
        "long": [method_row(label, group) for label, group in long.items()],
        "asked_again": [
            ("four times the epochs", asked(long, lite)),
            ("`cifar100-fast`", asked(fast, lite)),
            ("head drawn anew", asked(redrawn, lite)),
        ],
        "little": LITTLE,
        "of": Figures(lite).last,
        "weights": {name: weights(name) for name in ("fast", "fast-wide", "resnet32")},
        "recipe": runs["lite/wa-0"].settings["train"] if "lite/wa-0" in runs else None,
        "last": {name: run.rows[-1] for name, run in runs.items()},
        "average": {name: average(Group(name, [run])) for name, run in runs.items()},
        "pictures": pictures,
        "runs": [run_row(name, run) for name, run in runs.items()],
        "missing": [name for name in RUNS if name not in runs],
        "software": software(runs.values()),
    }
    page, *parts = (environment.get_template(f"{name}.md.jinja").render(words) for name in ("page", *PARTS))
    for name, text in zip(PARTS, parts, strict=True):
        before, rest = readme.split(BEGIN.format(name))  # a README that has lost a mark is not written at all
        _, after = rest.split(END, 1)
        readme = before + BEGIN.format(name) + text + END + after
    files = {f"docs/results/{name}.svg": svg for name, svg in pictures.items()}
    return files | {"docs/results.md": page, "README.md": readme}


def read(directory: Path) -> Run:
    rows = [json.loads(line) for line in (directory / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    return Run(directory, read_json(directory / "config.json"), rows, read_json(directory / "summary.json"))


def group_of(runs: dict[str, Run], method: str, recipe: str = "lite") -> Group | None:
    """All seeds of a method."""
    seeds = [runs[name] for seed in range(3) if (name := f"{recipe}/{method}-{seed}") in runs]
    return Group(method, seeds) if seeds else None


def average(group: Group) -> float:
    """Over seeds, and over all steps but the first."""
    return float(group.values("top1")[:, 1:].mean())


# ---- rows of tables


def method_row(label: str, group: Group) -> dict[str, Any]:
    tops = group.values("top1")
    averages = tops[:, 1:].mean(1)
    paper = from_paper(group.runs[0])
    return {
        "label": label,
        "seeds": [run.settings["seed"] for run in group.runs],
        "tops": tops.mean(0).tolist(),
        "each": tops.tolist(),
        "average": average(group),
        "averages": averages.tolist(),
        "uncorrected": float(group.values("top1_uncorrected")[:, 1:].mean()) if group.runs[0].corrects else None,
        "spread": float(averages.std(ddof=1)) if len(averages) > 1 else None,
        "paper": paper,
        "minutes": [minutes(run) for run in group.runs],
        "backbone": group.runs[0].settings["net"]["backbone"],
        "precisions": [PRECISIONS[run.settings["runtime"]["precision"]] for run in group.runs],
        "epochs": group.runs[0].settings["train"]["epochs"],
        "first_epochs": group.runs[0].settings["train"]["first_epochs"],
    }


def ablation_rows(usual: Run, ablations: dict[str, Group]) -> list[dict[str, Any]]:
    """The recipe's own choices, then each other choice, with what it changes."""
    base = method_row("usual", Group("usual", [usual]))
    rows = [base, *(method_row(label, group) for label, group in ablations.items())]
    return [{**row, "change": row["average"] - base["average"]} for row in rows]


def error_rows(run: Run) -> list[dict[str, Any]]:
    """Wrong answers after the last step, as the paper's Table 1 has them: before and after correcting, and its own."""
    last, kinds = run.rows[-1], ("e_n", "e_o", "e_on", "e_oo")
    rows: list[dict[str, Any]] = [{"when": "", **{kind: last[kind] for kind in kinds}}]
    if run.corrects:
        rows = [{"when": ", before it corrects", **{kind: last[f"{kind}_uncorrected"] for kind in kinds}}, *rows]
    told = published()["cifar100"]["errors"].get(run.method)
    if told:
        rows.append({"when": " in the paper", **told})
    return [{"label": run.method, **row, "confused": confused(row["e_oo"], row["e_on"])} for row in rows]


def run_row(name: str, run: Run) -> dict[str, Any]:
    commit = run.config.get("commit") or "unknown"
    return {
        "name": name,
        "command": f"equipoise run cifar100 --data-root DIR {' '.join(RUNS[name])}",
        "average": average(Group(name, [run])),
        "last": run.rows[-1]["top1"],
        "minutes": minutes(run),
        "machine": f"{run.config['machine']['cores']} of {run.config['machine'].get('cpu', 'an unknown processor')}",
        "commit": commit[:10] + "+" * commit.endswith("+"),
    }


def minutes(run: Run) -> float:
    return float(sum(row["seconds"] for row in run.rows)) / 60


def weights(backbone: str) -> str:
    """Millions of weights of a network for CIFAR's images."""
    return f"{sum(p.numel() for p in Architecture(backbone, (3, 32, 32))().parameters()) / 1e6:.1f}"


def software(runs: Iterable[Run]) -> list[str]:
    """What computed them, each kind once."""
    return sorted({f"Python {run.config['python']}, PyTorch {run.config['versions']['torch']}" for run in runs})


def one(value: float | None) -> str:
    return "–" if value is None else f"{value:.1f}"


def row_of(cells: Sequence[float | None]) -> str:
    return " | ".join(one(cell) for cell in cells)


# ---- figures that no report has


def norms(run: Run) -> Figure:
    """The paper's Figure 4: the norm of every class's weights as each step's training left them."""
    rows: Rows = [
        {"step": step, "class": c, "norm": round(float(norm), 3), "which": "new" if c >= seen - new else "old"}
        for step, seen, new in ((row["step"], row["seen"], row["new"]) for row in run.rows)
        for c, norm in enumerate(cast("Array", run.said(step)[1].norms))  # before any correction
    ]
    chart = chart_of(rows).mark_point(filled=True, size=14, opacity=1).encode(
        x=alt.X("step:O", title="step; within it, classes in the order learned",
                axis=alt.Axis(labelAngle=0), scale=alt.Scale(paddingInner=0.1)),
        xOffset=alt.XOffset("class:Q", scale=alt.Scale(nice=False)),
        y=alt.Y("norm:Q", title=f"L{run.norm} norm of a class's weights"),
        color=alt.Color("which:N", title=None, sort=["old", "new"], scale=alt.Scale(range=["#2a9d8f", "#e76f51"])),
    )  # fmt: skip
    return Figure("norms", f"Norms of the head's weights, {run.method}", "As training left them.", chart)


def budgets(groups: dict[str, Group]) -> Figure:
    """Accuracy against minutes: what more time buys."""
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
    words = f"Dotted: the paper ({published()['cifar100']['budget']})."
    return Figure("budgets", "Accuracy against time, wa", words, line + names + rule)


def confusions(runs: dict[str, Run], side: int = 300, levels: int = 8) -> str:
    """Confusion matrices after the last step, side by side; small enough for a repository (one path a shade)."""
    parts = []
    tables = {label: confusion(run.said(len(run.rows))[0], run.seen) for label, run in runs.items()}
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
        put = f"translate({x} {y}) scale({side / len(counts):g})"
        parts.append(f'<g transform="{put}" fill="#c8553d">{"".join(shades)}</g>')
        parts.append(f'<rect x="{x}" y="{y}" width="{side}" height="{side}" fill="none" stroke="#888"/>')
    width, height = 2 * side + 50, ((len(runs) + 1) // 2) * (side + 50) + 10
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}"'
    style = ' font-family="DejaVu Sans, sans-serif" font-size="14">'
    return f'{head}{style}<rect width="100%" height="100%" fill="white"/>{"".join(parts)}</svg>\n'


if __name__ == "__main__":
    main()
