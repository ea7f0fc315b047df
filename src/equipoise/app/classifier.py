"""The classifier in Python, with scikit-learn's manners."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, Self

import numpy as np
import torch
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, column_or_1d, validate_data
from torch import Tensor

from equipoise.app.arrays import decode_all, is_list_of_pictures, is_pixels, pixels_of, plain, short_side_of
from equipoise.app.learn import fit_to_backbone, photograph_augment, size_for
from equipoise.app.model import Model, Shape
from equipoise.app.modeldir import ModelDir
from equipoise.app.pretrained import load_weights
from equipoise.app.teach import prepare
from equipoise.data.augment import Augment
from equipoise.data.images import Images
from equipoise.errors import UsageError
from equipoise.learn.runtime import Runtime
from equipoise.study.progress import Bar
from equipoise.study.recipe import resolve


class IncrementalClassifier(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """A neural classifier that learns new classes over time; each ``partial_fit`` is one step.

    X may be images (uint8, N × H × W × C; a torch tensor is N × C × H × W), a list of paths or of PIL images, or a 2-D
    array of features, such as another model's embeddings. Labels may be texts, numbers or truth values.

    Parameters
    ----------
    method : how it learns, "wa" or any of `equipoise methods`.
    memory : images of old classes that may be kept.
    seed : the same seed, the same bits.
    epochs : passes over the images of a step; "auto" follows from their number.
    backbone : "resnet32", "resnet18", "small", "timm:NAME"; "auto" is resnet32, and a small MLP for features.
    image_size : pixels along each side of pictures from files; "auto" follows from the pictures.
    weights : a safetensors file from which the backbone starts.
    holdout : share of each class's images that is kept for judging, and never trained on; ``steps_`` tells the result.
    settings : any other setting by section, as {"train": {"lr": 0.05}, "fields": {"norm": 1}}.
    device : "cpu", "cuda", …
    verbose : whether to show a progress bar.
    """

    def __init__(
        self,
        method: str = "wa",
        memory: int = 2000,
        seed: int = 0,
        epochs: int | Literal["auto"] = "auto",
        backbone: str = "auto",
        image_size: int | Literal["auto"] = "auto",
        weights: str | Path | None = None,
        holdout: float = 0.0,
        settings: Mapping[str, Mapping[str, Any]] | None = None,
        device: str = "cpu",
        verbose: bool = False,
    ) -> None:
        self.method = method
        self.memory = memory
        self.seed = seed
        self.epochs = epochs
        self.backbone = backbone
        self.image_size = image_size
        self.weights = weights
        self.holdout = holdout
        self.settings = settings
        self.device = device
        self.verbose = verbose

    # ---- learning

    def fit(self, X: Any, y: Any) -> Self:
        """Learn from scratch."""
        with torch.random.fork_rng():  # the caller's random numbers are not ours to move
            return self._learn(X, y, None)

    def partial_fit(self, X: Any, y: Any, classes: Any = None) -> Self:
        """Learn one more step. A class that is known already is learned anew, from its exemplars and the new images.

        ``classes`` is there for scikit-learn's sake and not looked at: classes may come as they like.
        """
        with torch.random.fork_rng():
            return self._learn(X, y, getattr(self, "model_", None))

    def _learn(self, X: Any, y: Any, model: Model | None) -> Self:
        pixels, labels = self._check(X, y, model)
        model = self._new_model(pixels) if model is None else self._begun(model)
        model.resize_memory({"size": self.memory})
        names, places = np.unique(labels, return_inverse=True)
        images = Images.of(pixels, torch.from_numpy(places.reshape(-1)))
        arrival = {plain(name): images.select(images.labels == place) for place, name in enumerate(names)}
        new = np.array(list(arrival))  # as a model keeps them: texts of an object array are texts
        classes = _sorted_union(np.array(model.classes) if model.classes else new, new)
        train = dict((self.settings or {}).get("train", {}))
        if self.epochs != "auto":
            train["epochs"] = self.epochs
        model.settings.runtime.start()
        teaching = prepare(model, arrival, self.holdout, True, train)
        bar = Bar(quiet=not self.verbose)
        bar.start([teaching.load])
        try:
            teaching.learn(bar)
        finally:
            bar.close()
        self.model_, self.classes_ = model, classes
        self.steps_ = model.steps
        return self

    def _begun(self, model: Model) -> Model:
        """A copy of the model to teach on; what it was begun with cannot be changed any more."""
        settings = model.settings
        wanted = {"method": settings.method, "seed": settings.seed, "backbone": settings.net.backbone}
        for name, is_ in wanted.items():
            asked = getattr(self, name)
            if asked not in (is_, "auto"):
                raise UsageError(f"{name} is {asked!r}, but this model was begun with {is_!r}: fit anew to change it")
        return model.copy()

    def _sections(self) -> dict[str, dict[str, Any]]:
        sections = {section: dict(values) for section, values in (self.settings or {}).items()}
        sections.setdefault("memory", {})["size"] = self.memory
        sections.setdefault("runtime", {})["device"] = self.device
        if self.backbone != "auto":
            sections.setdefault("net", {})["backbone"] = self.backbone
        return sections

    def _new_model(self, pixels: Tensor) -> Model:
        _, *sides = pixels.shape
        shape: Shape = (sides[0], sides[1], sides[2])
        features = pixels.dtype != torch.uint8
        recipe = "features" if features else "folder"
        sections = self._sections()
        settings = fit_to_backbone(resolve("folder", self.method, recipe, self.seed, sections), sections)
        augment = standardise(pixels) if features else photograph_augment(shape, settings)
        model = Model.blank(settings, shape, augment)
        if self.weights is not None:
            load_weights(model.method, Path(self.weights))
        return model

    def _check(self, X: Any, y: Any, model: Model | None) -> tuple[Tensor, np.ndarray]:
        """Images as a tensor and labels as an array, or an error that says what is wrong with them."""
        first = model is None
        if y is None:
            raise UsageError("this classifier requires y to be passed, but the target y is None")
        if is_list_of_pictures(X) or is_pixels(X):
            pixels = self._pictures(X, model)
            labels = column_or_1d(y)
            if len(labels) != len(pixels):
                raise UsageError(f"{len(pixels)} images came with {len(labels)} labels")
        else:
            rows, labels = validate_data(self, X, y, dtype=np.float32, reset=first)
            pixels = self._rows(rows, model)
            if len(rows) == 1 and first:
                raise UsageError("one sample is not enough to learn from: its features have no spread")
        check_classification_targets(labels)
        if not len(labels):
            raise UsageError("there are no images to learn from")
        return pixels, np.asarray(labels)

    # ---- asking

    def predict_proba(self, X: Any) -> np.ndarray:
        """Probabilities, a column for each of ``classes_``."""
        check_is_fitted(self)
        model: Model = self.model_
        if is_list_of_pictures(X) or is_pixels(X):
            pixels = self._pictures(X, model)
        else:
            pixels = self._rows(validate_data(self, X, dtype=np.float32, reset=False), model)
        places = torch.zeros(len(pixels), dtype=torch.long)
        probabilities = model.probabilities_of(Images.of(pixels, places)).double().numpy()
        order = [model.classes.index(plain(name)) for name in self.classes_]
        sorted_: np.ndarray = probabilities[:, order] / probabilities.sum(1, keepdims=True)
        return sorted_

    def predict(self, X: Any) -> np.ndarray:
        """The likeliest class of each image."""
        likeliest = self.predict_proba(X).argmax(1)
        named: np.ndarray = self.classes_[likeliest]
        return named

    def _pictures(self, X: Any, model: Model | None) -> Tensor:
        if model is not None and model.shape[1:] == (1, 1):
            raise UsageError(f"X has images, but {type(self).__name__} has learned rows of {model.shape[0]} features")
        if is_pixels(X):
            pixels = pixels_of(X)
        else:
            size = model.shape[1] if model is not None else self._size(X)
            pixels = decode_all(X, size)
        if model is not None and tuple(pixels.shape[1:]) != model.shape:
            raise UsageError(
                f"X has images of shape {tuple(pixels.shape[1:])}, but the model has learned {model.shape}"
            )
        return pixels

    def _size(self, X: Any) -> int:
        return size_for(self.backbone, short_side_of(X)) if self.image_size == "auto" else self.image_size

    def _rows(self, rows: np.ndarray, model: Model | None) -> Tensor:
        if model is not None and model.shape[1:] != (1, 1):
            raise UsageError(f"X has rows of features, but {type(self).__name__} has learned images of {model.shape}")
        return torch.from_numpy(np.ascontiguousarray(rows))[:, :, None, None]

    # ---- keeping

    def save(self, path: str | Path, memory: bool = True) -> None:
        """Write a model directory, or add a version to one that holds this model's earlier steps."""
        check_is_fitted(self)
        place, model = ModelDir(Path(path)), self.model_
        place.check_free()
        with place.writing():
            if place.exists and place.steps() != model.steps[: len(place.steps())]:
                raise UsageError(f"{path} holds another model: choose another place, or remove it")
            place.commit(model if memory else model.without_images())


def standardise(rows: Tensor) -> Augment:
    """No variation; each feature with its mean and deviation taken out, as the first step has them."""
    values = rows.flatten(1).double()
    std = values.std(0, correction=0)
    std[std < 1e-12 * values.abs().amax(0).clamp(min=1e-300)] = 1.0  # a constant says nothing
    return Augment(tuple(values.mean(0).tolist()), tuple(std.tolist()))


def _sorted_union(known: np.ndarray, new: np.ndarray) -> np.ndarray:
    try:
        both: np.ndarray = np.union1d(known, new)
    except TypeError as error:
        raise UsageError(f"labels {new[:3].tolist()} and {known[:3].tolist()} cannot be sorted together") from error
    if known.dtype.kind != new.dtype.kind and {known.dtype.kind, new.dtype.kind} & set("US"):
        raise UsageError(f"labels {new[:3].tolist()} and {known[:3].tolist()} are of different types: use one")
    return both


def load(path: str | Path, device: str = "cpu") -> IncrementalClassifier:
    """The classifier in a model directory, ready to predict and to learn more."""
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
    classifier.classes_ = np.unique(np.array(model.classes))
    if model.shape[1:] == (1, 1):
        classifier.n_features_in_ = model.shape[0]
    return classifier
