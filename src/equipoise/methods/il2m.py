"""IL2M: class-incremental learning with dual memory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Tensor

from equipoise.data.stream import Step
from equipoise.learn.method import Method

if TYPE_CHECKING:
    from equipoise.learn.trainer import Fit

LEAST = 1e-6
"""A mean below this is taken for this, so that every ratio exists."""


@dataclass(eq=False)
class IL2M(Method):
    """Plain fine-tuning with memory; old classes' scores are rectified by what they were when they were learned.

    Scores are softmax probabilities: they are positive, so the paper's ratios of means have a meaning. Old
    classes' rows of the head are kept; the authors' code draws the whole head anew in each step.
    """

    paper: ClassVar[str] = "Belouadah and Popescu, IL2M: Class Incremental Learning With Dual Memory, ICCV 2019"
    variants: ClassVar = {"il2m": {}}
    corrects: ClassVar[bool] = True
    extra: ClassVar[str] = "two numbers a class, one a step"

    def __post_init__(self) -> None:
        super().__post_init__()
        self.first: Tensor
        self.now: Tensor
        self.confidence: Tensor
        for name in ("first", "now", "confidence"):
            self.register_buffer(name, torch.ones(0))

    def begin(self, step: Step, fit: Fit) -> None:
        super().begin(step, fit)
        self.now = torch.ones(0, device=self.now.device)  # until ``end`` nothing is rectified

    def end(self, step: Step, fit: Fit) -> dict[str, float]:
        probabilities = fit.over(step.images, lambda x: self.scores(x).softmax(1))
        device = self.head.weight.device
        new = _own_means(probabilities, step.images.labels, range(step.old, step.seen)).to(device)
        # the mean top score over the new classes' images says how confident this step's model is
        self.confidence = torch.cat([self.confidence, probabilities.amax(1).mean()[None].to(device)])
        self.first = torch.cat([self.first, new])
        old = fit.memory.images()  # as they were trained on; the memory is cut later
        if not step.old or old is None:
            return {}
        said = fit.over(old, lambda x: self.scores(x).softmax(1))
        self.now = torch.cat([_own_means(said, old.labels, range(step.old)).to(device), new])
        return {}

    def keep(self, classes: Tensor) -> None:
        super().keep(classes)
        self.first = self.first[classes]
        self.now = self.now[classes] if len(self.now) else self.now

    def predict(self, x: Tensor) -> Tensor:
        scores = self.scores(x).softmax(1)
        if len(self.now) == scores.shape[1]:
            scores = self.rectified(scores)
        return scores.clamp(min=1e-30).log()  # logarithms, so that a softmax gives the probabilities back

    def rectified(self, scores: Tensor) -> Tensor:
        """Eq. 1: only where a new class wins, old scores × [μ first / μ now] · [confidence now / when learned]."""
        old = scores.shape[1] - self.steps[-1]
        step_of = torch.repeat_interleave(self.sizes)[:old]
        ratio = self.first[:old] / self.now[:old].clamp(min=LEAST)
        ratio = ratio * self.confidence[-1] / self.confidence[step_of].clamp(min=LEAST)
        wins_new = scores.argmax(1, keepdim=True) >= old
        return torch.cat([torch.where(wins_new, scores[:, :old] * ratio, scores[:, :old]), scores[:, old:]], 1)


def _own_means(probabilities: Tensor, labels: Tensor, classes: range) -> Tensor:
    """The mean score of each class over its own images."""
    return torch.stack([probabilities[labels == c, c].mean() for c in classes])
