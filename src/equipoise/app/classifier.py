"""The classifier in Python, compatible with scikit-learn."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, Self

import numpy as np
import torch
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, validate_data
from torch import Tensor

from equipoise.app.arrays import (
    decode_all,
    is_images,
    is_pixels,
    label_array,
    pixels_of,
    sorted_labels,
    unique_labels,
)
from equipoise.app.labels import normal
from equipoise.app.learn import default_recipe, photo_augment, size_for
from equipoise.app.model import ACCEPT, Model, describe_input, is_features
from equipoise.app.model_dir import ModelDir
from equipoise.app.step_plan import prepare, shortened
from equipoise.core.config import with_settings
from equipoise.core.seeding import preserve_rng
from equipoise.data.augment import Augment
from equipoise.data.decoding import check_size, short_side
from equipoise.data.images import TensorStore
from equipoise.engine.learner import ROWS_AS_THEY_ARE, Shape
from equipoise.engine.progress import ProgressBar
from equipoise.engine.recipes import resolve
from equipoise.engine.settings import Settings
from equipoise.errors import DataError, UsageError
from equipoise.learn.backbones.pretrained import PRETRAINED
from equipoise.learn.runtime import Runtime

EMBEDDING = 64
"""Rows of fewer features are no embeddings, and rarely linearly separable: a small network is trained on them."""


@dataclass(eq=False, repr=False)  # scikit-learn compares and prints estimators in its own way
class IncrementalClassifier(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """A classifier that learns new classes over time; each ``partial_fit`` is one step.

    X may be images (uint8, N × H × W × C; a torch tensor is N × C × H × W), a list of paths or of PIL images, or a 2-D
    array of features, such as another model's embeddings.

    Labels are strings, 64-bit integers, floats with integer values, or booleans: all of one type, in all steps. Nothing
    else is converted: NaN, None, null characters, halves of surrogate pairs and strings of more than 1000 characters
    raise an error. Strings are normalised to NFC, so that a name is the same class however its accents are encoded.

    Parameters
    ----------
    method
        Learning method, as listed by `equipoise methods`; "auto" is ridge on a pretrained backbone and on rows of at
        least 64 features, and wa for a backbone that is trained from random weights.
    memory
        Number of exemplars to keep, or "all"; "auto" keeps all features for methods that train nothing, and otherwise
        2000 exemplars.
    seed
        Random seed.
    epochs
        Epochs per step; "auto" depends on the number of images.
    backbone
        "lite0", "lite1" or "lite2" (pretrained, frozen), "resnet32", "resnet18", "small" or "timm:NAME"; "auto" is
        lite0 for images. Rows of features need none ("identity"), or a small network ("mlp").
    image_size
        Pixels per side of images from files; "auto" depends on the images.
    weights
        A safetensors file with pretrained weights for the backbone.
    holdout
        Fraction of each class's images to hold out for evaluation; ``steps_`` has the results.
    settings
        Any other setting by section, for example {"train": {"lr": 0.05}, "fields": {"norm": 1}}.
    device
        "cpu", "cuda", …
    verbose
        Show a progress bar.

    Attributes
    ----------
    classes_
        The class labels, sorted.
    steps_
        The result of each step (``equipoise.engine.results.StepResult``).
    """

    method: str = "auto"
    memory: int | Literal["all", "auto"] = "auto"
    seed: int = 0
    epochs: int | Literal["auto"] = "auto"
    backbone: str = "auto"
    image_size: int | Literal["auto"] = "auto"
    weights: str | Path | None = None
    holdout: float = 0.0
    settings: Mapping[str, Mapping[str, Any]] | None = None
    device: str = "cpu"
    verbose: bool = False

    # ---- learning

    def fit(self, X: Any, y: Any) -> Self:
        """Learn from scratch."""
        return self._learn(X, y, None)

    def partial_fit(self, X: Any, y: Any, classes: Any = None) -> Self:
        """Learn one more step. A known class is learned again from its exemplars and the new images.

        ``classes`` is ignored; it exists for compatibility with scikit-learn.
        """
        return self._learn(X, y, getattr(self, "model_", None))

    @preserve_rng()
    def _learn(self, X: Any, y: Any, model: Model | None) -> Self:
        pixels, labels = self._check(X, y, model)
        model = self._new_model(pixels) if model is None else self._copy_of(model)
        if self.memory != "auto":
            model.change_memory({"size": self.memory})
        names, indices = unique_labels(labels)
        known = {normal(name): name for name in model.classes if isinstance(name, str)}  # older models may have others
        names = [known.get(name, name) if isinstance(name, str) else name for name in names]
        classes = sorted_labels([*model.classes, *names])
        images = replace(model.new_images(pixels), labels=torch.from_numpy(indices))
        new_images = {name: images.select(images.labels == index) for index, name in enumerate(names)}
        train = dict((self.settings or {}).get("train", {}))
        if self.epochs != "auto":
            train["epochs"] = self.epochs
        model.settings.runtime.start(model.trains)
        plan = prepare(model, new_images, self.holdout, True, train)
        bar = ProgressBar(quiet=not self.verbose)
        bar.start([plan.load])
        try:
            plan.learn(bar)
        finally:
            bar.close()
        self.model_, self.classes_, self.steps_ = model, classes, model.steps
        return self

    def _copy_of(self, model: Model) -> Model:
        """Return a copy of the model to train; raise an error if settings differ that are fixed at the first step."""
        settings = model.settings
        wanted = {"method": settings.method, "seed": settings.seed, "backbone": settings.net.backbone}
        for name, current in wanted.items():
            asked = getattr(self, name)
            if asked not in (current, "auto"):
                raise UsageError(f"{name}={asked!r} conflicts with the fitted model ({current!r}); refit to change it")
        return model.copy()

    def _settings(self, width: int | None = None) -> Settings:
        """Return the settings of a new model for images, or for rows of ``width`` features."""
        named = {
            "memory.size": None if self.memory == "auto" else self.memory,
            "runtime.device": self.device,
            "net.backbone": None if self.backbone == "auto" else self.backbone,
            "net.weights": self.weights and str(self.weights),
        }
        sections = with_settings(self.settings or {}, named)
        recipe, method = default_recipe(sections.get("net", {}))
        if width is not None:
            embeddings = width >= EMBEDDING and self.backbone == "auto"
            recipe, method = "features", "ridge" if embeddings or self.backbone == "identity" else "wa"
        return resolve("folder", method if self.method == "auto" else self.method, recipe, self.seed, sections)

    def _new_model(self, pixels: Tensor) -> Model:
        shape, features = TensorStore(pixels).shape, pixels.dtype != torch.uint8
        settings = self._settings(shape[0] if features else None)
        if settings.net.backbone in PRETRAINED and settings.net.input_size is None:
            settings = replace(settings, net=replace(settings.net, input_size=input_size(settings.net.backbone, shape)))
        if not features:
            augment = photo_augment(shape, settings)
        elif settings.net.backbone == "identity":  # no statistics of the first step: the order of steps must not matter
            augment = ROWS_AS_THEY_ARE
        else:
            augment = standardise(pixels)
        return Model.create(settings, shape, augment)

    def _check(self, X: Any, y: Any, model: Model | None) -> tuple[Tensor, np.ndarray]:
        """Return images as a tensor and labels as an array."""
        first = model is None
        if y is None:
            raise UsageError("this classifier requires y to be passed, but the target y is None")
        labels = label_array(y)
        if is_images(X):
            pixels = self._images(X, model)
        else:
            rows, _ = validate_data(self, X, y, dtype=np.float32, reset=first)
            pixels = self._rows(rows, model)
            if len(rows) == 1 and first:
                raise UsageError("cannot learn from one sample: its features have no variance")
        try:
            check_classification_targets(labels)
        except ValueError as error:
            raise UsageError(str(error)) from error
        if len(labels) != len(pixels):
            raise DataError(f"got {len(pixels)} images but {len(labels)} labels")
        if not len(labels):
            raise UsageError("there are no images to train on")
        return pixels, labels

    # ---- predicting

    def predict_proba(self, X: Any) -> np.ndarray:
        """Return probabilities, one column for each of ``classes_``."""
        found, _ = self._predict(X)
        order = [self.model_.classes.index(name) for name in self.classes_.tolist()]
        probabilities = found.double().numpy()[:, order]
        return np.asarray(probabilities / probabilities.sum(1, keepdims=True))

    def is_unknown(self, X: Any, accept: float = ACCEPT) -> np.ndarray:
        """Return which images look like none of the classes.

        Parameters
        ----------
        X
            The images.
        accept
            Fraction of images of known classes that are recognised as such.
        """
        _, familiar = self._predict(X)
        return np.asarray((familiar < self.model_.least_familiar(accept)).numpy())

    def _predict(self, X: Any) -> tuple[Tensor, Tensor]:
        check_is_fitted(self)
        model: Model = self.model_
        if is_images(X):
            pixels = self._images(X, model)
        else:
            pixels = self._rows(validate_data(self, X, dtype=np.float32, reset=False), model)
        return model.predictor()(model.inputs(pixels))

    def predict(self, X: Any) -> np.ndarray:
        """Return the most probable class of each image."""
        best = self.predict_proba(X).argmax(1)
        return np.asarray(self.classes_[best])

    def _images(self, X: Any, model: Model | None) -> Tensor:
        self._check_kind("images", False, model)
        if is_pixels(X):
            pixels = pixels_of(X)
        else:
            settings = self._settings() if model is None else model.settings
            size = self.image_size if model is None else model.shape[1]
            size = size_for(settings.net.backbone, short_side(X)) if size == "auto" else size
            check_size(size)
            pixels = decode_all(X, size, model is None or model.bicubic)
        if model is not None and tuple(pixels.shape[1:]) != model.shape:
            raise UsageError(
                f"X has images of shape {tuple(pixels.shape[1:])}, but the model was fitted on {model.shape}"
            )
        return pixels

    def _rows(self, rows: np.ndarray, model: Model | None) -> Tensor:
        self._check_kind("rows of features", True, model)
        return torch.from_numpy(np.ascontiguousarray(rows))[:, :, None, None]

    def _check_kind(self, given: str, features: bool, model: Model | None) -> None:
        if model is not None and is_features(model.shape) != features:
            fitted = describe_input(model.shape)
            raise UsageError(f"X has {given}, but this {type(self).__name__} was fitted on {fitted}")

    # ---- saving

    def save(self, path: str | Path, memory: bool = True) -> None:
        """Write a model directory, or add a version to one that holds this model's earlier steps.

        Parameters
        ----------
        path
            The directory.
        memory
            Store exemplars and held-out images; without them the model cannot learn more.
        """
        check_is_fitted(self)
        place, model = ModelDir(Path(path)), self.model_
        place.check_free()
        with place.writing():
            known = place.steps() if place.exists else []
            pairs = zip(known, model.steps, strict=False)
            if len(known) > len(model.steps) or any(shortened(a) != shortened(b) for a, b in pairs):
                raise UsageError(f"{path} holds another model: choose another directory, or remove it")
            place.commit(model if memory else model.without_images())


def input_size(backbone: str, shape: Shape) -> int:
    """Choose the size for a pretrained network: its own, or less for tiny images, which do not gain from it."""
    return max(32, min(PRETRAINED[backbone].size, min(shape[1:]) * 12 // 32 * 32))


def standardise(rows: Tensor) -> Augment:
    """Return an augmentation that standardises features with the statistics of the first step."""
    values = rows.flatten(1).double()
    std = values.std(0, correction=0)
    std[std < 1e-12 * values.abs().amax(0).clamp(min=1e-300)] = 1.0  # a constant feature carries no information
    return Augment(tuple(values.mean(0).tolist()), tuple(std.tolist()))


def load(path: str | Path, device: str = "cpu") -> IncrementalClassifier:
    """Load a classifier from a model directory, ready to predict and to learn more.

    Parameters
    ----------
    path
        The model directory.
    device
        "cpu", "cuda", …
    """
    model = ModelDir(Path(path)).load(Runtime(device), images=True)
    settings = model.settings
    classifier = IncrementalClassifier(
        method=settings.method,
        memory=settings.memory["size"],
        seed=settings.seed,
        backbone=settings.net.backbone,
        image_size=model.shape[1] if model.shape[1] > 1 else "auto",
        device=device,
    )
    classifier.model_, classifier.steps_ = model, model.steps
    classifier.classes_ = sorted_labels(model.classes)
    if is_features(model.shape):
        classifier.n_features_in_ = model.shape[0]
    return classifier
