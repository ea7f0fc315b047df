"""The page: one HTML file with everything in it, for a run or for a comparison."""

from __future__ import annotations

import base64
import json
import statistics
from collections.abc import Sequence
from importlib import resources
from pathlib import Path
from typing import Any
from urllib.parse import quote

import jinja2
import numpy as np
from markupsafe import Markup

from equipoise.errors import RunError
from equipoise.files import read_json
from equipoise.study.progress import duration
from equipoise.study.report.facts import Paper, confusion, from_paper
from equipoise.study.report.figure import Figure
from equipoise.study.report.runs import Group, Run, flat_settings

SCRIPTS = ("vega", "vega-lite", "vega-embed")
FIGURES = {
    "last": "last step",
    "average_without_first": "average without step 1",
    "average_with_first": "average with step 1",
    "forgetting": "forgetting",
}


def render_run(run: Run, figures: Sequence[Figure]) -> str:
    settings = run.settings
    title = f"{run.method} on {settings['dataset']}"
    return _render(
        "run",
        title=title,
        run=run,
        figures={figure.name: figure for figure in figures},
        headline=headline(run),
        paper=from_paper(run),
        verdict=verdict(run),
        classes=class_table(run),
        gallery=_gallery(run) if run.summary else None,
        confusions=_confusions(run),
        facts=_facts(run),
        settings=flat_settings(settings),
    )


def render_comparison(
    groups: Sequence[Group],
    left_out: Sequence[tuple[str, str]],
    figures: Sequence[Figure],
    panels: Sequence[dict[str, Any]],
    root: Path,
) -> str:
    first = groups[0].runs[0]
    return _render(
        "comparison",
        title=_title(groups, bool(panels)),
        first=first,
        groups=groups,
        left_out=left_out,
        figures={figure.name: figure for figure in figures},
        rows=[_group_row(group, root) for group in groups],
        gains=gains(groups),
        panels=panels,
        runs=max(len(group.runs) for group in groups),
        protocol=_protocol(groups),
        facts=_facts(first),
        settings=flat_settings({k: v for k, v in first.settings.items() if k not in ("method", "seed", "fields")}),
    )


# ---- what is written in words and tables


def _title(groups: Sequence[Group], ablation: bool) -> str:
    methods = {group.method for group in groups}
    one = methods.copy().pop() if len(methods) == 1 else ""
    what = f"{one}, {len(groups)} ways" if ablation or one else f"{len(methods)} methods"
    return f"{what} on {' and '.join(dict.fromkeys(group.runs[0].settings['dataset'] for group in groups))}"


def _protocol(groups: Sequence[Group]) -> str:
    """What all runs have in common."""
    runs = [run for group in groups for run in group.runs]
    told = {
        "{} classes": {run.seen for run in runs},
        "{} steps": {len(run.rows) for run in runs},
        "recipe {}": {run.settings["recipe"] for run in runs},
        "memory {}": {run.settings["memory"]["size"] for run in runs},
    }
    return " · ".join(words.format(*values) for words, values in told.items() if len(values) == 1)


def headline(run: Run) -> list[dict[str, str]]:
    """The figures that matter most, each with the paper's where it reports the same."""
    paper = from_paper(run)
    seconds = sum(row["seconds"] for row in run.rows)
    cards = []
    for name, words in FIGURES.items():
        value = (run.summary or {}).get(name)
        if run.summary is None and name == "last":
            value = run.rows[-1]["top1"]
        beside = _beside(paper, name) if paper and paper.figure == "top1" else ""
        cards.append({"name": words, "value": _one(value), "paper": beside})
    if paper and paper.figure == "top5":
        top5 = [row["top5"] for row in run.rows]
        cards.append({"name": "top-5, last step", "value": _one(top5[-1]), "paper": _beside(paper, "last")})
        average = statistics.mean(top5[1:]) if len(top5) > 1 else None
        beside = _beside(paper, "average_without_first")
        cards.append({"name": "top-5, average without step 1", "value": _one(average), "paper": beside})
    return [*cards, {"name": "time", "value": duration(seconds), "paper": ""}]


def _beside(paper: Paper, name: str) -> str:
    value = {"last": paper.last, "average_without_first": paper.average}.get(name)
    if name == "average_with_first" and paper.curve:
        value = statistics.mean(paper.curve)
    return "" if value is None else f"paper {value:.1f}"


def verdict(run: Run) -> str:
    """What happened, in a sentence or two."""
    last = run.rows[-1]
    old = last["seen"] - last["new"]
    if not old:
        return f"It has learned {last['seen']} classes and tells them right {last['top1']:.1f} % of the time."
    labels = run.said(len(run.rows))[0].labels
    olds = int((labels < old).sum())
    right_old, right_new = (
        100 * (1 - e / max(n, 1)) for e, n in ((last["e_o"], olds), (last["e_n"], len(labels) - olds))
    )
    said = (
        f"It has learned {last['seen']} classes in {len(run.rows)} steps and tells them right {last['top1']:.1f} % of "
        f"the time: {right_old:.1f} % for images of the {old} old ones and {right_new:.1f} % for those of the "
        f"{last['new']} newest."
    )
    gain = last["top1"] - last["top1_uncorrected"]
    if run.corrects:
        said += f" The correction brought {gain:+.1f} points."
    return said


