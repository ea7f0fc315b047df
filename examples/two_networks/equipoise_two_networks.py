"""Two networks and a second stage: train a new network beside the old one, then distil both into one."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from equipoise.methods import Architecture, Fit, Method, Step, distill


@dataclass(eq=False)
class TwoNetworks(Method):
    """A new network learns what the frozen old one gets wrong; afterwards a student replaces both."""

    variants: ClassVar = {"two-networks": {}}
    corrects = True  # the student predicts differently, so the step is also evaluated before it

    kd_weight: float = 1.0
    """Weight of the distillation that keeps the old network's knowledge."""
    temperature: float = 2.0
    """Temperature of that distillation."""
    student_epochs: int = 10
    """Epochs in which the student is trained."""

    def build(self, architecture: Architecture) -> None:
        super().build(architecture)
        self.old_net: nn.ModuleList | None = None  # the old backbone and head, while a step is trained

    def begin(self, step: Step, fit: Fit) -> None:
        if step.old:
            self.old_net = nn.ModuleList([self.backbone.freeze(), self.head.requires_grad_(False)])
            self.start_network(step.seen)
        else:
            super().begin(step, fit)

    def start_network(self, classes: int) -> None:
        """Replace the backbone and the head by new ones."""
        self.backbone = self.architecture(self.final_relu).to(self.device)
        self.head = self.make_head(self.backbone.width).to(self.device)
        self.head.grow(classes)

    def features(self, x: Tensor) -> Tensor:
        new: Tensor = self.backbone(x)
        return new if self.old_net is None else torch.cat([self.old_net[0](x), new], 1)

    def logits_from(self, features: Tensor) -> Tensor:
        return self.both_logits(features)[0]

    def both_logits(self, features: Tensor) -> tuple[Tensor, Tensor | None]:
        """Return the sum of both networks' logits, and the old network's alone."""
        if self.old_net is None:
            return self.head(features), None
        old, new = features.chunk(2, 1)
        known, logits = self.old_net[1](old), self.head(new)
        return logits + F.pad(known, (0, logits.shape[1] - known.shape[1])), known

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        logits, known = self.both_logits(self.features(x))
        loss = F.cross_entropy(logits, y)
        return loss if known is None else loss + self.kd_weight * distill(logits, known, self.temperature)

    def end(self, step: Step, fit: Fit) -> dict[str, float]:
        if self.old_net is None or fit.images is None:
            return {}
        both = self.snapshot()  # a frozen copy of the two networks
        self.start_network(step.seen)
        self.backbone.load_state_dict(self.old_net[0].state_dict())  # the student starts from the old network
        self.old_net = None
        labels = fit.images.labels
        weight = len(labels) / (step.seen * labels.bincount()).to(self.device)  # each class counts the same

        def student_loss(x: Tensor, y: Tensor) -> Tensor:
            with torch.no_grad():
                target = both.logits(x).softmax(1)
            return (weight[y] * F.cross_entropy(self.logits(x), target, reduction="none")).mean()

        schedule = fit.schedule.for_stage(epochs=self.student_epochs, lr_schedule="cosine")
        fit.train(fit.images, student_loss, schedule, name="student")
        return {}
