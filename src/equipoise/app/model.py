"""A model in memory: everything that predictions and the next step need."""

from __future__ import annotations

import copy
import math
import unicodedata
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Self

import torch
from torch import Tensor

from equipoise.app.stored_images import identify, thumbnail
from equipoise.data.augment import Augment
from equipoise.data.images import FeatureStore, Images, TensorStore, join
from equipoise.data.stream import Step
from equipoise.engine.learner import Learner, Shape
from equipoise.engine.results import Label, StepResult
from equipoise.engine.settings import Settings
from equipoise.errors import RunError, UsageError, unknown_name
from equipoise.learn.backbones import ROWS
from equipoise.learn.closed_form import ClosedForm
from equipoise.learn.inference import InferencePass
from equipoise.learn.saved_state import check_layout, check_loaded
from equipoise.learn.unknown import Familiarity, check_calibration

ACCEPT = 0.95
"""Fraction of known images that are recognised as such, by default."""
CALIBRATION = "calibration."
"""Prefixes of tensors that do not belong to the method."""
TEMPERATURES = 1e-6, 1e6
"""Lowest and highest temperature of a model."""


@dataclass
class Model(Learner):
    """A learner with the names of its classes; the index of a class is its position in ``classes``."""

    shape: Shape
    """Channels, height and width of its images."""
    holdout: Images
    """Images that are never trained on."""
    classes: list[Label] = field(default_factory=list)
    steps: list[StepResult] = field(default_factory=list)
    """What happened, one result per step."""
    blocks: dict[str, Sequence[str]] = field(default_factory=dict)
    """Names of the images in each stored block of features."""
    keeps_thumbnails: bool = False
    """Whether small versions of images are kept beside their features."""
    thumbnails: dict[str, bytes] = field(default_factory=dict)
    """JPEG files by the name of their image."""
    bicubic: bool = True
    """Whether photos are cropped at whole pixels and resized with a bicubic filter, which an export can do as well."""
    temperature: float = 1.0
    """Divides the logits, so that probabilities are calibrated."""
    familiarity: Familiarity | None = None
    """Recognises images of unknown classes; None if there was nothing to fit it to."""

    @staticmethod
    def create(settings: Settings, shape: Shape, augment: Augment) -> Model:
        """Return a model that knows nothing yet."""
        if (settings.net.backbone in ROWS) != is_features(shape):
            raise UsageError(
                f"the backbone {settings.net.backbone} does not fit inputs of shape {shape}: "
                f"use {' or '.join(ROWS)} for rows of features, and any other for images"
            )
        learner = Learner.create(settings, shape, augment)
        if learner.method.rehearsal == "all":
            raise UsageError(
                f"{settings.method} trains on all images it has ever seen, but a model keeps only some: "
                "choose another method, such as wa"
            )
        rows = shape
        if learner.extractor is not None:  # record what computes the features
            rows, net = learner.extractor.shape, replace(settings.net, engine=learner.extractor.engine)
            learner.settings = replace(settings, net=net)
        return Model(**vars(learner), shape=shape, holdout=no_images(rows))

    @property
    def stored_shape(self) -> Shape:
        """The shape of what the method learns and the model keeps: images, or rows of a frozen backbone's features."""
        return self.shape if self.extractor is None else self.extractor.shape

    @property
    def trains(self) -> bool:
        """Whether anything is trained; methods that are solved in closed form need no epochs."""
        return self.method.rehearsal != "kept"

    @property
    def keeps_all(self) -> bool:
        """Whether a method that trains nothing is solved from all images that were ever learned."""
        return self.method.rehearsal == "kept" and self.memory.size == "all"

    @property
    def in_blocks(self) -> bool:
        """Whether rows of features are stored, many per file."""
        return self.extractor is not None or self.settings.net.backbone == "identity"

    def refit(self) -> None:
        """Solve again for what a closed-form method predicts with, after classes were removed."""
        kept = self.memory.images()
        if isinstance(self.method, ClosedForm) and self.keeps_all and kept is not None:
            fit = self.fit(Step(len(self.method.steps), 0, len(self.classes), kept), kept)
            self.method.refit(fit, kept, len(self.classes))

    def copy(self) -> Self:
        """Return an independent copy."""
        method, memory = copy.deepcopy(self.method), copy.copy(self.memory)
        return replace(self, method=method, memory=memory, classes=list(self.classes), steps=list(self.steps))

    def change_memory(self, changes: Mapping[str, Any]) -> None:
        """Change the settings of the memory; its exemplars stay until the next step."""
        size = changes.get("size", self.memory.size)
        if self.method.rehearsal == "kept" and (size == "all") != (self.memory.size == "all"):
            kept = "all features" if self.keeps_all else "statistics only"
            raise UsageError(f"this model keeps {kept}, which is fixed when it is created: remove --keep or --memory")
        exemplars = self.memory.exemplars
        self.settings = replace(self.settings, memory=self.settings.memory | dict(changes))
        self.memory = self.settings.make_memory()
        self.method.check(self.memory)
        self.memory.exemplars = exemplars

    def without_images(self) -> Self:
        """Return the model without exemplars and held-out images: it predicts but cannot learn more."""
        return replace(self, memory=self.settings.make_memory(), holdout=no_images(self.stored_shape))

    def over(self, images: Images) -> InferencePass:
        """Return a pass over images in evaluation mode."""
        return InferencePass(self.method, images, self.augment, self.settings.runtime)

    def inputs(self, pixels: Tensor, fill: bool = False) -> Images:
        """Return uint8 images N × C × H × W (or rows of features) as the method takes them.

        Results of partial batches may differ in the last bits, so learning fills them up.
        """
        if self.extractor is None or not len(pixels):
            return Images.of(pixels) if len(pixels) else no_images(self.stored_shape)
        return Images.of(self.extractor.rows(pixels, fill)[:, :, None, None])

    def new_images(self, pixels: Tensor) -> Images:
        """Return images to learn, with their names where only features are kept."""
        self.check_engine()
        images = self.inputs(pixels, fill=True)
        if self.in_blocks:
            store = FeatureStore(images.read().flatten(1), ids=[identify(image) for image in pixels])
            images = replace(images, store=store)
            if self.keeps_thumbnails:
                self.thumbnails |= {name: thumbnail(image) for name, image in zip(store.ids, pixels, strict=True)}
        return images

    def probabilities(self, images: Images) -> Tensor:
        """Return the probability of each class: one row per image."""
        return self.predictor()(images)[0]

    def predictor(self) -> Callable[[Images], tuple[Tensor, Tensor]]:
        """Return a function that predicts probabilities and how familiar images look, until the model changes.

        Classes are computed in an order that does not depend on when they were learned, so that results are
        bit-identical.
        """
        method = self.method
        by_name = torch.tensor(sorted(range(len(self.classes)), key=lambda c: str(self.classes[c])), dtype=torch.long)
        columns: Tensor | slice = by_name
        known = self.familiarity
        if method.rehearsal == "kept":
            known = known and known.reordered(by_name)
            shared = {id(tensor): tensor for tensor in (*method.parameters(), *method.buffers())}
            method, columns = copy.deepcopy(method, shared), slice(None)  # only what is reordered is copied
            method.keep_classes(by_name)

        def classify(features: Tensor) -> Tensor:
            logits = method.classify(features)
            score = torch.full((len(logits),), torch.inf) if known is None else known.scores(features, logits)
            return torch.cat([logits, score[:, None].to(logits)], 1)

        def predict(images: Images) -> tuple[Tensor, Tensor]:
            if not len(images):
                return torch.zeros(0, len(by_name)), torch.zeros(0)
            found = self.over(images).map_features(classify)
            logits = found[:, :-1][:, columns] / self.temperature
            if not logits.isfinite().all() or found[:, -1].isnan().any():
                raise RunError("the model's predictions are not finite: restore it from a copy, or check the inputs")
            return logits.softmax(1)[:, by_name.argsort()], found[:, -1]

        return predict

    def least_familiar(self, accept: float) -> float:
        """Return how familiar an image has to look: as a fraction ``accept`` of known images do."""
        if not 0 < accept <= 1:
            raise UsageError(f"accept must be above 0 and at most 1, got {accept}")
        return -math.inf if self.familiarity is None else self.familiarity.threshold(accept)

    def state_dict(self) -> dict[str, Tensor]:
        """Return what model.safetensors holds: the method's weights, and the calibration."""
        calibration = {"temperature": torch.tensor(self.temperature, dtype=torch.float64)}
        if self.familiarity is not None:
            calibration |= self.familiarity.tensors()
        return self.method.state_dict() | {CALIBRATION + name: value for name, value in calibration.items()}

    def load_state_dict(self, tensors: Mapping[str, Tensor]) -> None:
        """Undo ``state_dict``; raises an error if tensors do not fit the method or the classes."""
        weights, own = split_state(tensors)
        self.method.load_state_dict(weights)
        check_loaded(self.method, len(self.classes))
        self.temperature = float(own.get("temperature", 1.0))
        self.familiarity = Familiarity.of(own) if "means" in own else None
        if not TEMPERATURES[0] <= self.temperature <= TEMPERATURES[1]:
            raise ValueError("its temperature is not positive, or not in a useful range")

    def check_layout(self, layout: Mapping[str, Tensor]) -> None:
        """Raise an error unless tensors of these types and shapes fit the method and the classes."""
        weights, own = split_state(layout)
        check_layout(self.method, weights, len(self.classes))
        check_calibration(own, len(self.classes))

    def check_predictions(self) -> None:
        """Raise an error unless the model can predict an empty image."""
        blank = torch.zeros((1, *self.stored_shape), dtype=no_images(self.stored_shape).store.dtype)
        try:
            probabilities = self.probabilities(Images.of(blank))
        except RunError as error:
            raise ValueError("it does not predict finite numbers") from error
        if probabilities.shape != (1, len(self.classes)):
            raise ValueError(f"it predicts {probabilities.shape[1]} classes, but it lists {len(self.classes)}")

    def check_engine(self) -> None:
        """Raise an error if features of new images would not be computed as those that the model keeps."""
        engine = self.settings.net.engine
        if self.extractor is not None and self.extractor.engine != engine:
            raise UsageError(
                f"the features of this model were computed with {engine}, which is not installed here: "
                f"pip install 'equipoise[{'openvino' if engine == 'openvino' else 'pretrained'}]'"
            )

    def check_takes_photos(self) -> None:
        """Raise an error for image files if the model was trained on something else."""
        if self.shape[0] != 3 or self.shape[1] != self.shape[2] or self.shape[1] == 1:
            what = describe_input(self.shape)
            raise UsageError(f"this model was trained on {what}, not on image files: use it from Python with eq.load")

    def find(self, name: str) -> Label:
        """Return the label of a class, given as text; accents may be composed or not."""
        known = {str(label): label for label in self.classes}
        for text in (name, unicodedata.normalize("NFC", name)):
            if text in known:
                return known[text]
        raise unknown_name("class", name, known)

    def drop(self, names: Iterable[Label]) -> None:
        """Remove classes: their rows in the head, exemplars and held-out images."""
        gone = set(names)
        keep = torch.tensor([index for index, name in enumerate(self.classes) if name not in gone], dtype=torch.long)
        self.method.keep_classes(keep)
        self.memory.keep_classes(keep)
        lookup = torch.full((len(self.classes),), -1)
        lookup[keep] = torch.arange(len(keep))
        self.holdout = self.holdout.relabel(lookup)
        self.classes = [self.classes[index] for index in keep.tolist()]
        self.familiarity = self.familiarity and self.familiarity.reordered(keep)

    def images_by_class(self) -> dict[Label, tuple[Images, Images]]:
        """Return the exemplars and held-out images of each class."""
        none, held = no_images(self.stored_shape), self.holdout
        return {
            name: (self.memory.exemplars.get(c, none), held.select(held.labels == c))
            for c, name in enumerate(self.classes)
        }


def split_state(tensors: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Divide what model.safetensors holds into the method's weights and the calibration."""
    weights = {name: value for name, value in tensors.items() if not name.startswith(CALIBRATION)}
    own = {name.removeprefix(CALIBRATION): tensors[name] for name in tensors.keys() - weights.keys()}
    return weights, own


def is_features(shape: Shape) -> bool:
    """Return whether inputs of this shape are rows of features."""
    return shape[1:] == (1, 1)


def describe_input(shape: Shape) -> str:
    """Describe inputs of this shape for people."""
    return f"rows of {shape[0]} features" if is_features(shape) else f"images of shape {shape}"


def no_images(shape: Shape) -> Images:
    """Return an empty set of images."""
    dtype = torch.float32 if is_features(shape) else torch.uint8
    return Images(TensorStore(torch.empty((0, *shape), dtype=dtype)), torch.arange(0), torch.arange(0))


def collect(images: Mapping[Any, Images], shape: Shape, start: int = 0) -> Images:
    """Join images of several classes, labelled from ``start`` in the order of the mapping."""
    parts = [replace(part, labels=torch.full((len(part),), label)) for label, part in enumerate(images.values(), start)]
    return join(parts) if parts else no_images(shape)
