"""The stream: the order in which classes arrive, in steps. Labels are positions in that order."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from equipoise.core.config import parse_whole
from equipoise.core.files import digest
from equipoise.core.ranges import shown
from equipoise.data.dataset import Dataset
from equipoise.data.images import Images
from equipoise.errors import UsageError

# iCaRL's published CIFAR-100 run. It is not a plain shuffle with seed 1993: its loader used the generator before.
ICARL = (
    *(87, 0, 52, 58, 44, 91, 68, 97, 51, 15, 94, 92, 10, 72, 49, 78, 61, 14, 8, 86, 84, 96, 18, 24, 32),
    *(45, 88, 11, 4, 67, 69, 66, 77, 47, 79, 93, 29, 50, 57, 83, 17, 81, 41, 12, 37, 59, 25, 20, 80, 73),
    *(1, 28, 6, 46, 62, 82, 53, 9, 31, 75, 38, 63, 33, 74, 27, 22, 36, 3, 16, 21, 60, 19, 70, 90, 89),
    *(43, 5, 42, 65, 76, 40, 30, 23, 85, 2, 95, 56, 48, 71, 64, 98, 13, 99, 7, 34, 55, 54, 26, 35, 39),
)

MAX_STEPS = 100_000
"""No data set has as many classes."""

Order = str | int | Sequence[int]
Steps = str | int | Sequence[int]


def class_order(order: Order, classes: int) -> list[int]:
    """Return the order in which classes arrive.

    Parameters
    ----------
    order
        ``"natural"``, ``"icarl"``, the seed of a shuffle such as ``1993`` or ``"1993"``, or a list of class numbers.
    classes
        Number of classes.

    Examples
    --------
    >>> class_order("1993", 100)[:10]
    [68, 56, 78, 8, 23, 84, 90, 65, 74, 76]
    """
    if isinstance(order, str) and (seed := parse_whole(order)) is not None:
        order = seed
    if isinstance(order, int):
        if not 0 <= order < 2**32:
            raise UsageError(f"the class order {order} is not a valid seed: use a whole number from 0 to {2**32 - 1}")
        shuffled = np.random.RandomState(order).permutation(classes)  # as in published code; NumPy keeps it frozen
        return [int(c) for c in shuffled]
    if order == "natural":
        return list(range(classes))
    if order == "icarl":
        if classes != len(ICARL):
            raise UsageError(f"the class order 'icarl' is for 100 classes, got {classes}: use 1993, natural or a list")
        return list(ICARL)
    if isinstance(order, str):
        raise UsageError(f"unknown class order {shown(order)}: use natural, icarl, a seed such as 1993, or a list")
    if sorted(order) != list(range(classes)):
        raise UsageError(f"a class order must contain each class from 0 to {classes - 1} once")
    return list(order)


def step_sizes(steps: Steps, classes: int) -> list[int]:
    """Return the number of classes in each step.

    Parameters
    ----------
    steps
        A number of equal steps, or their sizes as a list or a string.
    classes
        Number of classes.

    Examples
    --------
    >>> step_sizes(5, 100), step_sizes("50,10x5", 100)
    ([20, 20, 20, 20, 20], [50, 10, 10, 10, 10, 10])
    """
    if isinstance(steps, str):
        steps = _parse_steps(steps)
    if isinstance(steps, int):
        if not 1 <= steps <= classes or classes % steps:
            divisors = ", ".join(str(n) for n in range(1, classes + 1) if classes % n == 0)
            raise UsageError(
                f"{classes} classes cannot be split into {steps} equal steps: "
                f"use one of {divisors}, or give the sizes, as in --steps 50,10x5"
            )
        return [classes // steps] * steps
    if any(size < 1 for size in steps) or sum(steps) != classes:
        raise UsageError(
            f"steps of {shown(list(steps))[1:-1]} classes add up to {sum(steps)}, but there are {classes} classes: "
            f"give each step at least 1, and {classes} in total"
        )
    return list(steps)


def _parse_steps(text: str) -> int | list[int]:
    try:
        if (number := parse_whole(text)) is not None:
            return number
        sizes: list[int] = []
        for part in text.split(","):
            size, _, times = part.partition("x")
            each, repeats = parse_whole(size.strip()), parse_whole(times.strip() or "1")
            if each is None or repeats is None or len(sizes) > MAX_STEPS:
                raise ValueError
            sizes += [each] * min(repeats, MAX_STEPS)
        return sizes
    except ValueError as error:
        raise UsageError(f"cannot parse the steps {shown(text)}: use a number (5) or the sizes (50,10x5)") from error


@dataclass(frozen=True)
class Step:
    """One step: the new classes ``old … seen - 1`` arrive, and the model is evaluated on all ``seen`` classes."""

    index: int
    """Number of the step, from 1."""
    old: int
    """Number of classes seen before."""
    new: int
    """Number of new classes."""
    images: Images
    """Training images of the new classes only."""

    @property
    def seen(self) -> int:
        """Number of classes after the step."""
        return self.old + self.new


class ClassStream:
    """A data set divided into steps of disjoint classes.

    Parameters
    ----------
    dataset
        The images.
    steps
        A number of equal steps, or their sizes; see ``step_sizes``.
    order
        The order of the classes; see ``class_order``.
    classes
        Use only the first classes of the order (default: all).
    """

    def __init__(
        self, dataset: Dataset, steps: Steps = 1, order: Order = "natural", classes: int | None = None
    ) -> None:
        available = len(dataset.classes)
        if classes is not None and not 1 <= classes <= available:
            raise UsageError(
                f"stream.classes must be between 1 and {available}, the classes of {dataset.name}; got {classes}"
            )
        self.order = class_order(order, available)[:classes]
        self.sizes = step_sizes(steps, len(self.order))
        self.names = tuple(dataset.classes[c] for c in self.order)
        position = torch.full((available,), -1)
        position[self.order] = torch.arange(len(self.order))
        self.train = dataset.train.relabel(position)
        self.test = dataset.test.relabel(position)
        counts = torch.bincount(self.train.labels, minlength=len(self.order)).tolist()
        for name, count in zip(self.names, counts, strict=True):
            if count == 0:
                raise UsageError(f"class '{name}' has no training images: add some or remove the class")

    def fingerprint(self) -> str:
        """Return a hash of the images and the class order."""
        return digest(self.train.fingerprint() + self.test.fingerprint()).hex()

    def __len__(self) -> int:
        return len(self.sizes)

    def __getitem__(self, index: int) -> Step:
        """Return the step with the given number, from 1."""
        old, new = sum(self.sizes[: index - 1]), self.sizes[index - 1]
        mine = (self.train.labels >= old) & (self.train.labels < old + new)
        return Step(index, old, new, self.train.select(mine))

    def __iter__(self) -> Iterator[Step]:
        return (self[index] for index in range(1, len(self) + 1))

    def before(self, step: Step) -> Images:
        """Return all training images of the classes before ``step``, for joint training."""
        return self.train.select(self.train.labels < step.old)

    def tests(self, step: Step) -> Images:
        """Return the test images of all classes up to and including those of ``step``."""
        return self.test.select(self.test.labels < step.seen)
