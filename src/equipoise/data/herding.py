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
    features = features.detach()
    if not features.is_floating_point():
        features = features.double()
    count, width = min(count, len(features)), features.shape[1]
    mean = features.mean(0, dtype=torch.double)
    squares = torch.linalg.vector_norm(features, dim=1, dtype=torch.double).square()
    longest = float(squares.amax().sqrt()) if count else 0.0
    unit = 2 * (width + 4) * torch.finfo(features.dtype).eps
    lengths, wanted, picked = squares.to(features.dtype), mean.clone(), []
    for _ in range(count):
        gain = torch.mv(features, (2 * wanted).to(features.dtype)).sub_(lengths)
        best, place = gain.max(0)
        # rounding can take a product no further than this: whoever is as near to the best is looked at exactly
        slack = unit * longest * (2 * float(wanted.norm()) + longest)
        near = (gain >= best - slack).nonzero()[:, 0]
        if len(near) > 1:
            place = near[(torch.mv(features[near].double(), 2 * wanted) - squares[near]).argmax()]
        picked.append(int(place))
        lengths[place] = torch.inf  # once is enough
        wanted += mean - features[place]
    return torch.tensor(picked, dtype=torch.long)
