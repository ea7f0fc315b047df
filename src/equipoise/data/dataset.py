"""A data set: training and test images of named classes, and their usual augmentation."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from equipoise.core.seeding import generator
from equipoise.data.augment import Augment
from equipoise.data.images import Images
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
        # not hold_out: runs of 0.1.0 drew one order for all classes, and continue only with the same images
        order = torch.randperm(len(self.train), generator=generator("validation"))
        order = order[self.train.labels[order].argsort(stable=True)]
        labels = self.train.labels[order]
        held = torch.arange(len(order)) - torch.searchsorted(labels, labels) < count
        return replace(self, train=self.train.select(order[~held]), test=self.train.select(order[held]))
