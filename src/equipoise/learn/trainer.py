"""The training loop (the only one), and the order of things in a step."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import Tensor, nn

from equipoise.data.augment import Augment
from equipoise.data.images import Images
from equipoise.data.memory import Memory
from equipoise.data.stream import Step
from equipoise.errors import RunError
from equipoise.learn.clock import Clock
from equipoise.learn.method import Method
from equipoise.learn.runtime import Runtime
from equipoise.learn.schedule import Schedule
from equipoise.seeding import Key, generator, seed_everything

EVALUATION_BATCH = 256
CHUNK = 2**20
"""Values that are augmented at a time: 4 MB of floats, some 340 images of 32×32."""


@dataclass
class StageState:
    """A training stage after some whole epochs: enough to go on as if it had never stopped."""

    epochs: int
    seconds: float
    tensors: dict[str, Tensor]


class Journal(Protocol):
    """Where stages are kept while a step is under way."""

    def load(self, stage: int) -> StageState | None: ...

    def save(self, stage: int, state: StageState) -> None: ...


class Watcher(Protocol):
    """Who is told how training goes."""

    def stage(self, name: str, epochs: int, images: int, done: int) -> None: ...

    def batch(self, images: int) -> None: ...

    def epoch(self, epoch: int, loss: float, lr: float) -> None: ...


class Silent:
    """A watcher and a journal that do nothing."""

    def stage(self, name: str, epochs: int, images: int, done: int) -> None: ...

    def batch(self, images: int) -> None: ...

    def epoch(self, epoch: int, loss: float, lr: float) -> None: ...

    def load(self, stage: int) -> StageState | None:
        return None

    def save(self, stage: int, state: StageState) -> None: ...


@dataclass
class Fit:
    """What a method may ask for while it learns a step: train on these images, features of those, remember."""

    method: Method
    step: Step
    images: Images | None
    """What the step is trained on: new images and rehearsal. ``begin`` may put others, or none, in their place."""
    memory: Memory
    schedule: Schedule
    augment: Augment
    runtime: Runtime
    key: Key
    """The address of this step's randomness."""
    watcher: Watcher = field(default_factory=Silent)
    journal: Journal = field(default_factory=Silent)
    stages: int = field(default=0, init=False)
    seconds: float = field(default=0.0, init=False)
    """Spent in training, also before the run was last stopped."""
    carried: float = field(default=0.0, init=False)
    """That of seconds which was spent before the run was last stopped."""
    images_seen: int = field(default=0, init=False)
    _remembered: bool = field(default=False, init=False)

    def __call__(
        self,
        images: Images,
        loss: Callable[[Tensor, Tensor], Tensor] | None = None,
        schedule: Schedule | None = None,
        parameters: Iterable[nn.Parameter] | None = None,
        name: str = "train",
        augment: bool = True,
        frozen: bool = False,
    ) -> None:
        """Train on ``images``: the method's own loss, schedule and all its parameters unless told otherwise.

        ``frozen`` keeps the network in evaluation mode, so that batch norms stand still.
        """
        stage, self.stages = self.stages, self.stages + 1
        if not frozen:
            self._remembered = False
        schedule = (schedule or self.schedule).for_step(self.step.index)
        if parameters is None:
            parameters = (p for p in self.method.parameters() if p.requires_grad)
        optimizer = schedule.make_optimizer(list(parameters))
        done = self.journal.load(stage)
        if done is not None:
            _restore(self.method, optimizer, done.tensors)
            self.seconds += done.seconds
            self.carried += done.seconds
        start = done.epochs if done is not None else 0
        spent = done.seconds if done is not None else 0.0
        self.watcher.stage(name, schedule.epochs, len(images), start)
        self.images_seen += schedule.epochs * len(images)
        for epoch in range(start, schedule.epochs):
            began = time.perf_counter()
            self.method.train(not frozen)
            draw = self.augment.batch if augment else self.augment.plain_batch
            mean = self._epoch(images, loss or self.method.loss, schedule, optimizer, draw, (*self.key, stage), epoch)
            if not math.isfinite(mean):
                raise RunError(
                    f"the loss became {mean} in epoch {epoch + 1} of step {self.step.index}: "
                    f"lower train.lr (now {schedule.lr:g})"
                )
            took = time.perf_counter() - began
            spent, self.seconds = spent + took, self.seconds + took
            with self.clock("checkpoint"):
                self.journal.save(stage, StageState(epoch + 1, spent, _capture(self.method, optimizer)))
            self.watcher.epoch(epoch + 1, mean, schedule.lr_at(epoch + 1))

    def _epoch(
        self,
        images: Images,
        loss: Callable[[Tensor, Tensor], Tensor],
        schedule: Schedule,
        optimizer: torch.optim.Optimizer,
        draw: Callable[[Images, Tensor, torch.Generator], Tensor],
        key: Key,
        epoch: int,
    ) -> float:
        """One pass over the images; returns the mean loss."""
        draws = generator(*key, "epoch", epoch)
        seed_everything(*key, "epoch", epoch, "global")
        method, runtime = self.method, self.runtime
        batches = _batches(len(images), schedule.batch_size, draws)
        total = torch.zeros((), device=runtime.device)
        for number, (pixels, where) in enumerate(_drawn(images, batches, draw, draws)):
            x, y = runtime.move(pixels), runtime.move(images.labels[where])
            for group in optimizer.param_groups:
                group["lr"] = schedule.lr_at(epoch + number / len(batches))
            optimizer.zero_grad(set_to_none=True)
            with runtime.autocast():
                value = loss(x, y)
            value.backward()
            method.after_backward()
            optimizer.step()
            method.after_update()
            total += value.detach()
            self.watcher.batch(len(where))
        return total.item() / len(batches)

    def over(self, images: Images, function: Callable[[Tensor], Tensor]) -> Tensor:
        """``function`` of all images, un-augmented, in evaluation mode: one row an image."""
        return torch.cat(list(run_over(self.method, function, images, self.augment, self.runtime)))

    def features(self, images: Images) -> Tensor:
        features = self.over(images, self.method.features)
        if not features.any():
            raise RunError(
                f"every feature is zero after training step {self.step.index}: the network has died, "
                f"so lower train.lr (now {self.schedule.lr:g}) or train longer"
            )
        return features

    def sample(self, images: Images, count: int, batch: int = 32) -> Iterator[Tensor]:
        """Batches of ``count`` of the images, drawn at random, un-augmented."""
        chosen = torch.randperm(len(images), generator=generator(*self.key, "sample"))[:count]
        for where in chosen.split(batch):
            yield self.runtime.move(self.augment.plain(images, where))

    @property
    def clock(self) -> Clock:
        return self.method.clock

    def exemplars(self) -> Images:
        """``remember``, for a method that needs exemplars."""
        kept = self.remember()
        assert kept is not None
        return kept

    def remember(self, images: Images | None = None) -> Images | None:
        """Choose this step's exemplars, among ``images`` or all new ones, with the model as it is now.

        Returns all exemplars that are kept, of old classes too.
        """
        if not self._remembered:  # features only change when something is trained
            self._remembered = True
            with self.clock("herding"):
                self.memory.update(images or self.step.images, self.step.seen, self.features, self.key)
        return self.memory.images()


