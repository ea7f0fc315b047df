"""Ridge: regression to one-hot targets on fixed features, the same for any order and number of steps."""

from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
from torch import Tensor

from equipoise.methods import ClosedForm, Fit, Moments, Range, RidgePath, Step, choose_ridge, fit_ridge

SAMPLE = 2000
"""Number of images to choose the temperature on, if only moments are kept."""


@dataclass(eq=False)
class Ridge(ClosedForm):
    """Solves for the head in closed form; λ and the softmax temperature come from leave-one-out predictions."""

    strength: Annotated[float, Range(1e-12, 1e12)] | None = None
    """λ; none chooses it by leave-one-out, or by generalised cross-validation where only moments are kept."""

    paper = "Hoerl and Kennard, Ridge Regression: Biased Estimation for Nonorthogonal Problems, Technometrics 1970"
    variants: ClassVar = {"ridge": {}}
    leaves_one_out = True
    stores = "a mean per class and one matrix (or all features)"

    def __post_init__(self) -> None:
        super().__post_init__()

    def solve_rows(self, features: Tensor, labels: Tensor, classes: int) -> dict[str, float]:
        merge = self.backbone.frozen  # rows that are not features of images have no bursts
        solution = fit_ridge(features, labels, classes, self.even, self.strength, merge)
        self.set_head(solution.weight, solution.bias)
        self.loo_logits, self.loo_rows = solution.loo, solution.loo_rows
        return {"strength": solution.strength, "temperature": solution.temperature, "offset": solution.offset}

    def solve_moments(self, known: Moments, step: Step, fit: Fit) -> dict[str, float]:
        """Solve from moments. The images of this step determine only the temperature, which changes no prediction.

        There is no offset for classes with few images: choosing it would need all images.
        """
        sample = torch.arange(0, len(step.images), -(-len(step.images) // SAMPLE))
        rows, labels = self.rows(fit, step.images.select(sample))
        path = RidgePath(known)
        strength = self.strength or path.generalised()
        _, temperature, _ = choose_ridge(path, rows, labels, strength, offset=0.0)
        weight, bias = path.solve(strength)
        self.set_head(weight / temperature, bias / temperature)
        return {"strength": strength, "temperature": temperature}
