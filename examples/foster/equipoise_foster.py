"""FOSTER: a new network boosts the frozen old one, then a student replaces both."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from equipoise.methods import Architecture, Fit, Head, Method, Step, UsageError, distill


@dataclass(eq=False)
class Foster(Method):
    """Feature boosting and compression: train a new network beside the old one, then distil both into a student.

    The boosted logits are those of the old network plus those of a new head over the features of both backbones.
    """

    paper = "Wang et al., FOSTER: Feature Boosting and Compression for Class-Incremental Learning, ECCV 2022"
    variants: ClassVar = {"foster": {}}
    corrects = True  # the compression changes predictions, so a step is also evaluated before it

    beta: float = 0.97
    """Number from 0 to below 1 that decides how much n images of a class count: (1 - beta^n) / (1 - beta)."""
    aux_weight: float = 1.0
    """Weight of the cross-entropy of the auxiliary head, which sees only the new backbone's features."""
    kd_weight: float = 1.0
    """Weight of the distillation from the old network while the new one is trained."""
    temperature: float = 2.0
    """Temperature of both distillations."""
    compress_epochs: int | None = None
    """Epochs in which the student is trained (none: as many as the step's main stage)."""
    warm_student: bool = False
    """Start the student's backbone from the old network (the authors' code) instead of at random."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.beta < 1:
            raise UsageError(f"method.beta must be from 0 to below 1, got {self.beta}")
        if self.temperature <= 0:
            raise UsageError(f"method.temperature must be above 0, got {self.temperature}")
        if self.compress_epochs is not None and self.compress_epochs < 1:
            raise UsageError(f"method.compress_epochs must be at least 1, got {self.compress_epochs}")

    def build(self, architecture: Architecture) -> None:
        super().build(architecture)
        self.old_net: nn.ModuleList | None = None  # the old backbone and head, until the step is compressed
        self.aux_head: Head | None = None  # on the new backbone's features, as long as old_net

    def begin(self, step: Step, fit: Fit) -> None:
        if not step.old or fit.images is None:
            super().begin(step, fit)
            return
        self.class_weight = fit.runtime.move(self.balance(fit.images.labels, step.seen))
        self.old_net = nn.ModuleList([self.backbone.freeze(), self.head.requires_grad_(False)])
        self.backbone = self.architecture(self.final_relu)
        self.head = self.new_head(2 * self.backbone.width, step.seen)
        self.aux_head = self.new_head(self.backbone.width, step.seen)

    def balance(self, labels: Tensor, classes: int) -> Tensor:
        """Return a weight per class: the inverse of its effective number of images, with the mean 1."""
        count = labels.bincount(minlength=classes).clamp(min=1)  # without a memory, old classes have no images
        weight = (1 - self.beta) / (1 - self.beta**count)
        return weight / weight.mean()

    def new_head(self, features: int, classes: int) -> Head:
        head = self.make_head(features)
        head.grow(classes)
        return head

    def features(self, x: Tensor) -> Tensor:
        new: Tensor = self.backbone(x)
        return new if self.old_net is None else torch.cat([self.old_net[0](x), new], 1)

    def logits_from(self, features: Tensor) -> Tensor:
        logits: Tensor = self.head(features)
        if self.old_net is None:
            return logits
        known = self.old_logits(features)
        return logits + F.pad(known, (0, logits.shape[1] - known.shape[1]))

    def old_logits(self, features: Tensor) -> Tensor:
        """Return the old network's logits, over the old classes, from the features of both backbones."""
        assert self.old_net is not None
        logits: Tensor = self.old_net[1](features[:, : -self.backbone.width])
        return logits

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        if self.old_net is None or self.aux_head is None:  # the first step
            return super().loss(x, y)
        features = self.features(x)
        logits = self.logits_from(features)
        loss = F.cross_entropy(logits / self.class_weight, y)  # rare classes need larger logits
        aux_loss = F.cross_entropy(self.aux_head(features[:, -self.backbone.width :]), y)
        kd_loss = distill(logits, self.old_logits(features), self.temperature)
        return loss + self.aux_weight * aux_loss + self.kd_weight * kd_loss

    def end(self, step: Step, fit: Fit) -> dict[str, float]:
        if self.old_net is None or fit.images is None:
            return {}
        both = self.snapshot()
        self.backbone = self.architecture(self.final_relu).to(self.sizes.device)
        if self.warm_student:
            self.backbone.load_state_dict(self.old_net[0].state_dict())
        self.head = self.new_head(self.backbone.width, step.seen).to(self.sizes.device)
        self.old_net = self.aux_head = None
        epochs = self.compress_epochs or fit.schedule.for_step(step.index).epochs
        schedule = fit.schedule.for_stage(epochs=epochs, lr_schedule="cosine", milestones=())

        def student_loss(x: Tensor, y: Tensor) -> Tensor:
            with torch.no_grad(), self.timer("teacher"):
                target = (both.logits(x) / self.temperature).softmax(1) * self.class_weight
            return F.cross_entropy(self.logits(x) / self.temperature, target / target.sum(1, keepdim=True))

        fit.train(fit.images, student_loss, schedule, name="compress")
        return {}
