"""Herding (Welling 2009; iCaRL, Rebuffi et al. 2017, Alg. 4): which few stand best for the many."""

from __future__ import annotations

import torch
from torch import Tensor

from equipoise.errors import UsageError


def herd(features: Tensor, count: int) -> Tensor:
    """Rows of ``features`` in herding order: each pick brings the mean of the picked closest to the mean of all.

    Features are taken as given: normalise them first if the method says so. With S the sum of the k-1 picked,
    argmin ‖μ - (S + f)/k‖² = argmax 2 f·(kμ - S) - ‖f‖², so a pick costs one matrix-vector product.

    >>> herd(torch.tensor([[0.0], [1.0], [5.0]]), 2)
    tensor([1, 2])
    """
    if features.dim() != 2:
        raise UsageError(f"herding takes one row of features an image, not a tensor of shape {tuple(features.shape)}")
    features = features.detach().double()  # exact enough that near-ties fall as in the plain definition
    count = min(count, len(features))
    mean, squares = features.mean(0), features.square().sum(1)
    wanted, picked = mean.clone(), torch.empty(count, dtype=torch.long)
    for k in range(count):
        gain = torch.mv(features, 2 * wanted) - squares
        gain[picked[:k]] = -torch.inf
        picked[k] = gain.argmax()
        wanted += mean - features[picked[k]]
    return picked
