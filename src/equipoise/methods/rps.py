"""RPS-Net: random path selection."""

import copy
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Annotated, ClassVar, Literal, Self

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from equipoise.methods import (
    Architecture,
    Backbone,
    Epochs,
    Fit,
    Images,
    Length,
    Method,
    Range,
    Step,
    Temperature,
    UsageError,
    Weight,
    conv3x3,
    distill,
    generator,
    initialise,
)


class PathLayer(nn.Module):
    """Parallel modules and a shortcut; the output is the sum of the shortcut and the active modules (Eq. 2).

    A module is two convolutions; in the first layer, which has no shortcut, it is one. Where the width changes, the
    shortcut is a convolution, which all paths share.
    """

    def __init__(self, inputs: int, outputs: int, parallel: int, first: Literal[0, 3, 7], pools: bool) -> None:
        super().__init__()
        self.pools = pools
        if first:
            stem = partial(nn.Conv2d, inputs, outputs, first, stride=2 if first == 7 else 1, padding=first // 2)
            made = [nn.Sequential(stem(bias=False), nn.BatchNorm2d(outputs), nn.ReLU()) for _ in range(parallel)]
        else:
            made = [nn.Sequential(*_conv(inputs, outputs), *_conv(outputs, outputs)[:2]) for _ in range(parallel)]
        self.parallel = nn.ModuleList(made)
        changes = not first and inputs != outputs
        self.shortcut = nn.Sequential(*_conv(inputs, outputs)) if changes else None
        self.identity = not first and not changes

    def forward(self, x: Tensor, active: list[int]) -> Tensor:
        total: Tensor = self.parallel[active[0]](x)
        for m in active[1:]:
            total = total + self.parallel[m](x)
        if self.shortcut is not None:
            total = total + self.shortcut(x)
        elif self.identity:
            total = total + x
        return F.max_pool2d(F.relu(total), 2) if self.pools else F.relu(total)


def _conv(inputs: int, outputs: int) -> tuple[nn.Module, ...]:
    return conv3x3(inputs, outputs), nn.BatchNorm2d(outputs), nn.ReLU(inplace=True)


class PathNet(Backbone):
    """Layers of parallel modules, of which those that are fixed or on the current path are active."""

    def __init__(
        self, channels: int, widths: tuple[int, ...], pools: tuple[int, ...], parallel: int, first: Literal[3, 7]
    ) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            PathLayer(inputs, outputs, parallel, 0 if number > 1 else first, number in pools)
            for number, (inputs, outputs) in enumerate(pairwise((channels, *widths)), 1)
        )
        self.width, self.map_widths = widths[-1], list(widths)
        self.fixed: Tensor = nn.Buffer(torch.zeros(len(widths), parallel, dtype=torch.bool))
        self.path: Tensor = nn.Buffer(torch.zeros(len(widths), dtype=torch.long))
        self.first_step = True
        self.active = self.active_modules()  # read here, by train() and by eval(), so that no batch waits for a GPU

    def forward_stages(self, x: Tensor) -> list[Tensor]:
        return [x := layer(x, chosen) for layer, chosen in zip(self.layers, self.active, strict=True)]

    def active_modules(self) -> list[list[int]]:
        """Return the modules of each layer that are fixed or on the path."""
        used = self.fixed.scatter(1, self.path[:, None], True)
        return [row.nonzero().flatten().tolist() for row in used]

    def fix(self) -> None:
        """Never train the current path's modules again."""
        self.fixed[torch.arange(len(self.path)), self.path] = True

    def unfreeze_path(self) -> None:
        """Train only the modules that are on the path and not fixed, and in the first step the shortcuts."""
        for layer, path, fixed in self._each_layer():
            for m, module in enumerate(layer.parallel):
                module.requires_grad_(m == path and not fixed[m])
            if layer.shortcut is not None:
                layer.shortcut.requires_grad_(self.first_step)

    def _each_layer(self) -> Iterator[tuple[PathLayer, int, list[bool]]]:
        """Yield each layer with its module on the path and which of its modules are fixed."""
        for layer, path, fixed in zip(self.layers, self.path.tolist(), self.fixed.tolist(), strict=True):
            assert isinstance(layer, PathLayer)
            yield layer, path, fixed

    def train(self, mode: bool = True) -> Self:
        super().train(mode)
        self.active = self.active_modules()
        for layer, _, fixed in self._each_layer():
            for module, is_fixed in zip(layer.parallel, fixed, strict=True):
                module.train(mode and not is_fixed)
            if layer.shortcut is not None:
                layer.shortcut.train(mode and self.first_step)
        return self


MAX_WEIGHTS = 250_000_000
"""Maximum number of weights of all parallel modules: 1 GB."""


