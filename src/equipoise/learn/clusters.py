"""Group images of unknown classes by similarity, without knowing how many classes there are.

Ward's method on features of unit length, relative to the mean of known images; the number of groups has the best
silhouette. Two groups of one class are easy to join, but a group of two classes has to be sorted by hand: images become
one group only if they are closer together than the images of a known class are on average.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

MOST = 4000
"""Images, at most, that are grouped; the others join the nearest group."""
GROUPS = 100
"""Groups, at most."""


def cluster(features: Tensor, known: Tensor, labels: Tensor) -> Tensor:
    """Return the group of each row, numbered from 0 by size, the largest first.

    Parameters
    ----------
    features
        Features of the images, one row each.
    known, labels
        Features and labels of images of known classes; may be empty.
    """
    centre = known.double().mean(0) if len(known) else torch.zeros(features.shape[1], dtype=torch.float64)
    rows = F.normalize(features.double() - centre, dim=1)
    sample = torch.arange(0, len(rows), max(1, -(-len(rows) // MOST)))
    groups = torch.from_numpy(_group(rows[sample], _spread_of_classes(known.double() - centre, labels)))
    if len(sample) < len(rows):
        means = torch.stack([rows[sample][groups == group].mean(0) for group in groups.unique()])
        groups = torch.cdist(rows, means).argmin(1)
    sizes = groups.bincount()
    return sizes.argsort(descending=True, stable=True).argsort()[groups]


def _group(rows: Tensor, usual: float) -> np.ndarray:
    if len(rows) < 3 or spread(rows) <= usual:
        # of two images, nothing can be said but whether they are as close as images of a class
        return np.zeros(len(rows), int) if len(rows) < 2 or spread(rows) <= usual else np.arange(len(rows))
    # importing these takes almost a second, and most uses of `equipoise serve` and `sort` have fewer images
    from scipy.cluster.hierarchy import fcluster, linkage
    from scipy.spatial.distance import pdist, squareform
    from sklearn.metrics import silhouette_score

    plain = rows.numpy()
    tree, distances = linkage(plain, "ward"), squareform(pdist(plain))
    best, found = -2.0, np.zeros(len(rows), int)
    for count in range(2, min(GROUPS, len(rows) - 1) + 1):
        groups = fcluster(tree, count, "maxclust") - 1
        if groups.max() < 1:
            continue
        score = silhouette_score(distances, groups, metric="precomputed")
        if score > best:
            best, found = score, groups
    return found


def _spread_of_classes(rows: Tensor, labels: Tensor) -> float:
    """Return the mean spread of the classes that have several images; 0 if there are none."""
    classes = [F.normalize(rows[labels == label], dim=1) for label in labels.unique()]
    spreads = [spread(mine) for mine in classes if len(mine) > 1]
    return sum(spreads) / len(spreads) if spreads else 0.0


def spread(rows: Tensor) -> float:
    """Return half the mean squared distance between two rows of unit length."""
    return (1 - rows.mean(0).square().sum().item()) * len(rows) / (len(rows) - 1)
