"""Fine-tuning on balanced exemplars."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from equipoise.data.images import Images, join
from equipoise.learn.schedule import Schedule
from equipoise.learn.trainer import Fit


def balanced(fit: Fit) -> Images | None:
    """The exemplars of old classes as they were trained on, and as many of each new class, chosen in the same way.

    None where there is nothing to balance: in the first step, or without a memory.
    """
    old = fit.memory.images()
    quota = fit.memory.quota(fit.step.old)
    if not fit.step.old or old is None or not quota:
        return None
    with fit.choosing():
        new = fit.memory.choose(fit.step.images, quota, fit.features, fit.key)
    return join([old, *new.values()])


def tune_head(fit: Fit, loss: Callable[[Tensor, Tensor], Tensor], schedule: Schedule, redraw: bool = False) -> None:
    """Train the head's rows alone on balanced exemplars; ``loss`` takes features and labels.

    The schedule's learning rate is the head's, whatever multiplies it where other weights learn beside it.
    """
    images = balanced(fit)
    if images is None:
        return
    head = fit.method.head
    if redraw:
        head.grow(0, redraw=True)

    def on_images(x: Tensor, y: Tensor) -> Tensor:
        with torch.no_grad():
            features = fit.method.features(x)
        return loss(features, y)

    schedule = replace(schedule, head_lr=1.0, divide_lr=False)
    fit(images, on_images, schedule, [head.weight], "head", frozen=True)
