"""Digits: 1,797 handwritten digits of 8×8 pixels that come with scikit-learn. Tiny real data for tests."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import torch
from sklearn.datasets import load_digits
from torch import Tensor

from equipoise.core.seeding import generator
from equipoise.data.augment import Augment
from equipoise.data.dataset import Dataset
from equipoise.data.images import Images
from equipoise.data.sources.folder import split_test


def load(root: Path | None, test_fraction: float = 0.2) -> Dataset:
    """Load the digits; ``test_fraction`` of each class is held out for testing, always the same images."""
    train, test = split_test(Images.of(*_digits()), test_fraction, lambda digit: generator("digits", digit))
    return Dataset(
        "digits",
        train=train,
        test=test,
        classes=tuple(str(digit) for digit in range(10)),
        augment=Augment(mean=(0.305,), std=(0.376,), pad=1),
    )


@cache
def _digits() -> tuple[Tensor, Tensor]:
    """Return pixels and labels; scikit-learn parses them from a text file, which takes longer than a short training."""
    raw = load_digits()
    pixels = torch.from_numpy(raw.images).mul(255 / 16).round().to(torch.uint8)[:, None]
    return pixels, torch.from_numpy(raw.target).long()
