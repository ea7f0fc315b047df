"""IL2M: class-incremental learning with dual memory."""

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn

from equipoise.methods import Fit, Method, Step

MAX_RATIO = 100.0
"""Upper bound of the factor of a score: with a mean near zero, the factor would be unbounded."""


@dataclass(eq=False)
class IL2M(Method):
    """Plain fine-tuning with memory; old classes' scores are rectified by their level when they were learned.

    Scores are logits, as in the authors' code. They may be negative, and a ratio of means is meaningful only between
    positive ones: a class is rectified only if all four means of its factor are positive, and the factor is limited
    to 100.
    """

    paper = "Belouadah and Popescu, IL2M: Class Incremental Learning With Dual Memory, ICCV 2019"
    variants: ClassVar = {"il2m": {}}
    corrects = True
    stores = "two numbers per class and one per step"
    per_class = ("first", "now")

    bias: bool = True
    """Give the head a bias."""
    score: Literal["logits", "softmax"] = "logits"
    """What is rectified: logits, or softmax probabilities, which saturate after long training."""
    reinit_head: bool = False
    """Reinitialise the whole head in each step (authors' code) instead of only the new classes' rows."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.first: Tensor = nn.Buffer(torch.ones(0))  # mean score of each class when it was learned
        self.now: Tensor = nn.Buffer(torch.ones(0))  # and with the current model
        self.confidence: Tensor = nn.Buffer(torch.ones(0))  # mean top score of each step's model on its new classes

    def begin(self, step: Step, fit: Fit) -> None:
        self.head.grow(step.new, self.reinit_head)
        self.now = torch.ones(0, device=self.now.device)  # no rectification until ``end``

    def end(self, step: Step, fit: Fit) -> dict[str, float]:
        scores = fit.map(step.images, self.scores)
        new = own_means(scores, step.images.labels, range(step.old, step.seen)).to(self.device)
        self.confidence = torch.cat([self.confidence, scores.amax(1).mean()[None].to(self.device)])
        self.first = torch.cat([self.first, new])
        old = fit.memory.images()  # as trained on; the memory is truncated later
        if not step.old or old is None:
            return {}
        now = own_means(fit.map(old, self.scores), old.labels, range(step.old)).to(self.device)
        self.now = torch.cat([now, new])
        return {}

    def scores(self, x: Tensor) -> Tensor:
        logits = self.logits(x)
        return logits if self.score == "logits" else logits.softmax(1)

    def classify(self, features: Tensor) -> Tensor:
        logits = self.logits_from(features)
        if len(self.now) != logits.shape[1]:
            return logits
        if self.score == "logits":
            return self.rectify(logits)
        return self.rectify(logits.softmax(1)).clamp(min=1e-30).log()  # logits, whose softmax gives the scores back

    def rectify(self, scores: Tensor) -> Tensor:
        """Eq. 1: if a new class wins, multiply old scores by [μ first / μ now] · [confidence now / when learned]."""
        old = scores.shape[1] - self.steps[-1]
        step_of = torch.repeat_interleave(self.sizes)[:old]
        means = torch.stack([
            self.first[:old], self.now[:old], self.confidence[-1].expand(old), self.confidence[step_of]
        ])  # fmt: skip
        first, now, confidence, then = means
        ratio = torch.where((means > 0).all(0), first / now * confidence / then, 1.0).clamp(max=MAX_RATIO)
        new_wins = scores.argmax(1, keepdim=True) >= old
        return torch.cat([torch.where(new_wins, scores[:, :old] * ratio, scores[:, :old]), scores[:, old:]], 1)


def own_means(scores: Tensor, labels: Tensor, classes: range) -> Tensor:
    """Return the mean score of each class over its own images."""
    return torch.stack([scores[labels == c, c].mean() for c in classes])
