"""Simple NEM: learn features once, then only means. A baseline that many methods do not beat."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

import torch
from torch import Tensor

from equipoise.data.stream import Step
from equipoise.learn.method import Method
from equipoise.learn.nem import class_means, nearest_mean

if TYPE_CHECKING:
    from equipoise.learn.trainer import Fit


@dataclass(eq=False)
class SimpleNEM(Method):
    """The backbone is frozen after step 1; each class is the mean of its features. No memory, no teacher."""

    paper: ClassVar[str] = "Janson et al., A Simple Baseline that Questions the Use of Pretrained Models, 2022"
    variants: ClassVar = {"simple-nem": {}}
    rehearses: ClassVar[Literal["memory", "everything", "nothing"]] = "nothing"
    extra: ClassVar[str] = "a mean a class"

    def __post_init__(self) -> None:
        super().__post_init__()
        self.means: Tensor
        self.register_buffer("means", torch.zeros(0, 0))

    def begin(self, step: Step, fit: Fit) -> None:
        super().begin(step, fit)
        if step.old:
            self.requires_grad_(False)
            fit.images = None  # nothing is trained any more

    def end(self, step: Step, fit: Fit) -> dict[str, float]:
        images = step.images
        new = class_means(fit.features(images), images.labels, range(step.old, step.seen)).to(self.head.weight.device)
        self.means = torch.cat([self.means, new]) if step.old else new
        return {}

    def keep(self, classes: Tensor) -> None:
        super().keep(classes)
        self.means = self.means[classes]

    def predict(self, x: Tensor) -> Tensor:
        return nearest_mean(self.features(x), self.means)

    def norms(self, norm: int) -> None:
        """The head is only used to learn the features."""
