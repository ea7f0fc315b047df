"""iCaRL: the loss of LwF.MC with rehearsal, and the nearest mean of exemplars as classifier."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

import torch
from torch import Tensor

from equipoise.data.stream import Step
from equipoise.learn.nem import class_means, nearest_mean
from equipoise.methods.lwf_mc import LwFMC

if TYPE_CHECKING:
    from equipoise.learn.trainer import Fit


@dataclass(eq=False)
class ICaRL(LwFMC):
    """Sigmoid distillation with rehearsal; an image belongs to the class whose exemplars' mean is nearest."""

    paper: ClassVar[str] = "Rebuffi et al., iCaRL: Incremental Classifier and Representation Learning, CVPR 2017"
    variants: ClassVar = {"icarl": {}}
    corrects: ClassVar[bool] = True
    rehearses: ClassVar[Literal["memory", "everything", "nothing"]] = "memory"
    needs_exemplars: ClassVar[bool] = True
    extra: ClassVar[str] = "a mean a class"

    def __post_init__(self) -> None:
        super().__post_init__()
        self.means: Tensor | None
        self.register_buffer("means", None)

    def begin(self, step: Step, fit: Fit) -> None:
        super().begin(step, fit)
        self.means = None  # they belong to the features before this step

    def end(self, step: Step, fit: Fit) -> dict[str, float]:
        exemplars = fit.exemplars()
        mirrored = fit.over(exemplars, lambda x: self.features(x.flip(-1)))
        features = torch.cat([fit.features(exemplars), mirrored])  # authors' code: the mirror images count too
        self.means = class_means(features, exemplars.labels.repeat(2), range(step.seen)).to(self.head.weight.device)
        return {}

    def keep(self, classes: Tensor) -> None:
        super().keep(classes)
        if self.means is not None:
            self.means = self.means[classes]

    def predict(self, x: Tensor) -> Tensor:
        return self.scores(x) if self.means is None else nearest_mean(self.features(x), self.means)  # Alg. 1
