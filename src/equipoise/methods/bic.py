"""BiC: two numbers, fitted on held-out images, undo the bias towards the newest classes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from equipoise.data.images import Images, join
from equipoise.data.stream import Step
from equipoise.learn.losses import distill, old_share
from equipoise.learn.method import Method
from equipoise.learn.schedule import Schedule
from equipoise.seeding import generator

if TYPE_CHECKING:
    from equipoise.learn.trainer import Fit

EVERY = 10
"""One exemplar in ten is for fitting the pair."""


@dataclass(eq=False)
class BiC(Method):
    """Cross-entropy and distillation, then α and β for the newest classes' logits, fitted on images never trained on.

    An image that is held out when its class is new stays held out: in the memory it takes the second place of every
    ten, so that cutting the memory keeps the share.
    """

    paper: ClassVar[str] = "Wu et al., Large Scale Incremental Learning, CVPR 2019"
    variants: ClassVar = {"bic": {}}
    uses_teacher: ClassVar[bool] = True
    corrects: ClassVar[bool] = True
    extra: ClassVar[str] = "two numbers"

    temperature: float = 2.0
    """T of the distillation."""
    fit_epochs: int = 100
    """Epochs in which the pair is fitted."""
    fit_lr: float = 0.01
    """Adam's learning rate for the pair."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.pair = nn.Parameter(torch.tensor([1.0, 0.0]), requires_grad=False)

    def begin(self, step: Step, fit: Fit) -> None:
        super().begin(step, fit)  # the teacher keeps its own pair
        self.pair.data = torch.tensor([1.0, 0.0], device=self.pair.device)
        quota = fit.memory.quota(step.old or step.new)
        self.held_new, self.trained_new = _hold_out(step.images, len(range(1, quota, EVERY)), fit.key)
        old = list(fit.memory.kept.values())
        held = [kept.select(torch.arange(1, len(kept), EVERY)) for kept in old]
        rest = [kept.select(torch.tensor([i for i in range(len(kept)) if i % EVERY != 1])) for kept in old]
        self.held = join([self.held_new, *held])
        fit.images = join([self.trained_new, *rest])

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        scores = self.scores(x)
        loss = F.cross_entropy(scores, y)
        if self.teacher is None:
            return loss
        balance = old_share(self.old, self.new)
        return balance * distill(scores, self.ask_teacher(x), self.temperature) + (1 - balance) * loss  # Eq. 3

    def predict(self, x: Tensor) -> Tensor:
        return self.corrected(self.scores(x))

    def corrected(self, scores: Tensor) -> Tensor:
        """Eq. 4: α o + β for the newest step's classes, all others as they are. The first step has no pair."""
        if len(self.steps) < 2:
            return scores
        old = scores.shape[1] - self.steps[-1]
        return torch.cat([scores[:, :old], self.pair[0] * scores[:, old:] + self.pair[1]], 1)

    def end(self, step: Step, fit: Fit) -> dict[str, float]:
        facts = {}
        if step.old and len(self.held) > len(self.held_new):
            self.pair.requires_grad_(True)
            schedule = Schedule(
                epochs=self.fit_epochs,
                batch_size=128,
                optimizer="adam",
                lr=self.fit_lr,
                shape="constant",
                weight_decay=0.0,
            )
            fit(self.held, self.bias_loss, schedule, [self.pair], "bias", augment=False, frozen=True)  # Eq. 5
            self.pair.requires_grad_(False)
            facts = {"alpha": self.pair[0].item(), "beta": self.pair[1].item()}
        self._remember(fit)
        del self.held, self.held_new, self.trained_new  # a snapshot of the model must not copy images
        return facts

    def bias_loss(self, x: Tensor, y: Tensor) -> Tensor:
        with torch.no_grad():
            scores = self.scores(x)
        return F.cross_entropy(self.corrected(scores), y)

    def _remember(self, fit: Fit) -> None:
        """Choose exemplars among the images that were trained on, and put the held-out ones between them."""
        fit.remember(self.trained_new)
        for label, chosen in fit.memory.kept.items():
            if label >= fit.step.old:
                mine = self.held_new.select(self.held_new.labels == label)
                fit.memory.kept[label] = _interleave(chosen, mine, fit.memory.quota(fit.step.seen))


def _hold_out(images: Images, count: int, key: tuple[int | str, ...]) -> tuple[Images, Images]:
    """``count`` images of each class, drawn at random (but no more than one in ten), and the others."""
    held = torch.zeros(len(images), dtype=torch.bool)
    for label in images.labels.unique().tolist():
        mine = (images.labels == label).nonzero().flatten()
        order = torch.randperm(len(mine), generator=generator(*key, "held out", label))
        held[mine[order[: min(count, len(range(1, len(mine), EVERY)))]]] = True
    return images.select(held), images.select(~held)


def _interleave(chosen: Images, held: Images, quota: int) -> Images:
    """The second, twelfth, … place to a held-out image."""
    places: list[Images] = []
    taken = given = 0
    one = torch.arange(1)
    while len(places) < quota and (taken < len(chosen) or given < len(held)):
        if len(places) % EVERY == 1 and given < len(held):
            places.append(held.select(one + given))
            given += 1
        elif taken < len(chosen):
            places.append(chosen.select(one + taken))
            taken += 1
        else:
            break
    return join(places)
