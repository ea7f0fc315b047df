"""Ridge regression on fixed features, solved in closed form: nothing is trained.

With one-hot targets y, features x and a weight w per image, the solution of

    min Σ w ‖y − Wx − b‖² + λ ‖W‖²

needs only the class means and one matrix. A single eigendecomposition gives the solution and the exact leave-one-out
predictions for every λ, so that λ, the temperature of the softmax and the offset of classes with few images are chosen
without images held out. All of it is a function of the rows in the order given, in float64 on one thread: the same rows
in the same order give the same bits.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from equipoise.learn.bursts import CHUNK, merge_bursts

CHOICES = 4_000_000
"""Maximum number of logits to choose λ, temperature and offset on; beyond that, rows are sampled evenly."""
SHOWN = 100_000_000
"""Maximum number of leave-one-out logits to return; of more images, every second, third … is evaluated."""
FEW_IMAGES = 0.6
"""Offset of a class with one image where the data cannot tell, relative to the mean score of the true class (see
docs/performance.md)."""
OFFSETS = (0.0, 0.2, 0.4, FEW_IMAGES, 0.8, 1.0)
UNTESTED = 0.45
"""Offset where there are no such scores, because fewer than two classes have several images."""
PRIOR = 0.1
"""Penalty for other offsets, so that a few images more or less in a class do not change the choice."""
TEMPERATURE, SPREAD = 0.05, 0.7
"""The expected temperature, and the standard deviation of its logarithm: a few images that are easy to tell apart
must not make the model overconfident."""
ONE_EACH = 0.035
"""Temperature where leave-one-out is undefined: one image per class."""


@dataclass(frozen=True)
class Moments:
    """Statistics of the images that determine the solution. Moments of different classes add up."""

    counts: Tensor
    """Images per class; bursts count once."""
    means: Tensor
    """Mean features per class."""
    gram: Tensor
    """Σ w x xᵀ over all images."""
    even: bool
    """Whether the weights of each class add up to 1; otherwise the weight of each image is 1."""

    @property
    def shares(self) -> Tensor:
        """The total weight of each class."""
        return torch.ones_like(self.counts) if self.even else self.counts

    @property
    def mean(self) -> Tensor:
        """The weighted mean of all features."""
        return self.shares @ self.means / self.shares.sum()

    def between(self) -> Tensor:
        """Return the part of the Gram matrix that comes from the class means."""
        return self.means.T @ (self.shares[:, None] * self.means)

    def centred(self) -> Tensor:
        """Return the Gram matrix of features minus their mean."""
        return self.gram - self.shares.sum() * self.mean.outer(self.mean)

    def join(self, other: Moments) -> Moments:
        """Add classes."""
        counts, means = torch.cat([self.counts, other.counts]), torch.cat([self.means, other.means])
        return Moments(counts, means, self.gram + other.gram, self.even)


@dataclass(frozen=True)
class RidgeSolution:
    """Logits are ``x @ weight.T + bias``, and their softmax is calibrated."""

    weight: Tensor
    bias: Tensor
    strength: float
    """λ."""
    temperature: float
    offset: float
    """Added to the logits of a class with one image, before the temperature; divided by √n for n images."""
    loo: Tensor
    """Leave-one-out logits of the rows in ``loo_rows``."""
    loo_rows: Tensor


@contextmanager
def one_thread() -> Iterator[None]:
    """Compute on one thread: rounding in sums depends on the number of threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def moments(features: Tensor, labels: Tensor, classes: int, even: bool = True) -> Moments:
    """Return the moments of rows with labels from 0 to ``classes`` − 1."""
    counts = torch.bincount(labels, minlength=classes).double()
    total = sum_moments(features[:0], labels[:0], counts, even)
    for rows, where in zip(features.split(CHUNK), labels.split(CHUNK), strict=True):
        total += sum_moments(rows, where, counts, even)
    return split_moments(total, counts, even)


def sum_moments(features: Tensor, labels: Tensor, counts: Tensor, even: bool) -> Tensor:
    """Return the part of the moments that a batch adds: the sums of classes above the Gram matrix."""
    x = features.double()
    sums = torch.zeros(len(counts), x.shape[1], dtype=torch.float64, device=x.device).index_add_(0, labels, x)
    if even:
        x = x / counts.to(x.device)[labels].sqrt()[:, None]
    return torch.cat([sums, x.T @ x])


