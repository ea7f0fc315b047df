"""LwF.MC: Learning without Forgetting for multi-class problems, as iCaRL's authors run it."""

from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
from torch import Tensor

from equipoise.methods import Architecture, Fit, Method, Range, Step, UsageError, sigmoid_distill


@dataclass(eq=False)
class LwFMC(Method):
    """One sigmoid per class: one-hot targets for new classes, the old model's outputs for old ones."""

    paper = "Rebuffi et al., iCaRL, CVPR 2017, Sec. 4 (after Li and Hoiem, ECCV 2016)"
    variants: ClassVar = {"lwf-mc": {}}
    uses_teacher = True
    rehearsal = "none"
    final_relu = False  # iCaRL's authors' network

    bias: bool = True
    """Give the head a bias."""
    units: Annotated[int, Range(1, 100_000)] | None = None
    """Average the loss over this many units (none: the classes seen). The authors' network has all 100 units from the
    start; a growing head would otherwise take larger steps early."""
    train_future: bool = False
    """Also train the units of classes that are still to come, towards 0, as in the authors' network; needs units."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.train_future and self.units is None:
            raise UsageError("method.train_future needs to know the total number of classes: set method.units")

    def build(self, architecture: Architecture) -> None:
        super().build(architecture)
        if self.units is not None and self.train_future:
            self.future = self.make_head(self.head.features)
            self.future.grow(self.units)

    def begin(self, step: Step, fit: Fit) -> None:
        super().begin(step, fit)
        if not self.train_future:
            return
        if step.new > self.future.classes:
            raise UsageError(f"step {step.index} has more classes than remain of method.units={self.units}: raise it")
        for mine, trained in zip(self.head.rows(), self.future.rows(), strict=True):
            mine.data[step.old :] = trained.data[: step.new]
        self.future.keep_classes(torch.arange(step.new, self.future.classes, device=self.device))

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        features = self.features(x)
        logits = self.logits_from(features)
        target = None if self.teacher is None else self.from_teacher(lambda teacher: teacher.logits(x))
        if self.train_future:
            return sigmoid_distill(torch.cat([logits, self.future(features)], 1), y, target)
        loss = sigmoid_distill(logits, y, target)  # iCaRL, Alg. 3: also for rehearsal images
        return loss if self.units is None else loss * logits.shape[1] / self.units
