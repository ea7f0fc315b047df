"""Forget classes for good: head rows, exemplars, held-out images, names, and every version that had them."""

from __future__ import annotations

import json
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from equipoise.app.calibration import calibrate
from equipoise.app.model import Model
from equipoise.app.model_dir import ModelDir
from equipoise.app.model_files import KINDS
from equipoise.app.stored_images import folder_name, stem
from equipoise.app.unused_files import images_in
from equipoise.core.files import digest
from equipoise.core.tensors import MAX_TENSOR_BYTES
from equipoise.engine.evaluate import predict_all, predictions_from
from equipoise.engine.results import Label, StepResult
from equipoise.engine.step import evaluation, now
from equipoise.errors import RunError, UsageError
from equipoise.learn.closed_form import ClosedForm
from equipoise.learn.runtime import Runtime
from equipoise.version import __version__

JSON_FILES = ("config.json", "steps.json", "images.json")


@dataclass(frozen=True)
class Forgotten:
    """What was removed, and how many files were searched for traces."""

    classes: list[Label]
    images: int
    scanned: int
    result: StepResult
    remains: Literal["nothing", "statistics", "head", "backbone"]
    """What was trained with the removed classes and is still in use."""


def forget(place: ModelDir, names: Sequence[str], runtime: Runtime | None = None) -> Forgotten:
    """Remove classes. It cannot be undone, so all earlier versions are removed too."""
    place.check()
    with place.writing():
        model = place.load(runtime, images=True)
        gone = list(dict.fromkeys(map(model.find, names)))
        if len(gone) == len(model.classes):
            raise UsageError(f"these are all classes of {place.path}: delete the directory instead")
        folders = [f"{kind}/{folder_name(name)}" for name in gone for kind in KINDS]  # of all versions
        files = [file for folder in folders for file in images_in(place.directory, folder)]
        contents = {stem(file): digest(place.directory.read_bytes(file, MAX_TENSOR_BYTES)) for file in files}
        sizes = {place.directory.size(file) for file in files}
        kept = model.images_by_class()
        count = len(contents) if not model.in_blocks else sum(len(part) for name in gone for part in kept[name])
        model.drop(gone)
        model.refit()
        calibrated = calibrate(model, model.memory.images())
        erased = [*gone, *former_names(model.steps, gone, model.classes)]
        model.steps = [without_classes(step, erased) for step in model.steps]
        result = replace(_evaluate(model, len(gone)), ece=calibrated)
        model.steps.append(result)
        place.abandon_step()
        place.commit(model, fresh=True)
        images = place.images_of(place.config())
        shared = {name for kind in KINDS for mine in images.of(kind) for name in mine}  # also in another class
        scanned = verify(place, erased, {name: data for name, data in contents.items() if name not in shared}, sizes)
    return Forgotten(gone, count, scanned, result, remaining(model))


def remaining(model: Model) -> Literal["nothing", "statistics", "head", "backbone"]:
    """Return what still depends on removed classes."""
    if model.keeps_all:  # a copy without them could not be solved again
        return "nothing" if len(model.memory.exemplars) == len(model.classes) else "head"
    if model.trains and model.extractor is None and model.settings.net.backbone != "identity":
        return "backbone"
    if isinstance(model.method, ClosedForm):
        return "statistics"
    return "head" if model.trains else "nothing"


def former_names(steps: Sequence[StepResult], gone: Sequence[Label], current: Sequence[Label]) -> list[Label]:
    """Return names that removed classes had before, and names of classes that were merged into them."""
    found = set(gone)
    for step in reversed(steps):
        if step.kind == "rename" and step.changed[-1:] and step.changed[-1] in found:
            found.add(step.changed[0])
        elif step.kind == "merge" and step.changed[:1] and step.changed[0] in found:
            found.update(step.changed)
    return sorted(found - set(gone) - set(current), key=str)


def without_classes(step: StepResult, gone: Sequence[Label]) -> StepResult:
    """Return a result that does not mention the removed classes; its metrics stay."""
    return replace(
        step,
        classes=[label for label in step.classes if label not in gone],
        extended=[label for label in step.extended if label not in gone],
        advice=None,  # it may name them
        changed=[] if set(step.changed) & set(gone) else step.changed,
        per_class=[entry for entry in step.per_class if entry.name not in gone],
    )


def _evaluate(model: Model, count: int) -> StepResult:
    classes, kept = len(model.classes), model.memory.images()
    method = model.method
    loo = method.loo_logits if not len(model.holdout) else None
    if kept is not None and loo is not None:
        predictions = predictions_from(loo, kept.labels[method.loo_rows])
    else:
        predictions = predict_all(model.over(model.holdout))
    return StepResult(
        step=len(model.steps) + 1,
        kind="forget",
        forgotten=count,
        evaluated="images" if loo is None else "leave-one-out",
        seen=classes,
        new=0,
        **evaluation(predictions, predictions, classes, model.method.steps, model.classes),
        exemplars=len(model.memory),
        finished=now(),
        equipoise=__version__,
    )


def verify(place: ModelDir, gone: Sequence[Label], images: Mapping[str, bytes], sizes: Container[int]) -> int:
    """Search every file for traces of the removed classes; return the number of files.

    A copy of a removed image has one of the given ``sizes``, so files of other sizes need not be read.
    """
    files = [entry.name for entry in place.directory.walk() if entry.kind == "file"]
    contents = set(images.values())
    for file in files:
        named = file.rpartition("/")[2] in JSON_FILES
        copied = place.directory.size(file) in sizes
        data = place.directory.read_bytes(file, MAX_TENSOR_BYTES) if named or copied else b""
        if stem(file) in images or digest(data) in contents or (named and _mentions(data, gone, images)):
            raise RunError(
                f"the classes are forgotten, but {place.path / file} still contains traces of them: check that file"
            )
    return len(files)


def _mentions(data: bytes, gone: Sequence[Label], images: Mapping[str, bytes]) -> bool:
    """Return whether one of our JSON files mentions something that should be gone."""
    text = data.decode(errors="replace")
    names = [f'"name": {json.dumps(name, ensure_ascii=False)}' for name in gone]
    return any(f'"{name}"' in text for name in images) or any(name in text for name in names)
