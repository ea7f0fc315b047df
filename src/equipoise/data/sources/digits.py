"""Digits: 1,797 handwritten digits of 8×8 pixels that come with scikit-learn. Tiny real data for tests."""

from __future__ import annotations

from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import numpy as np
import torch
from torch import Tensor

from equipoise.core.ranges import HOLD_OUT
from equipoise.core.seeding import generator
from equipoise.data.augment import Augment
from equipoise.data.dataset import Dataset
from equipoise.data.images import Images
from equipoise.data.sources.folder import split_test


def load(root: Path | None, test_fraction: Annotated[float, HOLD_OUT] = 0.2) -> Dataset:
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
    """Return pixels and labels, read from scikit-learn's file: importing scikit-learn takes longer than a short run."""
    package = find_spec("sklearn")
    assert package is not None  # a requirement of ours
    assert package.origin is not None
    rows = torch.from_numpy(np.loadtxt(Path(package.origin).parent / "datasets/data/digits.csv.gz", delimiter=","))
    pixels = rows[:, :-1].reshape(-1, 1, 8, 8).mul(255 / 16).round().to(torch.uint8)
    return pixels, rows[:, -1].long()
