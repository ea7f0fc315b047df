"""Helpers for tests of models and their directories."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from equipoise.app.learn import LearnListener, LearnOptions, learn_folder
from equipoise.app.model import Model
from equipoise.app.model_dir import ModelDir
from equipoise.app.model_files import ModelImages
from equipoise.data.images import Images
from equipoise.engine.results import StepResult
from tests.folders import unseen

QUICK: dict[str, dict[str, Any]] = {
    "net": {"backbone": "tiny"},
    "train": {"batch_size": 16},
    "augment": {"flip": False},
    "runtime": {"threads": 1},
}
"""Settings of a new model that is trained in a second."""


def learn(place: Path, folder: Path, listener: LearnListener | None = None, **options: Any) -> StepResult:
    """Learn a folder of glyphs; the first call creates the model."""
    model = ModelDir(place)
    first = {} if model.exists else {"image_size": 24, "overrides": QUICK}
    wanted = LearnOptions(**{"epochs": 60, "holdout": 0.25, "memory": 60, **first, **options})
    result = learn_folder(model, folder, wanted, listener)
    assert result is not None
    return result


def undo(place: Path) -> StepResult | None:
    """Undo the last step."""
    with ModelDir(place).writing():
        return ModelDir(place).undo()


def images_of(place: Path) -> ModelImages:
    """Return the names of the current version's images."""
    return ModelDir(place).images_of(ModelDir(place).config())


def version_of(place: Path) -> Path:
    """Return the directory of the current version."""
    return place / "versions" / ModelDir(place).config().version


def probabilities(model: Model | Path, classes: Sequence[int] = range(6)) -> torch.Tensor:
    """Return what a model predicts for the test images of some glyphs."""
    loaded = model if isinstance(model, Model) else ModelDir(model).load()
    return loaded.probabilities(unlabelled(unseen(classes)))


def unlabelled(pixels: torch.Tensor) -> Images:
    """Return images whose labels do not matter."""
    return Images.of(pixels, torch.zeros(len(pixels)))


class StopAfter(LearnListener):
    """Counts epochs, and interrupts training after some of them as Ctrl-C does."""

    def __init__(self, epochs: int | None = None) -> None:
        self.epochs, self.done = epochs, 0

    def epoch(self, epoch: int, loss: float, lr: float) -> None:
        self.done += 1
        if self.done == self.epochs:
            raise KeyboardInterrupt
