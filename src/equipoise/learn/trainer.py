"""The training loop (the only one), and the order of things in a step."""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TypeVar

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from equipoise import ranks
from equipoise.data.augment import Augment
from equipoise.data.images import Images, TensorStore
from equipoise.data.memory import Memory
from equipoise.data.stream import Step
from equipoise.errors import RunError
from equipoise.learn.clock import Clock
from equipoise.learn.journal import Journal, Silent, StageState, Watcher, capture, restore
from equipoise.learn.method import Method
from equipoise.learn.nets import without
from equipoise.learn.runtime import Runtime
from equipoise.learn.schedule import Schedule
from equipoise.seeding import Key, generator, seed_everything

Loss = Callable[[Tensor, Tensor], Tensor]
T = TypeVar("T")

EVALUATION_BATCH = 256
CHUNK = 2**20
"""Values that are augmented at a time: 4 MB of floats, some 340 images of 32×32."""


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
        loss: Loss | None = None,
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
        done = ranks.tell(lambda: self.journal.load(stage))
        if done is not None:
            restore(self.method, optimizer, done.tensors)
            self.seconds += done.seconds
            self.carried += done.seconds
        start = done.epochs if done is not None else 0
        spent = done.seconds if done is not None else 0.0
        shown = len(self.shown(images, schedule))
        self.watcher.stage(name, schedule.epochs, shown, start)
        self.images_seen += schedule.epochs * shown
        together = _together(self.method, loss or self.method.loss, self.runtime)
        for epoch in range(start, schedule.epochs):
            began = time.perf_counter()
            self.method.train(not frozen)
            mean = self._epoch(images, together, schedule, optimizer, augment, (*self.key, stage), epoch)
            if not math.isfinite(mean):
                why = f"the loss became {mean} in epoch {epoch + 1} of step {self.step.index}"
                raise ranks.everybodys(RunError(f"{why}: lower train.lr (now {schedule.lr:g})"))
            took = time.perf_counter() - began
            spent, self.seconds = spent + took, self.seconds + took
            if ranks.first():
                with self.clock("checkpoint"):
                    self.journal.save(stage, StageState(epoch + 1, spent, capture(self.method, optimizer)))
            self.watcher.epoch(epoch + 1, mean, schedule.lr_at(epoch + 1))
        seed_everything(*self.key, stage, "after")  # the same whether the stage was trained or taken up whole

    def shown(self, images: Images, schedule: Schedule) -> Tensor:
        """The numbers of the images that an epoch shows: all of them, and exemplars as often as the schedule says."""
        every = torch.arange(len(images))
        exemplars = every[images.labels < self.step.old] if self.method.rehearses == "memory" else every[:0]
        return torch.cat([every, exemplars.repeat(schedule.exemplar_repeats - 1)])

    def _epoch(
        self,
        images: Images,
        loss: Loss,
        schedule: Schedule,
        optimizer: torch.optim.Optimizer,
        augment: bool,
        key: Key,
        epoch: int,
    ) -> float:
        """One pass over the images; returns the mean loss.

        Every process knows all batches and learns from its share of each: whatever their number, a batch is the
        schedule's, and an image is varied in the same way.
        """
        random = generator(*key, "epoch", epoch)
        seed_everything(*key, "epoch", epoch, "process", ranks.rank())
        method, runtime = self.method, self.runtime
        shown = self.shown(images, schedule)
        places = _batches(len(shown), schedule.batch_size, random)
        batches = [shown[place] for place in places]
        size = schedule.size_at(epoch, images.store.shape[1])
        mirror = self.augment.mirror_draws(len(shown), epoch, generator(*key, "mirror"))
        turns = [None if mirror is None else mirror[place] for place in places]
        drawn = self._drawn(images, batches, random if augment else None, turns, size)
        total = torch.zeros((), device=runtime.device)
        for number, (batch, pixels) in enumerate(zip(batches, drawn, strict=True)):
            x, y = runtime.move(pixels), runtime.move(images.labels[ranks.share(batch)])
            for group in optimizer.param_groups:
                group["lr"] = schedule.lr_at(epoch + number / len(batches)) * group.get("lr_factor", 1.0)
            optimizer.zero_grad(set_to_none=True)
            with ranks.company():
                value = loss(x, y) * ranks.weight(batch)
                value.backward()
            method.after_backward()
            optimizer.step()
            method.after_update()
            total += value.detach()
            self.watcher.batch(len(batch))
        ranks.settle(method)
        return ranks.total(total).item() / len(batches) / ranks.world()

    def _drawn(
        self,
        images: Images,
        batches: list[Tensor],
        random: torch.Generator | None,
        turns: list[Tensor | None],
        size: int,
    ) -> Iterator[Tensor]:
        """Our shares of the batches, made several at a time: small batches cost more in calls than in pixels."""
        channels, height, width = images.store.shape
        together = max(1, CHUNK // (len(ranks.share(batches[0])) * channels * height * width))

        def made() -> Iterator[Iterable[Tensor]]:
            for first in range(0, len(batches), together):
                group = batches[first : first + together]
                shares = [ranks.share(batch) for batch in group]
                where = torch.cat(shares)
                if random is None:
                    pixels = self.augment.plain(images, where)
                else:  # everybody draws for whole batches, so that all stay in step
                    draws = [
                        ranks.share(self.augment.draw(len(batch), random, turn))
                        for batch, turn in zip(group, turns[first:], strict=False)
                    ]
                    pixels = self.augment.batch(images, where, torch.cat(draws), size)
                yield pixels.split([len(mine) for mine in shares])

        for group in _ahead(made(), images):
            yield from group

    def over(self, images: Images, function: Callable[[Tensor], Tensor]) -> Tensor:
        """``function`` of all images, un-augmented, in evaluation mode: one row an image."""
        return run_over(self.method, function, images, self.augment, self.runtime)

    def features(self, images: Images) -> Tensor:
        features = self.over(images, self.method.features)
        if not features.any():
            why = f"every feature is zero after training step {self.step.index}: the network has died"
            raise ranks.everybodys(RunError(f"{why}, so lower train.lr (now {self.schedule.lr:g}) or train longer"))
        return features

    def sample(self, images: Images, count: int, batch: int = 32) -> Iterator[tuple[Tensor, Tensor]]:
        """This process's batches of ``count`` of the images, drawn at random, un-augmented, with a number 0–1 each."""
        random = generator(*self.key, "sample")
        chosen = torch.randperm(len(images), generator=random)[:count]
        numbers = torch.rand(len(chosen), generator=random)
        pairs = list(zip(chosen.split(batch), numbers.split(batch), strict=True))
        for where, draws in pairs[ranks.rank() :: ranks.world()]:
            yield self.runtime.move(self.augment.plain(images, where)), self.runtime.move(draws)

    @property
    def clock(self) -> Clock:
        return self.method.clock

    def exemplars(self) -> Images:
        """``remember``, for a method that needs exemplars."""
        kept = self.remember()
        assert kept is not None
        return kept

    @contextmanager
    def choosing(self) -> Iterator[None]:
        """Around a choice of exemplars, for which one pass over the images, without mirror images, is enough."""
        with self.clock("herding"), without(self.method, "mirror"):
            yield

    def remember(self, images: Images | None = None) -> Images | None:
        """Choose this step's exemplars, among ``images`` or all new ones, with the model as it is now.

        Returns all exemplars that are kept, of old classes too.
        """
        if not self._remembered:  # features only change when something is trained
            self._remembered = True
            with self.choosing():
                self.memory.update(images or self.step.images, self.step.seen, self.features, self.key)
        return self.memory.images()


def learn_step(fit: Fit, judge: Callable[[], None]) -> dict[str, float]:
    """Everything a step does, in order; ``judge`` is called between training and ``end``."""
    method, step = fit.method, fit.step
    method.clock = Clock()
    seed_everything(*fit.key, "begin")
    method.begin(step, fit)
    fit.runtime.place(method)
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
) -> Tensor:
    """``function`` of all images, in order, in evaluation mode and without gradients: one row an image.

    Processes share whole batches, so that a row is the same to the bit however many they are.
    """
    method.eval()
    batches = torch.arange(len(images)).split(EVALUATION_BATCH)
    numbers = range(ranks.rank(), len(batches), ranks.world())
    read = _ahead((augment.plain(images, batches[number]) for number in numbers), images)
    mine: dict[int, Tensor] = {}
    for number, pixels in zip(numbers, read, strict=True):
        with torch.no_grad():
            mine[number] = function(runtime.move(pixels)).float().cpu()
    return ranks.rows(mine, [len(batch) for batch in batches])


