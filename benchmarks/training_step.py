"""What our training loop costs over a bare one: images/s of both, in turns, in one run.

The bare loop has its images ready as float tensors in memory, and does nothing but forward, backward and update (with
the teacher's forward pass where there is one). Ours reads uint8, augments with a draw an image, follows the schedule,
clips, adds up the loss and tells a watcher.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Iterator
from dataclasses import replace

import torch
from turns import faster, in_turns, seconds

from equipoise.data.augment import Augment
from equipoise.data.images import Images
from equipoise.data.memory import Memory
from equipoise.data.stream import Step
from equipoise.learn.method import Method
from equipoise.learn.backbones.base import Architecture
from equipoise.learn.runtime import Runtime
from equipoise.learn.schedule import Schedule
from equipoise.learn.loop import Fit
from equipoise.methods import make
from equipoise.engine.recipes import resolve

ROUNDS, CLASSES, COUNT, SHAPE = 11, 20, 640, (3, 32, 32)
AUGMENT = Augment((0.5, 0.5, 0.5), (0.25, 0.25, 0.25), pad=4, flip=True)
RECIPES = {"resnet32": "cifar100-paper", "fast-wide": "cifar100-fast"}
"""Whose optimizer each network is trained with."""


def prepared(
    name: str, backbone: str, images: Images, schedule: Schedule, runtime: Runtime | None = None
) -> tuple[Method, Fit]:
    """A method ready to train its second step."""
    runtime = runtime or Runtime()
    runtime.start()
    torch.manual_seed(0)
    method = make(name)
    method.build(Architecture(backbone, SHAPE, bf16=runtime.precision == "bf16"))
    method.head.grow(CLASSES)
    step = Step(2, CLASSES, CLASSES, images)
    fit = Fit(method, step, images, Memory(), schedule, AUGMENT, runtime, (0,))
    method.begin(step, fit)
    return method, fit


def bare_loop(method: Method, fit: Fit) -> Callable[[], None]:
    images, schedule = fit.step.images, fit.schedule
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


def compare(name: str, backbone: str, batch: int) -> dict[str, object]:
    pixels = torch.randint(256, (COUNT, *SHAPE), dtype=torch.uint8)
    images = Images.of(pixels, torch.randint(2 * CLASSES, (COUNT,)))
    recipe = resolve("cifar100", "wa", RECIPES[backbone])
    changes = {"epochs": 1, "batch_size": batch, "lr": 0.01, "shape": "constant", "multiply_repeats": False}
    changes |= {"milestones": (), "sizes": (1.0,), "size_milestones": ()}
    schedule = replace(recipe.train, **changes)  # type: ignore[arg-type]
    _, fit = prepared(name, backbone, images, schedule, recipe.runtime)
    bare = bare_loop(*prepared(name, backbone, images, schedule, recipe.runtime))
    times = in_turns({"ours": lambda: seconds(lambda: fit(images)), "bare": lambda: seconds(bare)}, ROUNDS)
    return {
        "what": f"step of {name}, {backbone} ({recipe.runtime.precision}), batch {batch}",
        "ours": round(COUNT / statistics.median(times["ours"])),
        "theirs": round(COUNT / statistics.median(times["bare"])),
        "unit": "images/s",
        "ratio": faster(times, "ours", "bare"),
        "than": "a bare loop",
        "goal": 0.95,
    }


def measure() -> Iterator[dict[str, object]]:
    for backbone in RECIPES:
        for batch in (32, 128):
            for name in ("ce", "wa"):
                yield compare(name, backbone, batch)


if __name__ == "__main__":
    for row in measure():
        print(json.dumps(row), flush=True)
