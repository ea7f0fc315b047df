"""Random splits per class."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor


def hold_out(labels: Tensor, count: Callable[[int], int], random: Callable[[int], torch.Generator]) -> Tensor:
    """Draw some images of each class.

    Parameters
    ----------
    labels
        The label of each image.
    count
        How many to draw from a class with that many images.
    random
        The generator for a label.

    Returns
    -------
    Tensor
        A boolean mask, true for the drawn images.
    """
    held = torch.zeros(len(labels), dtype=torch.bool)
    for label in labels.unique().tolist():
        mine = (labels == label).nonzero().flatten()
        order = torch.randperm(len(mine), generator=random(label))
        held[mine[order[: count(len(mine))]]] = True
    return held
