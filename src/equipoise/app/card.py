"""The model card: README.md in the format of Hugging Face, written from facts only."""

from __future__ import annotations

import re
from collections.abc import Sequence

from equipoise.app.model import is_features
from equipoise.app.model_files import ModelConfig, ModelImages
from equipoise.core.escape import markdown_text
from equipoise.core.open_dir import printable
from equipoise.engine.results import Label, StepResult

BEGIN = "<!-- equipoise: the text below is rewritten after every step -->"
END = "<!-- equipoise: write your own text below this line, or above the first one -->"
MARKERS = {
    "<!-- equipoise: what follows is written anew after every step -->": BEGIN,
    "<!-- equipoise: your own words may stand below this line, or above the first one -->": END,
}
"""The markers of format 1."""
HEAD = """---
library_name: equipoise
pipeline_tag: {task}
tags: [class-incremental-learning, continual-learning, {method}]
---

"""
HISTORY = """| step | date | what | images | accuracy | old classes | new classes | γ |
|---|---|---|---|---|---|---|---|"""
GAMMA = "γ is the factor by which Weight Aligning scaled the new classes' weights."
USE_FEATURES = '```python\nimport equipoise as eq\n\neq.load("MODEL").predict(features)\n```'
USE_PHOTOS = "```sh\nequipoise predict MODEL photo.jpg\nequipoise learn MODEL FOLDER    # more classes\n```"
SHOWN = 200
"""Classes that are listed by name."""


def render(written: str, config: ModelConfig, steps: Sequence[StepResult], images: ModelImages) -> str:
    """Return the whole file; text that its owner added around the generated part is kept."""
    for old, new in MARKERS.items():
        written = written.replace(old, new)
    ours = f"{BEGIN}\n{card_text(config, steps, images)}\n{END}\n"
    before, begin, rest = written.partition(BEGIN)
    _, end, after = rest.partition(END)
    if begin and end:
        return before + ours + after.removeprefix("\n")
    task = "tabular-classification" if is_features(config.shape) else "image-classification"
    method = re.sub(r"[^\w.+/-]", "-", config.method)  # YAML
    return written + HEAD.format(task=task, method=method) + ours


def without_card(written: str) -> str:
    """Undo ``render``: return the text that its owner added."""
    for old, new in MARKERS.items():
        written = written.replace(old, new)
    before, begin, rest = written.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        return written
    head = re.escape(HEAD).replace(r"\{task\}", ".*").replace(r"\{method\}", ".*")
    return re.sub(head, "", before) + after.removeprefix("\n")


def card_text(config: ModelConfig, steps: Sequence[StepResult], images: ModelImages) -> str:
    """Return the generated part of the card."""
    channels, height, width = config.shape
    features, last = is_features(config.shape), steps[-1]
    takes = f"rows of {channels} features" if features else f"images, resized to {height} × {width} pixels"
    parts = [
        f"# A classifier of {counted(len(config.classes), 'class')}",
        f"Trained with {markdown_text(config.method)} in {counted(len(steps), 'step')}, the last on "
        f"{markdown_text(last.finished[:10])}, with equipoise {markdown_text(config.equipoise)} "
        f"({markdown_text(config.backbone)}). It takes {takes}, and returns a probability per class. "
        "It knows no other classes: it may call them unknown, or mistake them for one of these.",
        "## Accuracy",
        *_quality(last),
        "## Classes",
        _classes(config.classes, steps),
        "## History",
        "\n".join([HISTORY, *map(_step, steps)]),
        *([GAMMA] if any(step.gamma is not None for step in steps) else []),
        "## Stored features" if config.extractor else "## Stored images",
        _stored(images.count("memory"), images.count("holdout"), config),
        "## Usage",
        USE_FEATURES if features else USE_PHOTOS,
    ]
    return "\n\n".join(parts)


def _stored(kept: int, held: int, config: ModelConfig) -> str:
    if not kept and not held:
        return "None: this copy predicts but cannot learn more."
    if config.extractor is not None:
        pictures = "Thumbnails of the images are stored as well. " if config.thumbnails else ""
        return (
            f"Features of {counted(kept, 'image')} in `memory/` and {counted(held, 'held-out image')} in `holdout/`, "
            f"and those of earlier versions. {pictures}Features do not allow restoring an image exactly, but they "
            "reveal what it shows: check that you may share them, or make a copy without them (`equipoise export MODEL "
            "COPY --no-memory`)."
        )
    return (
        f"{counted(kept, 'exemplar')} in `memory/` and {counted(held, 'held-out image')} in `holdout/`, and those of "
        "earlier versions. They are copies of the training data: check that you may share them before you publish the "
        "model, or make a copy without them (`equipoise export MODEL COPY --no-memory`)."
    )