@dataclass(eq=False)
class RPS(Method):
    """A random path through parallel modules is added every other step; modules used before are frozen.

    Deviations: the best candidate path is chosen on held-out training images after a short trial (the released code
    uses test accuracy); distillation is over old classes (the released code puts labels of new classes among the
    teacher's logits); batch norms of fixed modules keep their statistics. The network is its own, and ``net.backbone``
    does not change it. By default it has three layers; the recipes have nine, those that end in -paper with the
    authors' channels.
    """

    paper = "Rajasegaran et al., Random Path Selection for Incremental Learning, NeurIPS 2019"
    variants: ClassVar = {"rps": {}}
    uses_teacher = True
    stores = "parallel modules"

    bias: bool = True
    """Give the head a bias."""
    widths: Annotated[tuple[Annotated[int, Range(1, 2048)], ...], Length(1, 64)] = (16, 32, 64)
    """Channels of each layer (authors: nine layers of 64 to 512)."""
    pools: Annotated[tuple[Annotated[int, Range(1, 64)], ...], Length(0, 64)] = (1, 2)
    """Layers, from 1, after which the resolution is halved (authors: CIFAR 5 and 7, ImageNet 3, 5, 7 and 9)."""
    stem: Literal[3, 7] = 3
    """Side of the first convolution; 7 also halves the resolution (authors: ImageNet)."""
    parallel: Annotated[int, Range(1, 64)] = 8
    """Modules M per layer."""
    every: Annotated[int, Range(1, 10**6)] = 2
    """Number J of steps for which a path is kept."""
    candidates: Annotated[int, Range(1, 1000)] = 2
    """Number of random paths to try."""
    trial_epochs: Epochs = 1
    """Epochs of each trial."""
    held_out: Annotated[float, Range(0, 1, above=True, below=True)] = 0.1
    """Fraction of the training images on which the candidates are compared."""
    growth: Weight = 2.5
    """γ of the distillation weight φ, which is 1 for the first J + 1 steps and γ times the number of further steps
    after them (authors: CIFAR 2.5, ImageNet 10)."""
    temperature: Temperature = 2.0
    """Temperature T of the distillation."""

    def __post_init__(self) -> None:
        super().__post_init__()
        weights = self.parallel * sum(
            9 * (inputs + outputs) * outputs for inputs, outputs in pairwise((3, *self.widths))
        )
        if weights > MAX_WEIGHTS:
            what = f"method.widths and method.parallel give {weights:,} weights, more than {MAX_WEIGHTS:,}"
            raise UsageError(f"{what}: lower one of them")

    def build(self, architecture: Architecture) -> None:
        self.architecture = architecture
        net = PathNet(architecture.shape[0], self.widths, self.pools, self.parallel, self.stem)
        initialise(net)
        self.backbone = architecture.configure(net)
        self.head = self.make_head(self.backbone.width)

    @property
    def paths(self) -> PathNet:
        assert isinstance(self.backbone, PathNet)
        return self.backbone

    def begin(self, step: Step, fit: Fit) -> None:
        super().begin(step, fit)
        self.paths.first_step = not step.old
        if (step.index - 1) % self.every == 0:
            if step.old:
                self.paths.fix()
            self.choose_path(fit)
        self.paths.unfreeze_path()

    def choose_path(self, fit: Fit) -> None:
        """Try random paths and keep the one with the highest accuracy on held-out images, with its trained weights."""
        assert fit.images is not None
        draws = generator(*fit.key, "paths")
        layers = len(self.paths.path)
        paths = torch.randint(self.parallel, (self.candidates, layers), generator=draws).to(self.paths.path.device)
        if self.candidates == 1:
            self.paths.path.copy_(paths[0])
            return
        order = torch.randperm(len(fit.images), generator=draws)
        cut = max(1, int(self.held_out * len(order)))
        held, rest = fit.images.select(order[:cut]), fit.images.select(order[cut:])
        schedule = fit.schedule.for_stage(epochs=self.trial_epochs, lr_schedule="constant")
        start, trials = copy.deepcopy(self.state_dict()), []
        for path in paths:
            self.load_state_dict(start)
            self.paths.path.copy_(path)
            self.paths.unfreeze_path()
            fit.train(rest, None, schedule, name="path")
            trials.append((self.count_correct(held, fit), copy.deepcopy(self.state_dict())))
        _, best = max(trials, key=lambda trial: trial[0])
        self.load_state_dict(best)

    def count_correct(self, images: Images, fit: Fit) -> int:
        return int((fit.map(images, self.logits).argmax(1) == images.labels).sum())

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        logits = self.logits(x)
        loss = F.cross_entropy(logits, y)
        if self.teacher is None:
            return loss
        further = len(self.steps) - 1 - self.every
        weight = self.growth * further if further > 0 else 1.0
        return loss + weight * distill(logits, self.teacher_predict(x), self.temperature)
