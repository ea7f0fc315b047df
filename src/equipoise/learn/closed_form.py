"""Base class of methods that train nothing: they solve for a linear head from fixed features.

If all images seen so far are available (``fit.everything``; a model keeps their features), the head is solved from all
of them. Otherwise the method keeps moments of the classes seen so far and adds those of new classes.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor, nn

from equipoise.data.images import Images
from equipoise.data.stream import Step
from equipoise.learn.fit import Fit
from equipoise.learn.head import Head
from equipoise.learn.method import Method
from equipoise.learn.ridge import Moments, moments, one_thread, split_moments, sum_moments

BATCH = 4096
"""Rows that are expanded at a time."""


@dataclass(eq=False)
class ClosedForm(Method):
    """Solves for its head after each step; override ``solve``, or ``solve_rows`` and ``solve_moments``."""

    even: bool = True
    """Give every class the same weight, whatever its number of images."""

    rehearsal = "kept"
    has_linear_head = False  # its head always has a bias, which is solved for
    per_class = ("counts", "means")

    def __post_init__(self) -> None:
        super().__post_init__()
        none = torch.zeros(0, dtype=torch.float64)
        self.counts: Tensor = nn.Buffer(none)
        self.means: Tensor = nn.Buffer(none[:, None])
        self.scatter: Tensor = nn.Buffer(none[:, None])  # around the class means, so that a class can be removed

    def make_head(self, features: int) -> Head:
        return Head(self.expanded_width(features), bias=True)

    def begin(self, step: Step, fit: Fit) -> None:
        super().begin(step, fit)
        fit.images = None  # nothing is trained

    def keep_classes(self, classes: Tensor) -> None:
        share = self._share_of(classes)
        super().keep_classes(classes)
        if share < 1:
            self.scatter = self.scatter * share  # parts of single classes are unknown: keep a proportional share

    def _share_of(self, classes: Tensor) -> float:
        """Return the weight of some classes, relative to that of all."""
        if not len(self.counts):
            return 1.0
        shares = torch.ones_like(self.counts) if self.even else self.counts
        return (shares[classes].sum() / shares.sum()).item()

    def end(self, step: Step, fit: Fit) -> dict[str, float]:
        if fit.everything is not None:
            return self.refit(fit, fit.everything, step.seen)
        counts = torch.bincount(step.images.labels - step.old, minlength=step.new).double()

        def statistic(features: Tensor, labels: Tensor) -> Tensor:
            return sum_moments(self.expand(features), labels - step.old, counts, self.even)

        known = split_moments(fit.accumulate(step.images, statistic).cpu(), counts, self.even)
        if step.old:
            old = Moments(self.counts.cpu(), self.means.cpu(), self.scatter.cpu(), self.even)
            known = replace(old, gram=old.gram + old.between()).join(known)
        scatter = known.gram - known.between()
        self.counts, self.means, self.scatter = (x.to(self.device) for x in (known.counts, known.means, scatter))
        return self.solve_moments(known, step, fit)

    def refit(self, fit: Fit, images: Images, classes: int) -> dict[str, float]:
        """Solve for the head from all images, in an order that depends only on their features."""
        features = fit.map(images, self.features)
        order = canonical_order(features)
        features = features[order]  # a million rows need 5 GB: keep no copy
        if type(self).expand is not ClosedForm.expand:  # in the same batches, whatever the order was
            features = torch.cat([self.expand(part.to(self.device)).cpu() for part in features.split(BATCH)])
        figures = self.solve_rows(features, images.labels[order], classes)
        if self.loo_rows is not None:
            self.loo_rows = order[self.loo_rows]
        return figures

    # ---- what differs between methods

    def expanded_width(self, features: int) -> int:
        """Return the number of features after ``expand``."""
        return features

    def expand(self, features: Tensor) -> Tensor:
        """Map features to the head's input."""
        return features

    def solve_rows(self, features: Tensor, labels: Tensor, classes: int) -> dict[str, float]:
        """Solve for the head from all rows and return metrics to record."""
        with one_thread():
            self.set_head(*self.solve(moments(features, labels, classes, self.even)))
        return {}

    def solve_moments(self, known: Moments, step: Step, fit: Fit) -> dict[str, float]:
        """Solve for the head from moments and return metrics to record."""
        self.set_head(*self.solve(known))
        return {}

    def solve(self, known: Moments) -> tuple[Tensor, Tensor]:
        """Return weight and bias of the head."""
        raise NotImplementedError

    # ---- what they share

    def logits_from(self, features: Tensor) -> Tensor:
        logits: Tensor = self.head(self.expand(features))
        return logits

    def rows(self, fit: Fit, images: Images) -> tuple[Tensor, Tensor]:
        """Return expanded features and labels of images."""
        return fit.map(images, lambda x: self.expand(self.features(x))), images.labels

    @torch.no_grad()
    def set_head(self, weight: Tensor, bias: Tensor) -> None:
        """Replace the head's values."""
        assert self.head.bias is not None
        self.head.weight.copy_(weight)
        self.head.bias.copy_(bias)


def canonical_order(rows: Tensor) -> Tensor:
    """Return the order of rows by their bytes, so that sums over them do not depend on their original order."""
    plain = rows.contiguous().numpy()
    whole_rows = plain.view(np.dtype((np.void, plain.shape[1] * plain.itemsize)))[:, 0]
    return torch.from_numpy(whole_rows.argsort(kind="stable"))
