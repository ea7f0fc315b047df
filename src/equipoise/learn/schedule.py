"""How long and how fast to train. The learning rate is a function of time, so that nothing must be saved of it."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import nn

from equipoise.errors import UsageError
from equipoise.learn.muon import Muon


@dataclass(frozen=True)
class Schedule:
    """One training stage."""

    epochs: int = 10
    """Passes over the images."""
    first_epochs: int | None = None
    """Passes in the first step; none is as many as in the others."""
    exemplar_repeats: int = 1
    """How often an epoch shows each exemplar; a new image is shown once."""
    multiply_repeats: bool = False
    """Multiply exemplar_repeats by the step's number: a class keeps ever fewer exemplars, and is shown as often."""
    batch_size: int = 64
    """Images an update."""
    optimizer: Literal["sgd", "adam", "muon"] = "sgd"
    """What makes the updates; muon's are orthogonal for convolutions, and SGD's (Nesterov) for the rest."""
    lr: float = 0.1
    """The highest learning rate."""
    filter_lr: float = 1.0
    """What multiplies lr for convolutions, with muon."""
    filter_momentum: float = 0.6
    """Momentum of convolutions, with muon."""
    head_lr: float = 1.0
    """What multiplies lr for matrices, which a head is, with muon."""
    shape: Literal["constant", "milestones", "cosine", "one-cycle"] = "cosine"
    """How the learning rate moves: constant; times factor at milestones; cosine to zero; up and down in lines."""
    milestones: tuple[int, ...] = ()
    """Epochs after which the learning rate is multiplied by factor."""
    factor: float = 0.1
    """What a milestone multiplies the learning rate by."""
    warmup: float = 0.2
    """Share of the epochs in which one-cycle rises to the highest learning rate."""
    momentum: float = 0.9
    """Momentum of SGD, or Adam's first β."""
    nesterov: bool = False
    """Nesterov's form of the momentum."""
    weight_decay: float = 1e-4
    """L2 penalty on all weights; with muon, on all but convolutions."""
    divide_weight_decay: bool = False
    """Divide weight_decay by the step's number, 1, 2, 3, … (the WA authors' code)."""
    divide_lr: bool = False
    """Divide lr by the step's number (IL2M); with muon, that of all but matrices.

    A distilling loss gives cross-entropy the weight 1/step (equal steps), and SGD's updates of the network shrink with
    it. Muon's do not, so this does it for them. A head learns as many new rows in every step, and keeps its own.
    """
    sizes: tuple[float, ...] = (1.0,)
    """Shares of the images' size to which they are shrunk in training, one after another."""
    size_milestones: tuple[float, ...] = ()
    """Shares of the epochs after which the next of sizes begins."""
    shrink_first_only: bool = False
    """Shrink images in the first step only.

    A teacher judges small ones badly, and filters that have adapted to them have forgotten.
    """

    def __post_init__(self) -> None:
        if self.epochs < 1:
            raise UsageError(f"train.epochs is {self.epochs}, but it must be at least 1")
        if self.first_epochs is not None and self.first_epochs < 1:
            raise UsageError(f"train.first_epochs is {self.first_epochs}, but it must be at least 1")
        if self.exemplar_repeats < 1:
            raise UsageError(f"train.exemplar_repeats is {self.exemplar_repeats}, but it must be at least 1")
        if self.batch_size < 2:
            raise UsageError(f"train.batch_size is {self.batch_size}, but batch norm needs at least 2 images")
        if not self.lr > 0:
            raise UsageError(f"train.lr is {self.lr}, but it must be above 0")
        if not 0 <= self.momentum < 1 or (self.nesterov and self.momentum == 0):
            raise UsageError(f"train.momentum is {self.momentum}, but it must be below 1, and above 0 with nesterov")
        if not 0 <= self.filter_momentum < 1:
            raise UsageError(f"train.filter_momentum is {self.filter_momentum}, but it must be from 0 to below 1")
        if not self.weight_decay >= 0:
            raise UsageError(f"train.weight_decay is {self.weight_decay}, but it cannot be negative")
        if not (self.filter_lr > 0 and self.head_lr > 0):
            raise UsageError("train.filter_lr and train.head_lr multiply lr, so they must be above 0")
        if len(self.sizes) != len(self.size_milestones) + 1 or not all(0 < size <= 1 for size in self.sizes):
            raise UsageError("train.sizes are shares from 0 to 1, one more than there are train.size_milestones")
        if not 0 <= self.warmup <= 1:
            raise UsageError(f"train.warmup is {self.warmup}, but it is a share, from 0 to 1")
        fewest = min(self.epochs, self.first_epochs or self.epochs)
        if self.shape == "milestones" and any(milestone >= fewest for milestone in self.milestones):
            raise UsageError(
                f"train.milestones {list(self.milestones)} reach past the {fewest} epochs: "
                "set train.milestones to earlier ones, or train.shape to another"
            )

    def for_step(self, index: int) -> Schedule:
        """The schedule of step 1, 2, 3, …"""
        decay = self.weight_decay / index if self.divide_weight_decay else self.weight_decay
        share = index if self.divide_lr else 1
        full = self.shrink_first_only and index > 1
        return dataclasses.replace(
            self,
            epochs=self.first_epochs or self.epochs if index == 1 else self.epochs,
            first_epochs=None,
            weight_decay=decay,
            divide_weight_decay=False,
            lr=self.lr / share,
            head_lr=self.head_lr * share,
            divide_lr=False,
            exemplar_repeats=self.exemplar_repeats * (index if self.multiply_repeats else 1),
            multiply_repeats=False,
            sizes=(1.0,) if full else self.sizes,
            size_milestones=() if full else self.size_milestones,
        )

    def further(self, **changes: Any) -> Schedule:
        """For another stage of a step: as long as it says, and each of its images once an epoch and as it is."""
        once: dict[str, Any] = {"first_epochs": None, "exemplar_repeats": 1, "multiply_repeats": False}
        return dataclasses.replace(self, **once, sizes=(1.0,), size_milestones=(), **changes)

    def size_at(self, epoch: int, full: int) -> int:
        """The side of the images in an epoch, 0, 1, 2, …, of images whose side is ``full``.

        >>> Schedule(epochs=10, sizes=(0.625, 0.75, 1.0), size_milestones=(0.4, 0.7)).size_at(4, 32)
        24
        """
        return max(round(full * self._share_at(epoch)), 1)

    def _share_at(self, epoch: int) -> float:
        return self.sizes[sum(epoch >= milestone * self.epochs for milestone in self.size_milestones)]

    @property
    def pixels(self) -> float:
        """The share of an image's pixels that an epoch shows, on average.

        >>> Schedule(epochs=2, sizes=(0.5, 1.0), size_milestones=(0.5,)).pixels
        0.625
        """
        return sum(self._share_at(epoch) ** 2 for epoch in range(self.epochs)) / self.epochs

    def lr_at(self, time: float) -> float:
        """The learning rate after ``time`` epochs (which may be a fraction).

        >>> Schedule(epochs=10, shape="one-cycle", lr=1.0).lr_at(6.0)
        0.5
        """
        progress = time / self.epochs
        if self.shape == "milestones":
            return self.lr * self.factor ** sum(math.floor(time) >= milestone for milestone in self.milestones)
        if self.shape == "cosine":
            return self.lr * 0.5 * (1 + math.cos(math.pi * progress))
        if self.shape == "one-cycle":
            return self.lr * min(progress / max(self.warmup, 1e-9), (1 - progress) / max(1 - self.warmup, 1e-9))
        return self.lr

    def make_optimizer(self, parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
        if self.optimizer == "muon":
            return Muon(self._groups(parameters), self.lr, self.momentum, self.weight_decay)
        if self.optimizer == "adam":
            betas = (self.momentum, 0.999)
            return torch.optim.Adam(parameters, self.lr, betas, weight_decay=self.weight_decay, fused=True)
        return torch.optim.SGD(
            parameters,
            self.lr,
            momentum=self.momentum,
            nesterov=self.nesterov,
            weight_decay=self.weight_decay,
            fused=True,
        )

    def _groups(self, parameters: Iterable[nn.Parameter]) -> list[dict[str, Any]]:
        """Convolutions, matrices and the rest, each with what multiplies its learning rate."""
        kinds: dict[int, list[nn.Parameter]] = {}
        for parameter in parameters:
            kinds.setdefault(parameter.dim() if parameter.dim() in (2, 4) else 1, []).append(parameter)
        apart = {
            1: {},
            2: {"lr_factor": self.head_lr},
            4: {"lr_factor": self.filter_lr, "momentum": self.filter_momentum},
        }
        return [{"params": some} | apart[kind] for kind, some in kinds.items()]
