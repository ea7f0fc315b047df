"""Fill the template of a model."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import Any

from equipoise.app.card import counted, describe_step
from equipoise.app.model import ACCEPT, describe_input, is_features
from equipoise.app.report.charts import MATRIX
from equipoise.app.report.facts import MOST_PAIRS, ModelFacts
from equipoise.app.report.pictures import OF_SUSPECT, Pictures
from equipoise.core.open_dir import printable
from equipoise.pages.confusion import confusion_list
from equipoise.pages.figure import Figure
from equipoise.pages.render import render
from equipoise.pages.text import one_decimal

MOST_SUSPECTS = 50
MOST_CONFUSIONS = 20


def render_model(facts: ModelFacts, figures: Sequence[Figure]) -> str:
    """Return the page of a model."""
    pictures = Pictures(facts.model)
    matrix = any(figure.name == "confusion" for figure in figures)
    return render(
        __package__,
        "model",
        figures,
        title=facts.name,
        facts=facts,
        kept=facts.images.count("memory"),
        summary=summary(facts),
        conclusion=conclusion(facts),
        cards=cards(facts),
        notes=notes(facts),
        steps=step_rows(facts),
        classes=class_rows(facts, pictures),
        held_out=facts.images.count("holdout"),
        confusions=confusion_rows(facts),
        matrix=MATRIX,
        lists=_click_lists(facts) if matrix else None,
        suspects=suspect_rows(facts, pictures),
        suspects_note=suspects_note(facts),
        unknown=how_unknown(facts),
        settings=settings(facts),
    )


def summary(facts: ModelFacts) -> str:
    """Describe the model in a line."""
    kept, held = facts.images.count("memory"), facts.images.count("holdout")
    noun = "image" if facts.model.keeps_all else "exemplar"
    parts = [
        f"{counted(len(facts.names), 'class')} in {counted(len(facts.steps), 'step')}",
        f"{counted(kept, noun)} kept" if kept else "no images kept",
        *([f"{counted(held, 'image')} held out"] if held else []),
        facts.config.method,
        facts.config.backbone,
        f"last changed {facts.last.finished[:10]}",
    ]
    return " · ".join(printable(part) for part in parts)


def conclusion(facts: ModelFacts) -> str | None:
    """Describe the result in a sentence."""
    if facts.accuracy is None:
        return None
    text = f"{facts.accuracy:.1f} % of {facts.evaluated_on} are predicted correctly"
    made = facts.predictions
    if made is not None and made.left_out:
        total = counted(len(made.labels), "image")
        text = (
            f"{facts.accuracy:.1f} % of {total} are predicted correctly, each by the model without it (leave-one-out)"
        )
    return f"{text}."


def notes(facts: ModelFacts) -> list[str]:
    """Return the warning and the advice of the last step."""
    found = {"Warning": facts.last.warning, "Advice": facts.last.advice}
    return [f"{kind}: {printable(text)}." for kind, text in found.items() if text]


def cards(facts: ModelFacts) -> list[dict[str, str]]:
    """Return the most important metrics."""
    balanced = [step for step in facts.steps if step.kind == "learn" and step.total_old and step.total_new]
    left_out = "leave-one-out" in facts.evaluated_on
    found = [
        {
            "name": "accuracy, " + ("leave-one-out" if left_out else "held-out images"),
            "value": _percent(facts.accuracy),
        },
        {"name": "mean accuracy per class", "value": _percent(facts.accuracy_macro)},
        {"name": "calibration error (ECE), points", "value": one_decimal(facts.ece)},
    ]
    if balanced:
        last = balanced[-1]
        value = f"{one_decimal(last.accuracy_old)} / {one_decimal(last.accuracy_new)}"
        found.append({"name": f"accuracy of old / new classes after step {last.step}, %", "value": value})
    return found


def _percent(value: float | None) -> str:
    return "–" if value is None else f"{value:.1f} %"


def step_rows(facts: ModelFacts) -> list[dict[str, Any]]:
    """Return one row per step, the last one first."""
    return [
        {
            "step": step.step,
            "date": step.finished[:10],
            "what": describe_step(step, most=8),
            "images": step.images if step.kind in ("learn", "move", "merge") and step.images else None,
            "seen": step.seen,
            "accuracy": None if step.seen == 1 else step.accuracy,
            "old": step.accuracy_old,
            "new": step.accuracy_new if step.accuracy_old is not None else None,
            "ece": step.ece,
        }
        for step in reversed(facts.steps)
    ]


def class_rows(facts: ModelFacts, pictures: Pictures) -> list[dict[str, Any]]:
    """Return one row per class: its images, its accuracy, its most frequent error and when it was learned."""
    learned, shown = facts.learned(), pictures.of_classes()
    kept, held = facts.images.counts("memory"), facts.images.counts("holdout")
    worst = {true: (predicted, images) for true, predicted, images in reversed(facts.confusions)}
    rows = []
    for c, (label, result) in enumerate(zip(facts.config.classes, facts.per_class, strict=True)):
        other, images = worst.get(c, (None, 0))
        first, last = learned.get(label, (None, None))
        rows.append({
            "name": facts.names[c],
            "kept": kept[c],
            "held_out": held[c],
            "correct": result.correct,
            "total": result.total,
            "accuracy": None if len(facts.names) == 1 else result.accuracy,
            "predicted_as": None if other is None else facts.names[other],
            "errors": images,
            "first": first,
            "again": last if last != first else None,
            "pictures": shown[c],
        })  # fmt: skip
    return rows


def confusion_rows(facts: ModelFacts) -> list[dict[str, Any]]:
    """Return the most frequent confusions."""
    return [
        {"true": facts.names[true], "predicted": facts.names[predicted], "images": images}
        for true, predicted, images in facts.confusions[:MOST_CONFUSIONS]
    ]


def _click_lists(facts: ModelFacts) -> dict[str, Any]:
    """Return what a click on the confusion matrix shows."""
    learned = facts.learned()
    steps = [learned.get(name, (None, None))[0] for name in facts.config.classes]
    lists = {"confusion": confusion_list(facts.confusion_matrix())}
    return {"names": facts.names, "steps": steps, "predicted_as": lists}


def suspect_rows(facts: ModelFacts, pictures: Pictures) -> list[dict[str, Any]]:
    """Return the most suspect images, with the command that moves each."""
    shown = (facts.suspects or [])[:MOST_SUSPECTS]
    names = {name for one in shown for name in (one.image, one.same_as) if name}
    found = pictures.by_name(names, OF_SUSPECT)
    return [
        {
            "image": one.image[:12],
            "picture": found.get(one.image),
            "label": printable(str(one.label)),
            "looks_like": printable(str(one.looks_like)),
            "probability": one.probability,
            "same_as": one.same_as and one.same_as[:12],
            "same_picture": found.get(one.same_as or ""),
            "command": f"equipoise move {_quoted(facts.name)} {one.image[:12]} {_quoted(str(one.looks_like))}",
        }
        for one in shown
    ]


def _quoted(name: str) -> str:
    """Quote a name for the shell; one that cannot be typed becomes a placeholder."""
    return shlex.quote(name) if name.isprintable() else "CLASS"


def suspects_note(facts: ModelFacts) -> str:
    """Describe which images are listed as suspects."""
    if facts.suspects is None:
        if len(facts.names) == 1:
            return "There is only one class so far, so no image can be in the wrong one."
        return "Not available: finding them needs the features of all images, which the default method keeps."
    if not facts.suspects:
        text = "No image seems to be in the wrong class."
    else:
        text = f"{counted(len(facts.suspects), 'image')} to look at"
        text += f", the first {MOST_SUSPECTS} of them here." if len(facts.suspects) > MOST_SUSPECTS else "."
    if facts.images.count("memory") > MOST_PAIRS:
        text += " With this many images, nearly identical ones in two classes are not shown: see `equipoise suspects`."
    return text


def how_unknown(facts: ModelFacts) -> str:
    """Describe how images of unknown classes are recognised."""
    if facts.model.familiarity is None:
        why = "there is one class" if len(facts.names) == 1 else "there were no images to compare others with"
        return f"This model reports no image as unknown, because {why}."
    return (
        f"An image is called unknown if it looks less familiar than {100 * ACCEPT:.0f} % of known images do; "
        "`equipoise predict --accept` changes this share. Familiarity combines the score of the predicted class and "
        "the similarity to the nearest class."
    )


def settings(facts: ModelFacts) -> dict[str, str]:
    """Return what the model was created with."""
    config = facts.config
    side = f"{config.shape[1]} × {config.shape[2]} pixels"
    stored = "rows of features" if is_features(config.shape) else "images"
    stored = "features and thumbnails" if config.thumbnails else "features" if config.extractor else stored
    found = {
        "method": config.method,
        "backbone": config.backbone + (" (frozen)" if config.extractor else ""),
        "input": describe_input(config.shape) if is_features(config.shape) else f"images, resized to {side}",
        "keeps": stored if facts.images.count("memory") else "no images",
        "version": config.version,
        "equipoise": config.equipoise,
    }
    return {name: printable(value) for name, value in found.items()}
