"""How much the training loop costs over a bare one: images/s of both, in turns, in one run.

    make bench

The bare loop has its images ready as float tensors in memory, and does nothing but forward, backward and update (with
the teacher's forward pass where there is one). Ours reads uint8, augments with a draw an image, follows the schedule,
clips, adds up the loss and tells a watcher.
"""

from __future__ import annotations

import json
import platform
import statistics
import time
from collections.abc import Callable

import torch

from equipoise.data.augment import Augment
from equipoise.data.images import Images
from equipoise.data.memory import Memory
from equipoise.data.stream import Step
from equipoise.learn.method import Method
from equipoise.learn.nets import Architecture
from equipoise.learn.runtime import Runtime
from equipoise.learn.schedule import Schedule
from equipoise.learn.trainer import Fit
from equipoise.methods import make

ROUNDS, CLASSES = 15, 20
AUGMENT = Augment((0.5, 0.5, 0.5), (0.25, 0.25, 0.25), pad=4, flip=True)


def prepared(name: str, backbone: str, images: Images, schedule: Schedule) -> tuple[Method, Fit]:
    """A method ready to train its second step."""
    torch.manual_seed(0)
    method = make(name)
    method.build(Architecture(backbone, images.store.shape))
    method.head.grow(CLASSES)
    step = Step(2, CLASSES, CLASSES, images)
    fit = Fit(method, step, images, Memory(), schedule, AUGMENT, Runtime(), (0,))
    method.begin(step, fit)
    return method, fit


def bare_loop(method: Method, images: Images, schedule: Schedule) -> Callable[[], None]:
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


def measure(name: str, backbone: str, size: int, batch: int, count: int) -> dict[str, object]:
    pixels = torch.randint(256, (count, 3, size, size), dtype=torch.uint8)
    images = Images.of(pixels, torch.randint(2 * CLASSES, (count,)))
    schedule = Schedule(epochs=1, batch_size=batch, lr=0.01)
    _, fit = prepared(name, backbone, images, schedule)
    bare = bare_loop(prepared(name, backbone, images, schedule)[0], images, schedule)
    rates: dict[str, list[float]] = {"ours": [], "bare": []}
    loops: dict[str, Callable[[], None]] = {"ours": lambda: fit(images), "bare": bare}
    for round_ in range(ROUNDS + 1):  # in turns, so that the machine's moods hit both; the first round warms up
        for who in sorted(loops, reverse=bool(round_ % 2)):  # neither always follows the other
            began = time.perf_counter()
            loops[who]()
            if round_:
                rates[who].append(count / (time.perf_counter() - began))
    ratio = statistics.median(o / b for o, b in zip(rates["ours"], rates["bare"], strict=True))
    return {
        "method": name,
        "backbone": backbone,
        "batch": batch,
        "ours": round(statistics.median(rates["ours"])),
        "bare": round(statistics.median(rates["bare"])),
        "ratio": round(ratio, 3),
    }


def main() -> None:
    facts = {"torch": torch.__version__, "threads": torch.get_num_threads(), "machine": platform.machine()}
    print(json.dumps(facts))
    for backbone, size, count in (("small", 24, 2048), ("resnet32", 32, 768)):
        for batch in (32, 128):
            for name in ("ce", "wa"):
                print(json.dumps(measure(name, backbone, size, batch, count)), flush=True)


if __name__ == "__main__":
    main()
