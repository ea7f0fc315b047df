"""LwF: Learning without Forgetting, with softmax."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from torch import Tensor
from torch.nn import functional as F

from equipoise.learn.losses import distill
from equipoise.learn.method import Method


@dataclass(eq=False)
class LwF(Method):
    """Cross-entropy on the new classes and distillation on the old ones, without any old image.

    Deviation: no warm-up in which the new classes' rows are trained alone.
    """

    paper: ClassVar[str] = "Li and Hoiem, Learning without Forgetting, ECCV 2016"
    variants: ClassVar = {"lwf": {}}
    uses_teacher: ClassVar[bool] = True
    rehearses: ClassVar[Literal["memory", "everything", "nothing"]] = "nothing"

    temperature: float = 2.0
    """T of the distillation."""
    balance: float = 1.0
    """The weight of the distillation (λ_o)."""
    over: Literal["new", "all"] = "new"
    """The classes between which cross-entropy decides: the step's own (each task has its head in the paper), or all."""

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        scores = self.scores(x)
        if self.teacher is None:
            return F.cross_entropy(scores, y)
        first = self.old if self.over == "new" else 0
        loss = F.cross_entropy(scores[:, first:], y - first)
        return loss + self.balance * distill(scores, self.ask_teacher(x), self.temperature)
