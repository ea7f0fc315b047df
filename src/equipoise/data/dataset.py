"""A data set: training and test images of named classes, and their usual augmentation."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from equipoise.core.seeding import generator
from equipoise.data.augment import Augment
from equipoise.data.images import Images
from equipoise.data.split import hold_out
from equipoise.errors import UsageError


@dataclass(frozen=True)
class Dataset:
    """Labels are positions in ``classes``."""

    name: str
    train: Images
    test: Images
    classes: tuple[str, ...]
    augment: Augment

    def with_validation(self, count: int) -> Dataset:
        """Replace the test images by ``count`` training images per class, always the same ones.

        Choose settings on these: choosing them by test accuracy would be training on the test set.
        """
        fewest = int(torch.bincount(self.train.labels, minlength=len(self.classes)).min())
        if not 0 < count < fewest:
            raise UsageError(
                f"stream.validation must be below {fewest}, the training images of the smallest class; got {count}"
            )
        held = hold_out(self.train.labels, lambda images: count, lambda label: generator("validation", label))
        return replace(self, train=self.train.select(~held), test=self.train.select(held))
