"""The memory: the few images of old classes that may be kept, best first, so that cutting is truncation."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from equipoise import ranks
from equipoise.data.herding import herd
from equipoise.data.images import Images, Store, join
from equipoise.errors import UsageError
from equipoise.seeding import Key, generator

TOGETHER = 16_384
"""Images, at least, whose features are computed at a time: 32 MB of 512 floats each."""


@dataclass
class Memory:
    """Exemplars by class, each class in the order in which they were chosen."""

    size: int = 2000
    """How many images are kept: in all, or of each class."""
    per: Literal["total", "class"] = "total"
    """What size counts. In total, the share of a class shrinks as more classes come."""
    selection: Literal["herding", "random"] = "herding"
    """How exemplars are chosen and ordered."""
    kept: dict[int, Images] = field(default_factory=dict, init=False, repr=False)

    def __post_init__(self) -> None:
        if self.size < 0:
            raise UsageError(f"memory.size is {self.size}, but it cannot be negative")

    def check(self, classes: int) -> None:
        """Refuse a memory that could not keep one image of each class at the end."""
        if self.per == "total" and 0 < self.size < classes:
            raise UsageError(
                f"a memory of {self.size} images is smaller than the {classes} classes: "
                f"give at least {classes}, or 0 for no memory"
            )

    def quota(self, seen: int) -> int:
        """Images a class may keep once ``seen`` classes were seen."""
        return self.size if self.per == "class" else self.size // max(seen, 1)

    def update(self, images: Images, seen: int, features: Callable[[Images], Tensor], key: Key) -> None:
        """Cut the old classes to their new share, then choose exemplars of the classes in ``images``."""
        quota = self.quota(seen)
        first = torch.arange(quota)
        self.kept = {c: kept.select(first[: len(kept)]) for c, kept in self.kept.items() if quota}
        if quota:
            self.kept |= self.choose(images, quota, features, key)

    def choose(self, images: Images, quota: int, features: Callable[[Images], Tensor], key: Key) -> dict[int, Images]:
        """The best ``quota`` images of each class in ``images``, in order; the memory stays as it is."""
        chosen: dict[int, Images] = {}
        for part, sizes in _some_classes(images):
            classes = part.labels.split(sizes)
            if self.selection == "herding":
                rows = features(part).split(sizes)
                orders = ranks.tell(lambda: [herd(F.normalize(mine, dim=1), quota) for mine in rows])  # noqa: B023
            else:
                orders = [_shuffled(mine, key)[:quota] for mine in classes]
            starts = torch.tensor([0, *sizes]).cumsum(0)
            for start, mine, order in zip(starts.tolist(), classes, orders, strict=False):
                chosen[int(mine[0])] = part.select(start + order)
        return chosen

    def keep(self, classes: Tensor) -> None:
        """Only ``classes``, a rising list, stay and move up."""
        lookup = {old: new for new, old in enumerate(classes.tolist())}
        self.kept = {
            lookup[label]: replace(images, labels=torch.full_like(images.labels, lookup[label]))
            for label, images in self.kept.items()
            if label in lookup
        }

    def __len__(self) -> int:
        return sum(len(kept) for kept in self.kept.values())

    def images(self) -> Images | None:
        """All exemplars, class by class in label order; None while there are none."""
        return join([self.kept[label] for label in sorted(self.kept)]) if self.kept else None

    def rows(self) -> dict[int, list[int]]:
        """Which rows of the training images are kept: all a checkpoint needs to know."""
        return {label: self.kept[label].rows.tolist() for label in sorted(self.kept)}

    def restore(self, rows: Iterable[tuple[int, list[int]]], store: Store) -> None:
        """Take up what ``rows`` told."""
        self.kept = {label: Images(store, torch.tensor(mine), torch.full((len(mine),), label)) for label, mine in rows}


def _some_classes(images: Images) -> Iterator[tuple[Images, list[int]]]:
    """The images class by class, a few classes at a time, with the size of each.

    Never all: the features of ImageNet's 1.28 million images would not fit in memory.
    """
    by_class = images.labels.argsort(stable=True)
    sizes = [size for size in torch.bincount(images.labels).tolist() if size]
    start, group = 0, []
    for number, size in enumerate(sizes, 1):
        group.append(size)
        if sum(group) >= TOGETHER or number == len(sizes):
            stop = start + sum(group)
            yield images.select(by_class[start:stop]), group
            start, group = stop, []


def _shuffled(labels: Tensor, key: Key) -> Tensor:
    return torch.randperm(len(labels), generator=generator(*key, "exemplars", int(labels[0])))
