"""FeCAM: a Mahalanobis distance with one covariance matrix per class."""

from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from equipoise.methods import Fit, Method, Range, Step, UsageError, Weight


@dataclass(eq=False)
class FeCAM(Method):
    """Predicts the class with the smallest distance, after a Tukey transform, shrinkage and normalisation."""

    tukey: Annotated[float, Range(0, 10, above=True)] | None = 0.5
    """Exponent of the features, which makes their distribution less skewed; none takes features of unit length as they
    are, as the authors do for vision transformers, whose features may be negative."""
    shrink_diagonal: Weight = 1.0
    """Add this multiple of the mean variance to all variances."""
    shrink_others: Weight = 1.0
    """Add this multiple of the mean covariance to all covariances."""
    shrinkages: Annotated[int, Range(0, 100)] = 2
    """How often to shrink (the authors: twice, and once for vision transformers)."""

    paper = (
        "Goswami et al., FeCAM: Exploiting the Heterogeneity of Class Distributions in Exemplar-Free Continual "
        "Learning, NeurIPS 2023"
    )
    variants: ClassVar = {"fecam": {}}
    rehearsal = "kept"
    has_linear_head = False
    stores = "a mean and a matrix per class"
    per_class = ("means", "precisions")

    def __post_init__(self) -> None:
        super().__post_init__()
        self.means: Tensor = nn.Buffer(torch.zeros(0, 0))
        self.precisions: Tensor = nn.Buffer(torch.zeros(0, 0, 0))

    def begin(self, step: Step, fit: Fit) -> None:
        super().begin(step, fit)
        fit.images = None  # nothing is trained

    def end(self, step: Step, fit: Fit) -> dict[str, float]:
        features, labels = fit.features(step.images), step.images.labels
        if self.tukey is None:
            features = F.normalize(features, dim=1)
        elif features.min() < 0:
            raise UsageError("fecam raises features to a power, and some are negative: set method.tukey=none")
        mine = [features[labels == c] for c in range(step.old, step.seen)]
        # the authors normalise transformed means only
        means = torch.stack([rows.mean(0) if self.tukey is None else self.transform(rows.mean(0)) for rows in mine])
        means = means.to(self.device)
        precisions = torch.stack([self.precision(rows) for rows in mine]).to(self.device)
        self.means = torch.cat([self.means, means]) if step.old else means
        self.precisions = torch.cat([self.precisions, precisions]) if step.old else precisions
        return {}

    def transform(self, features: Tensor) -> Tensor:
        """Apply Tukey's transform and normalise to unit length."""
        return F.normalize(self.less_skewed(features), dim=-1)

    def less_skewed(self, features: Tensor) -> Tensor:
        """Apply Tukey's transform."""
        return features if self.tukey is None else features.clamp(min=0) ** self.tukey

    def precision(self, rows: Tensor) -> Tensor:
        """Return the inverse of the shrunk and normalised covariance of a class."""
        x = self.less_skewed(rows.double())
        x = x - x.mean(0)
        covariance = x.T @ x / max(len(x) - 1, 1)
        size = len(covariance)
        for _ in range(self.shrinkages):
            variances = covariance.diagonal()
            others = (covariance.sum() - variances.sum()) / max(size * (size - 1), 1)
            more = self.shrink_diagonal * variances.mean().clamp(min=1e-12) - self.shrink_others * others
            covariance = covariance + self.shrink_others * others
            covariance.diagonal().add_(more)
        deviations = covariance.diagonal().clamp(min=1e-12).sqrt()
        inverse: Tensor = torch.linalg.pinv(covariance / deviations.outer(deviations), hermitian=True)
        return inverse.float()

    def classify(self, features: Tensor) -> Tensor:
        x = self.transform(features)
        distances = [((x - m) @ p * (x - m)).sum(1) for m, p in zip(self.means, self.precisions, strict=True)]
        return -torch.stack(distances, 1)

    def weight_norms(self, norm: int) -> None:
        """Return None: the head is not used."""
