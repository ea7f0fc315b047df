"""The memory: exemplars of old classes, best first, so that a smaller quota is a truncation."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Annotated, Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from equipoise.core import distributed
from equipoise.core.ranges import Range, check_values
from equipoise.core.seeding import Key, generator
from equipoise.data.herding import herd
from equipoise.data.images import Images, Store, join
from equipoise.errors import UsageError

FEATURES_AT_ONCE = 16_384
"""Minimum number of images whose features are computed together: 32 MB of 512 floats each."""


@dataclass
class Memory:
    """Exemplars per class, in the order in which they were selected."""

    size: Annotated[int, Range(0, 10**12)] | Literal["all"] = 2000
    """Number of exemplars: in total or per class; "all" keeps every image."""
    per: Literal["total", "class"] = "total"
    """What size counts. With total, the quota of a class shrinks as classes arrive."""
    selection: Literal["herding", "random"] = "herding"
    """How exemplars are selected and ordered."""
    normalise: bool = True
    """Scale features to unit length before herding (iCaRL, WA); BiC's code does not."""
    exemplars: dict[int, Images] = field(default_factory=dict, init=False, repr=False)

    def __post_init__(self) -> None:
        check_values(self, "memory")

    def check(self, classes: int) -> None:
        """Raise an error if the memory cannot hold one image per class."""
        if self.size != "all" and self.per == "total" and 0 < self.size < classes:
            raise UsageError(
                f"a memory of {self.size} exemplars is too small for {classes} classes: "
                f"use at least {classes}, or 0 for no memory"
            )

    def quota(self, seen: int) -> int:
        """Return the number of exemplars per class after ``seen`` classes."""
        if self.size == "all":
            return sys.maxsize
        return self.size if self.per == "class" else self.size // max(seen, 1)

    def update(self, images: Images, seen: int, features: Callable[[Images], Tensor], key: Key) -> None:
        """Truncate the old classes to the new quota, then select exemplars of the classes in ``images``."""
        quota = self.quota(seen)
        self.exemplars = {c: kept.select(slice(quota)) for c, kept in self.exemplars.items() if quota}
        if quota:
            self.exemplars |= self.select(images, quota, features, key)

    def select(self, images: Images, quota: int, features: Callable[[Images], Tensor], key: Key) -> dict[int, Images]:
        """Return the best ``quota`` images of each class, best first, without changing the memory."""
        selected: dict[int, Images] = {}
        for part, sizes in _class_groups(images):
            classes = part.labels.split(sizes)
            if self.size == "all":
                orders = [torch.arange(size) for size in sizes]
            elif self.selection == "herding":
                found = features(part)
                rows = (F.normalize(found, dim=1) if self.normalise else found).split(sizes)
                orders = distributed.broadcast(lambda: [herd(mine, quota) for mine in rows])  # noqa: B023
            else:
                draws = [generator(*key, "exemplars", int(mine[0])) for mine in classes]
                orders = [torch.randperm(n, generator=g)[:quota] for n, g in zip(sizes, draws, strict=True)]
            starts = torch.tensor([0, *sizes]).cumsum(0)
            for start, mine, order in zip(starts.tolist(), classes, orders, strict=False):
                selected[int(mine[0])] = part.select(start + order)
        return selected

    def keep_classes(self, classes: Tensor) -> None:
        """Keep only the given classes (sorted indices) and renumber them from 0."""
        lookup = {old: new for new, old in enumerate(classes.tolist())}
        self.exemplars = {
            lookup[label]: replace(images, labels=torch.full_like(images.labels, lookup[label]))
            for label, images in self.exemplars.items()
            if label in lookup
        }

    def __len__(self) -> int:
        return sum(len(kept) for kept in self.exemplars.values())

    def images(self) -> Images | None:
        """Return all exemplars in label order, or None if there are none."""
        return join([self.exemplars[label] for label in sorted(self.exemplars)]) if self.exemplars else None

    def row_indices(self) -> dict[int, list[int]]:
        """Return the rows of the training images that are exemplars, for a checkpoint."""
        return {label: self.exemplars[label].rows.tolist() for label in sorted(self.exemplars)}

    def restore(self, rows: Iterable[tuple[int, list[int]]], store: Store) -> None:
        """Undo ``row_indices``."""
        self.exemplars = {
            label: Images(store, torch.tensor(mine), torch.full((len(mine),), label)) for label, mine in rows
        }


def _class_groups(images: Images) -> Iterator[tuple[Images, list[int]]]:
    """Yield the images sorted by class, a few classes at a time, with the size of each class.

    The features of all of ImageNet's 1.28 million images would not fit in memory.
    """
    by_class = images.labels.argsort(stable=True)
    sizes = [size for size in torch.bincount(images.labels).tolist() if size]
    start, group = 0, []
    for number, size in enumerate(sizes, 1):
        group.append(size)
        if sum(group) >= FEATURES_AT_ONCE or number == len(sizes):
            stop = start + sum(group)
            yield images.select(by_class[start:stop]), group
            start, group = stop, []
