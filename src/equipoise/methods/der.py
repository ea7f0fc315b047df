"""DER: dynamically expandable representation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from equipoise.data.stream import Step
from equipoise.learn.balance import tune_head
from equipoise.learn.head import Head
from equipoise.learn.method import Method
from equipoise.learn.nets import Architecture

if TYPE_CHECKING:
    from equipoise.learn.trainer import Fit


@dataclass(eq=False)
class DER(Method):
    """Each step adds a backbone and freezes the others; an auxiliary head makes it tell new classes from old.

    Deviations: backbones are not pruned (channel masks only save parameters), and there is no warm-up after which
    both heads are drawn anew once more.
    """

    paper: ClassVar[str] = "Yan, Xie and He, DER: Dynamically Expandable Representation, CVPR 2021"
    variants: ClassVar = {"der": {}}
    corrects: ClassVar[bool] = True
    extra: ClassVar[str] = "a backbone a step"

    auxiliary: float = 1.0
    """λ_a, the weight of the auxiliary loss."""
    reuse_head: bool = False
    """Start old classes' rows, on old features, as they were (Sec. 3.1) instead of drawing all anew (authors' code)."""
    tune_epochs: int = 30
    """Epochs in which the head alone is trained again, on balanced exemplars."""
    tune_lr: float = 0.1
    """Its learning rate."""
    tune_temperature: float = 5.0
    """δ, which softens the scores in that training."""

    def build(self, architecture: Architecture) -> None:
        self.architecture = architecture
        self.backbones = nn.ModuleList()
        self.head, self.aid = Head(0), Head(0)

    def features(self, x: Tensor) -> Tensor:
        return torch.cat([backbone(x) for backbone in self.backbones], 1)

    def begin(self, step: Step, fit: Fit) -> None:
        self.start(step)
        fresh = self.architecture(self.final_relu).to(self.head.weight.device)
        if step.old:
            self.backbones.requires_grad_(False)
            fresh.load_state_dict(self.backbones[-1].state_dict())  # authors: the new one starts as the last
        self.backbones.append(fresh)
        head = Head(fresh.width * len(self.backbones)).to(self.head.weight.device)
        head.grow(step.seen)
        if self.reuse_head:
            head.weight.data[: step.old, : self.head.features] = self.head.weight.data
        self.head, self.aid = head, Head(fresh.width).to(head.weight.device)
        self.aid.grow(step.new + 1)

    def train(self, mode: bool = True) -> DER:
        super().train(mode)
        for frozen in list(self.backbones)[:-1]:
            frozen.eval()
        return self

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        features = self.features(x)
        loss = F.cross_entropy(self.head(features), y)  # Eq. 4
        if not self.old:
            return loss
        target = (y - self.old + 1).clamp(min=0)  # Sec. 3.2: all old classes are one
        return loss + self.auxiliary * F.cross_entropy(self.aid(features[:, -self.aid.features :]), target)  # Eq. 5

    def end(self, step: Step, fit: Fit) -> dict[str, float]:
        milestones = (self.tune_epochs // 2,) if self.tune_epochs > 1 else ()
        schedule = fit.schedule.further(
            epochs=self.tune_epochs, lr=self.tune_lr, shape="milestones", milestones=milestones
        )
        tune_head(fit, self.softened_loss, schedule, redraw=True)  # Sec. 3.4: the classifier is learned anew
        return {}

    def softened_loss(self, features: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(self.head(features) / self.tune_temperature, y)

    def _load_from_state_dict(self, state: Mapping[str, Any], prefix: str, *rest: Any) -> None:
        """As many backbones, and heads as wide, as the state has."""
        steps = len(state[f"{prefix}sizes"])
        while len(self.backbones) < steps:
            self.backbones.append(self.architecture(self.final_relu).to(self.sizes.device))
        for name in ("head", "aid"):
            width = state[f"{prefix}{name}.weight"].shape[1]
            if width != getattr(self, name).features:
                setattr(self, name, Head(width).to(self.sizes.device))
        super()._load_from_state_dict(state, prefix, *rest)