def _ahead(items: Iterator[T], images: Images) -> Iterator[T]:
    """The same items; where images must be decoded, the next is made while one is used."""
    if isinstance(images.store, TensorStore):
        yield from items
        return
    with ThreadPoolExecutor(1, thread_name_prefix="ahead") as maker:
        coming = maker.submit(next, items, None)
        while (item := coming.result()) is not None:
            coming = maker.submit(next, items, None)
            yield item


def _batches(count: int, size: int, random: torch.Generator) -> list[Tensor]:
    """A random order, cut into batches. A last batch of one image joins the one before, for batch norm's sake."""
    order = torch.randperm(count, generator=random)
    if count == 1:
        order = order.repeat(2)
    batches = list(order.split(size))
    if len(batches) > 1 and len(batches[-1]) == 1:
        batches[-2:] = [torch.cat(batches[-2:])]
    return batches


class _Forward(nn.Module):
    """A loss as a forward pass."""

    def __init__(self, method: Method, loss: Loss) -> None:
        super().__init__()
        self.method, self.loss = method, loss

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return self.loss(x, y)


def _together(method: Method, loss: Loss, runtime: Runtime) -> Loss:
    """The loss, with gradients that become the mean over all processes as they are computed."""
    if ranks.world() == 1:
        return loss
    device = torch.device(runtime.device)
    warnings.filterwarnings("ignore", "Grad strides do not match")  # of a grey image's layer, where both are the same
    with ranks.company(), warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # torch 2.13 renames broadcast_buffers, older ones know no other
        return DistributedDataParallel(
            _Forward(method, loss),
            device_ids=None if device.type == "cpu" else [device],
            broadcast_buffers=False,  # statistics are averaged once an epoch instead
            find_unused_parameters=True,  # a stage may train a part of the network only
        )
