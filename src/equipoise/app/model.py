"""A model in memory: all that prediction and the next step need."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Self

import torch
from torch import Tensor

from equipoise import methods
from equipoise.data.augment import Augment
from equipoise.data.images import Images, TensorStore, join
from equipoise.data.memory import Memory
from equipoise.errors import UsageError
from equipoise.learn.method import Method
from equipoise.learn.trainer import run_over
from equipoise.seeding import seed_everything
from equipoise.study.recipe import Settings

Label = str | int | float | bool
Shape = tuple[int, int, int]


@dataclass
class Model:
    """A class's number is its place in ``classes``."""

    settings: Settings
    shape: Shape
    """Channels, height and width of its images."""
    augment: Augment
    method: Method
    memory: Memory
    holdout: Images
    """Images that are never trained on."""
    classes: list[Label] = field(default_factory=list)
    steps: list[dict[str, Any]] = field(default_factory=list)
    """What happened, a record a step."""

    @staticmethod
    def blank(settings: Settings, shape: Shape, augment: Augment) -> Model:
        """Nothing learned yet."""
        if (settings.net.backbone == "mlp") != (shape[1:] == (1, 1)):
            raise UsageError(
                f"mlp is the backbone for rows of features, and {settings.net.backbone} was asked for {shape}"
            )
        augment.check(shape[0])
        method = make_method(settings, shape)
        return Model(settings, shape, augment, method, settings.make_memory(), nothing(shape))

    def copy(self) -> Self:
        """Another one, that can be taught without changing this one."""
        return replace(
            self,
            method=copy.deepcopy(self.method),
            memory=copy.copy(self.memory),
            classes=list(self.classes),
            steps=copy.deepcopy(self.steps),
        )

    def resize_memory(self, changes: Mapping[str, Any]) -> None:
        """Another size of the memory, or way of choosing; what is kept stays until the next step."""
        self.settings = replace(self.settings, memory=self.settings.memory | dict(changes))
        kept, self.memory = self.memory.kept, self.settings.make_memory()
        self.memory.kept = kept

    def without_images(self) -> Self:
        """The same model, to predict with and not to teach: neither exemplars nor held-out images."""
        return replace(self, memory=self.settings.make_memory(), holdout=nothing(self.shape))

    def probabilities(self, pixels: Tensor) -> Tensor:
        """Of each class, for a batch of images as the stores keep them."""
        self.method.eval()
        runtime = self.settings.runtime
        with torch.no_grad():
            scores = self.method.predict(runtime.move(self.augment.normalise(pixels)))
        return scores.float().softmax(1).cpu()

    def probabilities_of(self, images: Images) -> Tensor:
        """The same for images in a store, in batches."""
        return run_over(self.method, self.method.predict, images, self.augment, self.settings.runtime).softmax(1)

    def check_takes_pictures(self) -> None:
        """Refuse pictures from files where the model was taught with something else."""
        if self.shape[0] != 3 or self.shape[1] != self.shape[2] or self.shape[1] == 1:
            what = f"rows of {self.shape[0]} features" if self.shape[1:] == (1, 1) else f"arrays of shape {self.shape}"
            raise UsageError(f"this model was taught with {what}, not with pictures: use it from Python, with eq.load")

    def held(self, place: int) -> Images:
        return self.holdout.select(self.holdout.labels == place)

    def drop(self, names: Iterable[Label]) -> None:
        """Forget classes: their rows in the head, their exemplars, their held-out images."""
        gone = set(names)
        keep = torch.tensor([place for place, name in enumerate(self.classes) if name not in gone], dtype=torch.long)
        self.method.keep(keep)
        self.memory.keep(keep)
        lookup = torch.full((len(self.classes),), -1)
        lookup[keep] = torch.arange(len(keep))
        holdout = self.holdout.relabel(lookup)
        self.holdout = holdout.select(holdout.labels >= 0)
        self.classes = [self.classes[place] for place in keep.tolist()]

    def known(self) -> dict[Label, tuple[Images, Images]]:
        """Exemplars and held-out images of each class."""
        none = nothing(self.shape)
        return {n: (self.memory.kept.get(c, none), self.held(c)) for c, n in enumerate(self.classes)}


def make_method(settings: Settings, shape: Shape) -> Method:
    """A method that knows nothing yet."""
    method = methods.make(settings.method, settings.fields)
    if method.rehearses == "everything":
        raise UsageError(
            f"the method {settings.method} trains on every image it has ever seen, and a model keeps only some: "
            "choose another, as wa"
        )
    if method.needs_exemplars and settings.memory["size"] == 0:
        raise UsageError(f"the method {settings.method} needs exemplars, and the memory is 0: give it a number")
    seed_everything(settings.seed, "build")
    method.build(settings.architecture(shape))
    return method.to(settings.runtime.device)


def nothing(shape: Shape) -> Images:
    """No images."""
    dtype = torch.float32 if shape[1:] == (1, 1) else torch.uint8
    return Images(TensorStore(torch.empty((0, *shape), dtype=dtype)), torch.arange(0), torch.arange(0))


def collect(images: Mapping[Any, Images], shape: Shape) -> Images:
    """Images of several classes, labelled 0, 1, 2, … in the order of the mapping."""
    parts = [replace(part, labels=torch.full((len(part),), place)) for place, part in enumerate(images.values())]
    return join(parts) if parts else nothing(shape)
