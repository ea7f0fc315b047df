"""Compare the throughput of our training loop with a bare loop.

The bare loop has its images as float tensors in memory and does only forward, backward and update, with the teacher's
forward pass where there is one. Ours reads uint8, augments each image, follows the schedule, clips, sums the loss and
calls a listener.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator
from dataclasses import replace

import torch
from timing import Row, interleave, seconds, speedup

from equipoise.data.augment import Augment
from equipoise.data.images import Images
from equipoise.data.memory import Memory
from equipoise.data.stream import Step
from equipoise.engine.recipes import resolve
from equipoise.engine.step import begin_step
from equipoise.learn.backbones import Architecture
from equipoise.learn.fit import Fit
from equipoise.learn.runtime import Runtime
from equipoise.learn.schedule import Schedule
from equipoise.methods import registry

CLASSES, COUNT, SHAPE = 20, 640, (3, 32, 32)
AUGMENT = Augment((0.5, 0.5, 0.5), (0.25, 0.25, 0.25), pad=4, flip=True)
RECIPES = {"resnet32": "cifar100-paper", "fast-wide": "cifar100-fast"}
"""The recipe whose optimizer trains each network."""


def prepare(name: str, backbone: str, images: Images, schedule: Schedule, runtime: Runtime | None = None) -> Fit:
    """Return a method that is ready to train its second step."""
    runtime = runtime or Runtime()
    runtime.start()
    torch.manual_seed(0)
    method = registry.make(name)
    method.build(Architecture(backbone, SHAPE, bf16=runtime.precision == "bf16"))
    method.head.grow(CLASSES)
    step = Step(2, CLASSES, CLASSES, images)
    fit = Fit(method, step, images, Memory(), schedule, AUGMENT, runtime, (0,))
    begin_step(fit)
    return fit


def bare_loop(fit: Fit) -> Callable[[], None]:
    """Return a function that trains one epoch without anything that is not needed."""
    method, images, schedule = fit.method, fit.step.images, fit.schedule
    optimizer = schedule.make_optimizer([p for p in method.parameters() if p.requires_grad])
    batches = [
        (AUGMENT.plain(images, where), images.labels[where])
        for where in torch.arange(len(images)).split(schedule.batch_size)
    ]

    def epoch() -> None:
        method.train()
        for x, y in batches:
            optimizer.zero_grad(set_to_none=True)
            method.loss(x, y).backward()
            optimizer.step()

    return epoch


def compare(name: str, backbone: str, batch: int, count: int, rounds: int) -> Row:
    """Compare the loops for one method, network and batch size."""
    pixels = torch.randint(256, (count, *SHAPE), dtype=torch.uint8)
    images = Images.of(pixels, torch.randint(2 * CLASSES, (count,)))
    recipe = resolve("cifar100", "wa", RECIPES[backbone])
    changes = {"epochs": 1, "batch_size": batch, "lr": 0.01, "lr_schedule": "constant", "multiply_repeats": False}
    changes |= {"milestones": (), "sizes": (1.0,), "size_milestones": ()}
    schedule = replace(recipe.train, **changes)  # type: ignore[arg-type]
    fit = prepare(name, backbone, images, schedule, recipe.runtime)
    bare = bare_loop(prepare(name, backbone, images, schedule, recipe.runtime))
    times = interleave({"ours": lambda: seconds(lambda: fit.train(images)), "bare": lambda: seconds(bare)}, rounds)
    return Row(
        what=f"step of {name}, {backbone} ({recipe.runtime.precision}), batch {batch}",
        ours=round(count / statistics.median(times["ours"])),
        baseline=round(count / statistics.median(times["bare"])),
        unit="images/s",
        ratio=speedup(times, "ours", "bare"),
        versus="a bare loop",
        goal=0.95,
    )


def measure(count: int = COUNT, rounds: int = 11) -> Iterator[Row]:
    """Compare the loops for two networks, batch sizes and methods."""
    for backbone in RECIPES:
        for batch in (32, 128):
            for name in ("ce", "wa"):
                yield compare(name, backbone, batch, count, rounds)


if __name__ == "__main__":
    for row in measure():
        print(row, flush=True)
