"""A description of the model in plain words, for the page."""

from __future__ import annotations

import math
from collections.abc import Sequence

from equipoise.app.card import describe_step, evaluated_on
from equipoise.app.model import Model
from equipoise.app.step_plan import check_extend
from equipoise.core.open_dir import printable
from equipoise.engine.results import ClassResult, Label, StepResult
from equipoise.errors import UsageError
from equipoise.serve.schema import Balance, ClassInfo, HistoryEntry
from equipoise.serve.snapshot import Snapshot
from equipoise.serve.words import for_the_page, pictures

FEW = 5
"""Pictures of a class below which more are asked for."""
EVEN = 5.0
"""Percentage points by which accuracies may differ and still be called equal."""
TESTED = 10
"""Tested pictures of old and of new classes, at least, before they are compared."""


def describe_model(snapshot: Snapshot) -> dict[str, object]:
    """Return the fields of ``ModelInfo`` that describe a version."""
    model, steps = snapshot.model, snapshot.model.steps
    last = steps[-1]
    advice, warning = (for_the_page(text) if text else None for text in (last.advice, last.warning))
    tested = last.accuracy is not None and last.seen > 1
    return {
        "version": snapshot.version,
        "method": model.settings.method,
        "backbone": model.settings.net.backbone,
        "size": snapshot.size,
        "classes": describe_classes(snapshot),
        "accuracy": class_average(last) if tested else None,
        "evaluated_on": tested_on(last) if tested else None,
        "balance": balance(steps, model.classes) if tested else None,
        "advice": advice,
        "warning": warning,
        "history": [_entry(step) for step in steps],
        "can_extend": can_extend(model),
        "can_undo": snapshot.can_undo,
    }


def describe_classes(snapshot: Snapshot) -> list[ClassInfo]:
    """Describe each class: the step that taught it and how well it is recognised."""
    model, steps = snapshot.model, snapshot.model.steps
    results = {entry.name: entry for entry in steps[-1].per_class}
    learned, advice = first_steps(steps), for_the_page(steps[-1].advice or "")
    counts = [a + b for a, b in zip(snapshot.images.counts("memory"), snapshot.images.counts("holdout"), strict=True)]
    return [
        ClassInfo(
            number=number,
            name=str(name),
            step=learned.get(name),
            images=counts[number],
            accuracy=result.accuracy if len(model.classes) > 1 else None,
            correct=result.correct if result.total else None,
            total=result.total or None,
            thumbnails=snapshot.stored.first(number),
            advice=_advice(name, counts[number], advice, model.keeps_all),
        )
        for number, name in enumerate(model.classes)
        for result in [results.get(name, ClassResult(name, None))]
    ]


def first_steps(steps: Sequence[StepResult]) -> dict[Label, int]:
    """Return the step that taught each class; steps before a class was merged into another do not count for its name.

    A rename changes the names of classes in all earlier steps, but not in their ``changed`` field. So the names that
    classes had at each step are determined first.
    """
    former: dict[Label, Label] = {}
    """Names before a step, by name after the last one."""
    names: list[list[Label]] = []
    for step in reversed(steps):
        names.append([former.get(name, name) for name in (*step.classes, *step.extended)])
        if step.kind == "rename" and len(step.changed) == 2:
            old, new = step.changed
            former = {name: old if then == new else then for name, then in ({new: new} | former).items()}
    learned: dict[Label, int] = {}
    for step, classes in zip(steps, reversed(names), strict=True):
        if step.kind == "rename" and len(step.changed) == 2 and step.changed[0] in learned:
            learned[step.changed[1]] = learned.pop(step.changed[0])
        for name in step.changed[1:] if step.kind == "merge" else ():
            learned.pop(name, None)
        for name in [*classes, *(step.changed[:1] if step.kind == "move" else [])]:
            learned.setdefault(name, step.step)
    return learned


def _advice(name: Label, images: int, advice: str, keeps_all: bool) -> str | None:
    """Return what would help a class: the model's advice if it is about this one, or more pictures if it has few."""
    start = f"{printable(str(name))}: "
    if advice.startswith(start):
        return advice.removeprefix(start)
    if keeps_all and images < FEW:
        return f"add more pictures: {FEW} or more make it more reliable"
    return None


def balance(steps: Sequence[StepResult], classes: Sequence[Label]) -> Balance | None:
    """Compare the classes of the last step that taught any with earlier ones; every class counts the same."""
    last = steps[-1]
    learned = {name: step for name, step in first_steps(steps).items() if name in classes}
    newest = max(learned.values(), default=0)
    tested = [entry for entry in last.per_class if entry.accuracy is not None and entry.total]
    old = [entry for entry in tested if learned.get(entry.name) != newest]
    new = [entry for entry in tested if learned.get(entry.name) == newest]
    if not old or not new:
        return None
    return Balance(
        old=mean_accuracy(old),
        new=mean_accuracy(new),
        old_classes=len(old),
        new_classes=len(new),
        message=for_the_page(last.warning) if last.warning else _compare(old, new),
    )


def mean_accuracy(results: Sequence[ClassResult]) -> float:
    """Return the mean accuracy of classes."""
    return sum(entry.accuracy or 0.0 for entry in results) / len(results)


def _compare(old: Sequence[ClassResult], new: Sequence[ClassResult]) -> str:
    """Describe which classes are recognised better, if the difference is large and unlikely to be chance."""
    counts = [sum(entry.total or 0 for entry in part) for part in (old, new)]
    if min(counts) < TESTED:
        return f"too few pictures to compare: at least {TESTED} of old and {TESTED} of new classes are needed"
    difference = mean_accuracy(new) - mean_accuracy(old)
    share = sum(entry.correct or 0 for entry in (*old, *new)) / sum(counts)
    deviation = 100 * math.sqrt(share * (1 - share) * (1 / counts[0] + 1 / counts[1]))
    if abs(difference) <= max(EVEN, 2 * deviation):
        return "old and new classes are recognised equally well"
    better, worse = ("new", "old") if difference > 0 else ("old", "new")
    return f"{better} classes are recognised better than {worse} ones: more pictures of the {worse} ones would help"


def class_average(step: StepResult) -> float | None:
    """Return the accuracy, every class counting the same, so that it fits those of old and new classes."""
    return step.accuracy if step.accuracy_macro is None else step.accuracy_macro


def tested_on(step: StepResult) -> str:
    """Describe the pictures that a step was evaluated on."""
    return pictures(evaluated_on(step))


def can_extend(model: Model) -> bool:
    """Return whether known classes can get more pictures."""
    try:
        check_extend(model, model.classes[:1])
    except UsageError:
        return False
    return True


def _entry(step: StepResult) -> HistoryEntry:
    text = describe_step(step, noun="picture")
    return HistoryEntry(
        step=step.step,
        kind=step.kind,
        text=f"learned {text}" if step.kind == "learn" else text,
        finished=step.finished,
        accuracy=class_average(step),
        images=step.images if step.kind == "learn" and not step.extended else None,
    )
