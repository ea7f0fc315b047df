"""SLDA: class means and one covariance matrix, shared by all classes."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from equipoise.methods import ClosedForm, Fraction, Moments


@dataclass(eq=False)
class SLDA(ClosedForm):
    """Linear discriminant analysis with Oracle Approximating Shrinkage of the covariance."""

    shrinkage: Fraction | None = None
    """Fraction of the identity in the covariance (the authors: 1e-4); none lets OAS choose it, and a multiple of the
    identity."""

    paper = "Hayes and Kanan, Lifelong Machine Learning with Deep Streaming Linear Discriminant Analysis, CVPRW 2020"
    variants: ClassVar = {"slda": {}}
    stores = "a mean per class and one matrix (or all features)"

    def __post_init__(self) -> None:
        super().__post_init__()

    def solve(self, known: Moments) -> tuple[Tensor, Tensor]:
        shares, means = known.shares, known.means - known.mean
        freedom = (shares * (1 - 1 / known.counts)).sum()
        within = (known.centred() - means.T @ (shares[:, None] * means)) / freedom.clamp(min=1e-12)
        identity, scale = torch.eye(len(within), dtype=within.dtype), within.trace() / len(within)
        shrinkage, target = self.shrinkage, identity
        if shrinkage is None:
            shrinkage, target = oas(within, known.counts.sum().item()), scale * identity
        shared = (1 - shrinkage) * within + shrinkage * target
        if freedom == 0 or scale <= 1e-12 * known.gram.trace() / len(within):  # equal images: no spread is known
            shared = identity
        inverse = torch.linalg.inv if shrinkage > 0 else torch.linalg.pinv
        weight = means @ inverse(shared)
        return weight, -(weight * (means / 2 + known.mean)).sum(1)


def oas(covariance: Tensor, images: float) -> float:
    """Return the shrinkage of Chen et al., Shrinkage Algorithms for MMSE Covariance Estimation, 2010."""
    size = len(covariance)
    mean, square = covariance.trace() / size, covariance.square().mean()
    excess = (images + 1) * (square - mean**2 / size)
    return min(1.0, ((square + mean**2) / excess).item()) if excess > 0 else 1.0