def _quality(last: StepResult) -> list[str]:
    if last.accuracy is None:
        return ["Unknown: no images were held out."]
    text = f"**{last.accuracy:.1f} %** on {evaluated_on(last)} after the last step."
    if last.accuracy_old is not None and last.accuracy_new is not None:
        text += (
            f" Old classes {last.accuracy_old:.1f} %, the newest {last.accuracy_new:.1f} %; "
            f"{counted(last.errors.e_on, 'old image')} predicted as new classes and "
            f"{counted(last.errors.e_no or 0, 'new image')} predicted as old classes."
        )
    return [text, f"Note: {markdown_text(last.warning)}."] if last.warning else [text]


def _classes(classes: Sequence[Label], steps: Sequence[StepResult]) -> str:
    results = {result.name: result for result in steps[-1].per_class}
    learned = {name: step.step for step in reversed(steps) for name in (*step.classes, *step.extended)}
    images = "images (leave-one-out)" if steps[-1].evaluated == "leave-one-out" else "held-out images"
    rows = [f"| class | correct on {images} | learned in step |", "|---|---|---|"]
    for name in classes[:SHOWN]:
        result = results.get(name)
        correct = f"{result.correct} of {result.total}" if result and result.total else "not tested"
        rows.append(f"| {markdown_text(name)} | {correct} | {learned.get(name, '–')} |")
    if len(classes) > SHOWN:
        rows.append(f"| … and {len(classes) - SHOWN} more | | |")
    return "\n".join(rows)


def _step(step: StepResult) -> str:
    figures = [percent(value) for value in (step.accuracy, step.accuracy_old, step.accuracy_new)]
    gamma = "–" if step.gamma is None else f"{step.gamma:.3f}"
    images = step.images if step.kind == "learn" else "–"
    row = [step.step, markdown_text(step.finished[:10]), markdown_text(describe_step(step)), images, *figures, gamma]
    return "| " + " | ".join(map(str, row)) + " |"


# ---- text that tables share


def evaluated_on(result: StepResult) -> str:
    """Describe the images that a step was evaluated on."""
    total = result.total_old + result.total_new
    if result.evaluated == "leave-one-out":
        return f"{counted(total, 'image')} (leave-one-out)"
    return counted(total, "held-out image")


def describe_step(step: StepResult, most: int = 4, noun: str = "image") -> str:
    """Describe what a step did in a few words; ``noun`` is what to call an image."""
    if step.kind == "forget":
        return f"forgot {counted(step.forgotten, 'class')}"
    if step.kind != "learn":
        return describe_correction(step, noun)
    return describe_classes(step.classes, step.extended, most) or "classes that were removed later"


def describe_correction(step: StepResult, noun: str = "image") -> str:
    """Describe a correction in a few words."""
    names = [printable(str(name)) for name in step.changed]
    if not names:  # they were forgotten later
        return {"rename": "renamed a class", "merge": "merged classes", "move": f"moved {noun}s"}[step.kind]
    if step.kind == "rename":
        return f"renamed {names[0]} to {names[-1]}"
    if step.kind == "merge":
        return f"merged {', '.join(names[1:])} into {names[0]}"
    return f"moved {counted(step.images, noun)} to {names[0]}"


def describe_classes(classes: Sequence[Label], extended: Sequence[Label], most: int) -> str:
    """List classes, at most ``most`` of each kind."""
    parts = []
    for prefix, names in (("", classes), ("more of ", extended)):
        if names:
            shown = names if len(names) <= most + 1 else names[:most]
            more = f" and {len(names) - len(shown)} more" if len(shown) < len(names) else ""
            parts.append(prefix + ", ".join(printable(str(name)) for name in shown) + more)
    return "; ".join(parts)


def percent(value: float | None) -> str:
    """Format a percentage."""
    return "–" if value is None else f"{value:.1f} %"


def counted(number: int, noun: str) -> str:
    """Return a number with its noun.

    >>> counted(1, "image"), counted(2, "old class")
    ('1 image', '2 old classes')
    """
    plural = f"{noun}es" if noun.endswith("s") else f"{noun}s"
    return f"{number:,} {noun if number == 1 else plural}"
