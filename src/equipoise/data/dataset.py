"""A data set: training and test images of named classes, and how such images are usually augmented."""

from __future__ import annotations

from dataclasses import dataclass

from equipoise.data.augment import Augment
from equipoise.data.images import Images


@dataclass(frozen=True)
class Dataset:
    """Labels are positions in ``classes``."""

    name: str
    train: Images
    test: Images
    classes: tuple[str, ...]
    augment: Augment
