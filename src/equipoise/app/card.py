"""The card of a model: README.md after the custom of Hugging Face, filled from facts and from nothing else."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

BEGIN = "<!-- equipoise: what follows is written anew after every step -->"
END = "<!-- equipoise: your own words may stand below this line, or above the first one -->"
HEAD = """---
library_name: equipoise
pipeline_tag: {task}
tags: [class-incremental-learning, continual-learning, {method}]
---

"""
SHOWN = 200
"""Classes that are listed by name."""


def render(path: Path, config: Mapping[str, Any], steps: Sequence[Mapping[str, Any]], images: Mapping[str, Any]) -> str:
    """The whole file. What its owner has written around our part stays."""
    ours = f"{BEGIN}\n{facts(config, steps, images)}\n{END}\n"
    file = path / "README.md"
    written = file.read_text(encoding="utf-8", errors="surrogateescape") if file.is_file() else ""
    before, begin, rest = written.partition(BEGIN)
    _, end, after = rest.partition(END)
    if begin and end:
        return before + ours + after.removeprefix("\n")
    task = "tabular-classification" if takes_features(config) else "image-classification"
    return written + HEAD.format(task=task, method=config["settings"]["method"]) + ours


def takes_features(config: Mapping[str, Any]) -> bool:
    return bool(config["settings"]["net"]["backbone"] == "mlp")


def facts(config: Mapping[str, Any], steps: Sequence[Mapping[str, Any]], images: Mapping[str, Any]) -> str:
    settings, classes = config["settings"], config["classes"]
    channels, height, width = config["shape"]
    kept, held = (sum(len(mine) for mine in images[kind]) for kind in ("memory", "holdout"))
    takes = f"rows of {channels} features" if takes_features(config) else f"pictures, seen as {height} × {width} pixels"
    last = steps[-1]
    lines = [
        f"# A classifier of {len(classes)} classes",
        "",
        f"Learned by `{settings['method']}` in {_count(len(steps), 'step')}, the last on {last['when'][:10]}, with "
        f"equipoise {config['equipoise']} ({settings['net']['backbone']}). It takes {takes}, and gives a probability "
        "for each class. It knows no others: whatever it is shown, it names one of these.",
        "",
        "## How good it is",
        "",
        *_quality(last),
        "",
        "## What it knows",
        "",
        "| class | right on held-out images | learned in step |",
        "|---|---|---|",
        *_classes(classes, steps),
        "",
        "## How it came about",
        "",
        "| step | date | what | images | accuracy | of old classes | of new ones | γ |",
        "|---|---|---|---|---|---|---|---|",
        *(_step(record) for record in steps),
        *_gamma(steps),
        "",
        "## What is stored with it",
        "",
        *_stored(kept, held),
        "",
        "## Using it",
        "",
        *_usage(config),
    ]
    return "\n".join(lines)


def _stored(kept: int, held: int) -> list[str]:
    if not kept and not held:
        return ["No images: this copy predicts, and learns no more."]
    return [
        f"{_count(kept, 'exemplar')} to learn from again in `memory/`, {_count(held, 'image')} for judging in "
        "`holdout/`, and those of earlier versions that can be gone back to. They are copies of what it was taught "
        "with: before you publish it, mind whose they are, or make a copy without them "
        "(`equipoise export MODEL COPY --no-memory`)."
    ]


def _quality(last: Mapping[str, Any]) -> list[str]:
    if last["accuracy"] is None:
        return ["No images were held out, so nobody knows."]
    tests = _count(last["tests_old"] + last["tests_new"], "held-out image")
    lines = [f"After the last step it named **{last['accuracy']:.1f} %** of {tests} rightly."]
    if last.get("accuracy_old") is not None and last.get("accuracy_new") is not None:
        lines[0] += (
            f" Of old classes {last['accuracy_old']:.1f} %, of the newest {last['accuracy_new']:.1f} %; "
            f"{last['e_on']} old images were taken for new classes and {last['e_no']} new ones for old."
        )
    if last.get("warning"):
        lines += ["", f"Mind that {last['warning']}."]
    return lines


def _classes(classes: Sequence[Any], steps: Sequence[Mapping[str, Any]]) -> list[str]:
    scores = {entry["class"]: entry for entry in steps[-1]["per_class"]}
    learned = {name: record["step"] for record in steps for name in (*record["classes"], *record.get("extended", []))}
    rows = []
    for name in classes[:SHOWN]:
        score = scores.get(name, {"right": 0, "of": 0})
        right = f"{score['right']} of {score['of']}" if score["of"] else "not tested"
        rows.append(f"| {cell(name)} | {right} | {learned.get(name, '–')} |")
    if len(classes) > SHOWN:
        rows.append(f"| … and {len(classes) - SHOWN} more | | |")
    return rows


def _step(record: Mapping[str, Any]) -> str:
    figures = [percent(record.get(name)) for name in ("accuracy", "accuracy_old", "accuracy_new")]
    gamma = "–" if record.get("gamma") is None else f"{record['gamma']:.3f}"
    row = [record["step"], record["when"][:10], cell(what(record)), record.get("images", "–"), *figures, gamma]
    return "| " + " | ".join(map(str, row)) + " |"


def _gamma(steps: Sequence[Mapping[str, Any]]) -> list[str]:
    if all(record.get("gamma") is None for record in steps):
        return []
    return ["", "γ is the factor by which Weight Aligning scaled the new classes' weights."]


def _usage(config: Mapping[str, Any]) -> list[str]:
    if takes_features(config):
        return ["```python", "import equipoise as eq", "", 'eq.load("MODEL").predict(features)', "```"]
    return ["```sh", "equipoise predict MODEL picture.jpg", "equipoise learn MODEL FOLDER    # more classes", "```"]


# ---- words that tables share


def what(record: Mapping[str, Any], most: int = 4) -> str:
    """What a step did, in a few words."""
    if record["kind"] == "forget":
        return f"forgot {_count(record['count'], 'class')}"
    parts = []
    for verb, names in (("", record["classes"]), ("more of ", record.get("extended", []))):
        if names:
            shown = names if len(names) <= most + 1 else names[:most]
            more = f" and {len(names) - len(shown)} more" if len(shown) < len(names) else ""
            parts.append(verb + ", ".join(map(str, shown)) + more)
    return "; ".join(parts) or "classes since forgotten"


def percent(value: float | None) -> str:
    return "–" if value is None else f"{value:.1f} %"


def cell(text: object) -> str:
    """Text that cannot break a Markdown table or bring HTML in."""
    plain = " ".join(str(text).split()).replace("\\", "\\\\").replace("|", "\\|")
    return plain.replace("<", "&lt;").replace("`", "\\`")


def _count(number: int, thing: str) -> str:
    plural = {"class": "classes"}.get(thing, f"{thing}s")
    return f"{number:,} {thing if number == 1 else plural}"
