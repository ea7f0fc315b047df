"""RPS-Net: random path selection."""

import copy
from dataclasses import dataclass
from itertools import pairwise
from typing import ClassVar, Self

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from equipoise.methods import Architecture, Backbone, Fit, Images, Method, Step, conv3x3, distill, generator, initialise


class Residual(nn.Module):
    """One module of a layer: two convolutions and a shortcut, at half the resolution if it pools."""

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
    """Layers of parallel modules; a layer's output is the sum over its active modules (Eq. 2)."""

    def __init__(self, channels: int, widths: tuple[int, ...], parallel: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            nn.ModuleList(Residual(inputs, outputs, outputs != widths[-1]) for _ in range(parallel))
            for inputs, outputs in pairwise((channels, *widths))
        )
        self.width, self.map_widths = widths[-1], list(widths)
        self.fixed: Tensor = nn.Buffer(torch.zeros(len(widths), parallel, dtype=torch.bool))
        self.path: Tensor = nn.Buffer(torch.zeros(len(widths), dtype=torch.long))
        self.active = self.active_modules()

    def forward_stages(self, x: Tensor) -> list[Tensor]:
        stages = []
        # a compiler cannot read tensor values, so it uses the list made by train() or eval()
        active = self.active if torch.compiler.is_compiling() else self.active_modules()
        for layer, (first, *others) in zip(self.layers, active, strict=True):
            assert isinstance(layer, nn.ModuleList)
            total = layer[first](x)
            for m in others:
                total = total + layer[m](x)
            x = F.relu(total)
            stages.append(x)
        return stages

    def active_modules(self) -> list[list[int]]:
        """Return the modules of each layer that are fixed or on the path."""
        used = self.fixed.scatter(1, self.path[:, None], True)
        return [row.nonzero().flatten().tolist() for row in used]

    def fix(self) -> None:
        """Never train the current path's modules again."""
        self.fixed[torch.arange(len(self.path)), self.path] = True

    def unfreeze_path(self) -> None:
        """Train only the modules that are on the path and not fixed."""
        for depth, layer in enumerate(self.layers):
            for m, module in enumerate(layer.children()):
                module.requires_grad_(m == int(self.path[depth]) and not bool(self.fixed[depth, m]))

    def train(self, mode: bool = True) -> Self:
        super().train(mode)
        self.active = self.active_modules()
        for layer, fixed in zip(self.layers, self.fixed.tolist(), strict=True):
            for module, is_fixed in zip(layer.children(), fixed, strict=True):
                module.train(mode and not is_fixed)
        return self


@dataclass(eq=False)
class RPS(Method):
    """A random path through parallel modules is added every other step; modules used before are frozen.

    Deviations: the best candidate path is chosen on held-out training images after a short trial (the released code
    uses test accuracy); distillation is over old classes (the released code puts labels of new classes among the
    teacher's logits); the network is its own, by default shallower than the authors' nine layers, and
    ``net.backbone`` does not change it.
    """

    paper = "Rajasegaran et al., Random Path Selection for Incremental Learning, NeurIPS 2019"
    variants: ClassVar = {"rps": {}}
    uses_teacher = True
    stores = "parallel modules"

    widths: tuple[int, ...] = (16, 32, 64)
    """Channels of each layer; all layers but those of the last width halve the resolution."""
    parallel: int = 8
    """Modules M per layer."""
    every: int = 2
    """Number J of steps for which a path is kept."""
    candidates: int = 2
    """Number of random paths to try."""
    trial_epochs: int = 1
    """Epochs of each trial."""
    held_out: float = 0.1
    """Fraction of the training images on which the candidates are compared."""
    growth: float = 2.5
    """γ of the distillation weight φ, which is 1 for the first J + 1 steps and γ times the number of further steps
    after them (authors: CIFAR 2.5, ImageNet 10)."""
    temperature: float = 2.0
    """Temperature T of the distillation."""

    def build(self, architecture: Architecture) -> None:
        self.architecture = architecture
        net = PathNet(architecture.shape[0], self.widths, self.parallel)
        initialise(net)
        self.backbone = architecture.configure(net)
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
