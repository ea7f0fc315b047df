"""ACIL: learn features in the first step, then ridge regression on a random expansion of them."""

from dataclasses import dataclass
from typing import Annotated, ClassVar

from torch import Tensor
from torch.nn import functional as F

from equipoise.methods import Architecture, Fit, Head, Range, Step
from equipoise.methods.ranpac import RanPAC


@dataclass(eq=False)
class ACIL(RanPAC):
    """The backbone is trained on the first step's classes and then frozen; the head is solved in closed form.

    The authors' recursive solution equals the joint one. On a backbone that is frozen from the start, this is RanPAC
    with another width.
    """

    projection: Annotated[int, Range(1, 20_000)] = 8192
    """Width of the random expansion (the authors' buffer)."""

    paper = (
        "Zhuang et al., ACIL: Analytic Class-Incremental Learning with Absolute Memorization and Privacy Protection, "
        "NeurIPS 2022"
    )
    variants: ClassVar = {"acil": {}}
    rehearsal = "none"

    def build(self, architecture: Architecture) -> None:
        super().build(architecture)
        self.first_head = Head(self.backbone.width, bias=True)

    def begin(self, step: Step, fit: Fit) -> None:
        images = fit.images
        super().begin(step, fit)
        if step.old:
            self.requires_grad_(False)
        else:
            self.first_head.grow(step.new)
            fit.images = images

    def end(self, step: Step, fit: Fit) -> dict[str, float]:
        self.first_head = Head(self.backbone.width, bias=True)  # it was for training only
        return super().end(step, fit)

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(self.first_head(self.features(x)), y)
