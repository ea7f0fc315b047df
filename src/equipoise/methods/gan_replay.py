"""Generative replay: a generator makes images of old classes, and the old model labels them."""

from dataclasses import dataclass
from itertools import pairwise
from typing import Annotated, ClassVar

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional as F

from equipoise.methods import (
    Architecture,
    Epochs,
    Fit,
    Head,
    Images,
    Method,
    Positive,
    Range,
    Schedule,
    Step,
    UsageError,
    conv3x3,
    join,
)

CODE = 32
"""Length of a class's embedding."""


class Generator(nn.Module):
    """Generate an image with values in -1…1 from noise and a class embedding, by three doublings."""

    def __init__(self, noise: int, shape: tuple[int, int, int]) -> None:
        super().__init__()
        self.size = shape[1], shape[2]
        self.start = -(-shape[1] // 8), -(-shape[2] // 8)
        self.first = nn.Linear(noise + CODE, 128 * self.start[0] * self.start[1])
        widths = (128, 64, 32, 32)
        self.convs = nn.ModuleList(conv3x3(i, o) for i, o in pairwise(widths))
        self.norms = nn.ModuleList(nn.BatchNorm2d(o) for o in widths[1:])
        self.last = nn.Conv2d(32, shape[0], 3, padding=1)

    def forward(self, noise: Tensor, code: Tensor) -> Tensor:
        x = self.first(torch.cat([noise, code], 1)).view(-1, 128, *self.start)
        for conv, norm in zip(self.convs, self.norms, strict=True):
            x = F.relu(norm(conv(F.interpolate(x, scale_factor=2.0))))
        return torch.tanh(self.last(x)[:, :, : self.size[0], : self.size[1]])


class Critic(nn.Module):
    """Rate how real an image of a class looks, with a projection of the class (Miyato and Koyama 2018)."""

    def __init__(self, shape: tuple[int, int, int]) -> None:
        super().__init__()
        widths = (shape[0], 32, 64, 128)
        self.convs = nn.ModuleList(
            nn.utils.parametrizations.spectral_norm(nn.Conv2d(i, o, 3, 2, padding=1)) for i, o in pairwise(widths)
        )
        self.real, self.project = nn.Linear(128, 1), nn.Linear(CODE, 128)

    def forward(self, x: Tensor, code: Tensor) -> Tensor:
        for conv in self.convs:
            x = F.leaky_relu(conv(x), 0.1)
        features = x.sum((2, 3))
        rating: Tensor = self.real(features)[:, 0] + (self.project(code) * features).sum(1)
        return rating


@dataclass(eq=False)
class GANReplay(Method):
    """A conditional GAN generates the rehearsal images, and the old model labels them."""

    paper = (
        "Shin et al., Deep Generative Replay, NeurIPS 2017; conditional as Wu et al., Memory Replay GANs, NeurIPS 2018"
    )
    variants: ClassVar = {"gan-replay": {}}
    rehearsal = "none"
    stores = "a generator and a critic"

    noise: Annotated[int, Range(1, 10**4)] = 64
    """Length of the generator's noise."""
    replay_ratio: Annotated[float, Range(0, 100)] = 1.0
    """Generated images per old class, relative to the images per new class."""
    gan_epochs: Epochs = 10
    """Epochs of the generator and critic after each step."""
    gan_lr: Positive = 2e-4
    """Adam's learning rate for both."""

    def build(self, architecture: Architecture) -> None:
        if architecture.frozen:
            raise UsageError("net.frozen does not apply to gan-replay: it generates images, not features")
        super().build(architecture)
        self.generator, self.critic = Generator(self.noise, architecture.shape), Critic(architecture.shape)
        self.codes = Head(CODE)  # one row per class, growing as the head does

    def begin(self, step: Step, fit: Fit) -> None:
        if step.old:
            count = max(1, round(self.replay_ratio * len(step.images) / step.new))
            made = self.imagine(torch.arange(step.old).repeat_interleave(count), fit)
            fit.images = join([step.images, made])
        super().begin(step, fit)
        self.codes.grow(step.new)
        for part in (self.generator, self.critic, self.codes):
            part.requires_grad_(False)  # now the classifier is trained

    def keep_classes(self, classes: Tensor) -> None:
        raise UsageError(
            "gan-replay cannot forget or relearn a class, because its generator still produces it: train a new model"
        )

    @torch.no_grad()
    def imagine(self, classes: Tensor, fit: Fit) -> Images:
        """Generate images of ``classes``, labelled by this model."""
        self.eval()
        pixels, labels = [], []
        for wanted in classes.to(self.device).split(256):
            noise = torch.randn(len(wanted), self.noise, device=wanted.device)
            picture = self.generator(noise, self.codes.weight[wanted])
            made = ((picture + 1) * 127.5).round().to(torch.uint8)
            labels.append(self.predict(fit.augment.normalise(made)).argmax(1).cpu())
            pixels.append(made.cpu())
        return Images.of(torch.cat(pixels), torch.cat(labels))

    def end(self, step: Step, fit: Fit) -> dict[str, float]:
        assert fit.images is not None
        mean, std = (torch.tensor(v, device=self.device) for v in (fit.augment.mean, fit.augment.std))

        def gan_loss(x: Tensor, y: Tensor) -> Tensor:
            return self.gan_loss((x * std.view(1, -1, 1, 1) + mean.view(1, -1, 1, 1)) * 2 - 1, y)

        parts = (self.generator, self.critic, self.codes)
        weights = [weight for part in parts for weight in part.requires_grad_(True).parameters()]
        schedule = Schedule.adam(epochs=self.gan_epochs, batch_size=64, lr=self.gan_lr, momentum=0.5)
        fit.train(fit.images, gan_loss, schedule, weights, "generator", augment=False)
        return {}

    def gan_loss(self, real: Tensor, y: Tensor) -> Tensor:
        """Return the sum of both hinge losses; neither network gets gradients from the other's loss."""
        noise = torch.randn(len(real), self.noise, device=real.device)
        made = self.generator(noise, self.codes.weight[y])
        code = self.codes.weight[y].detach()  # trained by the generator's loss only
        real_rating, made_rating = self.critic(real, code), self.critic(made.detach(), code)
        critic = F.relu(1 - real_rating).mean() + F.relu(1 + made_rating).mean()
        fixed = {name: weight.detach() for name, weight in self.critic.named_parameters()}
        fooled = functional_call(self.critic, fixed, (made, code))
        loss: Tensor = critic - fooled.mean()
        return loss
