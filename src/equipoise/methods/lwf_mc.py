"""LwF.MC: Learning without Forgetting for multi-class problems, as iCaRL's authors run it."""

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from equipoise.methods import Method, sigmoid_distill


@dataclass(eq=False)
class LwFMC(Method):
    """One sigmoid per class: one-hot targets for new classes, the old model's outputs for old ones."""

    paper = "Rebuffi et al., iCaRL, CVPR 2017, Sec. 4 (after Li and Hoiem, ECCV 2016)"
    variants: ClassVar = {"lwf-mc": {}}
    uses_teacher = True
    rehearsal = "none"
    final_relu = False  # iCaRL's authors' network

    units: int | None = None
    """Average the loss over this many units (none: the classes seen). The authors' network has all 100 units from the
    start; a growing head would otherwise take larger steps early."""

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        logits = self.logits(x)
        target = None if self.teacher is None else self.from_teacher(lambda teacher: teacher.logits(x))
        loss = sigmoid_distill(logits, y, target)  # iCaRL, Alg. 3: also for rehearsal images
        return loss if self.units is None else loss * logits.shape[1] / self.units
