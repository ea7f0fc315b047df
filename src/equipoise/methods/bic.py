"""BiC: bias correction with two parameters, fitted on held-out images."""

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from equipoise.methods import (
    Epochs,
    Fit,
    Images,
    Method,
    Positive,
    Schedule,
    Step,
    Temperature,
    generator,
    hold_out,
    join,
    weighted_distill,
)

EVERY = 10
"""One exemplar in ten is used to fit α and β."""


@dataclass(eq=False)
class BiC(Method):
    """Cross-entropy and distillation, then α and β for the newest classes' logits, fitted on held-out images.

    An image that is held out when its class is new stays held out: it takes the second place of every ten in the
    memory, so that truncating the memory keeps the ratio.
    """

    paper = "Wu et al., Large Scale Incremental Learning, CVPR 2019"
    variants: ClassVar = {"bic": {}}
    uses_teacher = True
    corrects = True
    stores = "two numbers"

    bias: bool = True
    """Give the head a bias."""
    temperature: Temperature = 2.0
    """Temperature T of the distillation."""
    bias_epochs: Epochs = 100
    """Epochs in which α and β are fitted."""
    bias_lr: Positive = 0.01
    """Learning rate for α and β (authors' code: 0.1)."""
    bias_fit: Literal["adam", "sgd"] = "adam"
    """How α and β are fitted. adam: with batch norms in evaluation mode. sgd: as in the authors' code, with momentum, a
    learning rate divided by ten after 30, 60, 80 and 90 % of the epochs, a penalty of β²/20, and batch norms in
    training mode (their statistics are restored afterwards)."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.pair = nn.Parameter(torch.tensor([1.0, 0.0]), requires_grad=False)

    def begin(self, step: Step, fit: Fit) -> None:
        super().begin(step, fit)  # the teacher keeps its own α and β
        self.pair.data = torch.tensor([1.0, 0.0], device=self.pair.device)
        count = len(range(1, fit.memory.quota(step.old or step.new), EVERY))
        held = hold_out(
            step.images.labels,
            lambda images: min(count, len(range(1, images, EVERY))),
            lambda label: generator(*fit.key, "held out", label),
        )
        self.held_new, self.trained_new = step.images.select(held), step.images.select(~held)
        old = list(fit.memory.exemplars.values())
        place = [torch.arange(len(kept)) % EVERY for kept in old]
        self.held = join([self.held_new, *(k.select(p == 1) for k, p in zip(old, place, strict=True))])
        fit.images = join([self.trained_new, *(k.select(p != 1) for k, p in zip(old, place, strict=True))])

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        logits = self.logits(x)
        if self.teacher is None:
            return F.cross_entropy(logits, y)
        return weighted_distill(logits, y, self.teacher_predict(x), self.temperature)  # Eq. 3

    def classify(self, features: Tensor) -> Tensor:
        return self.correct(self.logits_from(features))

    def correct(self, logits: Tensor) -> Tensor:
        """Eq. 4: α o + β for the newest step's classes; the others are unchanged. The first step has no correction."""
        if len(self.steps) < 2:
            return logits
        old = logits.shape[1] - self.steps[-1]
        return torch.cat([logits[:, :old], self.pair[0] * logits[:, old:] + self.pair[1]], 1)

    def end(self, step: Step, fit: Fit) -> dict[str, float]:
        facts = {}
        if step.old and len(self.held) > len(self.held_new):
            self.pair.requires_grad_(True)
            self.fit_bias(fit)
            self.pair.requires_grad_(False)
            facts = {"alpha": self.pair[0].item(), "beta": self.pair[1].item()}
        self.update_memory(fit)
        del self.held, self.held_new, self.trained_new  # a snapshot of the model must not copy images
        return facts

    def fit_bias(self, fit: Fit) -> None:
        if self.bias_fit == "adam":
            schedule = Schedule.adam(epochs=self.bias_epochs, batch_size=128, lr=self.bias_lr)
            fit.train(self.held, self.bias_loss, schedule, [self.pair], "bias", augment=False, frozen=True)
            return
        milestones = tuple(dict.fromkeys(int(part * self.bias_epochs) for part in (0.3, 0.6, 0.8, 0.9)))
        schedule = fit.schedule.for_stage(
            epochs=self.bias_epochs,
            optimizer="sgd",
            lr=self.bias_lr,
            lr_schedule="milestones",
            milestones=milestones,
            weight_decay=0.0,
            divide_lr=False,
        )
        before = {name: value.clone() for name, value in self.backbone.named_buffers()}
        fit.train(self.held, self.bias_loss, schedule, [self.pair], "bias", augment=False)
        for name, value in self.backbone.named_buffers():
            value.copy_(before[name])

    def bias_loss(self, x: Tensor, y: Tensor) -> Tensor:
        """Eq. 5; the authors' code adds a penalty on β."""
        with torch.no_grad():
            logits = self.logits(x)
        loss = F.cross_entropy(self.correct(logits), y)
        return loss + 0.05 * self.pair[1] ** 2 if self.bias_fit == "sgd" else loss

    def update_memory(self, fit: Fit) -> None:
        """Select exemplars among the trained images, and put the held-out images between them."""
        fit.update_memory(self.trained_new)
        for label, selected in fit.memory.exemplars.items():
            if label >= fit.step.old:
                held = self.held_new.select(self.held_new.labels == label)
                fit.memory.exemplars[label] = interleave(selected, held, fit.memory.quota(fit.step.seen))


def interleave(selected: Images, held: Images, quota: int) -> Images:
    """Put held-out images into the second, twelfth, … place."""
    order = list(range(len(selected)))
    for number in range(len(held)):
        order.insert(number * EVERY + 1, len(selected) + number)
    return join([selected, held]).select(torch.tensor(order[:quota], dtype=torch.long))
