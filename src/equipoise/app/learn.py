"""Teach a model in a directory from a folder of pictures."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from equipoise.app.folder import Survey, read, short_side, survey
from equipoise.app.model import Label, Model, Shape
from equipoise.app.modeldir import ModelDir
from equipoise.app.pictures import identify
from equipoise.app.pretrained import load_weights
from equipoise.app.teach import Teaching, already_known, prepare
from equipoise.data.augment import Augment
from equipoise.data.images import Images, check_size, digest
from equipoise.data.sources import options
from equipoise.data.sources.folder import MEAN, STD
from equipoise.errors import DataError, UsageError
from equipoise.learn.runtime import Runtime
from equipoise.settings import build, literal
from equipoise.study.progress import Reporter
from equipoise.study.recipe import Settings, resolve
from equipoise.study.stages import Stages


@dataclass(frozen=True)
class Wishes:
    """What a user may ask of a step. None leaves it as it is, or to us."""

    method: str | None = None
    backbone: str | None = None
    weights: Path | None = None
    image_size: int | None = None
    recipe: str | None = None
    memory: int | None = None
    epochs: int | None = None
    seed: int | None = None
    holdout: float = 0.1
    extend: bool = False
    strict: bool = False
    overrides: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Any other setting, by section."""

    def sections(self) -> dict[str, dict[str, Any]]:
        sections = {section: dict(values) for section, values in self.overrides.items()}
        named = [
            ("net", "backbone", self.backbone),
            ("memory", "size", self.memory),
            ("train", "epochs", self.epochs),
            ("data", "size", self.image_size),
        ]
        for section, name, value in named:
            if value is not None:
                sections.setdefault(section, {})[name] = value
        return sections


class Onlooker(Reporter):
    """Says nothing. The command line's has something to show."""

    def reading(self, found: Survey) -> None:
        """Images are about to be decoded."""

    def decoded(self, count: int) -> None:
        """So many more were."""

    def note(self, text: str) -> None:
        """Something worth knowing."""

    def plan(self, teaching: Teaching, found: Survey, seconds: float, epochs_done: int) -> None:
        """All is ready, and will take some ``seconds``."""

    def learned(self, record: Mapping[str, Any], model: Model) -> None:
        """The step is done and saved."""


def learn_folder(
    place: ModelDir, folder: Path, wishes: Wishes, onlooker: Onlooker | None = None, dry_run: bool = False
) -> dict[str, Any] | None:
    """Learn the classes of ``folder``; the model is as it was until the step is whole. Returns the step's record."""
    onlooker = onlooker or Onlooker()
    place.check_free()
    found = survey(folder)
    if dry_run:
        teaching = make_ready(place, found, wishes, onlooker)
        onlooker.plan(teaching, found, teaching.estimate(), 0)
        return None
    with place.writing():
        teaching = make_ready(place, found, wishes, onlooker)
        model = teaching.model
        version = place.config()["version"] if place.exists else "none"
        about = f"{version} {model.settings.identity()} {model.classes}"
        stages = Stages(place.pending, digest(about.encode() + teaching.images.fingerprint()).hex())
        if stages.dropped:
            onlooker.note("another step had been stopped here; what was learned of it is dropped")
        onlooker.plan(teaching, found, teaching.estimate(), stages.epochs)
        record = teaching.learn(onlooker, stages)
        record["files_left_out"] = len(found.left_out)
        place.commit(model)
        stages.clear()
        onlooker.learned(record, model)
        return record


def make_ready(place: ModelDir, found: Survey, wishes: Wishes, onlooker: Onlooker) -> Teaching:
    """The model opened, the pictures read, the step prepared."""
    model = open_model(place, found, wishes)
    labels = {name: as_label(name, model) for name in found.classes}
    if not wishes.extend:
        for label in labels.values():
            if label in model.classes:
                raise already_known(model, label)  # before all pictures are read
    images = {labels[str(name)]: mine for name, mine in images_of(found, model, wishes, onlooker).items()}
    model.settings.runtime.start()
    return prepare(model, images, wishes.holdout, wishes.extend, wishes.sections().get("train", {}))


def as_label(name: str, model: Model) -> Label:
    """The label that a folder's name means: a model begun in Python may have numbers or truth values."""
    known = {str(label): label for label in model.classes}
    if name in known or not model.classes or isinstance(model.classes[0], str):
        return known.get(name, name)
    label = literal(name)
    if type(label) is not type(model.classes[0]):
        raise UsageError(f"the labels of this model are like {model.classes[0]!r}, so no class can be called '{name}'")
    return label


def open_model(place: ModelDir, found: Survey, wishes: Wishes) -> Model:
    """The model in ``place`` with what may be changed of it, or a new one."""
    runtime = build(Runtime, wishes.sections().get("runtime", {}), "runtime")
    _check_used(wishes, runtime)
    if not place.exists:
        return new_model(found, wishes)
    model = place.load(runtime, images=True)
    model.check_takes_pictures()
    _check_same(model, wishes)
    model.resize_memory(wishes.sections().get("memory", {}))
    return model


