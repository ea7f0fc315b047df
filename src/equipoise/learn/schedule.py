"""How long and how fast to train. The learning rate is a function of time, so it needs no saved state."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import torch
from torch import nn

from equipoise.core.ranges import Epochs, Fraction, Positive, Range, Weight, check_values, shown
from equipoise.errors import UsageError
from equipoise.learn.muon import Muon

Repeats = Annotated[int, Range(1, 10**4)]
Momentum = Annotated[float, Range(0, 1, below=True)]
Milestones = tuple[Annotated[int, Range(0, 10**9)], ...]


@dataclass(frozen=True)
class Schedule:
    """One training stage: how long, with which optimizer and learning rate."""

    epochs: Epochs = 10
    """Passes over the images."""
    first_epochs: Epochs | None = None
    """Epochs in the first step (none: the same as in the others)."""
    exemplar_repeats: Repeats = 1
    """How often an epoch shows each exemplar; new images are shown once."""
    multiply_repeats: bool = False
    """Multiply exemplar_repeats by the step's number, because the number of exemplars per class shrinks. An epoch never
    shows more exemplars than new images."""
    versions: Repeats = 1
    """How many versions of each image an epoch shows (EEIL: 12; augment.versions says which)."""
    batch_size: Annotated[int, Range(2, 2**24, why="batch norm needs two images")] = 64
    """Images per update."""
    optimizer: Literal["sgd", "adam", "adamw", "muon"] = "sgd"
    """Optimizer. muon uses orthogonalised updates for convolutions and SGD with Nesterov momentum for the rest."""
    lr: Positive = 0.1
    """Peak learning rate."""
    conv_lr: Positive = 1.0
    """Factor of lr for convolutions (muon)."""
    conv_momentum: Momentum = 0.6
    """Momentum of convolutions (muon)."""
    head_lr: Positive = 1.0
    """Factor of lr for matrices such as the head (muon)."""
    lr_schedule: Literal["constant", "milestones", "cosine", "one-cycle"] = "cosine"
    """Constant, multiplied by factor at milestones, cosine to zero, or one-cycle (linear up and down)."""
    milestones: Milestones = ()
    """Epochs after which the learning rate is multiplied by factor."""
    first_milestones: Milestones | None = None
    """Milestones in the first step (none: the same as in the others)."""
    warmup_epochs: Annotated[int, Range(0, 10**9)] = 0
    """Epochs in which the learning rate rises linearly to lr, with constant or milestones (DER)."""
    factor: Fraction = 0.1
    """Factor of the learning rate at a milestone."""
    warmup: Fraction = 0.2
    """Fraction of the epochs in which one-cycle rises to the peak."""
    momentum: Momentum = 0.9
    """Momentum of SGD, or the first β of Adam."""
    nesterov: bool = False
    """Use Nesterov momentum."""
    weight_decay: Weight = 1e-4
    """L2 penalty on all weights (decoupled with adamw; not on convolutions with muon)."""
    first_weight_decay: Weight | None = None
    """Weight decay in the first step (none: the same as in the others)."""
    divide_weight_decay: bool = False
    """Divide weight_decay by the step's number, from 1 (the WA authors' code)."""
    divide_lr: bool = False
    """Divide lr by the step's number (IL2M); with muon, for all weights but matrices.

    A distillation loss gives cross-entropy the weight 1/step if steps are equal, and SGD's updates shrink with it.
    Muon's updates do not depend on the scale of the loss, so this setting scales them. The head keeps its learning
    rate: it learns as many new rows in every step.
    """
    sizes: tuple[Annotated[float, Range(0, 1, above=True)], ...] = (1.0,)
    """Fractions of the image size to train at, one after another."""
    size_milestones: tuple[Fraction, ...] = ()
    """Fractions of the epochs after which the next entry of sizes applies."""
    shrink_first_only: bool = False
    """Use sizes in the first step only: teachers predict badly on small images, and the filters forget large ones."""

    def __post_init__(self) -> None:
        check_values(self, "train")
        if self.nesterov and self.momentum == 0:
            raise UsageError("train.nesterov needs a momentum above 0")
        if len(self.sizes) != len(self.size_milestones) + 1:
            raise UsageError("train.sizes must have one value more than train.size_milestones")
        if self.lr_schedule == "milestones":
            first = self.milestones if self.first_milestones is None else self.first_milestones
            self._check_milestones("milestones", self.milestones, self.epochs)
            which = "milestones" if self.first_milestones is None else "first_milestones"
            self._check_milestones(which, first, self.first_epochs or self.epochs)

    @staticmethod
    def _check_milestones(name: str, milestones: tuple[int, ...], epochs: int) -> None:
        if any(milestone >= epochs for milestone in milestones):
            raise UsageError(
                f"train.{name} {shown(list(milestones))} lie beyond the {epochs} epochs: "
                "set earlier milestones or another train.lr_schedule"
            )

    def for_step(self, index: int) -> Schedule:
        """Return the schedule of step ``index``, from 1."""
        own = self.first_weight_decay if index == 1 else None
        decay = self.weight_decay if own is None else own
        divisor = index if self.divide_lr else 1
        full = self.shrink_first_only and index > 1
        first = self.first_milestones if index == 1 else None
        return dataclasses.replace(
            self,
            epochs=self.first_epochs or self.epochs if index == 1 else self.epochs,
            first_epochs=None,
            milestones=self.milestones if first is None else first,
            first_milestones=None,
            weight_decay=decay / index if self.divide_weight_decay else decay,
            first_weight_decay=None,
            divide_weight_decay=False,
            lr=self.lr / divisor,
            head_lr=self.head_lr * divisor,
            divide_lr=False,
            sizes=(1.0,) if full else self.sizes,
            size_milestones=() if full else self.size_milestones,
        )

    def for_stage(self, **changes: Any) -> Schedule:
        """Return the schedule of a further stage: each image once per epoch at full size, with the given changes.

        Milestones, warm-up and the first step's own settings belong to the main stage: they are dropped unless given.
        """
        once: dict[str, Any] = {"first_epochs": None, "exemplar_repeats": 1, "multiply_repeats": False, "versions": 1}
        own = {"milestones": (), "first_milestones": None, "first_weight_decay": None, "warmup_epochs": 0}
        return dataclasses.replace(self, sizes=(1.0,), size_milestones=(), **(once | own | changes))

    @staticmethod
    def adam(**changes: Any) -> Schedule:
        """Return the schedule of an independent stage: Adam with a constant learning rate, with the given changes."""
        return Schedule(optimizer="adam", lr_schedule="constant", weight_decay=0.0, **changes)

    def repeats(self, index: int, new: int, exemplars: int) -> int:
        """Return how often an epoch of step ``index`` shows each exemplar, with so many new images and exemplars.

        >>> [Schedule(multiply_repeats=True).repeats(5, new, 2000) for new in (10_000, 5_000, 2_500)]
        [5, 2, 1]
        """
        most = max(new // max(exemplars, 1), 1)
        return self.exemplar_repeats * (min(index, most) if self.multiply_repeats else 1)

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
        begins = sorted(min(math.ceil(milestone * self.epochs), self.epochs) for milestone in self.size_milestones)
        spans = zip(self.sizes, [0, *begins], [*begins, self.epochs], strict=True)
        return sum((end - begin) * size**2 for size, begin, end in spans) / self.epochs

    def lr_at(self, time: float) -> float:
        """Return the learning rate after ``time`` epochs, which may be fractional.

        >>> Schedule(epochs=10, lr_schedule="one-cycle", lr=1.0).lr_at(6.0)
        0.5
        """
        progress = time / self.epochs
        if self.lr_schedule in ("constant", "milestones") and time < self.warmup_epochs:
            return self.lr * (math.floor(time) + 1) / self.warmup_epochs  # an epoch at a time, as in DER's code
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
