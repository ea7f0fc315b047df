"""RPS-Net: random path selection."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from equipoise.data.images import Images
from equipoise.data.stream import Step
from equipoise.learn.losses import distill
from equipoise.learn.method import Method
from equipoise.learn.nets import Architecture, Backbone, conv3x3, initialise
from equipoise.seeding import generator

if TYPE_CHECKING:
    from equipoise.learn.trainer import Fit


class Residual(nn.Module):
    """One module of a layer: two convolutions beside a shortcut, at half the resolution if it pools."""

    def __init__(self, inputs: int, outputs: int, pools: bool) -> None:
        super().__init__()
        self.pools = pools
        self.conv1, self.bn1 = conv3x3(inputs, outputs), nn.BatchNorm2d(outputs)
        self.conv2, self.bn2 = conv3x3(outputs, outputs), nn.BatchNorm2d(outputs)
        self.skip = nn.Identity() if inputs == outputs else nn.Conv2d(inputs, outputs, 1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        inner = F.relu(self.bn1(self.conv1(x)), inplace=True)
        if self.pools:
            inner, x = F.max_pool2d(inner, 2), F.max_pool2d(x, 2)
        shortcut: Tensor = self.skip(x)
        both: Tensor = shortcut + self.bn2(self.conv2(inner))
        return both


class PathNet(Backbone):
    """Layers of parallel modules; a layer's output is the sum over the modules in use (Eq. 2)."""

    def __init__(self, channels: int, widths: tuple[int, ...], parallel: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            nn.ModuleList(Residual(inputs, outputs, outputs != widths[-1]) for _ in range(parallel))
            for inputs, outputs in pairwise((channels, *widths))
        )
        self.width, self.map_widths = widths[-1], list(widths)
        self.fixed: Tensor
        self.path: Tensor
        self.register_buffer("fixed", torch.zeros(len(widths), parallel, dtype=torch.bool))
        self.register_buffer("path", torch.zeros(len(widths), dtype=torch.long))
        self.active = self.in_use()

    def compute(self, x: Tensor) -> list[Tensor]:
        stages = []
        # a compiler sees no values of tensors, so it is told what was true when train() or eval() was called
        active = self.active if torch.compiler.is_compiling() else self.in_use()
        for layer, (first, *others) in zip(self.layers, active, strict=True):
            assert isinstance(layer, nn.ModuleList)
            total = layer[first](x)
            for m in others:
                total = total + layer[m](x)
            x = F.relu(total)
            stages.append(x)
        return stages

    def in_use(self) -> list[list[int]]:
        """The modules of each layer that are fixed or on the path."""
        used = self.fixed.scatter(1, self.path[:, None], True)
        return [row.nonzero().flatten().tolist() for row in used]

    def fix(self) -> None:
        """The current path's modules are never trained again."""
        self.fixed[torch.arange(len(self.path)), self.path] = True

    def settle(self) -> None:
        """Train what is on the path and not fixed, and nothing else."""
        for depth, layer in enumerate(self.layers):
            for m, module in enumerate(layer.children()):
                module.requires_grad_(m == int(self.path[depth]) and not bool(self.fixed[depth, m]))

    def train(self, mode: bool = True) -> PathNet:
        super().train(mode)
        self.active = self.in_use()
        for layer, fixed in zip(self.layers, self.fixed.tolist(), strict=True):
            for module, stands in zip(layer.children(), fixed, strict=True):
                module.train(mode and not stands)
        return self


@dataclass(eq=False)
class RPS(Method):
    """A random path through parallel modules is added every other step; modules used before stay as they are.

    Deviations: the best of the candidate paths is chosen on held-out training images (the released code looks at test
    accuracy), after a short trial of each; distillation is over old classes (the released code puts labels of new
    ones among the teacher's scores); the network is its own, by default shallower than the authors' nine layers, and
    ``net.backbone`` does not change it.
    """

    paper: ClassVar[str] = "Rajasegaran et al., Random Path Selection for Incremental Learning, NeurIPS 2019"
    variants: ClassVar = {"rps": {}}
    uses_teacher: ClassVar[bool] = True
    extra: ClassVar[str] = "parallel modules"

    widths: tuple[int, ...] = (16, 32, 64)
    """Channels of each layer; all but those of the last width halve the resolution."""
    parallel: int = 8
    """M, modules a layer."""
    every: int = 2
    """J, steps for which a path is kept."""
    candidates: int = 2
    """Random paths that are tried."""
    trial_epochs: int = 1
    """Epochs each is tried for."""
    held_out: float = 0.1
    """Share of the training images on which the candidates are compared."""
    growth: float = 2.5
    """γ of the weight of distillation: φ is 1 for the first J + 1 steps, then γ for each further one (authors: CIFAR
    2.5, ImageNet 10)."""
    temperature: float = 2.0
    """T of the distillation."""

    def build(self, architecture: Architecture) -> None:
        self.architecture = architecture
        net = PathNet(architecture.shape[0], self.widths, self.parallel)
        initialise(net)
        self.backbone = architecture.dress(net)
        self.head = self.make_head(self.backbone.width)

    @property
    def paths(self) -> PathNet:
        assert isinstance(self.backbone, PathNet)
        return self.backbone

    def begin(self, step: Step, fit: Fit) -> None:
        super().begin(step, fit)
        if (step.index - 1) % self.every == 0:
            if step.old:
                self.paths.fix()
            self.choose_path(fit)
        self.paths.settle()

    def choose_path(self, fit: Fit) -> None:
        """Try random paths; keep the one that does best on images it was not trained on, as the trial left it."""
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
        schedule = fit.schedule.further(epochs=self.trial_epochs, shape="constant", milestones=())
        start, best, best_hits = copy.deepcopy(self.state_dict()), None, -1
        for path in paths:
            self.load_state_dict(start)
            self.paths.path.copy_(path)
            self.paths.settle()
            fit(rest, None, schedule, name="path")
            hits = self.hits(held, fit)
            if hits > best_hits:
                best, best_hits = copy.deepcopy(self.state_dict()), hits
        assert best is not None
        self.load_state_dict(best)

    def hits(self, images: Images, fit: Fit) -> int:
        return int((fit.over(images, self.scores).argmax(1) == images.labels).sum())

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        scores = self.scores(x)
        loss = F.cross_entropy(scores, y)
        if self.teacher is None:
            return loss
        further = len(self.steps) - 1 - self.every
        weight = self.growth * further if further > 0 else 1.0
        return loss + weight * distill(scores, self.ask_teacher(x), self.temperature)