def split_moments(total: Tensor, counts: Tensor, even: bool) -> Moments:
    """Return the moments of summed parts."""
    sums, gram = total[: len(counts)], total[len(counts) :]
    return Moments(counts, sums / counts[:, None], gram, even)


class RidgePath:
    """The solutions for all λ.

    Parameters
    ----------
    known
        The moments.
    features, labels
        The rows behind them, if available; with fewer rows than features, they make it faster.
    """

    def __init__(self, known: Moments, features: Tensor | None = None, labels: Tensor | None = None) -> None:
        self.known, self.mean, shares = known, known.mean, known.shares
        self.classes, self.total = len(shares), shares.sum()
        self.weights = shares / known.counts
        if features is not None and labels is not None and len(labels) < len(self.mean):
            x = (features.double() - self.mean) * self.weights[labels].sqrt()[:, None]
            values, vectors = torch.linalg.eigh(x @ x.T)
            kept = values > values[-1] * 1e-12
            self.values = values[kept]
            self.axes = x.T @ vectors[:, kept] / self.values.sqrt()
        else:
            values, self.axes = eigh(known.centred(), int(known.counts.sum()))
            self.values = values.clamp(min=0)
        self.targets = shares / self.total
        self.cross = self.axes.T @ (shares[:, None] * (known.means - self.mean)).T
        self.scale = float(self.values.mean()) if len(self.values) and self.values.sum() > 0 else 1.0

    def strengths(self) -> list[float]:
        """Return the values of λ to choose from, relative to the mean eigenvalue."""
        return [self.scale * 10 ** (exponent / 2) for exponent in range(-9, 4)]

    def solve(self, strength: float) -> tuple[Tensor, Tensor]:
        """Return weight (classes × features) and bias."""
        weight = (self.axes @ (self.cross / (self.values + strength)[:, None])).T
        return weight, self.targets - weight @ self.mean

    def project(self, features: Tensor) -> Tensor:
        """Return the coordinates of rows, in which ``leave_one_out`` is fast for every λ."""
        projected: Tensor = (features.double() - self.mean) @ self.axes
        return projected

    def leave_one_out(self, z: Tensor, labels: Tensor, strength: float) -> Tensor:
        """Return what the solution without a row predicts for it, for every projected row: one column per class.

        The weights of the other rows and λ stay as they are.
        """
        fitted = self.targets + z @ (self.cross / (self.values + strength)[:, None])
        leverage = self.weights[labels] * ((z * z) @ (1 / (self.values + strength)) + 1 / self.total)
        target = F.one_hot(labels, self.classes).double()
        left: Tensor = target - (target - fitted) / (1 - leverage).clamp(min=1e-9)[:, None]
        return left

    def generalised(self) -> float:
        """Return the λ with the least generalised cross-validation error, which needs no rows."""
        images = float(self.known.counts.sum())
        spread = float((self.known.shares * (1 - self.targets)).sum())

        def error(strength: float) -> float:
            shrink = self.values / (self.values + strength)
            explained = (self.cross**2).sum(1) / (self.values + strength)
            residual = spread - float((explained * (2 - shrink)).sum())
            return residual / (1 - min((float(shrink.sum()) + 1) / images, 1 - 1e-9)) ** 2

        return min(self.strengths(), key=error)


def eigh(matrix: Tensor, rank: int) -> tuple[Tensor, Tensor]:
    """Return eigenvalues and eigenvectors of a symmetric matrix; much faster if its rank is low."""
    if 2 * rank >= len(matrix):
        values, vectors = torch.linalg.eigh(matrix)
        return values, vectors
    probe = torch.randn(len(matrix), rank + 8, dtype=matrix.dtype, generator=torch.Generator().manual_seed(0))
    basis = torch.linalg.qr(matrix @ probe.to(matrix.device)).Q  # random vectors reach all directions of the range
    values, vectors = torch.linalg.eigh(basis.T @ matrix @ basis)
    return values, basis @ vectors


