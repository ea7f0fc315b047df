"""Recognise images of unknown classes: measure how familiar an image looks, and compare this with a threshold.

Familiarity is the sum of two standardised statistics: the logit of the predicted class, and the cosine between the
features and the nearest class mean. Both are lower for classes with few images, so their expected values depend on the
number of images of the class. Everything is fitted on images that the model did not learn from (leave-one-out or
held-out images); no unknown images are needed. docs/performance.md compares familiarity with other scores.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn import functional as F

from equipoise.learn.bursts import CHUNK

ENOUGH = 1.0
"""Upper limit of a standardised statistic: a logit may be high even for an image that looks like nothing known."""
WIDEST = 2**17
"""Maximum number of features of an image."""
POINTS = 1001
"""Points of the distribution of known images' scores that are kept."""
SLOPE = -2.0
"""Expected difference between a class of one image and one of very many, in standard deviations of a statistic."""
SLOPE_SPREAD = 2.0
"""How far the difference may be from that, if classes of different sizes suggest another value."""


@dataclass(frozen=True)
class Expectation:
    """Expected value of a statistic for a class of n images: ``base + slope / √n``, with the given ``spread``."""

    base: float
    slope: float
    spread: float

    @staticmethod
    def fit(values: Tensor, counts: Tensor) -> Expectation:
        """Fit values of known images; ``counts`` has the number of images of the class behind each value."""
        x = counts.rsqrt()
        spread = values.std(correction=0).clamp(min=1e-9)
        dx, dv = x - x.mean(), values - values.mean()
        prior = 1 / SLOPE_SPREAD**2
        slope = ((dx * dv).sum() + prior * SLOPE * spread) / ((dx * dx).sum() + prior)
        base = values.mean() - slope * x.mean()
        spread = (values - base - slope * x).std(correction=0).clamp(min=1e-9)
        return Expectation(base.item(), slope.item(), spread.item())

    def standardise(self, values: Tensor, counts: Tensor) -> Tensor:
        """Return how far values are above their expectation, in units of the spread, but at most ``ENOUGH``."""
        return ((values - self.base - self.slope * counts.rsqrt()) / self.spread).clamp(max=ENOUGH)


@dataclass(frozen=True)
class Familiarity:
    """Scores images; a low score means that an image looks like nothing that was learned."""

    means: Tensor
    """Mean features of each class, one row per class."""
    counts: Tensor
    """Images of each class."""
    logit: Expectation
    cosine: Expectation
    quantiles: Tensor
    """Scores of known images, in ascending order."""

    @staticmethod
    def fit(logits: Tensor, cosines: Tensor, means: Tensor, counts: Tensor) -> Familiarity:
        """Fit to images that were not learned from.

        Parameters
        ----------
        logits, cosines
            One row per image, one column per class; see ``class_cosines`` and ``cosines_without_self``.
        means, counts
            Mean features and number of images of each class.
        """
        best, near = logits.double().max(1), cosines.double().max(1)
        counts = counts.double()
        logit = Expectation.fit(best.values, counts[best.indices])
        cosine = Expectation.fit(near.values, counts[near.indices])
        scores = logit.standardise(best.values, counts[best.indices])
        scores = scores + cosine.standardise(near.values, counts[near.indices])
        quantiles = scores.quantile(torch.linspace(0, 1, POINTS, dtype=torch.float64))
        return Familiarity(means, counts, logit, cosine, quantiles)

    def scores(self, features: Tensor, logits: Tensor) -> Tensor:
        """Return the score of each image."""
        best, near = logits.double().max(1), class_cosines(features, self.means).max(1)
        score = self.logit.standardise(best.values, self.counts[best.indices])
        return score + self.cosine.standardise(near.values, self.counts[near.indices])

    def reordered(self, classes: Tensor) -> Familiarity:
        """Return the same for logits whose columns are the given classes."""
        return replace(self, means=self.means[classes], counts=self.counts[classes])

    def threshold(self, accept: float) -> float:
        """Return the score that a fraction ``accept`` of known images reach; with 1, every image reaches it."""
        if accept >= 1:
            return -torch.inf
        place = (1 - accept) * (len(self.quantiles) - 1)
        low = int(place)
        return torch.lerp(self.quantiles[low], self.quantiles[min(low + 1, POINTS - 1)], place - low).item()

    def tensors(self) -> dict[str, Tensor]:
        """Return the tensors to store."""
        numbers = [[one.base, one.slope, one.spread] for one in (self.logit, self.cosine)]
        expectations = torch.tensor(numbers, dtype=torch.float64)
        return {"means": self.means, "counts": self.counts, "expected": expectations, "quantiles": self.quantiles}

    @staticmethod
    def of(tensors: Mapping[str, Tensor]) -> Familiarity:
        """Undo ``tensors``; raises an error for wrong shapes."""
        means, counts, expected, quantiles = (tensors[n] for n in ("means", "counts", "expected", "quantiles"))
        check_calibration(tensors, len(counts))
        logit, cosine = (Expectation(*row) for row in expected.tolist())
        if not (counts.min() >= 0 and min(logit.spread, cosine.spread) > 0 and (quantiles.diff() >= 0).all()):
            raise ValueError("its thresholds for unknown images have invalid values")
        return Familiarity(means, counts, logit, cosine, quantiles)


def check_calibration(tensors: Mapping[str, Tensor], classes: int) -> None:
    """Raise ValueError unless the calibration has the types and shapes of this many classes; values do not matter."""
    shapes = {"temperature": (), "counts": (classes,), "expected": (2, 3), "quantiles": (POINTS,)}
    for name, value in tensors.items():
        width = value.shape[1:] if name == "means" else ()
        fits = len(width) == 1 and width[0] <= WIDEST if name == "means" else name in shapes
        if not fits or value.shape != shapes.get(name, (classes, *width)) or not value.is_floating_point():
            raise ValueError(f"its calibration has an unknown {name}, or one that does not fit {classes} classes")


def class_cosines(features: Tensor, means: Tensor) -> Tensor:
    """Return the cosine between each row and each class mean."""
    return F.normalize(features.double(), dim=1) @ F.normalize(means.double(), dim=1).T


def mean_features(features: Tensor, labels: Tensor, classes: int, order: Tensor) -> tuple[Tensor, Tensor]:
    """Return the mean features and the number of images of each class; rows are added in the given order."""
    counts = torch.bincount(labels, minlength=classes).double()
    sums = torch.zeros(classes, features.shape[1], dtype=torch.float64)
    for part in order.split(CHUNK):  # a million rows in 64 bits would take 10 GB
        sums.index_add_(0, labels[part], features[part].double())
    return sums / counts.clamp(min=1)[:, None], counts


def cosines_without_self(features: Tensor, labels: Tensor, means: Tensor, counts: Tensor) -> Tensor:
    """Return ``class_cosines`` of rows that the means are made of, each without itself in the mean of its class."""
    cosines = class_cosines(features, means)
    x, others = features.double(), counts[labels] - 1
    rest = (counts[labels, None] * means[labels] - x) / others.clamp(min=1)[:, None]
    own = F.cosine_similarity(x, rest, dim=1)
    cosines[torch.arange(len(labels)), labels] = torch.where(others > 0, own, -1.0)
    return cosines