def learn_step(fit: Fit, judge: Callable[[], None]) -> dict[str, float]:
    """Everything a step does, in order; ``judge`` is called between training and ``end``."""
    method, step = fit.method, fit.step
    method.clock = Clock()
    seed_everything(*fit.key, "begin")
    method.begin(step, fit)
    method.to(fit.runtime.device)
    if fit.images is not None:
        fit(fit.images)
    with fit.clock("evaluation"):
        judge()
    seed_everything(*fit.key, "end")
    facts = method.end(step, fit)
    if method.rehearses == "memory":
        fit.remember()
    method.teacher = None
    return facts


def run_over(
    method: Method, function: Callable[[Tensor], Tensor], images: Images, augment: Augment, runtime: Runtime
) -> Iterator[Tensor]:
    """``function`` of all images, in order and in batches, in evaluation mode and without gradients."""
    method.eval()
    for where in torch.arange(len(images)).split(EVALUATION_BATCH):
        with torch.no_grad(), runtime.autocast():
            yield function(runtime.move(augment.plain(images, where))).float().cpu()


def _batches(count: int, size: int, draws: torch.Generator) -> list[Tensor]:
    """A random order, cut into batches. A last batch of one image joins the one before, for batch norm's sake."""
    order = torch.randperm(count, generator=draws)
    if count == 1:
        order = order.repeat(2)
    batches = list(order.split(size))
    if len(batches) > 1 and len(batches[-1]) == 1:
        batches[-2:] = [torch.cat(batches[-2:])]
    return batches


def _drawn(
    images: Images,
    batches: list[Tensor],
    draw: Callable[[Images, Tensor, torch.Generator], Tensor],
    draws: torch.Generator,
) -> Iterator[tuple[Tensor, Tensor]]:
    """Augmented batches, made several at a time: small batches cost more in calls than in pixels."""
    channels, height, width = images.store.shape
    together = max(1, CHUNK // (len(batches[0]) * channels * height * width))
    for first in range(0, len(batches), together):
        group = batches[first : first + together]
        pixels = draw(images, torch.cat(group), draws)
        yield from zip(pixels.split([len(where) for where in group]), group, strict=True)


def _capture(method: Method, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """The method's and the optimizer's whole state, flat."""
    tensors = {f"method.{name}": value for name, value in method.state_dict().items()}
    for index, state in optimizer.state_dict()["state"].items():
        tensors |= {f"optimizer.{index}.{name}": value for name, value in state.items() if value is not None}
    return tensors


def _restore(method: Method, optimizer: torch.optim.Optimizer, tensors: dict[str, Tensor]) -> None:
    method.load_state_dict({k.removeprefix("method."): v for k, v in tensors.items() if k.startswith("method.")})
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    for name, value in tensors.items():
        if name.startswith("optimizer."):
            _, index, what = name.split(".")
            parameter = parameters[int(index)]
            # the fused update walks raw memory, so momentum must have its parameter's layout (channels-last)
            like = parameter if value.shape == parameter.shape else value
            own = torch.empty_like(like, device=parameter.device)
            optimizer.state[parameter][what] = own.copy_(value)
