"""Digits: 1,797 handwritten digits, 8×8, that come with scikit-learn. Tiny real data for tests."""

from __future__ import annotations

from pathlib import Path

import torch
from sklearn.datasets import load_digits

from equipoise.data.augment import Augment
from equipoise.data.dataset import Dataset
from equipoise.data.images import Images
from equipoise.data.sources.folder import check_share
from equipoise.seeding import generator


def load(root: Path | None, test_share: float = 0.2) -> Dataset:
    """The same split every time; ``test_share`` of each class is for testing."""
    check_share(test_share)
    raw = load_digits()
    labels = torch.from_numpy(raw.target).long()
    pixels = torch.from_numpy(raw.images).mul(255 / 16).round().to(torch.uint8)[:, None]
    is_test = torch.zeros(len(labels), dtype=torch.bool)
    for digit in range(10):
        mine = (labels == digit).nonzero().flatten()
        shuffled = mine[torch.randperm(len(mine), generator=generator("digits", digit))]
        is_test[shuffled[: round(test_share * len(mine))]] = True
    everything = Images.of(pixels, labels)
    return Dataset(
        "digits",
        train=everything.select(~is_test),
        test=everything.select(is_test),
        classes=tuple(str(digit) for digit in range(10)),
        augment=Augment(mean=(0.305,), std=(0.376,), pad=1),
    )
