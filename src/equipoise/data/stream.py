"""The stream: in which order classes arrive, and in which steps. Labels are places in that order."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from equipoise.data.dataset import Dataset
from equipoise.data.images import Images, digest
from equipoise.errors import UsageError

# iCaRL's released CIFAR-100 run; its loader had drawn from the generator before the classes were shuffled.
ICARL = (
    *(87, 0, 52, 58, 44, 91, 68, 97, 51, 15, 94, 92, 10, 72, 49, 78, 61, 14, 8, 86, 84, 96, 18, 24, 32),
    *(45, 88, 11, 4, 67, 69, 66, 77, 47, 79, 93, 29, 50, 57, 83, 17, 81, 41, 12, 37, 59, 25, 20, 80, 73),
    *(1, 28, 6, 46, 62, 82, 53, 9, 31, 75, 38, 63, 33, 74, 27, 22, 36, 3, 16, 21, 60, 19, 70, 90, 89),
    *(43, 5, 42, 65, 76, 40, 30, 23, 85, 2, 95, 56, 48, 71, 64, 98, 13, 99, 7, 34, 55, 54, 26, 35, 39),
)

Order = str | int | Sequence[int]
Steps = str | int | Sequence[int]


def class_order(order: Order, classes: int) -> list[int]:
    """The order in which ``classes`` classes arrive: ``natural``, ``icarl``, a seed (``1993``), or a list.

    >>> class_order("1993", 100)[:10]
    [68, 56, 78, 8, 23, 84, 90, 65, 74, 76]
    """
    if isinstance(order, str) and order.isdecimal():
        order = int(order)
    if isinstance(order, int):
        if not 0 <= order < 2**32:
            raise UsageError(f"the class order {order} is not a seed: give a whole number from 0 to {2**32 - 1}")
        shuffled = np.arange(classes)
        np.random.RandomState(order).shuffle(shuffled)  # the field's own shuffle; numpy keeps its stream frozen
        return [int(c) for c in shuffled]
    if order == "natural":
        return list(range(classes))
    if order == "icarl":
        if classes != len(ICARL):
            raise UsageError(f"the order 'icarl' is for 100 classes, not {classes}: use 1993, natural or a list")
        return list(ICARL)
    if isinstance(order, str):
        raise UsageError(f"there is no class order '{order}': use 1993, icarl, natural, any whole number, or a list")
    if sorted(order) != list(range(classes)):
        raise UsageError(f"a class order must name each of the classes 0 to {classes - 1} once")
    return list(order)


def step_sizes(steps: Steps, classes: int) -> list[int]:
    """How many classes each step brings: a number of equal steps, or their sizes.

    >>> step_sizes(5, 100), step_sizes("50,10x5", 100)
    ([20, 20, 20, 20, 20], [50, 10, 10, 10, 10, 10])
    """
    if isinstance(steps, str):
        steps = _parse_steps(steps)
    if isinstance(steps, int):
        if not 1 <= steps <= classes or classes % steps:
            fitting = ", ".join(str(n) for n in range(1, classes + 1) if classes % n == 0)
            raise UsageError(
                f"{classes} classes cannot be split into {steps} equal steps: "
                f"use one of {fitting}, or give the sizes, as in --steps 50,10x5"
            )
        return [classes // steps] * steps
    if any(size < 1 for size in steps) or sum(steps) != classes:
        raise UsageError(
            f"steps of {', '.join(map(str, steps))} classes add up to {sum(steps)}, but there are {classes} "
            f"classes: make each step at least 1 and their sum {classes}"
        )
    return list(steps)


def _parse_steps(text: str) -> int | list[int]:
    try:
        if text.isdecimal():
            return int(text)
        sizes: list[int] = []
        for part in text.split(","):
            size, _, times = part.partition("x")
            sizes += [int(size)] * min(int(times or 1), 100_000)  # more steps than any data set has classes
        return sizes
    except ValueError as error:
        raise UsageError(f"steps '{text}' cannot be read: give a number, as 5, or the sizes, as 50,10x5") from error


@dataclass(frozen=True)
class Step:
    """One step: new classes ``old … seen - 1`` arrive, and all ``seen`` classes are to be told apart."""

    index: int
    """1, 2, 3, …"""
    old: int
    """Classes seen before."""
    new: int
    """Classes this step brings."""
    images: Images
    """Training images of the new classes, nothing else."""

    @property
    def seen(self) -> int:
        return self.old + self.new


class ClassStream:
    """A data set cut into steps of disjoint classes."""

    def __init__(
        self, dataset: Dataset, steps: Steps = 1, order: Order = "natural", classes: int | None = None
    ) -> None:
        available = len(dataset.classes)
        if classes is not None and not 1 <= classes <= available:
            raise UsageError(f"{dataset.name} has {available} classes, so {classes} of them cannot be used")
        self.order = class_order(order, available)[:classes]
        self.sizes = step_sizes(steps, len(self.order))
        self.names = tuple(dataset.classes[c] for c in self.order)
        place = torch.full((available,), -1)
        place[self.order] = torch.arange(len(self.order))
        self.train = _known(dataset.train.relabel(place))
        self.test = _known(dataset.test.relabel(place))
        missing = [n for n, c in zip(self.names, self._counts().tolist(), strict=True) if c == 0]
        if missing:
            raise UsageError(f"class '{missing[0]}' has no training images: add some or leave the class out")

    def _counts(self) -> torch.Tensor:
        return torch.bincount(self.train.labels, minlength=len(self.order))

    def fingerprint(self) -> str:
        """The same for the same images in the same order of classes."""
        return digest(self.train.fingerprint() + self.test.fingerprint()).hex()

    def __len__(self) -> int:
        return len(self.sizes)

    def __getitem__(self, index: int) -> Step:
        """Step ``index``, counted from 1."""
        old, new = sum(self.sizes[: index - 1]), self.sizes[index - 1]
        mine = (self.train.labels >= old) & (self.train.labels < old + new)
        return Step(index, old, new, self.train.select(mine))

    def __iter__(self) -> Iterator[Step]:
        return (self[index] for index in range(1, len(self) + 1))

    def before(self, step: Step) -> Images:
        """All training images of the classes that came before ``step`` (what joint training may use)."""
        return self.train.select(self.train.labels < step.old)

    def tests(self, step: Step) -> Images:
        """The test images of every class seen so far."""
        return self.test.select(self.test.labels < step.seen)


def _known(images: Images) -> Images:
    return images.select(images.labels >= 0)
