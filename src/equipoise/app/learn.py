"""Teach the classes in a folder of photos to a model in a directory."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from equipoise.app.dry_run import TrialExtractor
from equipoise.app.labels import normal
from equipoise.app.model import Model
from equipoise.app.model_dir import PENDING, ModelDir
from equipoise.app.photo_folder import Decoded, FolderScan, read_images, scan_folder
from equipoise.app.step_plan import StepPlan, already_known, check_extend, prepare
from equipoise.app.stored_features import ids_of
from equipoise.app.stored_images import folder_name
from equipoise.core.config import build, parse_value, with_settings
from equipoise.core.files import digest
from equipoise.data.augment import Augment
from equipoise.data.decoding import check_size, short_side
from equipoise.data.sources import options
from equipoise.data.sources.folder import MEAN, STD
from equipoise.engine.checkpoint import StepCheckpoint
from equipoise.engine.learner import Shape
from equipoise.engine.recipes import resolve
from equipoise.engine.results import Label, StepResult
from equipoise.engine.settings import Settings
from equipoise.errors import UsageError
from equipoise.learn.backbones.pretrained import PRETRAINED, input_statistics
from equipoise.learn.runtime import Runtime
from equipoise.learn.stage import TrainListener

Keep = Literal["features", "thumbnails", "statistics"]
"""What methods that train nothing keep; thumbnails are kept in addition to features."""


@dataclass(frozen=True)
class LearnOptions:
    """Options of a step; None means the default or the model's own setting."""

    method: str | None = None
    backbone: str | None = None
    weights: Path | str | None = None
    image_size: int | None = None
    recipe: str | None = None
    keep: Keep | None = None
    memory: int | str | None = None
    epochs: int | None = None
    seed: int | None = None
    holdout: float | None = None
    extend: bool = False
    strict: bool = False
    overrides: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Any other setting, by section."""

    def sections(self) -> dict[str, dict[str, Any]]:
        """Return all settings by section."""
        named = {
            "net.backbone": self.backbone,
            "net.weights": self.weights and str(self.weights),
            "memory.size": {"features": "all", "thumbnails": "all", "statistics": 0, None: self.memory}[self.keep],
            "train.epochs": self.epochs,
            "data.size": self.image_size,
        }
        return with_settings(self.overrides, named)


class LearnListener(TrainListener):
    """Receives the events of a step; override what you need."""

    def reading(self, images: Iterable[Decoded], total: int) -> Iterable[Decoded]:
        """Yield the images while they are decoded."""
        return images

    def note(self, text: str) -> None:
        """Receive a note for the user."""

    def plan(self, plan: StepPlan, found: FolderScan, seconds: float, epochs_done: int) -> None:
        """The step is ready and will take about ``seconds``; ``epochs_done`` were trained before an interruption."""

    def learned(self, result: StepResult, model: Model) -> None:
        """The step is finished and saved."""

    def close(self) -> None:
        """Clean up the screen."""


def learn_folder(
    place: ModelDir, folder: Path, wanted: LearnOptions, listener: LearnListener | None = None, dry_run: bool = False
) -> StepResult | None:
    """Learn the classes of a folder. The model does not change until the step is complete.

    Returns
    -------
    StepResult or None
        The result of the step; None for a dry run.
    """
    listener = listener or LearnListener()
    place.check_free()
    found = scan_folder(folder)
    if dry_run:
        _dry_run(place, found, wanted, listener)
        return None
    return learn_files(place, found, wanted, listener)


def learn_files(place: ModelDir, found: FolderScan, wanted: LearnOptions, listener: LearnListener) -> StepResult:
    """Learn the classes of files that were found; those that cannot be used are added to ``found.skipped``."""
    with place.writing():
        plan = plan_step(place, found, wanted, listener)
        return learn_plan(place, plan, listener, found, skipped_files=len(found.skipped))


def learn_plan(
    place: ModelDir, plan: StepPlan, listener: LearnListener, found: FolderScan | None = None, **facts: Any
) -> StepResult:
    """Learn a step that is ready and make it the current version; ``facts`` are added to its result."""
    checkpoint = _checkpoint(place, plan)
    if checkpoint.dropped:
        listener.note("the checkpoint of another interrupted step was deleted")
    listener.plan(plan, found or FolderScan(Path()), plan.estimate_seconds(), checkpoint.epochs)
    result = replace(plan.learn(listener, checkpoint), **facts)
    plan.model.steps[-1] = result
    place.commit(plan.model)
    checkpoint.clear()
    listener.learned(result, plan.model)
    return result


def _dry_run(place: ModelDir, found: FolderScan, wanted: LearnOptions, listener: LearnListener) -> None:
    model = open_model(place, found, wanted)
    trial = None if model.extractor is None else TrialExtractor(model.extractor)
    plan = plan_model(replace(model, extractor=trial), found, wanted, listener)
    seconds = trial.seconds() if trial else 0.0
    listener.plan(plan, found, seconds + plan.estimate_seconds(), 0)


def _checkpoint(place: ModelDir, plan: StepPlan) -> StepCheckpoint:
    """Return the checkpoint of a step, identified by the model's version, the settings and the images."""
    model = plan.model
    version = place.config().version if place.exists else "none"
    images = plan.images.fingerprint()
    identities = [
        digest(f"{version} {identity} {model.classes}".encode() + images).hex()
        for identity in (model.settings.identity(), model.settings.identity_v1())
    ]
    return StepCheckpoint(place.directory, PENDING, identities[0], identities[1:])


