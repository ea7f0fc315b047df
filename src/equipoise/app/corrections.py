"""Corrections of a model's classes: rename, merge, move images. Each creates a version that ``undo`` can revert.

Changed classes are learned again as with `learn --extend`: a closed-form method is solved again from all stored
features, any other method is trained on the exemplars.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from equipoise.app.learn import LearnListener, as_label, learn_plan
from equipoise.app.model import Model, no_images
from equipoise.app.model_dir import ModelDir
from equipoise.app.photo_folder import UNNAMED, decode_file, printable
from equipoise.app.step_plan import check_extend, prepare
from equipoise.app.stored_features import ids_of
from equipoise.data.images import Images, join
from equipoise.engine.results import Label, StepResult
from equipoise.engine.step import now
from equipoise.errors import DataError, UsageError
from equipoise.version import __version__

IDENTITY = re.compile("[0-9a-f]{8,32}")
"""The beginning of an image's name, too long to be typed by accident."""


def rename(place: ModelDir, old: str, new: str) -> StepResult:
    """Rename a class; nothing else changes."""
    place.check()
    with place.writing():
        model = place.load(images=True)
        before, name = model.find(old), as_label(checked_name(new), model)
        if name in model.classes:
            raise UsageError(f"there is already a class '{name}': merge the two instead")
        place.abandon_step()
        model.classes[model.classes.index(before)] = name
        # the name may have been that of a class that was merged into another: nothing could tell the two apart
        model.steps = [renamed(without_class(step, name), before, name) for step in model.steps]
        last = model.steps[-1]
        result = replace(
            last,
            step=last.step + 1,
            kind="rename",
            changed=[before, name],
            classes=[],
            extended=[],
            forgotten=0,
            images=0,
            seconds=0.0,
            finished=now(),
            equipoise=__version__,
        )
        model.steps.append(result)
        place.commit(model)
        return result


def checked_name(name: str) -> str:
    """Strip spaces from the name of a class; raise an error if it has no visible characters."""
    name = printable(name).strip()
    seen = name.replace("\u200c", "").replace("\u200d", "")  # some scripts and emoji join characters with these
    if not seen or not seen.isprintable():
        raise UsageError(f"{name!r} cannot be the name of a class: use letters, digits or other visible characters")
    if UNNAMED.fullmatch(name):
        raise UsageError(f"'{name}' is what `equipoise sort` calls a group of unknown photos: choose another name")
    return name


def without_class(step: StepResult, gone: Label) -> StepResult:
    """Return a result that does not list a class among those that were learned."""
    if gone not in step.classes and gone not in step.extended:
        return step
    return replace(
        step,
        classes=[label for label in step.classes if label != gone],
        extended=[label for label in step.extended if label != gone],
        per_class=[entry for entry in step.per_class if entry.name != gone],
    )


def renamed(step: StepResult, old: Label, new: Label) -> StepResult:
    """Return a result in which a class is renamed."""

    def names(labels: Iterable[Label]) -> list[Label]:
        return [new if label == old else label for label in labels]

    return replace(
        step,
        classes=names(step.classes),
        extended=names(step.extended),
        advice=None,  # it may name the class
        per_class=[replace(entry, name=new) if entry.name == old else entry for entry in step.per_class],
    )


def merge(place: ModelDir, into: str, others: Sequence[str], listener: LearnListener | None = None) -> StepResult:
    """Merge classes into the class ``into``."""
    place.check()
    with place.writing():
        model = place.load(images=True)
        target = model.find(into)
        gone = [name for name in dict.fromkeys(map(model.find, others)) if name != target]
        if not gone:
            raise UsageError(f"name at least one other class to merge into '{target}'")
        check_extend(model, [target])
        kept = model.images_by_class()
        model.drop(gone)
        images, held = (join([kept[name][part] for name in gone]) for part in (0, 1))
        return _learn(place, model, {target: images}, held, listener, "merge", [target, *gone])


def move(
    place: ModelDir, images: Sequence[str], target: str, create: bool = False, listener: LearnListener | None = None
) -> StepResult:
    """Move images to another class.

    Parameters
    ----------
    place
        The model.
    images
        Image files that were learned, or names of stored images (or their first eight characters).
    target
        The class that they belong to.
    create
        Whether it may be a class that the model does not know yet.
    listener
        Receives the events of the step.
    """
    place.check()
    with place.writing():
        model = place.load(images=True)
        known = {str(label) for label in model.classes}
        label = as_label(checked_name(target), model) if create and target not in known else model.find(target)
        check_extend(model, [label] if label in model.classes else model.classes[:1])
        new, held = take_out(model, find_images(model, images), label)
        if not len(new):
            if len(held):
                raise UsageError(
                    "all of these images are held out for evaluation: also move other images of their class"
                )
            raise UsageError(f"these images are already in class '{label}'")
        return _learn(place, model, {label: new}, held, listener, "move", [label])


def take_out(model: Model, moved: set[str], target: Label) -> tuple[Images, Images]:
    """Remove images from all classes but one; return those that were trained on and those that were held out."""

    def among(images: Images) -> Tensor:
        return torch.tensor([identity in moved for identity in ids_of(images)], dtype=torch.bool)

    taken = [no_images(model.stored_shape)]
    for index, exemplars in model.memory.exemplars.items():
        name, chosen = model.classes[index], among(exemplars)
        if name == target or not chosen.any():
            continue
        if chosen.all():
            raise UsageError(f"class '{name}' would have no images left: merge it instead")
        taken.append(exemplars.select(chosen))
        model.memory.exemplars[index] = exemplars.select(~chosen)
    chosen = among(model.holdout)
    if target in model.classes:
        chosen &= model.holdout.labels != model.classes.index(target)
    held, model.holdout = model.holdout.select(chosen), model.holdout.select(~chosen)
    return join(taken), held


def find_images(model: Model, wanted: Sequence[str]) -> set[str]:
    """Return the names of stored images, given as files or by the beginning of their names."""
    stored = {name for parts in model.images_by_class().values() for part in parts for name in ids_of(part)}
    found = set()
    for image in wanted:
        if IDENTITY.fullmatch(image) and not os.path.exists(image):  # noqa: PTH110 - the name may hold any bytes
            names = [name for name in stored if name.startswith(image)]
            if len(names) != 1:
                many = "several images begin" if names else "no image begins"
                raise UsageError(f"{many} with '{image}': `equipoise suspects --json` shows full names")
            found.add(names[0])
            continue
        answer = decode_file(image, model.shape[1], model.bicubic)
        if isinstance(answer, DataError):
            raise answer
        if answer[1] not in stored:
            raise UsageError(f"the model has not stored an image identical to {printable(image)}: `learn` it first")
        found.add(answer[1])
    return found


def _learn(
    place: ModelDir,
    model: Model,
    new: Mapping[Label, Images],
    held: Images,
    listener: LearnListener | None,
    kind: str,
    changed: list[Label],
) -> StepResult:
    """Learn a class again with images that were in other classes; ``held`` are those that were held out."""
    (target,) = new
    count = len(new[target]) + len(held)
    train = model.settings.train  # as in the last step
    plan = prepare(model, new, 0.0, True, {"epochs": train.epochs, "batch_size": train.batch_size})
    index = model.classes.index(target)
    model.holdout = join([model.holdout, replace(held, labels=torch.full((len(held),), index))])
    return learn_plan(place, plan, listener or LearnListener(), kind=kind, changed=changed, images=count)
