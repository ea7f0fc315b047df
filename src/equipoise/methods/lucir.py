"""LUCIR: learning a unified classifier incrementally via rebalancing."""

from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F

from equipoise.methods import (
    Epochs,
    Fit,
    Head,
    Method,
    Positive,
    Range,
    Step,
    Weight,
    class_means,
    finetune_head,
    subset_mean,
)


@dataclass(eq=False)
class LUCIR(Method):
    """Cosine logits, features kept in the old model's direction, and a margin between old and new classes."""

    paper = "Hou et al., Learning a Unified Classifier Incrementally via Rebalancing, CVPR 2019"
    variants: ClassVar = {"lucir": {}}
    uses_teacher = True
    final_relu = False  # Sec. 3.2: features need both signs for cosines to use the whole sphere
    stores = "one number (the scale)"

    lambda_base: Weight = 5.0
    """λ_base of the less-forget constraint (authors: CIFAR 5, ImageNet 10); λ = λ_base √(C_old / C_new)."""
    margin: Annotated[float, Range(0, 2)] = 0.5
    """Margin m of the ranking loss, between cosines."""
    top_k: Annotated[int, Range(1, 10**6)] = 2
    """Number K of new classes with the highest cosines in the ranking loss."""

    finetune: bool = False
    """Fine-tune the head on balanced exemplars after each step (CBF, an option of the authors' code)."""
    finetune_epochs: Epochs = 20
    """Epochs of the fine-tuning; the learning rate is divided by ten after half of them."""
    finetune_lr: Positive = 0.01
    """Learning rate of the fine-tuning."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.corrects = self.finetune

    def make_head(self, features: int) -> Head:
        return Head(features, self.bias, kind="cosine", scale=1.0, learn_scale=True)

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
        """Freeze the old classes' weights (authors' code), except in fine-tuning."""
        if self.teacher is not None and self.training:
            self.head.weight.data[: self.old] = self.teacher.head.weight

    def end(self, step: Step, fit: Fit) -> dict[str, float]:
        if self.finetune:
            milestones = (self.finetune_epochs // 2,) if self.finetune_epochs > 1 else ()
            schedule = fit.schedule.for_stage(
                epochs=self.finetune_epochs, lr=self.finetune_lr, lr_schedule="milestones", milestones=milestones
            )
            finetune_head(fit, self.finetune_loss, schedule)
        return {}

    def finetune_loss(self, features: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(self.head(features), y) + self.ranking(features, y)
