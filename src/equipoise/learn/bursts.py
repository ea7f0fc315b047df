"""Count nearly identical images of a class, such as frames of a webcam, as one image."""

from __future__ import annotations

import math

import torch
from torch import Tensor

BURST = 0.12
"""Squared distance, relative to the norms, below which two images of a class count as one, such as video frames."""
APART = 0.5
"""The same, relative to the squared distance to the nearest mean of another class."""
CHUNK = 8192
"""Rows that are converted to float64 at a time."""


def merge_bursts(features: Tensor, labels: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Replace nearly identical images of a class by their mean, so that a burst of frames counts as one image.

    Images are not merged if another class is equally close: with a fixed camera, all images look alike, and classes
    differ only in details.

    Returns
    -------
    features, labels, group
        One row per group, in the order of first rows; ``group`` is the row that each image was merged into.
    """
    group, counts = torch.arange(len(labels)), labels.bincount()
    sums = torch.zeros(len(counts), features.shape[1], dtype=torch.float64)
    for rows, where in zip(features.split(CHUNK), labels.split(CHUNK), strict=True):
        sums.index_add_(0, where, rows.double())
    means = sums / counts.clamp(min=1)[:, None]
    absent = counts == 0
    for label, mine in enumerate(labels.argsort(stable=True).split(counts.tolist())):
        if len(mine) > CHUNK:  # the matrix below would not fit in memory, and so many images are no burst
            continue
        x = features[mine].double()
        norms, products = x.norm(dim=1), x @ x.T
        squares = norms[:, None] ** 2 + norms**2 - 2 * products
        near = (squares < BURST * norms.outer(norms)).fill_diagonal_(False)
        pairs = near.any(1).nonzero()[:, 0]  # most images have no near ones
        others = norms[pairs, None] ** 2 + means.square().sum(1) - 2 * x[pairs] @ means.T
        others[:, absent | (torch.arange(len(means)) == label)] = math.inf
        apart = torch.full((len(x),), math.inf, dtype=x.dtype).scatter_(0, pairs, APART * others.amin(1))
        near = (near & (squares < torch.minimum(apart[:, None], apart))).tril(-1)
        leads = torch.ones(len(mine), dtype=torch.bool)
        for row in near.any(1).nonzero()[:, 0].tolist():  # join the first group that is led by a similar image
            leaders = (near[row] & leads).nonzero()[:, 0]
            if len(leaders):
                leads[row] = False
                group[mine[row]] = mine[leaders[0]]
    kept, group = group.unique(return_inverse=True)
    if len(kept) == len(labels):
        return features, labels, group
    merged, sizes = features[kept], group.bincount()
    several = sizes > 1
    rows = several[group].nonzero()[:, 0]
    total = torch.zeros(int(several.sum()), features.shape[1], dtype=torch.float64)
    total.index_add_(0, (several.cumsum(0) - 1)[group[rows]], features[rows].double())
    merged[several] = (total / sizes[several, None]).to(merged.dtype)
    return merged, labels[kept], group
