"""LwF.MC: Learning without Forgetting for many classes, as iCaRL's authors run it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from torch import Tensor

from equipoise.learn.losses import sigmoid_distill
from equipoise.learn.method import Method


@dataclass(eq=False)
class LwFMC(Method):
    """One sigmoid unit a class: one-hot targets for new classes, the old model's own outputs for old ones."""

    paper: ClassVar[str] = "Rebuffi et al., iCaRL, CVPR 2017, Sec. 4 (after Li and Hoiem, ECCV 2016)"
    variants: ClassVar = {"lwf-mc": {}}
    uses_teacher: ClassVar[bool] = True
    rehearses: ClassVar[Literal["memory", "everything", "nothing"]] = "nothing"
    final_relu: ClassVar[bool] = False  # iCaRL's authors' network

    units: int | None = None
    """Average the loss over so many units. The authors' network has all 100 from the start; a head that grows would
    otherwise take larger steps early. None: the classes seen."""

    def lesson(self, x: Tensor) -> Tensor:
        return self.scores(x)

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        scores = self.scores(x)
        taught = None if self.teacher is None else self.ask_teacher(x)
        loss = sigmoid_distill(scores, y, taught)  # iCaRL, Alg. 3: also for rehearsal images
        return loss if self.units is None else loss * scores.shape[1] / self.units
