"""DER: dynamically expandable representation."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, ClassVar, Self

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from equipoise.methods import (
    Architecture,
    Backbone,
    Epochs,
    Fit,
    Head,
    Method,
    Positive,
    Range,
    Step,
    Temperature,
    Weight,
    check_part,
    check_width,
    finetune_head,
)


@dataclass(eq=False)
class DER(Method):
    """Each step adds a backbone and freezes the others; an auxiliary head teaches it to tell new classes from old.

    As in the authors' experiments without pruning: channel masks only save parameters.
    """

    paper = "Yan, Xie and He, DER: Dynamically Expandable Representation, CVPR 2021"
    variants: ClassVar = {"der": {}}
    corrects = True
    stores = "a backbone per step"

    aux_weight: Weight = 1.0
    """Weight λ_a of the auxiliary loss."""
    reuse_head: bool = False
    """Keep old classes' rows on old features (Sec. 3.1) instead of reinitialising all (authors' code)."""
    reinit_after: Annotated[int, Range(0, 10**9)] = 0
    """Reinitialise both heads after this many epochs, when the warm-up ends (authors: CIFAR 10, ImageNet 20)."""
    finetune_epochs: Epochs = 30
    """Epochs in which only the head is trained, on balanced exemplars."""
    finetune_lr: Positive = 0.1
    """Learning rate of the fine-tuning."""
    finetune_temperature: Temperature = 5.0
    """Temperature δ of the fine-tuning."""

    def build(self, architecture: Architecture) -> None:
        self.architecture = architecture
        self.backbones = nn.ModuleList()
        self.head, self.aux_head = Head(0, self.bias), Head(0, self.bias)

    def features(self, x: Tensor) -> Tensor:
        return torch.cat([backbone(x) for backbone in self.backbones], 1)

    def begin(self, step: Step, fit: Fit) -> None:
        fresh = self.architecture(self.final_relu).to(self.device)
        if step.old:
            self.backbones.requires_grad_(False)
            fresh.load_state_dict(self.backbones[-1].state_dict())  # authors: start from the previous backbone
        self.backbones.append(fresh)
        head = Head(fresh.width * len(self.backbones), self.bias).to(self.device)
        head.grow(step.seen)
        if self.reuse_head:
            head.weight.data[: step.old, : self.head.features] = self.head.weight.data
        self.head, self.aux_head = head, Head(fresh.width, self.bias).to(head.weight.device)
        self.aux_head.grow(step.new + 1)

    def before_epoch(self, epoch: int) -> None:
        if self.reinit_after and epoch == self.reinit_after:
            self.head.reinitialise()
            self.aux_head.reinitialise()

    def train(self, mode: bool = True) -> Self:
        super().train(mode)
        self.backbones[:-1].eval()  # they are frozen
        return self

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        features = self.features(x)
        loss = F.cross_entropy(self.head(features), y)  # Eq. 4
        if not self.old:
            return loss
        target = (y - self.old + 1).clamp(min=0)  # Sec. 3.2: all old classes are one
        newest = features[:, -self.aux_head.features :]
        return loss + self.aux_weight * F.cross_entropy(self.aux_head(newest), target)  # Eq. 5

    def end(self, step: Step, fit: Fit) -> dict[str, float]:
        milestones = (self.finetune_epochs // 2,) if self.finetune_epochs > 1 else ()
        schedule = fit.schedule.for_stage(
            epochs=self.finetune_epochs, lr=self.finetune_lr, lr_schedule="milestones", milestones=milestones
        )
        finetune_head(fit, self.finetune_loss, schedule, reinit=True)  # Sec. 3.4: the classifier is learned again
        return {}

    def finetune_loss(self, features: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(self.head(features) / self.finetune_temperature, y)

    def match_state(self, state: Mapping[str, Tensor]) -> None:
        while len(self.backbones) < len(state["sizes"]):
            self.backbones.append(self.architecture(self.final_relu).to(self.device))
            check_part(state, f"backbones.{len(self.backbones) - 1}", self.backbones[-1])
        super().match_state(state)
        check_width(self.head, sum(backbone.width for backbone in self.backbones if isinstance(backbone, Backbone)))
