"""IL2M: class-incremental learning with dual memory."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from equipoise.methods import Fit, Method, Step

MIN_MEAN = 1e-6
"""Lower bound of a mean score, so that every ratio is defined."""


@dataclass(eq=False)
class IL2M(Method):
    """Plain fine-tuning with memory; old classes' scores are rectified by their level when they were learned.

    Scores are softmax probabilities: they are positive, so the paper's ratios of means are meaningful. Old classes'
    rows of the head are kept; the authors' code reinitialises the whole head in each step.
    """

    paper = "Belouadah and Popescu, IL2M: Class Incremental Learning With Dual Memory, ICCV 2019"
    variants: ClassVar = {"il2m": {}}
    corrects = True
    stores = "two numbers per class and one per step"
    per_class = ("first", "now")

    def __post_init__(self) -> None:
        super().__post_init__()
        self.first: Tensor = nn.Buffer(torch.ones(0))  # mean score of each class when it was learned
        self.now: Tensor = nn.Buffer(torch.ones(0))  # and with the current model
        self.confidence: Tensor = nn.Buffer(torch.ones(0))  # mean top score of each step's model on its new classes

    def begin(self, step: Step, fit: Fit) -> None:
        super().begin(step, fit)
        self.now = torch.ones(0, device=self.now.device)  # no rectification until ``end``

    def end(self, step: Step, fit: Fit) -> dict[str, float]:
        probabilities = fit.map(step.images, lambda x: self.logits(x).softmax(1))
        new = own_means(probabilities, step.images.labels, range(step.old, step.seen)).to(self.device)
        self.confidence = torch.cat([self.confidence, probabilities.amax(1).mean()[None].to(self.device)])
        self.first = torch.cat([self.first, new])
        old = fit.memory.images()  # as trained on; the memory is truncated later
        if not step.old or old is None:
            return {}
        scores = fit.map(old, lambda x: self.logits(x).softmax(1))
        self.now = torch.cat([own_means(scores, old.labels, range(step.old)).to(self.device), new])
        return {}

    def classify(self, features: Tensor) -> Tensor:
        scores = self.logits_from(features).softmax(1)
        if len(self.now) == scores.shape[1]:
            scores = self.rectify(scores)
        return scores.clamp(min=1e-30).log()  # logits, whose softmax gives the scores back

    def rectify(self, scores: Tensor) -> Tensor:
        """Eq. 1: if a new class wins, multiply old scores by [μ first / μ now] · [confidence now / when learned]."""
        old = scores.shape[1] - self.steps[-1]
        step_of = torch.repeat_interleave(self.sizes)[:old]
        ratio = self.first[:old] / self.now[:old].clamp(min=MIN_MEAN)
        ratio = ratio * self.confidence[-1] / self.confidence[step_of].clamp(min=MIN_MEAN)
        new_wins = scores.argmax(1, keepdim=True) >= old
        return torch.cat([torch.where(new_wins, scores[:, :old] * ratio, scores[:, :old]), scores[:, old:]], 1)


def own_means(probabilities: Tensor, labels: Tensor, classes: range) -> Tensor:
    """Return the mean score of each class over its own images."""
    return torch.stack([probabilities[labels == c, c].mean() for c in classes])
