"""How long and how fast to train. The learning rate is a function of time, so it needs no saved state."""

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
    """One training stage: how long, with which optimizer and learning rate."""

    epochs: int = 10
    """Passes over the images."""
    first_epochs: int | None = None
    """Epochs in the first step (none: the same as in the others)."""
    exemplar_repeats: int = 1
    """How often an epoch shows each exemplar; new images are shown once."""
    multiply_repeats: bool = False
    """Multiply exemplar_repeats by the step's number, so that a class with ever fewer exemplars is shown as often."""
    batch_size: int = 64
    """Images per update."""
    optimizer: Literal["sgd", "adam", "adamw", "muon"] = "sgd"
    """Optimizer. muon uses orthogonalised updates for convolutions and SGD with Nesterov momentum for the rest."""
    lr: float = 0.1
    """Peak learning rate."""
    conv_lr: float = 1.0
    """Factor of lr for convolutions (muon)."""
    conv_momentum: float = 0.6
    """Momentum of convolutions (muon)."""
    head_lr: float = 1.0
    """Factor of lr for matrices such as the head (muon)."""
    lr_schedule: Literal["constant", "milestones", "cosine", "one-cycle"] = "cosine"
    """Constant, multiplied by factor at milestones, cosine to zero, or one-cycle (linear up and down)."""
    milestones: tuple[int, ...] = ()
    """Epochs after which the learning rate is multiplied by factor."""
    factor: float = 0.1
    """Factor of the learning rate at a milestone."""
    warmup: float = 0.2
    """Fraction of the epochs in which one-cycle rises to the peak."""
    momentum: float = 0.9
    """Momentum of SGD, or the first β of Adam."""
    nesterov: bool = False
    """Use Nesterov momentum."""
    weight_decay: float = 1e-4
    """L2 penalty on all weights (decoupled with adamw; not on convolutions with muon)."""
    divide_weight_decay: bool = False
    """Divide weight_decay by the step's number, from 1 (the WA authors' code)."""
    divide_lr: bool = False
    """Divide lr by the step's number (IL2M); with muon, for all weights but matrices.

    A distillation loss gives cross-entropy the weight 1/step if steps are equal, and SGD's updates shrink with it.
    Muon's updates do not depend on the scale of the loss, so this setting scales them. The head keeps its learning
    rate: it learns as many new rows in every step.
    """
    sizes: tuple[float, ...] = (1.0,)
    """Fractions of the image size to train at, one after another."""
    size_milestones: tuple[float, ...] = ()
    """Fractions of the epochs after which the next of sizes begins."""
    shrink_first_only: bool = False
    """Use sizes in the first step only: teachers predict badly on small images, and the filters forget large ones."""

    def __post_init__(self) -> None:
        if self.batch_size < 2:
            raise UsageError(f"train.batch_size must be at least 2 for batch norm, got {self.batch_size}")
        limits = {"epochs": 10**9, "first_epochs": 10**9, "exemplar_repeats": 10**4, "batch_size": 2**24}
        for name, most in limits.items():
            value = getattr(self, name)
            if value is not None and value < 1:
                raise UsageError(f"train.{name} must be at least 1, got {value}")
            if value is not None and value > most:  # more would only fill the memory, or overflow
                raise UsageError(f"train.{name} must be at most {most:,}, got {value:,}")
        for name in ("lr", "conv_lr", "head_lr"):
            if not getattr(self, name) > 0:
                raise UsageError(f"train.{name} must be positive, got {getattr(self, name)}")
        for name in ("momentum", "conv_momentum"):
            if not 0 <= getattr(self, name) < 1:
                raise UsageError(f"train.{name} must be at least 0 and below 1, got {getattr(self, name)}")
        if self.nesterov and self.momentum == 0:
            raise UsageError("train.nesterov needs a momentum above 0")
        if not self.weight_decay >= 0:
            raise UsageError(f"train.weight_decay must not be negative, got {self.weight_decay}")
        if len(self.sizes) != len(self.size_milestones) + 1 or not all(0 < size <= 1 for size in self.sizes):
            raise UsageError("train.sizes must be fractions between 0 and 1, one more than train.size_milestones")
        if not 0 <= self.warmup <= 1:
            raise UsageError(f"train.warmup must be a fraction between 0 and 1, got {self.warmup}")
        fewest = min(self.epochs, self.first_epochs or self.epochs)
        if self.lr_schedule == "milestones" and any(milestone >= fewest for milestone in self.milestones):
            raise UsageError(
                f"train.milestones {list(self.milestones)} lie beyond the {fewest} epochs: "
                "set earlier milestones or another train.lr_schedule"
            )

    def for_step(self, index: int) -> Schedule:
        """Return the schedule of step ``index``, from 1."""
        decay = self.weight_decay / index if self.divide_weight_decay else self.weight_decay
        divisor = index if self.divide_lr else 1
        full = self.shrink_first_only and index > 1
        return dataclasses.replace(
            self,
            epochs=self.first_epochs or self.epochs if index == 1 else self.epochs,
            first_epochs=None,
            weight_decay=decay,
            divide_weight_decay=False,
            lr=self.lr / divisor,
            head_lr=self.head_lr * divisor,
            divide_lr=False,
            exemplar_repeats=self.exemplar_repeats * (index if self.multiply_repeats else 1),
            multiply_repeats=False,
            sizes=(1.0,) if full else self.sizes,
            size_milestones=() if full else self.size_milestones,
        )

    def for_stage(self, **changes: Any) -> Schedule:
        """Return the schedule of a further stage: each image once per epoch at full size, with the given changes.

        Milestones belong to the main stage's epochs, so they are dropped unless given.
        """
        once: dict[str, Any] = {"first_epochs": None, "exemplar_repeats": 1, "multiply_repeats": False}
        changes.setdefault("milestones", ())
        return dataclasses.replace(self, **once, sizes=(1.0,), size_milestones=(), **changes)

    @staticmethod
    def adam(**changes: Any) -> Schedule:
        """Return the schedule of a stage of its own: Adam with a constant learning rate, with the given changes."""
        return Schedule(optimizer="adam", lr_schedule="constant", weight_decay=0.0, **changes)

    def size_at(self, epoch: int, full: int) -> int:
        """Return the side of the training images in an epoch, from 0, if their full side is ``full``.

        >>> Schedule(epochs=10, sizes=(0.625, 0.75, 1.0), size_milestones=(0.4, 0.7)).size_at(4, 32)
        24
        """
        return max(round(full * self._size_at(epoch)), 1)

    def _size_at(self, epoch: int) -> float:
        return self.sizes[sum(epoch >= milestone * self.epochs for milestone in self.size_milestones)]

    @property
    def pixels(self) -> float:
        """The average fraction of an image's pixels that an epoch computes.

        >>> Schedule(epochs=2, sizes=(0.5, 1.0), size_milestones=(0.5,)).pixels
        0.625
        """
        return sum(self._size_at(epoch) ** 2 for epoch in range(self.epochs)) / self.epochs

    def lr_at(self, time: float) -> float:
        """Return the learning rate after ``time`` epochs, which may be fractional.

        >>> Schedule(epochs=10, lr_schedule="one-cycle", lr=1.0).lr_at(6.0)
        0.5
        """
        progress = time / self.epochs
        if self.lr_schedule == "milestones":
            return self.lr * self.factor ** sum(math.floor(time) >= milestone for milestone in self.milestones)
        if self.lr_schedule == "cosine":
            return self.lr * 0.5 * (1 + math.cos(math.pi * progress))
        if self.lr_schedule == "one-cycle":
            return self.lr * min(progress / max(self.warmup, 1e-9), (1 - progress) / max(1 - self.warmup, 1e-9))
        return self.lr

    def make_optimizer(self, parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
        """Return the optimizer for the given parameters."""
        if self.optimizer == "muon":
            return Muon(self._groups(parameters), self.lr, self.momentum, self.weight_decay)
        common: dict[str, Any] = {"lr": self.lr, "weight_decay": self.weight_decay, "fused": True}
        if self.optimizer in ("adam", "adamw"):
            kind = torch.optim.Adam if self.optimizer == "adam" else torch.optim.AdamW
            return kind(parameters, betas=(self.momentum, 0.999), **common)
        return torch.optim.SGD(parameters, momentum=self.momentum, nesterov=self.nesterov, **common)

    def _groups(self, parameters: Iterable[nn.Parameter]) -> list[dict[str, Any]]:
        """Split parameters into convolutions, matrices and the rest, each with its learning-rate factor."""
        kinds: dict[int, list[nn.Parameter]] = {}
        for parameter in parameters:
            kinds.setdefault(parameter.dim() if parameter.dim() in (2, 4) else 1, []).append(parameter)
        apart = {
            1: {},
            2: {"lr_factor": self.head_lr},
            4: {"lr_factor": self.conv_lr, "momentum": self.conv_momentum},
        }
        return [{"params": some} | apart[kind] for kind, some in kinds.items()]
