"""LUCIR: learning a unified classifier incrementally via rebalancing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F

from equipoise import ranks
from equipoise.data.stream import Step
from equipoise.learn.head import Head
from equipoise.learn.method import Method
from equipoise.learn.nem import class_means

if TYPE_CHECKING:
    from equipoise.learn.trainer import Fit


@dataclass(eq=False)
class LUCIR(Method):
    """Cosine scores, features held to the old model's direction, and a margin between old and new classes.

    The authors' optional class-balance fine-tuning is not done.
    """

    paper: ClassVar[str] = "Hou et al., Learning a Unified Classifier Incrementally via Rebalancing, CVPR 2019"
    variants: ClassVar = {"lucir": {}}
    uses_teacher: ClassVar[bool] = True
    final_relu: ClassVar[bool] = False  # Sec. 3.2: features need both signs for cosines to use the whole sphere
    extra: ClassVar[str] = "one number (the scale)"

    forget_less: float = 5.0
    """λ_base of the less-forget constraint (authors: CIFAR 5, ImageNet 10); λ = λ_base √(C_old / C_new)."""
    margin: float = 0.5
    """m of the margin ranking loss, between cosines."""
    rivals: int = 2
    """K, the new classes with the highest cosines that an old image is kept from."""

    def make_head(self, features: int) -> Head:
        return Head(features, kind="cosine", scale=1.0, learn_scale=True)

    def begin(self, step: Step, fit: Fit) -> None:
        super().begin(step, fit)
        if step.old:
            self.imprint(step, fit)

    @torch.no_grad()
    def imprint(self, step: Step, fit: Fit) -> None:
        """Authors' code: a new class starts as its mean feature, as long as an old class's weights on average."""
        images = step.images
        means = class_means(fit.features(images), images.labels, range(step.old, step.seen))
        length = self.head.weight[: step.old].norm(dim=1).mean()
        self.head.weight[step.old :] = means.to(length.device) * length

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        features = self.features(x)
        loss = F.cross_entropy(self.head(features), y)  # Eq. 4
        if self.teacher is None:
            return loss
        before = self.from_teacher(lambda teacher: teacher.features(x))
        apart = 1 - F.cosine_similarity(features, before).mean()  # Eq. 6
        weight = self.forget_less * (self.old / self.new) ** 0.5  # Eq. 7
        total: Tensor = loss + weight * apart + self.ranking(features, y)
        return total

    def ranking(self, features: Tensor, y: Tensor) -> Tensor:
        """Eq. 8: an old image's own cosine exceeds those of its K nearest new classes by the margin."""
        is_old = y < self.old
        cosines = F.normalize(features[is_old], dim=1) @ F.normalize(self.head.weight, dim=1).T  # without the scale
        own = cosines.gather(1, y[is_old, None])
        rivals = cosines[:, self.old :].topk(min(self.rivals, self.new), 1).values
        return ranks.mean_of_some(F.relu(self.margin - own + rivals).mean(1), len(y))

    def after_update(self) -> None:
        """Authors' code: the weights of old classes stand still."""
        if self.teacher is not None:
            self.head.weight.data[: self.old] = self.teacher.head.weight
