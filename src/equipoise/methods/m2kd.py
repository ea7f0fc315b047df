"""M²KD: multi-model and multi-level knowledge distillation."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from equipoise.methods import (
    Architecture,
    Fit,
    Head,
    Method,
    Step,
    Temperature,
    UsageError,
    Weight,
    check_part,
    check_width,
    distill,
)


@dataclass(eq=False)
class M2KD(Method):
    """Every earlier snapshot teaches the classes that it was the first to learn, at two levels.

    No code was released. Chosen here: snapshots are stored whole (the paper rebuilds them from pruning masks, which
    saves memory and should give the same outputs); the intermediate level is a head on the last feature maps but
    one.
    """

    paper = "Zhou et al., M2KD: Multi-model and Multi-level Knowledge Distillation, 2019"
    variants: ClassVar = {"m2kd": {}}
    stores = "a network per step and a second head"

    temperature: Temperature = 2.0
    """Temperature T of the distillation."""
    kd_weight: Weight = 1.0
    """Weight of each snapshot's distillation."""
    aux_weight: Weight = 0.5
    """Weight of the intermediate level."""

    def build(self, architecture: Architecture) -> None:
        super().build(architecture)
        if len(self.backbone.map_widths) < 2:
            raise UsageError("m2kd needs feature maps, which this backbone does not return: choose another")
        self.aux_head = Head(self.backbone.map_widths[-2], self.bias)
        self.snapshots = nn.ModuleList()

    def begin(self, step: Step, fit: Fit) -> None:
        if step.old:
            snapshot = self.new_snapshot()
            for name, part in snapshot.named_children():
                state = self.get_submodule(name).state_dict()
                if isinstance(part, Head):
                    part.resize(*state["weight"].shape)
                part.load_state_dict(state)
            self.snapshots.append(snapshot)
        super().begin(step, fit)
        self.aux_head.grow(step.new)

    def new_snapshot(self) -> nn.ModuleDict:
        """Return a frozen network with both heads, whose state is about to be loaded."""
        heads = {name: Head(head.features, self.bias) for name, head in self.heads().items()}
        snapshot = nn.ModuleDict({"backbone": self.architecture(self.final_relu), **heads})
        return snapshot.to(self.device).requires_grad_(False).eval()

    def heads(self) -> dict[str, Head]:
        return {"head": self.head, "aux_head": self.aux_head}

    def train(self, mode: bool = True) -> Self:
        super().train(mode)
        self.snapshots.eval()
        return self

    def keep_classes(self, classes: Tensor) -> None:
        super().keep_classes(classes)
        self.aux_head.keep_classes(classes)
        for head in (part for part in self.snapshots.modules() if isinstance(part, Head)):
            head.keep_classes(classes[classes < head.classes])

    def match_state(self, state: Mapping[str, Tensor]) -> None:
        while len(self.snapshots) < len(state["sizes"]) - 1:
            self.snapshots.append(self.new_snapshot())
            check_part(state, f"snapshots.{len(self.snapshots) - 1}", self.snapshots[-1])
        super().match_state(state)
        check_width(self.head, self.backbone.width)

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        levels = two_levels(self, x)
        high, low = (F.cross_entropy(logits, y) for logits in levels)
        start = 0
        for snapshot, size in zip(self.snapshots, self.steps, strict=False):
            own = slice(start, start + size)  # the classes that were new when the snapshot was taken
            start += size
            if not size:  # all of them were forgotten
                continue
            with torch.no_grad():
                target = two_levels(snapshot, x)
            high = high + self.kd_weight * distill(levels[0][:, own], target[0][:, own], self.temperature)
            low = low + self.kd_weight * distill(levels[1][:, own], target[1][:, own], self.temperature)
        return high + self.aux_weight * low


def two_levels(net: Any, x: Tensor) -> tuple[Tensor, Tensor]:
    """Return the logits of the head on the features and of the auxiliary one on the maps before them."""
    maps = net.backbone.maps(x)
    return net.head(net.backbone.pool(maps[-1])), net.aux_head(maps[-2].mean((2, 3)))
