"""Weight Aligning, and the variations it is compared with in its own paper."""

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from torch import Tensor
from torch.nn import functional as F

from equipoise.methods import (
    Fit,
    Fraction,
    Head,
    Method,
    Positive,
    Step,
    Temperature,
    Variant,
    align_head,
    unit_head,
    weighted_distill,
)


def _variant(about: str, distill: bool, correction: str, unit_rows: bool = False) -> Variant:
    return Variant(about, distill=distill, correction=correction, unit_rows=unit_rows)


@dataclass(eq=False)
class WA(Method):
    """Cross-entropy and distillation, then the new classes' weights are scaled to the old classes' mean norm."""

    paper = "Zhao et al., Maintaining Discrimination and Fairness in Class Incremental Learning, CVPR 2020"
    variants: ClassVar = {
        "wa": _variant("", True, "align"),
        "ce": _variant("Cross-entropy with rehearsal and a clipped head (Variation 1).", False, "none"),
        "ce+wa": _variant("Cross-entropy, then weight aligning (Variation 2).", False, "align"),
        "ce+kd": _variant("Cross-entropy and distillation, no correction (Variation 3).", True, "none"),
        "ce+kd+wnl": _variant(
            "The same with a weight normalisation layer (Variation 4).", True, "none", unit_rows=True
        ),
        "ce+kd+unit": _variant("The same, then weights of unit norm (worse than WA in Sec. 5.2).", True, "unit"),
    }

    distill: bool = True
    """Distil from the previous model (phase 1, maintaining discrimination)."""
    correction: Literal["align", "unit", "none"] = "align"
    """After training: align new rows with old ones (phase 2, maintaining fairness), unit L2 norm, or nothing."""
    unit_rows: bool = False
    """Normalise the head's rows to unit L2 norm in the forward pass (Variation 4, WNL)."""
    scale: Positive = 1.0
    """Factor of the logits with unit_rows; the authors' code has none, NormFace has one."""
    norm: Literal[1, 2] = 1
    """The norm to align (authors' code: 1)."""
    clamp: bool = True
    """Limit γ to 1 (authors' code; the text has no limit)."""
    clip: bool = True
    """Clip the head's weights to ≥ 0 after every update (Sec. 4.3)."""
    reinit_head: bool = True
    """Reinitialise the whole head in each step (authors' code) instead of only the new classes' rows (the text)."""
    temperature: Temperature = 2.0
    """Temperature T of the distillation."""
    kd_weight: Fraction | None = None
    """Weight λ of the distillation (none: C_old / (C_old + C))."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.uses_teacher, self.reported_norm = self.distill, self.norm
        self.corrects = self.correction != "none"

    def training_fields(self) -> dict[str, Any]:
        unused = {"correction", "norm", "clamp", "reinit_head", "distill"}  # what distills is a teacher
        unused |= set() if self.teacher else {"temperature", "kd_weight"}
        return {name: value for name, value in super().training_fields().items() if name not in unused}

    def make_head(self, features: int) -> Head:
        return Head(features, self.bias, "unit" if self.unit_rows else "linear", self.scale)

    def begin(self, step: Step, fit: Fit) -> None:
        self.head.grow(step.new, self.reinit_head)

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        logits = self.logits(x)
        if self.teacher is None:
            return F.cross_entropy(logits, y)  # Eq. 2
        return weighted_distill(logits, y, self.teacher_predict(x), self.temperature, self.kd_weight)  # Eq. 1

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
