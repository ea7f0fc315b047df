"""A data set: training and test images of named classes, and how such images are usually augmented."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from equipoise.data.augment import Augment
from equipoise.data.images import Images
from equipoise.errors import UsageError
from equipoise.seeding import generator


@dataclass(frozen=True)
class Dataset:
    """Labels are positions in ``classes``."""

    name: str
    train: Images
    test: Images
    classes: tuple[str, ...]
    augment: Augment

    def validating(self, count: int) -> Dataset:
        """The same with ``count`` training images of each class, always the same, in the place of the test images.

        Whoever chooses settings by what they do to test images has trained on them: choose by these instead.
        """
        fewest = int(torch.bincount(self.train.labels, minlength=len(self.classes)).min())
        if not 0 < count < fewest:
            raise UsageError(f"stream.validation is {count}, but a class has {fewest} training images, and needs some")
        order = torch.randperm(len(self.train), generator=generator("validation"))
        order = order[self.train.labels[order].argsort(stable=True)]  # class by class, each in its drawn order
        labels = self.train.labels[order]
        first = torch.searchsorted(labels, labels)
        aside = torch.arange(len(order)) - first < count
        return replace(self, train=self.train.select(order[~aside]), test=self.train.select(order[aside]))
