"""M²KD: multi-model and multi-level knowledge distillation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from equipoise.data.stream import Step
from equipoise.learn.head import Head
from equipoise.learn.losses import distill
from equipoise.learn.method import Method
from equipoise.learn.nets import Architecture, Backbone

if TYPE_CHECKING:
    from equipoise.learn.trainer import Fit


class TwoLevels(nn.Module):
    """A backbone with a head on its features and another on its last map but one."""

    def __init__(self, backbone: Backbone) -> None:
        super().__init__()
        self.backbone = backbone
        self.head, self.aid = Head(backbone.width), Head(backbone.map_widths[-2])

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        maps = self.backbone.maps(x)
        return self.head(self.backbone.pool(maps[-1])), self.aid(maps[-2].mean((2, 3)))

    def keep(self, classes: Tensor) -> None:
        known = classes[classes < self.head.classes]
        self.head.keep(known)
        self.aid.keep(known)


@dataclass(eq=False)
class M2KD(Method):
    """Every earlier snapshot teaches the classes that it was the first to learn, at two levels.

    No code was released. Chosen here: snapshots are kept whole (the paper rebuilds them from pruning masks, which saves
    memory and is meant to give the same outputs); the intermediate level is a head on the last feature map but one.
    """

    paper: ClassVar[str] = "Zhou et al., M2KD: Multi-model and Multi-level Knowledge Distillation, 2019"
    variants: ClassVar = {"m2kd": {}}
    extra: ClassVar[str] = "a network a step, a second head"

    temperature: float = 2.0
    """T of the distillation."""
    balance: float = 1.0
    """The weight of each snapshot's distillation."""
    auxiliary: float = 0.5
    """The weight of everything at the intermediate level."""

    def build(self, architecture: Architecture) -> None:
        super().build(architecture)
        self.aid = Head(self.backbone.map_widths[-2])
        self.snapshots = nn.ModuleList()

    def begin(self, step: Step, fit: Fit) -> None:
        if step.old:
            kept = self._blank()
            kept.load_state_dict({k: v for k, v in self.state_dict().items() if k.split(".")[0] in PARTS})
            self.snapshots.append(kept.requires_grad_(False).eval())
        super().begin(step, fit)
        self.aid.grow(step.new)

    def _blank(self) -> TwoLevels:
        return TwoLevels(self.architecture(self.final_relu)).to(self.head.weight.device)

    def train(self, mode: bool = True) -> M2KD:
        super().train(mode)
        self.snapshots.eval()
        return self

    def keep(self, classes: Tensor) -> None:
        super().keep(classes)
        self.aid.keep(classes)
        for snapshot in self.snapshots:
            assert isinstance(snapshot, TwoLevels)
            snapshot.keep(classes)

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        maps = self.backbone.maps(x)
        levels = self.head(self.backbone.pool(maps[-1])), self.aid(maps[-2].mean((2, 3)))
        high, low = (F.cross_entropy(scores, y) for scores in levels)
        start = 0
        for snapshot, size in zip(self.snapshots, self.steps, strict=False):
            own = slice(start, start + size)  # the classes that were new when the snapshot was taken
            start += size
            if not size:  # all of them were forgotten
                continue
            with torch.no_grad():
                taught = snapshot(x)
            high = high + self.balance * distill(levels[0][:, own], taught[0][:, own], self.temperature)
            low = low + self.balance * distill(levels[1][:, own], taught[1][:, own], self.temperature)
        return high + self.auxiliary * low

    def _load_from_state_dict(self, state: Mapping[str, Any], prefix: str, *rest: Any) -> None:
        """As many snapshots as the state has."""
        while len(self.snapshots) < len(state[f"{prefix}sizes"]) - 1:
            self.snapshots.append(self._blank().requires_grad_(False).eval())
        super()._load_from_state_dict(state, prefix, *rest)


PARTS = ("backbone", "head", "aid")
"""What a snapshot has of a model."""
