"""LwF: Learning without Forgetting, with softmax."""

from dataclasses import dataclass
from typing import ClassVar, Literal

from torch import Tensor
from torch.nn import functional as F

from equipoise.methods import Method, distill


@dataclass(eq=False)
class LwF(Method):
    """Cross-entropy on the new classes and distillation on the old ones, without any old image.

    Deviation: no warm-up in which only the new classes' rows are trained.
    """

    paper = "Li and Hoiem, Learning without Forgetting, ECCV 2016"
    variants: ClassVar = {"lwf": {}}
    uses_teacher = True
    rehearsal = "none"

    temperature: float = 2.0
    """Temperature T of the distillation."""
    kd_weight: float = 1.0
    """Weight λ_o of the distillation."""
    over: Literal["new", "all"] = "new"
    """Classes of the cross-entropy: the step's own (each task has its head in the paper), or all seen."""

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        logits = self.logits(x)
        if self.teacher is None:
            return F.cross_entropy(logits, y)
        first = self.old if self.over == "new" else 0
        loss = F.cross_entropy(logits[:, first:], y - first)
        return loss + self.kd_weight * distill(logits, self.teacher_predict(x), self.temperature)
