"""EEIL: End-to-End Incremental Learning."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F

from equipoise.data.stream import Step
from equipoise.learn.balance import balanced
from equipoise.learn.losses import distill, distill_each
from equipoise.learn.method import Method
from equipoise.learn.schedule import Schedule
from equipoise.seeding import Key, number

if TYPE_CHECKING:
    from equipoise.learn.trainer import Fit


@dataclass(eq=False)
class EEIL(Method):
    """Distillation for each step's classes apart, noise on the gradient, then fine-tuning on balanced exemplars.

    Deviations: the authors' code passes over twelve versions of each image an epoch (ours over one, drawn anew), starts
    from a longer first step, lets the model before the tuning teach old heads too, and takes η / (1 + epoch)^0.55 for
    the noise's deviation, where the text has η / (1 + t)^0.55 for its variance.
    """

    paper: ClassVar[str] = "Castro et al., End-to-End Incremental Learning, ECCV 2018"
    variants: ClassVar = {"eeil": {}}
    uses_teacher: ClassVar[bool] = True
    corrects: ClassVar[bool] = True

    temperature: float = 2.0
    """T of the distillation."""
    noise: float = 0.3
    """η of the gradient noise, whose variance is η / (1 + t)^0.55 at update t; 0 is none."""
    noise_decay: float = 0.55
    """How fast the noise fades."""
    tune_epochs: int = 30
    """Epochs of the balanced fine-tuning."""
    tune_lr: float = 0.01
    """Its learning rate, divided by ten after each third of the epochs."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.updates: Tensor
        self.register_buffer("updates", torch.zeros((), dtype=torch.long))
        self.key: Key = ()

    def lesson(self, x: Tensor) -> Tensor:
        return self.scores(x)

    def begin(self, step: Step, fit: Fit) -> None:
        super().begin(step, fit)
        self.updates.zero_()
        self.key, self.batch = fit.key, fit.schedule.batch_size

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        return self.joined_loss(self.scores(x), x, y)

    def joined_loss(self, scores: Tensor, x: Tensor, y: Tensor) -> Tensor:
        """Eq. 1: cross-entropy over all heads joined, and for each old head a distillation of its own."""
        loss = F.cross_entropy(scores, y)
        if self.teacher is None:
            return loss
        return loss + distill_each(scores, self.ask_teacher(x), self.steps[:-1], self.temperature)

    @torch.no_grad()
    def after_backward(self) -> None:
        if not self.noise:
            return
        # the paper adds noise to the gradient summed over a batch; ours is a mean
        deviation = (self.noise / (1 + int(self.updates)) ** self.noise_decay) ** 0.5 / self.batch
        # by number, not from the global generator: every process must add the same
        random = torch.Generator(self.updates.device).manual_seed(number(*self.key, "noise", int(self.updates)))
        self.updates += 1
        for weight in self.parameters():
            if weight.grad is not None:
                drawn = torch.empty_like(weight.grad).normal_(generator=random)
                weight.grad.add_(drawn, alpha=deviation)

    def end(self, step: Step, fit: Fit) -> dict[str, float]:
        images = balanced(fit)
        if images is None:
            return {}
        before = self.snapshot()

        def tuning_loss(x: Tensor, y: Tensor) -> Tensor:
            """The new head, too, is held to what it was before the fine-tuning."""
            scores = self.scores(x)
            with torch.no_grad():
                was = before.scores(x)[:, step.old :]
            return self.joined_loss(scores, x, y) + distill(scores[:, step.old :], was, self.temperature)

        schedule = Schedule(
            epochs=self.tune_epochs,
            batch_size=fit.schedule.batch_size,
            lr=self.tune_lr,
            shape="milestones",
            milestones=(self.tune_epochs // 3, 2 * self.tune_epochs // 3) if self.tune_epochs >= 3 else (),
            weight_decay=fit.schedule.weight_decay,
        )
        fit(images, tuning_loss, schedule, name="balance")
        return {}
