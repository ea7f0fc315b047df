"""One version of a model, in memory; it never changes, so an answer never mixes two versions."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from threading import Semaphore

import numpy as np
import torch
from torch import Tensor

from equipoise.app.calibration import features_of
from equipoise.app.class_images import ClassImages
from equipoise.app.model import Model
from equipoise.app.model_dir import ModelDir
from equipoise.app.model_files import ModelConfig, ModelImages
from equipoise.app.predict import Prediction, predict_batch
from equipoise.data.images import Images

KNOWN = 5000
"""Features of known images, at most, that are compared with unknown ones."""


@dataclass(frozen=True)
class Snapshot:
    """A model that predicts, and facts about it."""

    place: ModelDir
    config: ModelConfig
    model: Model
    images: ModelImages
    predictor: Callable[[Images], tuple[Tensor, Tensor]]
    can_undo: bool
    passes: Semaphore
    """Passes at the same time: ONNX Runtime uses one core for each, torch all of them."""

    @staticmethod
    def load(place: ModelDir) -> Snapshot:
        """Read the current version."""
        return place.consistently(lambda config: Snapshot._of(place, config))

    @staticmethod
    def _of(place: ModelDir, config: ModelConfig) -> Snapshot:
        model = place.load_version(config)
        model.check_takes_photos()
        undo = len(place.history_of(config)) > 1
        one_core = model.extractor is not None and model.extractor.engine == "onnxruntime"
        passes = Semaphore(os.cpu_count() or 1 if one_core else 1)
        return Snapshot(place, config, model, place.images_of(config), model.predictor(), undo, passes)

    @property
    def version(self) -> str:
        return self.config.version

    @property
    def size(self) -> int:
        """Pixels per side of a picture."""
        return self.model.shape[1]

    @cached_property
    def stored(self) -> ClassImages:
        return ClassImages(self.place, self.model, self.images)

    @cached_property
    def known_features(self) -> tuple[Tensor, Tensor]:
        """Features of some images of known classes, with their labels."""
        return self.stored.features(KNOWN)

    def predict(self, pictures: Sequence[np.ndarray], top: int, accept: float) -> list[Prediction]:
        """Predict decoded pictures (H × W × 3)."""
        least = self.model.least_familiar(accept)
        with self.passes:
            return list(predict_batch(self.model, self.predictor, [("", one) for one in pictures], top, least))

    def features(self, pictures: Sequence[np.ndarray]) -> Tensor:
        """Return the features of decoded pictures, one row each."""
        with self.passes:
            pixels = torch.from_numpy(np.stack(pictures)).permute(0, 3, 1, 2)
            return features_of(self.model, self.model.inputs(pixels))
