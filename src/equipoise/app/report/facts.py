"""Data for the page of a model: predictions of images that it did not learn from, and statistics of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from equipoise.app.card import counted
from equipoise.app.model import Model
from equipoise.app.model_dir import ModelDir
from equipoise.app.model_files import ModelConfig, ModelImages
from equipoise.app.suspects import Suspect, suspects_in
from equipoise.core.open_dir import printable
from equipoise.engine.metrics import accuracy, calibration_error, macro_accuracy
from equipoise.engine.results import ClassResult, Label, StepResult

BINS = 15
"""Bins of the calibration error, with the same number of images each."""
BATCH = 4096
MOST_PAIRS = 10_000
"""Images, at most, among which nearly equal ones are looked for."""
Confusion = tuple[int, int, int]
"""True class, predicted class, images."""


@dataclass(frozen=True)
class Predictions:
    """Images that were left out or held out."""

    labels: Tensor
    predicted: Tensor
    confidence: Tensor
    left_out: bool

    @property
    def correct(self) -> Tensor:
        return self.labels == self.predicted

    def bins(self) -> list[Tensor]:
        """Return the rows of each bin, the least confident first."""
        order = self.confidence.argsort(stable=True)
        return list(order.tensor_split(min(BINS, len(order))))


@dataclass(frozen=True)
class ModelFacts:
    """A model, and how well it predicts."""

    place: ModelDir
    config: ModelConfig
    model: Model
    images: ModelImages
    predictions: Predictions | None
    suspects: list[Suspect] | None
    """None if they cannot be found in this model."""

    @property
    def steps(self) -> list[StepResult]:
        return self.model.steps

    @property
    def last(self) -> StepResult:
        return self.steps[-1]

    @property
    def name(self) -> str:
        return printable(self.place.path.name or self.place.path.resolve().name)

    @cached_property
    def names(self) -> list[str]:
        """Names of the classes as they are shown."""
        return [printable(str(name)) for name in self.config.classes]

    @cached_property
    def confusions(self) -> list[Confusion]:
        """How often each class is predicted as another one, the most frequent first."""
        if self.predictions is None:
            return []
        wrong, classes = ~self.predictions.correct, len(self.names)
        pairs = self.predictions.labels[wrong] * classes + self.predictions.predicted[wrong]
        values, counts = pairs.unique(return_counts=True)
        order = counts.argsort(descending=True, stable=True)
        return [
            (value // classes, value % classes, count)
            for value, count in zip(values[order].tolist(), counts[order].tolist(), strict=True)
        ]

    @cached_property
    def per_class(self) -> list[ClassResult]:
        """Return the result of each class, from the last step if nothing can be predicted."""
        classes = self.config.classes
        if self.predictions is None:
            known = {result.name: result for result in self.last.per_class}
            return [known.get(name, ClassResult(name, None, 0, 0)) for name in classes]
        totals = torch.bincount(self.predictions.labels, minlength=len(classes)).tolist()
        correct = torch.bincount(self.predictions.labels[self.predictions.correct], minlength=len(classes)).tolist()
        return [
            ClassResult(name, 100 * hits / total if total else None, hits, total)
            for name, hits, total in zip(classes, correct, totals, strict=True)
        ]

    @property
    def accuracy(self) -> float | None:
        if len(self.names) == 1:
            return None
        return self.last.accuracy if self.predictions is None else accuracy(self.predictions.correct)

    @property
    def accuracy_macro(self) -> float | None:
        if len(self.names) == 1:
            return None
        return self.last.accuracy_macro if self.predictions is None else macro_accuracy(self.per_class)

    @property
    def ece(self) -> float | None:
        """The expected calibration error in percent."""
        made = self.predictions
        return self.last.ece if made is None else calibration_error(made.confidence, made.correct, BINS)

    @property
    def evaluated_on(self) -> str:
        """Describe the images that the metrics are computed on."""
        made = self.predictions
        left_out = self.last.evaluated == "leave-one-out" if made is None else made.left_out
        total = self.last.total_old + self.last.total_new if made is None else len(made.labels)
        return f"{counted(total, 'image')} (leave-one-out)" if left_out else counted(total, "held-out image")

    @property
    def why_unknown(self) -> str | None:
        """Say why there are no predictions."""
        if self.predictions is not None:
            return None
        if len(self.names) == 1:
            return "There is only one class so far, so every image is predicted as that class."
        if self.model.memory.images() is None:
            found = "the numbers below are those of the last step" if self.last.accuracy is not None else ""
            return "This model keeps no images" + (f": {found}." if found else ", so its accuracy is not known.")
        return "Every class has too few images to evaluate on, so the accuracy is not known."

    def learned(self) -> dict[Label, tuple[int, int]]:
        """Return the first and the last step in which each class got images."""
        found: dict[Label, tuple[int, int]] = {}
        for step in self.steps:
            for name in (*step.classes, *step.extended):
                found[name] = (found.get(name, (step.step, 0))[0], step.step)
        return found

    def confusion_matrix(self) -> np.ndarray[Any, Any]:
        """Count how often class i (row) is predicted as class j (column)."""
        classes = len(self.names)
        counts = np.diag([result.correct or 0 for result in self.per_class])
        for true, predicted, images in self.confusions:
            counts[true, predicted] = images
        return counts.reshape(classes, classes)


def read_facts(place: ModelDir) -> ModelFacts:
    """Load the current version with its images, and predict those that it did not learn from."""
    return place.consistently(lambda config: _facts(place, config))


def _facts(place: ModelDir, config: ModelConfig) -> ModelFacts:
    model = place.load_version(config, images=True)
    suspects = find(model)
    return ModelFacts(place, config, model, place.images_of(config), predict(model), suspects)


def find(model: Model) -> list[Suspect] | None:
    """Return suspect images, None if this model keeps too few to find them."""
    kept = model.memory.images()
    if not model.keeps_all or kept is None or len(model.classes) < 2:
        return None
    return suspects_in(model, kept, pairs=len(kept) <= MOST_PAIRS)


def predict(model: Model) -> Predictions | None:
    """Predict held-out images, or each kept image by the solution without it (modifies ``model``: solves it again)."""
    if len(model.classes) < 2:
        return None
    if len(model.holdout):
        predicted = model.predictor()
        rows = torch.arange(len(model.holdout)).split(BATCH)
        found = [predicted(model.holdout.select(part))[0].max(1) for part in rows]
        return _joined(model.holdout.labels, found, left_out=False)
    model.refit()
    kept, logits, at = model.memory.images(), model.method.loo_logits, model.method.loo_rows
    if kept is None or logits is None or at is None or not len(at):
        return None
    found = [(part / model.temperature).softmax(1).max(1) for part in logits.split(BATCH)]
    return _joined(kept.labels[at], found, left_out=True)


def _joined(labels: Tensor, found: Sequence[Any], left_out: bool) -> Predictions:
    confidence, predicted = (torch.cat(parts).cpu() for parts in zip(*found, strict=True))
    return Predictions(labels, predicted, confidence, left_out)
