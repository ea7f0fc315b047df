"""Fine-tuning of the head on balanced exemplars."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from equipoise.learn.fit import Fit
from equipoise.learn.head import Head
from equipoise.learn.schedule import Schedule


def finetune_head(fit: Fit, loss: Callable[[Tensor, Tensor], Tensor], schedule: Schedule, reinit: bool = False) -> None:
    """Train only the head's rows and bias on balanced exemplars; ``loss`` takes features and labels.

    The schedule's learning rate applies to the head directly, without the factors used when all weights are trained.
    """
    images = fit.select_balanced()
    if images is None:
        return
    head: Head = fit.method.head
    if reinit:
        head.grow(0, reinit=True)

    def loss_of_images(x: Tensor, y: Tensor) -> Tensor:
        with torch.no_grad():
            features = fit.method.features(x)
        return loss(features, y)

    schedule = replace(schedule, head_lr=1.0, divide_lr=False)
    fit.train(images, loss_of_images, schedule, head.rows(), "head", frozen=True)
