"""Forget classes for good: head rows, exemplars, held-out images, names, and every version that had them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from equipoise.app.model import Label, Model
from equipoise.app.modeldir import KINDS, ModelDir
from equipoise.app.pictures import folder_name
from equipoise.app.teach import now, verdict
from equipoise.data.images import digest
from equipoise.errors import RunError, UsageError, unknown
from equipoise.learn.runtime import Runtime
from equipoise.study.evaluate import predict_all
from equipoise.version import __version__


@dataclass(frozen=True)
class Forgotten:
    """What was removed, and how many files were looked through to be sure."""

    classes: list[Label]
    images: int
    scanned: int
    record: dict[str, Any]


def forget(place: ModelDir, names: Sequence[str], runtime: Runtime | None = None) -> Forgotten:
    """Remove the classes called ``names``. There is no way back, so no earlier version stays either."""
    place.check()
    with place.writing():
        model = place.load(runtime, images=True)
        gone = [_called(model, name) for name in dict.fromkeys(names)]
        if len(gone) == len(model.classes):
            raise UsageError(f"those are all classes of {place.path}: remove the directory instead")
        files = [file for name in gone for kind in KINDS for file in (place.path / kind / folder_name(name)).glob("*")]
        contents = {file.stem: digest(file.read_bytes()) for file in files}
        model.drop(gone)
        model.steps = [scrubbed(record, gone) for record in model.steps]
        record = _record(model, len(gone))
        model.steps.append(record)
        place.abandon()
        place.commit(model, fresh=True)
        shared = {name for kind in KINDS for mine in place.images()[kind] for name in mine}  # another class's too
        scanned = verify(place, gone, {name: data for name, data in contents.items() if name not in shared})
    return Forgotten(gone, len(contents), scanned, record)


def _called(model: Model, name: str) -> Label:
    """The class whose label reads ``name``."""
    known = {str(label): label for label in model.classes}
    if name not in known:
        raise unknown("class", name, known)
    return known[name]


def scrubbed(record: Mapping[str, Any], gone: Sequence[Label]) -> dict[str, Any]:
    """A record without a word of the classes that are gone; its figures stay what they were."""
    clean = dict(record)
    for name in ("classes", "extended"):
        clean[name] = [label for label in record.get(name, []) if label not in gone]
    clean["per_class"] = [entry for entry in record["per_class"] if entry["class"] not in gone]
    return clean


def _record(model: Model, count: int) -> dict[str, Any]:
    said = predict_all(model.method, model.holdout, model.augment, model.settings.runtime)
    return {
        "step": len(model.steps) + 1,
        "kind": "forget",
        "when": now(),
        "classes": [],
        "extended": [],
        "count": count,
        **verdict(said, len(model.classes), model.classes),
        "accuracy_new": None,
        "equipoise": __version__,
    }


def verify(place: ModelDir, gone: Sequence[Label], images: Mapping[str, bytes]) -> int:
    """Look through every file for what should be gone; returns how many there were."""
    files = [file for file in place.path.rglob("*") if file.is_file()]
    contents = set(images.values())
    for file in files:
        data = file.read_bytes()
        if file.stem in images or digest(data) in contents or _names(file, data, gone, images):
            raise RunError(f"the classes are forgotten, but {file} could not be cleared of them: look at it yourself")
    return len(files)


def _names(file: Path, data: bytes, gone: Sequence[Label], images: Mapping[str, bytes]) -> bool:
    """Whether a file of ours that lists things lists something that is gone."""
    if file.name not in ("config.json", "steps.json", "images.json"):
        return False
    text = data.decode(errors="replace")
    return any(f'"{name}"' in text for name in images) or any(f'"class": "{name}"' in text for name in gone)
