"""Herding (Welling 2009; iCaRL, Rebuffi et al. 2017, Alg. 4): select images that represent their class."""

from __future__ import annotations

import torch
from torch import Tensor

from equipoise.errors import UsageError


def herd(features: Tensor, count: int) -> Tensor:
    """Select rows so that the mean of the selected rows stays as close as possible to the mean of all rows.

    Parameters
    ----------
    features
        One row per image, used as given: normalise them first if the method says so.
    count
        Number of rows to select.

    Returns
    -------
    Tensor
        Indices of the selected rows, in the order of selection.

    Notes
    -----
    With S the sum of the k-1 rows selected before, argmin ‖μ - (S + f)/k‖² = argmax 2 f·(kμ - S) - ‖f‖², so each row
    costs one matrix-vector product.

    A row is never selected twice. The released code of iCaRL and WA can select it again: iCaRL's then counts it twice
    in S, and WA's also stores it twice. Orders agree until the first repetition.

    Examples
    --------
    >>> herd(torch.tensor([[0.0], [1.0], [5.0]]), 2)
    tensor([1, 2])
    """
    if features.dim() != 2:
        raise UsageError(f"herding needs one row of features per image, got a tensor of shape {tuple(features.shape)}")
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
        # rounding changes a product by at most this much: rows that close to the best are compared in double precision
        slack = unit * longest * (2 * float(wanted.norm()) + longest)
        near = (gain >= best - slack).nonzero()[:, 0]
        if len(near) > 1:
            place = near[(torch.mv(features[near].double(), 2 * wanted) - squares[near]).argmax()]
        picked.append(int(place))
        lengths[place] = torch.inf  # never select a row twice
        wanted += mean - features[place]
    return torch.tensor(picked, dtype=torch.long)
