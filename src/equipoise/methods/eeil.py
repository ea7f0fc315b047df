"""EEIL: End-to-End Incremental Learning."""

from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from equipoise.methods import (
    Epochs,
    Fit,
    Method,
    Positive,
    Range,
    Schedule,
    Step,
    Temperature,
    Weight,
    distill,
    distill_groups,
    seed_for,
)


@dataclass(eq=False)
class EEIL(Method):
    """Distillation per step, gradient noise, then fine-tuning on balanced exemplars.

    An epoch of the authors' code has twelve versions of each image: ``train.versions``, ``augment.versions`` and
    ``finetune_versions`` in the recipes.

    Deviations: the authors' code draws these versions once per step (ours in each epoch), distils the old heads from
    the model before fine-tuning too, and uses η / (1 + epoch)^0.55 as the noise's standard deviation, where the text
    has η / (1 + t)^0.55 as its variance.
    """

    paper = "Castro et al., End-to-End Incremental Learning, ECCV 2018"
    variants: ClassVar = {"eeil": {}}
    uses_teacher = True
    corrects = True

    bias: bool = True
    """Give the head a bias."""
    temperature: Temperature = 2.0
    """Temperature T of the distillation."""
    noise: Weight = 0.3
    """η of the gradient noise, whose variance is η / (1 + t)^0.55 at update t; 0 turns it off."""
    noise_decay: Annotated[float, Range(0, 10)] = 0.55
    """Exponent of the noise's decay."""
    finetune_epochs: Epochs = 30
    """Epochs of the balanced fine-tuning."""
    finetune_lr: Positive = 0.01
    """Learning rate of the fine-tuning, divided by ten after each third of the epochs."""
    finetune_versions: Annotated[int, Range(1, 10**4)] = 1
    """Versions of each image in an epoch of the fine-tuning (authors: 12 on CIFAR, 1 on ImageNet)."""
    finetune_augment: bool = True
    """Augment the images of the fine-tuning (authors: not on ImageNet)."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.updates: Tensor = nn.Buffer(torch.zeros((), dtype=torch.long))

    def begin(self, step: Step, fit: Fit) -> None:
        super().begin(step, fit)
        self.updates.zero_()
        self.key, self.batch = fit.key, fit.schedule.batch_size

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        return self.joined_loss(self.logits(x), x, y)

    def joined_loss(self, logits: Tensor, x: Tensor, y: Tensor) -> Tensor:
        """Eq. 1: cross-entropy over all heads together, and a distillation for each old head."""
        loss = F.cross_entropy(logits, y)
        if self.teacher is None:
            return loss
        return loss + distill_groups(logits, self.teacher_predict(x), self.steps[:-1], self.temperature)

    @torch.no_grad()
    def after_backward(self) -> None:
        if not self.noise:
            return
        # the paper adds noise to the gradient summed over a batch; ours is a mean
        deviation = (self.noise / (1 + int(self.updates)) ** self.noise_decay) ** 0.5 / self.batch
        # not from the global generator: every process must add the same noise
        random = torch.Generator(self.updates.device).manual_seed(seed_for(*self.key, "noise", int(self.updates)))
        self.updates += 1
        for weight in self.parameters():
            if weight.grad is not None:
                noise = torch.empty_like(weight.grad).normal_(generator=random)
                weight.grad.add_(noise, alpha=deviation)

    def end(self, step: Step, fit: Fit) -> dict[str, float]:
        images = fit.select_balanced()
        if images is None:
            return {}
        before = self.snapshot()

        def finetune_loss(x: Tensor, y: Tensor) -> Tensor:
            """Also distil the new head from the model before fine-tuning."""
            logits = self.logits(x)
            with torch.no_grad():
                target = before.logits(x)[:, step.old :]
            return self.joined_loss(logits, x, y) + distill(logits[:, step.old :], target, self.temperature)

        third = self.finetune_epochs // 3
        schedule = Schedule(
            epochs=self.finetune_epochs,
            batch_size=fit.schedule.batch_size,
            lr=self.finetune_lr,
            lr_schedule="milestones",
            milestones=(third, 2 * self.finetune_epochs // 3) if third else (),
            weight_decay=fit.schedule.weight_decay,
            versions=self.finetune_versions,
        )
        fit.train(images, finetune_loss, schedule, name="balance", augment=self.finetune_augment)
        return {}