def plan_step(place: ModelDir, found: FolderScan, wanted: LearnOptions, listener: LearnListener) -> StepPlan:
    """Open the model, read the photos and prepare the step."""
    return plan_model(open_model(place, found, wanted), found, wanted, listener)


def plan_model(model: Model, found: FolderScan, wanted: LearnOptions, listener: LearnListener) -> StepPlan:
    """Read the photos and prepare the step of a model that is open."""
    labels = {name: as_label(name, model) for name in found.classes}
    if not wanted.extend:
        for label in labels.values():
            if label in model.classes:
                raise already_known(model, label)  # before all photos are read
    check_extend(model, list(labels.values()))
    known: dict[str, str] = {}
    for name, parts in model.images_by_class().items():
        for part in parts:
            known |= dict.fromkeys(ids_of(part), str(name))
    if wanted.keep:
        model.keeps_thumbnails = wanted.keep == "thumbnails"
    thumbnails = model.thumbnails if model.keeps_thumbnails else None
    reading = listener.reading, known, wanted.strict, model.extractor, thumbnails, model.bicubic
    images = read_images(found, model.shape[1], *reading)
    model.settings.runtime.start(model.trains)
    new = {labels[name]: mine for name, mine in images.items()}
    return prepare(model, new, wanted.holdout, wanted.extend, wanted.sections().get("train", {}))


def as_label(name: str, model: Model) -> Label:
    """Return the label for a folder's name: a model created in Python may have numbers or booleans."""
    known = {folder_name(label): label for label in model.classes}
    known |= {normal(str(label)): label for label in model.classes} | {str(label): label for label in model.classes}
    if name in known or not model.classes or isinstance(model.classes[0], str):
        return known.get(name, name)
    label: Label = parse_value(name)
    if type(label) is not type(model.classes[0]) or str(label) != name:
        raise UsageError(
            f"this model has labels such as {model.classes[0]!r}, but the folder is called '{name}': rename it"
        )
    return label


def open_model(place: ModelDir, found: FolderScan, wanted: LearnOptions) -> Model:
    """Return the model in ``place`` with changed settings, or a new one."""
    runtime = build(Runtime, wanted.sections().get("runtime", {}), "runtime")
    _reject_experiment_settings(wanted, runtime)
    if not place.exists:
        return new_model(found, wanted)
    model = place.load(runtime, images=True)
    model.check_takes_photos()
    model.check_engine()
    _reject_changes(model, wanted, runtime)
    _reject_keep(model, wanted)
    model.change_memory(wanted.sections().get("memory", {}))
    return model