def class_table(run: Run) -> list[dict[str, Any]]:
    """Every class: when it was learned, how it was told then and is told now, and what it is taken for."""
    counts = confusion(run.said(len(run.rows))[0], run.seen)
    wrong = counts - np.diag(counts.diagonal())
    now = run.rows[-1]["per_class"]
    table = []
    for c, name in enumerate(run.names):
        learned = int(run.step_of[c])
        then = run.rows[learned - 1]["per_class"][c]
        worst = int(wrong[c].argmax())
        table.append(
            {
                "name": name,
                "learned": learned,
                "then": then,
                "now": now[c],
                "change": None if then is None or now[c] is None else now[c] - then,
                "taken_for": run.names[worst] if wrong[c, worst] else "",
                "times": int(wrong[c, worst]),
            }
        )
    return table


def gains(groups: Sequence[Group]) -> dict[str, Any] | None:
    """The paper's Table 2: each step's accuracy and its difference to plain cross-entropy."""
    base = next((group for group in groups if group.label in ("ce", "replay")), None)
    if base is None or len({tuple(group.seen) for group in groups}) != 1:
        return None
    ground = base.values("top1").mean(0)
    rows = []
    for group in groups:
        values = group.values("top1").mean(0)
        paper = from_paper(group.runs[0])
        row = [_gain(value, value - under, group is base) for value, under in zip(values, ground, strict=True)]
        if len(values) > 1:
            row.append(_gain(values[1:].mean(), values[1:].mean() - ground[1:].mean(), group is base))
        curve = [_one(value) for value in paper.curve] + [_one(paper.average)] if paper and paper.curve else None
        rows.append({"label": group.label, "cells": row, "paper": curve})
    return {"seen": base.seen, "base": base.label, "rows": rows}


def _gain(value: float, gain: float, is_base: bool) -> dict[str, str]:
    return {"value": f"{value:.1f}", "gain": "" if is_base else f"{gain:+.1f}"}


def _group_row(group: Group, root: Path) -> dict[str, Any]:
    paper = from_paper(group.runs[0])
    cells = {}
    for name in FIGURES:
        values = group.summaries(name)
        values = values[~np.isnan(values)]
        cells[name] = {
            "mean": float(values.mean()) if len(values) else None,
            "std": float(values.std(ddof=1)) if len(values) > 1 else None,
            "paper": _beside(paper, name) if paper and paper.figure == "top1" else "",
        }
    pages = [
        {"seed": run.settings["seed"], "href": f"{quote(run.directory.relative_to(root).as_posix())}/report.html"}
        for run in group.runs
    ]
    seconds = float(group.values("seconds").sum(1).mean())
    return {
        "label": group.label,
        "n": len(group.runs),
        "cells": cells,
        "pages": pages,
        "time": duration(seconds),
        "seconds": seconds,
    }


# ---- what is drawn from files


def _gallery(run: Run) -> dict[str, Any] | None:
    """The sheets of thumbnails as data addresses, and what they show; None where there are none."""
    folder = run.directory / "gallery"
    try:
        contents: dict[str, Any] = read_json(folder / "gallery.json")
        sheets = {name: folder / f"{name}.webp" for name in ("exemplars", "examples")}
        contents["sheets"] = {name: _data_address(file) for name, file in sheets.items() if file.exists()}
        return contents if contents["sheets"] else None
    except (RunError, OSError, TypeError, KeyError):
        return None


def _data_address(file: Path) -> str:
    return "data:image/webp;base64," + base64.b64encode(file.read_bytes()).decode()


def _confusions(run: Run) -> dict[str, Any]:
    """For the list that a click on a matrix opens: rows of [said, images], most frequent first."""
    listed = {}
    after, before = run.said(len(run.rows))
    for name, said in (("confusion", after), ("confusion-before", before)):
        counts = confusion(said, run.seen)
        wrong = counts - np.diag(counts.diagonal())
        listed[name] = [[[int(j), int(row[j])] for j in np.argsort(-row, kind="stable")[:8] if row[j]] for row in wrong]
    return {"names": run.names, "steps": run.step_of.tolist(), "worst": listed}


def _facts(run: Run) -> dict[str, str]:
    config = run.config
    versions = ", ".join(f"{name} {version}" for name, version in config.get("versions", {}).items())
    machine = config.get("machine", {})
    cores = f"{machine.get('cores', '?')} cores"
    told = {
        "command": config.get("command", ""),
        "equipoise": f"{config.get('equipoise', '')}, commit {config.get('commit') or 'unknown'}",
        "versions": f"Python {config.get('python', '')}, {versions}",
        "machine": ", ".join(filter(None, (machine.get("system"), cores, machine.get("cpu")))),
    }
    return {name: str(text) for name, text in told.items()}


# ---- Jinja


def _render(template: str, **values: Any) -> str:
    folder = resources.files(__package__)
    environment = jinja2.Environment(
        loader=jinja2.FunctionLoader(lambda name: (folder / "templates" / name).read_text(encoding="utf-8")),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    environment.filters |= {"one": _one, "json": _json, "signed": _signed}
    environment.globals |= {"duration": duration, "scripts": [_script(name) for name in SCRIPTS]}
    return environment.get_template(f"{template}.html").render(**values)


def _script(name: str) -> Markup:
    text = (resources.files(__package__) / "vendor" / f"{name}.min.js").read_text(encoding="utf-8")
    return Markup(text)  # noqa: S704 (ours, not a user's)


def _json(value: Any) -> Markup:
    """JSON that can stand inside a script element: no text in it can close the element."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    return Markup(text.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029"))  # noqa: S704


def _one(value: float | None) -> str:
    return "–" if value is None or np.isnan(value) else f"{value:.1f}"


def _signed(value: float | None) -> str:
    return "–" if value is None else f"{value:+.1f}"


def _mean(values: Sequence[float | None]) -> float:
    return statistics.mean([value for value in values if value is not None] or [float("nan")])
