"""LwF: Learning without Forgetting, with softmax."""

from dataclasses import dataclass
from typing import ClassVar, Literal

from torch import Tensor
from torch.nn import functional as F

from equipoise.methods import Method, Temperature, Weight, distill_groups


@dataclass(eq=False)
class LwF(Method):
    """Cross-entropy on the new classes and a distillation for each old step's classes, without any old image.

    Deviation: no warm-up in which only the new classes' rows are trained.
    """

    paper = "Li and Hoiem, Learning without Forgetting, ECCV 2016"
    variants: ClassVar = {"lwf": {}}
    uses_teacher = True
    rehearsal = "none"

    temperature: Temperature = 2.0
    """Temperature T of the distillation."""
    kd_weight: Weight = 1.0
    """Weight λ_o of the distillation."""
    over: Literal["new", "all"] = "new"
    """Classes of the cross-entropy: only the step's own (in the paper, each task has its own head), or all seen."""

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        logits = self.logits(x)
        if self.teacher is None:
            return F.cross_entropy(logits, y)
        first = self.old if self.over == "new" else 0
        loss = F.cross_entropy(logits[:, first:], y - first)
        distillation = distill_groups(logits, self.teacher_predict(x), self.steps[:-1], self.temperature)
        return loss + self.kd_weight * distillation