def _reject_experiment_settings(wanted: LearnOptions, runtime: Runtime) -> None:
    """Raise an error for settings that only experiments have and that would do nothing here."""
    only = set(options("folder")) - {"size"}
    unused = [f"data.{name}" for name in wanted.overrides.get("data", {}) if name in only]
    unused += [f"stream.{name}" for name in wanted.overrides.get("stream", {})]
    unused += [f"runtime.{name}" for name in ("devices", "nodes") if getattr(runtime, name) > 1]
    if unused:
        raise UsageError(f"{unused[0]} is only for experiments and has no effect on a model: remove it")


def new_model(found: FolderScan, wanted: LearnOptions) -> Model:
    """Return a new model for the photos of a folder."""
    sections = wanted.sections()
    recipe, method = default_recipe(sections.get("net", {}))
    settings = resolve("folder", wanted.method or method, wanted.recipe or recipe, wanted.seed or 0, sections)
    if "size" not in sections.get("data", {}):
        files = [file for files in found.classes.values() for file in files]
        size = size_for(settings.net.backbone, short_side(files))
        settings = replace(settings, data=settings.data | {"size": size})
    shape = (3, settings.data["size"], settings.data["size"])
    check_size(shape[1])
    model = Model.create(settings, shape, photo_augment(shape, settings))
    _reject_keep(model, wanted)
    return model


def _reject_keep(model: Model, wanted: LearnOptions) -> None:
    """Raise an error for --keep where it does not apply."""
    if wanted.keep and model.trains:
        raise UsageError(f"--keep is for methods that train nothing, not for {model.settings.method}: use --memory")
    if wanted.keep and wanted.memory is not None:
        raise UsageError("--keep and --memory exclude each other: remove one of them")
    if model.method.rehearsal == "kept" and wanted.memory not in (None, "all"):
        raise UsageError(f"--memory is for methods that train, not for {model.settings.method}: use --keep")


def photo_augment(shape: Shape, settings: Settings) -> Augment:
    """Return the augmentation of photos: shifted and flipped, normalised with ImageNet's statistics."""
    mean, std = (MEAN, STD) if shape[0] == 3 else ((0.5,), (0.25,))
    statistics = {"mean": mean, "std": std} | input_statistics(settings.net.backbone, settings.net.weights)
    augment = replace(Augment(pad=max(shape[1] // 8, 1), flip=True), **statistics, **settings.augment)
    if augment.resized_crop:
        raise UsageError("augment.resized_crop is only for experiments: set it to false")
    return augment


def default_recipe(net: Mapping[str, Any]) -> tuple[str, str]:
    """Return recipe and method of a new model: closed form on a pretrained backbone, or WA from random weights."""
    backbone = net.get("backbone", "lite0")
    pretrained = backbone in PRETRAINED or (str(backbone).startswith("timm:") and net.get("weights"))
    return ("photos", "ridge") if pretrained else ("folder", "wa")


def size_for(backbone: str, short_side: int) -> int:
    """Choose the image size: the network's own, or 32 pixels for small images and 64 for others."""
    if backbone in PRETRAINED:
        return PRETRAINED[backbone].size
    if backbone == "resnet18" or backbone.startswith("timm:"):
        return 224
    return 32 if short_side < 48 else 64


def _reject_changes(model: Model, wanted: LearnOptions, runtime: Runtime) -> None:
    """Raise an error for settings that are fixed when a model is created."""
    settings = model.settings
    precision = runtime.precision if "precision" in wanted.overrides.get("runtime", {}) else None
    fixed = {
        "--method ": (wanted.method, settings.method),
        "--backbone ": (wanted.backbone, settings.net.backbone),
        "--image-size ": (wanted.image_size, model.shape[1]),
        "--recipe ": (wanted.recipe, settings.recipe),
        "--seed ": (wanted.seed, settings.seed),
        "runtime.precision=": (precision, settings.runtime.precision),
    }
    for option, (asked, current) in fixed.items():
        if asked is not None and asked != current:
            what = f"{option}{asked} conflicts with this model ({current})"
            raise UsageError(f"{what}: remove it, or create a new model")
    if wanted.weights is not None:
        raise UsageError("--weights applies only when a model is created: remove it, or create a new model")
    for section, values in wanted.overrides.items():
        for name in values if section not in ("train", "memory", "runtime") else ():
            shown = f"{'method' if section == 'fields' else section}.{name}"
            raise UsageError(f"{shown} is fixed when a model is created: remove it, or create a new model")
