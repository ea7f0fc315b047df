"""One step of a model: split the images, prepare, learn, and evaluate on held-out images."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch

from equipoise.app.advice import advise
from equipoise.app.calibration import calibrate
from equipoise.app.model import Model, collect, is_features
from equipoise.core.config import build
from equipoise.core.seeding import generator
from equipoise.data.images import Images, join
from equipoise.data.stream import Step
from equipoise.engine.learner import make_method
from equipoise.engine.results import Label, StepResult
from equipoise.engine.step import unfairness
from equipoise.errors import UsageError
from equipoise.learn.closed_form import ClosedForm
from equipoise.learn.schedule import Schedule
from equipoise.learn.stage import StageStore, TrainListener

NewImages = Mapping[Label, Images]
"""Images of each class that arrives."""


def split_holdout(new: NewImages, fraction: float, seed: int) -> tuple[dict[Label, Images], dict[Label, Images]]:
    """Split each class into images to train on and a fraction to evaluate on.

    Classes of three images or fewer are not split.
    """
    if not isinstance(fraction, int | float) or not 0 <= fraction < 1:
        raise UsageError(f"holdout must be a fraction from 0 to below 1, got {fraction!r}")

    train, held = {}, {}
    for name, images in new.items():
        total = len(images)
        count = min(max(1, round(fraction * total)), total - 1) if fraction and total > 3 else 0
        order = torch.randperm(total, generator=generator(seed, "holdout", str(name)))
        drawn, rest = order[:count].sort().values, order[count:].sort().values
        train[name], held[name] = images.select(rest), images.select(drawn)
    return train, held


def auto_budget(images: int, features: bool) -> dict[str, int]:
    """Choose epochs and batch size so that training sees about 50,000 images in 20 to 120 epochs.

    Rows of features need less: 16,000 in 5 to 100 epochs.
    """
    total, least, most = (16_000, 5, 100) if features else (50_000, 20, 120)
    epochs = min(max(round(total / max(images, 1)), least), most)
    return {"epochs": epochs, "batch_size": 64 if images >= 2000 else 32}


@dataclass
class StepPlan:
    """A step that is ready to be learned; extended classes are dropped from ``model`` and arrive again."""

    model: Model
    step: Step
    images: Images
    """All training images, rehearsal included."""
    held: int
    """Number of images held out in this step."""
    extended: list[Label]

    @property
    def load(self) -> int:
        """Training images over all epochs."""
        return self.model.workload(self.step, self.images)

    @property
    def epochs(self) -> int:
        return self.model.settings.train.for_step(self.step.index).epochs if self.model.trains else 0

    @property
    def added(self) -> list[Label]:
        """Classes that are new to the model."""
        return [name for name in self.model.classes[self.step.old :] if name not in self.extended]

    def estimate_seconds(self) -> float:
        """Estimate the training time with a short trial on a copy."""
        rate = self.model.copy().throughput(self.step, self.images)
        return 0.0 if rate is None else self.load / rate

    def learn(self, listener: TrainListener | None = None, store: StageStore | None = None) -> StepResult:
        """Learn the step and add its result to the model."""
        model = self.model
        everything = model.fit(self.step, self.images).everything
        learned = model.learn(self.step, self.images, model.holdout, model.classes, listener, store).result
        result = replace(learned, step=len(model.steps) + 1, held_out=self.held)
        result = replace(result, warning=unfairness(learned), advice=advise(model, learned, everything))
        result = replace(result, classes=self.added, extended=self.extended, ece=calibrate(model, everything))
        model.steps = [shortened(step) for step in model.steps] + [result]
        return result


def shortened(step: StepResult) -> StepResult:
    """Return the result of an earlier step with only its own classes: a thousand steps would list a million classes.

    The advice is removed: it is out of date, and may name classes that were renamed or forgotten.
    """
    own = {*step.classes, *step.extended}
    return replace(step, per_step=[], per_class=[entry for entry in step.per_class if entry.name in own], advice=None)


def prepare(model: Model, new: NewImages, holdout: float | None, extend: bool, train: Mapping[str, Any]) -> StepPlan:
    """Prepare to learn new images. Changes ``model``: pass a copy.

    A known class that gets more images is learned again from its exemplars and the new images. So the method treats it
    as one of the step's new classes, and aligns it with the old ones.

    Parameters
    ----------
    model
        The model.
    new
        Images of each class.
    holdout
        Fraction of each class to hold out for evaluation (None: a tenth, or none where leave-one-out is possible).
    extend
        Allow images of known classes.
    train
        Training settings. Epochs and batch size default to values for the number of images, all others to those of the
        step before or the recipe.
    """
    if holdout is None:
        holdout = 0.0 if model.keeps_all and model.method.leaves_one_out else 0.1
    trained, held = split_holdout(new, holdout, model.settings.seed)
    extended = [name for name in model.classes if name in new]
    if extended and not extend:
        raise already_known(model, extended[0])
    check_extend(model, extended)
    known = model.images_by_class()
    for name in extended:
        exemplars, tests = known[name]
        if len(tests):  # the new images may have been trained on before, so they cannot be used for evaluation
            trained[name], held[name] = new[name], tests
        trained[name] = join([exemplars, trained[name]])
    held_now = sum(len(held[name]) for name in trained if name not in extended)
    if extended:
        drop_for_relearning(model, extended)
    empty = next((name for name, images in trained.items() if not len(images)), None)
    if empty is not None:
        raise UsageError(f"class '{empty}' has no images to train on: add some, or remove the class")
    old = len(model.classes)
    names = [*(name for name in trained if name not in extended), *extended]
    model.classes += names
    images = collect({name: trained[name] for name in names}, model.stored_shape, old)
    step = Step(len(model.method.steps) + 1, old, len(names), images)
    model.holdout = join([model.holdout, collect({name: held[name] for name in names}, model.stored_shape, old)])
    if model.method.rehearsal == "memory" or model.keeps_all:
        model.memory.check(len(model.classes))
        missing = [name for index, name in enumerate(model.classes[:old]) if index not in model.memory.exemplars]
        if missing and model.memory.size:
            raise UsageError(
                f"there are no exemplars of '{missing[0]}', so it would be forgotten: learn with the original model, "
                "not with a copy made with --no-memory"
            )
    images = model.training_images(step)
    budget = auto_budget(len(images), is_features(model.stored_shape)) | dict(train)
    schedule = build(Schedule, asdict(model.settings.train) | budget, "train")
    model.settings = replace(model.settings, train=schedule)
    return StepPlan(model, step, images, held_now, extended)


def check_extend(model: Model, names: Sequence[Label]) -> None:
    """Raise an error if known classes cannot get more images."""
    known = [name for name in names if name in model.classes]
    if known and not model.keeps_all and (model.method.rehearsal == "kept" or isinstance(model.method, ClosedForm)):
        remedy = "with --keep features" if model.method.rehearsal == "kept" else "with another method"
        what = f"cannot add images to class '{known[0]}', because this model keeps only statistics"
        raise UsageError(f"{what}: create a model {remedy}")


def already_known(model: Model, name: Label) -> UsageError:
    """Return the error for a class that is known already."""
    first = next((step.step for step in model.steps if name in [*step.classes, *step.extended]), None)
    when = f" (learned in step {first})" if first else ""
    return UsageError(f"class '{name}' is already known{when}: pass --extend to add images to it, or remove its folder")


def drop_for_relearning(model: Model, extended: list[Label]) -> None:
    """Drop classes that will be learned again. If these are all classes, keep the trained backbone."""
    if len(extended) < len(model.classes):
        model.drop(extended)
        return
    fresh = make_method(model.settings, model.stored_shape, model.memory, pretrained=False)
    if hasattr(model.method, "backbone"):
        fresh.backbone.load_state_dict(model.method.backbone.state_dict())
    model.method, model.classes = fresh, []
    model.memory.exemplars, model.holdout = {}, model.holdout.select(torch.arange(0))
