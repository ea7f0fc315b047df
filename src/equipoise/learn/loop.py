"""The training loop, the only one."""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from equipoise.core import distributed
from equipoise.core.seeding import Key, generator, seed_everything
from equipoise.data.augment import Augment
from equipoise.data.images import Images, read_ahead
from equipoise.data.stream import Step
from equipoise.errors import RunError
from equipoise.learn.address import training_address
from equipoise.learn.method import Method
from equipoise.learn.runtime import Runtime
from equipoise.learn.schedule import Schedule
from equipoise.learn.stage import StageState, StageStore, TrainListener, capture, damaged_step, restore

Loss = Callable[[Tensor, Tensor], Tensor]

MAIN = "train"
"""The name of a step's main stage."""
CHUNK = 2**20
"""Values augmented at a time: 4 MB of floats, about 340 images of 32×32."""


@dataclass(frozen=True)
class Stage:
    """One training stage; see ``Fit.train``."""

    images: Images
    loss: Loss
    schedule: Schedule
    parameters: list[nn.Parameter]
    name: str
    augment: bool
    frozen: bool


@dataclass
class TrainingLoop:
    """Trains the stages of one step; each continues where it was interrupted."""

    method: Method
    step: Step
    augment: Augment
    runtime: Runtime
    key: Key
    """The address of this step's random numbers."""
    listener: TrainListener
    store: StageStore
    stages: int = field(default=0, init=False)
    seconds: float = field(default=0.0, init=False)
    """Training time, including before an interruption."""
    resumed_seconds: float = field(default=0.0, init=False)
    """The part of ``seconds`` from before the last interruption."""
    images_seen: int = field(default=0, init=False)

    def run(self, stage: Stage) -> None:
        """Train one stage, or the rest of it."""
        number, self.stages, schedule = self.stages, self.stages + 1, stage.schedule
        optimizer = schedule.make_optimizer(stage.parameters)
        trained = self.store.trained if number == 0 else None
        address = training_address(self.method, self.step, stage.images) if trained else None
        done = distributed.broadcast(lambda: self._done(number, address)) or StageState(0, 0.0, {})
        if done.epochs:
            self._restore(done, optimizer)
        spent = done.seconds
        self.seconds += spent
        self.resumed_seconds += spent
        shown = len(epoch_rows(self.method, self.step, stage.images, schedule))
        self.listener.stage(stage.name, schedule.epochs, shown, done.epochs)
        self.images_seen += schedule.epochs * shown
        loss = _data_parallel(self.method, stage.loss, self.runtime)
        for epoch in range(done.epochs, schedule.epochs):
            started = time.perf_counter()
            self.method.train(not stage.frozen)
            if stage.name == MAIN:
                seed_everything(*self.key, number, "epoch", epoch, "start")
                self.method.before_epoch(epoch)
            total, batches = self._epoch(stage, loss, optimizer, (*self.key, number), epoch)
            mean = total.item() / batches / distributed.world_size()
            if not math.isfinite(mean) or not _all_finite(self.method):  # the last update comes after the last loss
                what = f"the loss became {mean}" if not math.isfinite(mean) else "weights became infinite or NaN"
                where = f"in epoch {epoch + 1} of step {self.step.index}"
                raise distributed.report_once(RunError(f"{what} {where}: lower train.lr (now {schedule.lr:g})"))
            took = time.perf_counter() - started
            spent, self.seconds = spent + took, self.seconds + took
            if distributed.is_main():
                with self.method.timer("checkpoint"):
                    state = StageState(epoch + 1, spent, capture(self.method, optimizer))
                    self.store.save(number, state)
                    if trained and address and state.epochs == schedule.epochs:
                        trained.add(address, state)
            self.listener.epoch(epoch + 1, mean, schedule.lr_at(epoch + 1))
        seed_everything(*self.key, number, "after")  # the same whether the stage was trained or restored

    def _done(self, number: int, address: str | None) -> StageState | None:
        """Return the state of a stage that was interrupted, or that another run has trained."""
        found = self.store.load(number)
        if found is None and address is not None and self.store.trained is not None:
            found = self.store.trained.find(address)
        return found

    def _restore(self, done: StageState, optimizer: torch.optim.Optimizer) -> None:
        try:
            restore(self.method, optimizer, done.tensors)
        except torch.OutOfMemoryError:
            raise
        except (RuntimeError, ValueError, TypeError, KeyError, IndexError) as error:
            reason = (str(error).splitlines() or ["?"])[0]
            raise distributed.report_once(damaged_step(done.where, reason)) from error

    def _epoch(
        self, stage: Stage, loss: Loss, optimizer: torch.optim.Optimizer, key: Key, epoch: int
    ) -> tuple[Tensor, int]:
        """Make one pass over the images, without waiting for the device; return the sum of losses and the batches.

        Every process knows all batches and trains on its shard of each. So batches and augmentation do not depend on
        the number of processes.
        """
        random = generator(*key, "epoch", epoch)
        seed_everything(*key, "epoch", epoch, "process", distributed.rank())
        method, runtime, images, schedule = self.method, self.runtime, stage.images, stage.schedule
        held = runtime.hold(images)
        shown = epoch_rows(method, self.step, images, schedule)
        places = _shuffled_batches(len(shown), schedule.batch_size, random)
        batches = [shown[place] for place in places]
        size = schedule.size_at(epoch, images.store.shape[1])
        flips = self.augment.flip_draws(len(shown), epoch, generator(*key, "mirror"))
        versions = self.augment.choose_versions(len(shown), schedule.versions, generator(*key, "version", epoch))
        # every process draws for whole batches, so that all stay in step
        draws = (
            self.augment.draw(
                len(place),
                random,
                None if flips is None else flips[place],
                None if versions is None else versions[place],
            )
            for place in places
        )
        pixels_of = self._batch_pixels(held, batches, draws if stage.augment else None, size)
        total = torch.zeros((), device=runtime.device)
        for number, (batch, pixels) in enumerate(zip(batches, pixels_of, strict=True)):
            x, y = runtime.move(pixels), runtime.move(images.labels[distributed.shard(batch)])
            for group in optimizer.param_groups:
                group["lr"] = schedule.lr_at(epoch + number / len(batches)) * group.get("lr_factor", 1.0)
            optimizer.zero_grad(set_to_none=True)
            with distributed.peer_errors():
                value = loss(x, y) * distributed.shard_weight(batch)
                value.backward()
            method.after_backward()
            optimizer.step()
            method.after_update()
            total += value.detach()
            self.listener.batch(len(batch))
        distributed.average_batch_norms(method)
        return distributed.all_reduce_sum(total), len(batches)

    def _batch_pixels(
        self, images: Images, batches: list[Tensor], draws: Iterator[Tensor] | None, size: int
    ) -> Iterator[Tensor]:
        """Yield this process's shard of each batch; several are made at once, as small ones cost mostly in calls."""
        channels, height, width = images.store.shape
        at_once = max(1, CHUNK // (len(distributed.shard(batches[0])) * channels * height * width))

        def make(first: int) -> Iterable[Tensor]:
            shards = [distributed.shard(batch) for batch in batches[first : first + at_once]]
            where = torch.cat(shards)
            if draws is None:
                pixels = self.augment.plain(images, where)
            else:
                mine = torch.cat([distributed.shard(next(draws)) for _ in shards])
                pixels = self.augment.batch(images, where, mine, size)
            parts: tuple[Tensor, ...] = pixels.split([len(shard) for shard in shards])
            return parts

        starts = range(0, len(batches), at_once)
        for group in read_ahead(images, make, starts):
            yield from group


def epoch_rows(method: Method, step: Step, images: Images, schedule: Schedule) -> Tensor:
    """Return the positions of the images that an epoch shows: all of them, and exemplars as often as scheduled.

    With several versions of each image, all positions follow each other once per version.
    """
    every = torch.arange(len(images))
    exemplars = every[images.labels < step.old] if method.rehearsal == "memory" else every[:0]
    repeats = schedule.repeats(step.index, len(images) - len(exemplars), len(exemplars))
    return torch.cat([every, exemplars.repeat(repeats - 1)]).repeat(schedule.versions)


def _shuffled_batches(count: int, size: int, random: torch.Generator) -> list[Tensor]:
    """Split a random order into batches; a last batch of one image joins the one before, because of batch norm."""
    order = torch.randperm(count, generator=random)
    if count == 1:
        order = order.repeat(2)
    batches = list(order.split(size))
    if len(batches) > 1 and len(batches[-1]) == 1:
        batches[-2:] = [torch.cat(batches[-2:])]
    return batches


class ForwardOf(nn.Module):
    """A function of a method as a forward pass, which DistributedDataParallel and ``functional_call`` need."""

    def __init__(self, method: nn.Module, function: Callable[..., Tensor]) -> None:
        super().__init__()
        self.method, self.function = method, function

    def forward(self, *inputs: Tensor) -> Tensor:
        return self.function(*inputs)


def _all_finite(method: Method) -> bool:
    parameters = [parameter.detach().isfinite().all() for parameter in method.parameters()]
    return bool(torch.stack(parameters).all()) if parameters else True


def _data_parallel(method: Method, loss: Loss, runtime: Runtime) -> Loss:
    """Return the loss with gradients averaged over all processes."""
    if distributed.world_size() == 1:
        return loss
    device = torch.device(runtime.device)
    warnings.filterwarnings("ignore", "Grad strides do not match")  # for the layer that reads a grey image
    with distributed.peer_errors(), warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # torch 2.13 renames broadcast_buffers; older ones need it
        return DistributedDataParallel(
            ForwardOf(method, loss),
            device_ids=None if device.type == "cpu" else [device],
            broadcast_buffers=False,  # batch-norm statistics are averaged once per epoch instead
            find_unused_parameters=True,  # a stage may train a part of the network only
        )
