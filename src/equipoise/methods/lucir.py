"""LUCIR: learning a unified classifier incrementally via rebalancing."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F

from equipoise.methods import Fit, Head, Method, Step, class_means, subset_mean


@dataclass(eq=False)
class LUCIR(Method):
    """Cosine logits, features kept in the old model's direction, and a margin between old and new classes.

    The authors' optional class-balanced fine-tuning is left out.
    """

    paper = "Hou et al., Learning a Unified Classifier Incrementally via Rebalancing, CVPR 2019"
    variants: ClassVar = {"lucir": {}}
    uses_teacher = True
    final_relu = False  # Sec. 3.2: features need both signs for cosines to use the whole sphere
    stores = "one number (the scale)"

    lambda_base: float = 5.0
    """λ_base of the less-forget constraint (authors: CIFAR 5, ImageNet 10); λ = λ_base √(C_old / C_new)."""
    margin: float = 0.5
    """Margin m of the ranking loss, between cosines."""
    top_k: int = 2
    """Number K of new classes with the highest cosines in the ranking loss."""

    def make_head(self, features: int) -> Head:
        return Head(features, kind="cosine", scale=1.0, learn_scale=True)

    @torch.no_grad()
    def begin(self, step: Step, fit: Fit) -> None:
        """Initialise a new class as its mean feature, scaled to the old classes' mean norm (authors' code)."""
        super().begin(step, fit)
        if step.old:
            means = class_means(fit.features(step.images), step.images.labels, range(step.old, step.seen))
            length = self.head.weight[: step.old].norm(dim=1).mean()
            self.head.weight[step.old :] = means.to(length.device) * length

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        features = self.features(x)
        loss = F.cross_entropy(self.head(features), y)  # Eq. 4
        if self.teacher is None:
            return loss
        before = self.from_teacher(lambda teacher: teacher.features(x))
        apart = 1 - F.cosine_similarity(features, before).mean()  # Eq. 6
        weight = self.lambda_base * (self.old / self.new) ** 0.5  # Eq. 7
        total: Tensor = loss + weight * apart + self.ranking(features, y)
        return total

    def ranking(self, features: Tensor, y: Tensor) -> Tensor:
        """Eq. 8: an old image's cosine to its class must exceed its K highest cosines to new classes by the margin."""
        is_old = y < self.old
        cosines = F.normalize(features[is_old], dim=1) @ F.normalize(self.head.weight, dim=1).T  # without the scale
        own = cosines.gather(1, y[is_old, None])
        nearest = cosines[:, self.old :].topk(min(self.top_k, self.new), 1).values
        return subset_mean(F.relu(self.margin - own + nearest).mean(1), len(y))

    def after_update(self) -> None:
        """Freeze the old classes' weights (authors' code)."""
        if self.teacher is not None:
            self.head.weight.data[: self.old] = self.teacher.head.weight
