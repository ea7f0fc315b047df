"""Fine-tuning on balanced exemplars."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from equipoise.learn.trainer import Fit


def tune_head(fit: Fit, loss: Callable[[Tensor, Tensor], Tensor], epochs: int, lr: float) -> None:
    """Train the head alone, on as many exemplars of new classes as of old ones; ``loss`` takes features and labels.

    The first step, and a memory that keeps nothing, leave nothing to balance.
    """
    exemplars = fit.remember()
    if not fit.step.old or exemplars is None:
        return

    def on_images(x: Tensor, y: Tensor) -> Tensor:
        with torch.no_grad():
            features = fit.method.features(x)
        return loss(features, y)

    schedule = replace(fit.schedule, epochs=epochs, lr=lr, shape="cosine", milestones=())
    fit(exemplars, on_images, schedule, fit.method.head.parameters(), "head", frozen=True)