def _check_used(wishes: Wishes, runtime: Runtime) -> None:
    """Refuse settings that only experiments have: here they would do nothing."""
    idle = [f"data.{name}" for name in wishes.overrides.get("data", {}) if name in options("folder") and name != "size"]
    idle += [f"stream.{name}" for name in wishes.overrides.get("stream", {})]
    idle += [f"runtime.{name}" for name in ("devices", "nodes") if getattr(runtime, name) > 1]
    if idle:
        raise UsageError(f"{idle[0]} is for experiments, and does nothing where a model is taught: leave it out")


def new_model(found: Survey, wishes: Wishes) -> Model:
    sections = wishes.sections()
    settings = resolve("folder", wishes.method or "wa", wishes.recipe, wishes.seed or 0, sections)
    settings = fit_to_backbone(settings, sections)
    if "size" not in sections.get("data", {}):
        size = size_for(settings.net.backbone, short_side(found))
        settings = replace(settings, data=settings.data | {"size": size})
    shape = (3, settings.data["size"], settings.data["size"])
    check_size(shape[1])
    model = Model.blank(settings, shape, photograph_augment(shape, settings))
    if wishes.weights is not None:
        load_weights(model.method, wishes.weights)
    return model


def photograph_augment(shape: Shape, settings: Settings) -> Augment:
    """How pictures are varied and normalised: moved and mirrored, with the statistics of photographs."""
    mean, std = (MEAN, STD) if shape[0] == 3 else ((0.5,), (0.25,))
    augment = replace(Augment(mean, std, pad=max(shape[1] // 8, 1), flip=True), **settings.augment)
    if augment.resized_crop:
        raise UsageError("augment.resized_crop is for experiments: a model keeps its images at one size")
    return augment


def fit_to_backbone(settings: Settings, given: Mapping[str, Mapping[str, Any]]) -> Settings:
    """Clipped weights presume features that are never negative (Sec. 4.3), which timm's may be."""
    if (
        settings.net.backbone.startswith("timm:")
        and "clip" in settings.fields
        and "clip" not in given.get("fields", {})
    ):
        return replace(settings, fields=settings.fields | {"clip": False})
    return settings


def size_for(backbone: str, short_side: int) -> int:
    """Pixels a picture is seen with: 224 for large networks, else 32 for small pictures and 64 for others."""
    if backbone == "resnet18" or backbone.startswith("timm:"):
        return 224
    return 32 if short_side < 48 else 64


def _check_same(model: Model, wishes: Wishes) -> None:
    """Refuse what a model cannot change any more."""
    settings = model.settings
    wanted = {
        "method": (wishes.method, settings.method),
        "backbone": (wishes.backbone, settings.net.backbone),
        "image-size": (wishes.image_size, model.shape[1]),
        "recipe": (wishes.recipe, settings.recipe),
        "seed": (wishes.seed, settings.seed),
    }
    for option, (asked, is_) in wanted.items():
        if asked is not None and asked != is_:
            raise UsageError(f"--{option} is {asked}, but this model was begun with {is_}: leave it out, or begin anew")
    asked_runtime = wishes.sections().get("runtime", {})
    precision = build(Runtime, asked_runtime, "runtime").precision
    if "precision" in asked_runtime and precision != settings.runtime.precision:
        raise UsageError(
            f"runtime.precision is {precision}, but this model was begun with {settings.runtime.precision}: "
            "leave it out, or begin anew"
        )
    if wishes.weights is not None:
        raise UsageError("--weights is for the first step of a model: this one has learned already")
    fixed = [section for section in wishes.overrides if section not in ("train", "memory", "runtime")]
    if fixed:
        raise UsageError(f"settings of '{fixed[0]}' are for the first step of a model: this one has learned already")


def images_of(found: Survey, model: Model, wishes: Wishes, onlooker: Onlooker) -> dict[Label, Images]:
    """The good images; with ``strict``, all must be."""
    known: dict[str, str] = {}
    for name, parts in model.known().items():
        for part in parts:
            known |= {identify(pixels): str(name) for pixels in part.read(torch.arange(len(part)))}
    onlooker.reading(found)
    images = read(found, model.shape[1], known, onlooker.decoded)
    if wishes.strict and found.left_out:
        first = found.left_out[0]
        more = f" (and {len(found.left_out) - 1} more)" if len(found.left_out) > 1 else ""
        raise DataError(f"{first.path}: {first.why}{more}; nothing was learned, because --strict was asked for")
    if not images:
        first = found.left_out[0]
        raise DataError(f"no image in {found.root} can be learned from (the first: {first.path}: {first.why})")
    return images
