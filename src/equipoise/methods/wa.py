"""Weight Aligning, and the variations it is compared with in its own paper."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

from torch import Tensor
from torch.nn import functional as F

from equipoise.data.stream import Step
from equipoise.errors import UsageError
from equipoise.learn.align import align_head, unit_head
from equipoise.learn.head import Head
from equipoise.learn.losses import distill, old_share
from equipoise.learn.method import Method

if TYPE_CHECKING:
    from equipoise.learn.trainer import Fit


@dataclass(eq=False)
class WA(Method):
    """Cross-entropy and distillation, then new classes' weights scaled to the old ones' mean norm."""

    paper: ClassVar[str] = (
        "Zhao et al., Maintaining Discrimination and Fairness in Class Incremental Learning, CVPR 2020"
    )
    abouts: ClassVar = {
        "ce": "Cross-entropy on new images and exemplars, the head clipped as in all of these: Variation 1.",
        "ce+wa": "Cross-entropy, then aligned weights: Variation 2.",
        "ce+kd": "Cross-entropy and distillation, no correction: Variation 3.",
        "ce+kd+wnl": "Cross-entropy and distillation with rows of unit norm all along: Variation 4.",
        "ce+kd+unit": "Cross-entropy and distillation, then rows of unit norm: found inferior to WA in Sec. 5.2.",
    }
    variants: ClassVar = {
        "wa": {"distil": True, "correction": "align", "unit_rows": False},
        "ce": {"distil": False, "correction": "none", "unit_rows": False},
        "ce+wa": {"distil": False, "correction": "align", "unit_rows": False},
        "ce+kd": {"distil": True, "correction": "none", "unit_rows": False},
        "ce+kd+wnl": {"distil": True, "correction": "none", "unit_rows": True},
        "ce+kd+unit": {"distil": True, "correction": "unit", "unit_rows": False},
    }

    distil: bool = True
    """Learn from the previous model too (phase 1, maintaining discrimination)."""
    correction: Literal["align", "unit", "none"] = "align"
    """After training: align new rows to old ones (phase 2, maintaining fairness), unit L2 norm for all, or nothing."""
    unit_rows: bool = False
    """Rows have unit L2 norm inside the forward pass, in training too (Variation4, WNL)."""
    scale: float = 1.0
    """What multiplies the scores of unit rows; the authors' code has none, NormFace has one."""
    norm: Literal[1, 2] = 1
    """The norm that is aligned (authors' code: 1)."""
    clamp: bool = True
    """Never let γ exceed 1 (authors' code; the text has no bound)."""
    clip: bool = True
    """Keep the head's weights at 0 or above after every update (Sec. 4.3)."""
    bias: bool = False
    """Give the head a bias; γ scales it too (Sec. 5.4)."""
    redraw: bool = True
    """Draw the whole head anew at each step (authors' code), instead of only the new classes' rows (the text)."""
    temperature: float = 2.0
    """T of the distillation."""
    balance: float | None = None
    """λ, the weight of distillation; none is the rule C_old / (C_old + C)."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.temperature > 0:
            raise UsageError(f"method.temperature is {self.temperature}, but it must be above 0")
        if self.balance is not None and not 0 <= self.balance <= 1:
            raise UsageError(f"method.balance is {self.balance}, but it is a share, from 0 to 1")

    @property  # its fields decide
    def uses_teacher(self) -> bool:  # type: ignore[override]
        return self.distil

    @property
    def corrects(self) -> bool:  # type: ignore[override]
        return self.correction != "none"

    def make_head(self, features: int) -> Head:
        return Head(features, self.bias, "unit" if self.unit_rows else "linear", self.scale)

    def begin(self, step: Step, fit: Fit) -> None:
        self.start(step)
        self.head.grow(step.new, self.redraw)

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        scores = self.scores(x)
        loss = F.cross_entropy(scores, y)  # Eq. 2
        if self.teacher is None:
            return loss
        balance = old_share(self.old, self.new) if self.balance is None else self.balance
        return (1 - balance) * loss + balance * distill(scores, self.ask_teacher(x), self.temperature)  # Eq. 1

    def after_update(self) -> None:
        if self.clip:
            self.head.weight.data.clamp_(min=0)  # Sec. 4.3

    def end(self, step: Step, fit: Fit) -> dict[str, float]:
        if not step.old or self.correction == "none":
            return {}
        if self.correction == "unit":
            unit_head(self.head)  # Sec. 5.2, last paragraph
            return {}
        return {"gamma": align_head(self.head, step.old, self.norm, self.clamp)}  # Eq. 6, 7