def fit_ridge(
    features: Tensor,
    labels: Tensor,
    classes: int,
    even: bool = True,
    strength: float | None = None,
    merge: bool = True,
) -> RidgeSolution:
    """Solve for all rows; λ (unless ``strength`` is given), temperature and offset are chosen by leave-one-out.

    With ``merge`` and ``even``, bursts of nearly equal rows count as one.

    Classes are solved in the order in which they first appear in the rows, whatever their labels are: the solution does
    not depend on the order in which classes were learned.
    """
    with one_thread(), torch.no_grad():
        rows, mine, group = features, labels, torch.arange(len(labels))
        if even and merge:
            rows, mine, group = merge_bursts(features, labels)
        first = torch.full((classes,), len(mine)).scatter_reduce(0, mine, torch.arange(len(mine)), "amin")
        place = first.argsort(stable=True).argsort()
        mine = place[mine]
        path = RidgePath(moments(rows, mine, classes, even), rows, mine)
        strength, temperature, offset = choose_ridge(path, rows, mine, strength)
        extra = offset / path.known.counts.sqrt()
        weight, bias = path.solve(strength)
        shown = torch.arange(0, len(labels), max(1, -(-len(labels) * classes // SHOWN)))
        shown = shown[path.known.counts[mine[group[shown]]] > 1]  # without its only image, a class is unknown
        loo = [torch.empty(0, classes)]
        for part in group[shown].split(CHUNK):
            scores = path.leave_one_out(path.project(rows[part]), mine[part], strength)
            loo.append(((scores + extra) / temperature)[:, place].float())
        return RidgeSolution(
            weight[place] / temperature,
            ((bias + extra) / temperature)[place],
            strength,
            temperature,
            offset,
            torch.cat(loo),
            shown,
        )


def choose_ridge(
    path: RidgePath, features: Tensor, labels: Tensor, strength: float | None = None, offset: float | None = None
) -> tuple[float, float, float]:
    """Choose λ, temperature and offset by the likelihood of leave-one-out predictions, with equal weights per class.

    A class of one image cannot be predicted without it, so such classes are ignored. A given ``strength`` or
    ``offset`` is kept.
    """
    counts = path.known.counts
    several = counts > 1
    default, alone = (FEW_IMAGES, UNTESTED) if path.known.even else (0.0, 0.0)
    step = max(1, -(-len(labels) * path.classes // CHOICES))
    rows = torch.arange(0, len(labels), step)
    rows = rows[several[labels[rows]]]
    if several.sum() < 2 or not len(rows):
        return strength or path.scale, ONE_EACH, alone if offset is None else offset
    z, y = path.project(features[rows]), labels[rows]
    few = 1 / counts[several].sqrt()
    column = several.cumsum(0) - 1
    share = 1 / torch.bincount(y, minlength=path.classes).double()[y]
    share /= share.sum()
    offsets = OFFSETS if path.known.even and few.min() < few.max() else (default,)
    best = (math.inf, 0.0, 0.0, 0.0)
    for candidate in path.strengths() if strength is None else [strength]:
        scores = path.leave_one_out(z, y, candidate)[:, several]
        # Images in wrong classes, or a large λ, make all scores small. An offset that ignores this would make a class
        # of one image win everywhere.
        typical = max((share @ scores.gather(1, column[y][:, None])[:, 0]).item(), 0.0)
        extras = {value: value * typical for value in offsets} if offset is None else {default: offset}
        for relative, extra in extras.items():
            loss, temperature = best_temperature(scores, few * extra, column[y], share)
            best = min(best, (loss + PRIOR * (relative - default) ** 2, candidate, temperature, extra))
    return best[1:]


def best_temperature(
    scores: Tensor, extra: Tensor, labels: Tensor, share: Tensor, expected: float = TEMPERATURE
) -> tuple[float, float]:
    """Return the least loss over temperatures, by golden-section search in their logarithm, and that temperature."""

    shifted = scores + extra

    def loss(exponent: float) -> float:
        log_p = F.log_softmax(shifted / 10**exponent, 1).gather(1, labels[:, None])[:, 0]
        unexpected = math.log(10**exponent / expected) / SPREAD
        return -(share @ log_p).item() + unexpected**2 / 2 / len(labels)

    ratio = (5**0.5 - 1) / 2
    centre = math.log10(expected)
    low, high = centre - 1.5, centre + 1.5
    left, right = high - ratio * (high - low), low + ratio * (high - low)
    at_left, at_right = loss(left), loss(right)
    for _ in range(10):
        if at_left < at_right:
            high, right, at_right = right, left, at_left
            left = high - ratio * (high - low)
            at_left = loss(left)
        else:
            low, left, at_left = left, right, at_right
            right = low + ratio * (high - low)
            at_right = loss(right)
    return (at_left, 10**left) if at_left < at_right else (at_right, 10**right)
