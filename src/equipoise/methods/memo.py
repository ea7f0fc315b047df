"""MEMO: a memory-efficient expandable model."""

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Self

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from equipoise.methods import (
    Architecture,
    Backbone,
    Fit,
    Head,
    Method,
    Step,
    Weight,
    align_head,
    check_part,
    check_width,
)


class SharedBackbone(Backbone):
    """Early stages, which all steps share, and a copy of the last stage per step; features are concatenated."""

    def __init__(self, net: Backbone) -> None:
        super().__init__()
        self.early, last = net.split()
        self.blocks = nn.ModuleList([last])
        self.width = self.block_width = net.width
        for option in ("flip_tta", "bf16", "frozen", "grey_to_rgb", "input_size"):
            setattr(self, option, getattr(net, option))

    def add_block(self) -> None:
        """Add a copy of the newest block, and stop training the others."""
        self.blocks.append(copy.deepcopy(self.blocks[-1]))
        self.blocks[:-1].requires_grad_(False)
        self.width += self.block_width

    def forward_stages(self, x: Tensor) -> list[Tensor]:
        shared = self.early(x)
        return [shared, torch.cat([block(shared) for block in self.blocks], 1)]

    def train(self, mode: bool = True) -> Self:
        super().train(mode)
        self.blocks[:-1].eval()  # authors' code: batch norms of earlier blocks keep their statistics
        return self


@dataclass(eq=False)
class Memo(Method):
    """Early layers are shared; each step adds a copy of the last stage and aligns the new classes' weights.

    Deviations: heads are initialised as PyTorch's linear layers are, with a random bias. The authors' networks are not
    pre-activation ResNets: here the last stage of ``resnet32`` and ``resnet18`` includes the final batch norm.
    """

    paper = "Zhou et al., A Model or 603 Exemplars: Towards Memory-Efficient Class-Incremental Learning, ICLR 2023"
    variants: ClassVar = {"memo": {}}
    corrects = True
    stores = "a last stage per step"
    reported_norm = 2

    aux_weight: Weight = 1.0
    """Weight of the auxiliary loss."""
    train_shared: bool = True
    """Train the shared layers in later steps as well (authors' setting), or freeze them after the first."""
    bias: bool = True
    """Give the heads a bias (authors' code)."""
    scale_bias: bool = False
    """Also scale the bias of new classes by γ, as in WA; the authors' code does not."""

    def build(self, architecture: Architecture) -> None:
        self.architecture = architecture
        self.backbone: SharedBackbone = SharedBackbone(architecture(self.final_relu))
        self.head, self.aux_head = (Head(self.backbone.width, self.bias) for _ in range(2))

    def begin(self, step: Step, fit: Fit) -> None:
        if not step.old:
            self.head.grow(step.new)
            return
        self.backbone.add_block()
        if not self.train_shared:
            self.backbone.early.requires_grad_(False)
        head = Head(self.backbone.width, self.bias).to(self.device)
        head.grow(step.seen)
        head.weight.data[: step.old, : self.head.features] = self.head.weight.data
        if head.bias is not None and self.head.bias is not None:
            head.bias.data[: step.old] = self.head.bias.data
        self.head, self.aux_head = head, Head(self.backbone.block_width, self.bias).to(self.device)
        self.aux_head.grow(step.new + 1)

    def train(self, mode: bool = True) -> Self:
        super().train(mode)
        if not self.train_shared and len(self.backbone.blocks) > 1:
            self.backbone.early.eval()
        return self

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        features = self.features(x)
        loss = F.cross_entropy(self.head(features), y)
        if not self.old:
            return loss
        target = (y - self.old + 1).clamp(min=0)  # as in DER: all old classes are one
        newest = features[:, -self.backbone.block_width :]
        return loss + self.aux_weight * F.cross_entropy(self.aux_head(newest), target)

    def end(self, step: Step, fit: Fit) -> dict[str, float]:
        if not step.old:
            return {}
        return {"gamma": align_head(self.head, step.old, norm=2, clamp=False, scale_bias=self.scale_bias)}

    def match_state(self, state: Mapping[str, Tensor]) -> None:
        while len(self.backbone.blocks) < len(state["sizes"]):
            self.backbone.add_block()
            check_part(state, f"backbone.blocks.{len(self.backbone.blocks) - 1}", self.backbone.blocks[-1])
        super().match_state(state)
        check_width(self.head, self.backbone.width)
