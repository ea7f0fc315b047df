"""FOSTER: feature boosting and compression."""

from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F

from equipoise.methods import (
    Architecture,
    Backbone,
    Epochs,
    Fit,
    Head,
    Length,
    Method,
    Range,
    Step,
    Temperature,
    Weight,
    align_head,
    distill,
)

Beta = Annotated[float, Range(0, 0.99999)]
"""A value closer to 1 would round to 1 in 32-bit floats."""


@dataclass(eq=False)
class Foster(Method):
    """A new network learns beside the frozen old one (boosting), then one student replaces both (compression).

    A step is evaluated twice: before the correction with both networks (the paper's "FOSTER B4", which the authors'
    code reports), after it with the student ("FOSTER"), from which the next step starts.

    Deviations: heads are initialised as PyTorch's linear layers are, with a random bias, and the learning rate falls
    with every batch instead of every epoch.
    """

    paper = "Wang et al., FOSTER: Feature Boosting and Compression for Class-Incremental Learning, ECCV 2022"
    variants: ClassVar = {"foster": {}}
    corrects = True  # the student predicts differently
    reported_norm = 2

    beta1: Annotated[tuple[Beta, ...], Length(1, 10_000)] = (0.96,)
    """β of the class weights in boosting, from the second step on; the last value also holds for further steps.

    With n exemplars per class, βⁿ should be about 0.2 or less; otherwise new classes are suppressed.
    """
    beta2: Beta = 0.97
    """β of the class weights in compression."""
    kd_weight: Weight = 1.0
    """Weight of the distillation from the old network in boosting."""
    temperature: Temperature = 2.0
    """Temperature of both distillations."""
    zero_old_features: bool = False
    """Keep the new classes' weights on old features at zero instead of training them (authors' setting)."""
    compress_epochs: Epochs | None = None
    """Epochs in which the student is trained (none: as many as in the step's main stage; authors: 170 and 130)."""
    align_teacher: bool = False
    """Align the new classes' weights after boosting."""
    align_student: bool = False
    """Align the new classes' weights after compression."""
    align_factor: Annotated[float, Range(0, 1, above=True)] = 1.0
    """Aligning multiplies γ by this to the power of old / new classes."""
    bias: bool = True
    """Give the heads a bias (authors' code)."""

    def build(self, architecture: Architecture) -> None:
        super().build(architecture)
        # from the begin of a step until its compression: the old network, and a head on the new backbone's features
        self.old_backbone: Backbone | None = None
        self.old_head: Head | None = None
        self.aux_head: Head | None = None

    def begin(self, step: Step, fit: Fit) -> None:
        if not step.old or fit.images is None:
            super().begin(step, fit)
            return
        beta = self.beta1[min(step.index - 2, len(self.beta1) - 1)]
        self.class_weight = effective_weights(fit.images.labels, step.seen, beta).to(self.device)
        self.old_backbone, self.old_head = self.backbone.freeze(), self.head.requires_grad_(False)
        self.backbone = self.copied(self.old_backbone)
        self.head = self.extended(self.old_head, 2 * self.backbone.width, step.seen)
        if self.zero_old_features:
            self.head.weight.data[step.old :, : self.backbone.width] = 0
        self.aux_head = self.make_head(self.backbone.width).to(self.device)
        self.aux_head.grow(step.seen)

    def copied(self, old: Backbone) -> Backbone:
        """Return a backbone to train that starts as ``old`` (authors' code)."""
        backbone = self.architecture(self.final_relu).to(self.device)
        backbone.load_state_dict(old.state_dict())
        return backbone

    def extended(self, old: Head, features: int, classes: int) -> Head:
        """Return a larger head, equal to ``old`` for its classes and features, and random elsewhere."""
        head = self.make_head(features).to(self.device)
        head.grow(classes)
        head.weight.data[: old.classes, : old.features] = old.weight.data
        if head.bias is not None and old.bias is not None:
            head.bias.data[: old.classes] = old.bias.data
        return head

    def features(self, x: Tensor) -> Tensor:
        new: Tensor = self.backbone(x)
        return new if self.old_backbone is None else torch.cat([self.old_backbone(x), new], 1)

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        if self.old_head is None or self.aux_head is None:  # the first step
            return super().loss(x, y)
        features = self.features(x)
        before, new = features.chunk(2, 1)
        logits = self.head(features)
        loss = F.cross_entropy(logits / self.class_weight, y)  # logits alignment
        loss = loss + F.cross_entropy(self.aux_head(new), y)  # feature enhancement
        return loss + self.kd_weight * distill(logits, self.old_head(before), self.temperature)

    def after_backward(self) -> None:
        gradient = self.head.weight.grad
        if self.old_head is not None and self.zero_old_features and gradient is not None:
            gradient[self.old :, : self.backbone.width] = 0

    def end(self, step: Step, fit: Fit) -> dict[str, float]:
        if self.old_backbone is None or self.old_head is None or fit.images is None:
            return {}
        if self.align_teacher:
            self.align(step)
        fit.update_memory(final=True)  # authors' code: exemplars are selected with the features of both networks
        both = self.snapshot()
        weight = effective_weights(fit.images.labels, step.seen, self.beta2).to(self.device)
        self.backbone = self.copied(self.old_backbone)
        self.head = self.extended(self.old_head, self.backbone.width, step.seen)
        self.old_backbone = self.old_head = self.aux_head = None

        def balanced_distill(x: Tensor, y: Tensor) -> Tensor:
            with torch.no_grad(), self.timer("teacher"):
                target = (both.logits(x) / self.temperature).softmax(1) * weight
            return F.cross_entropy(self.logits(x) / self.temperature, target / target.sum(1, keepdim=True))

        epochs = self.compress_epochs or fit.schedule.for_step(step.index).epochs
        schedule = fit.schedule.for_stage(epochs=epochs, lr_schedule="cosine", weight_decay=0.0)  # authors' code
        fit.train(fit.images, balanced_distill, schedule, name="compress")
        if self.align_student:
            self.align(step)
        return {}

    def align(self, step: Step) -> None:
        """Scale the new classes' weights, but not their bias (authors' code)."""
        align_head(self.head, step.old, norm=2, clamp=False, scale_bias=False)
        self.head.weight.data[step.old :] *= self.align_factor ** (step.old / step.new)


def effective_weights(labels: Tensor, classes: int, beta: float) -> Tensor:
    """Return a weight per class: the inverse of its effective number of images (1 - βⁿ) / (1 - β), with mean 1."""
    count = labels.bincount(minlength=classes).clamp(min=1)  # without a memory, old classes have no images
    weight = (1 - beta) / (1 - beta**count)
    return weight / weight.mean()
