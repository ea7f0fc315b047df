"""EWC: elastic weight consolidation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Tensor

from equipoise.data.stream import Step
from equipoise.learn.importance import Consolidating, mean_over_images

if TYPE_CHECKING:
    from equipoise.learn.trainer import Fit


@dataclass(eq=False)
class EWC(Consolidating):
    """Weights that carry Fisher information about old classes are held by a quadratic penalty.

    One anchor, the latest, with the steps' informations added up (Huszár 2018); the paper has a penalty for each step.
    """

    paper: ClassVar[str] = "Kirkpatrick et al., Overcoming catastrophic forgetting in neural networks, PNAS 2017"
    variants: ClassVar = {"ewc": {}}

    strength: float = 100.0
    """λ/2 of Eq. 3; the Fisher informations of the steps add up."""
    cap: float = 0.01
    """An importance above it counts as it, so that SGD does not overshoot (not in the paper)."""
    samples: int = 500
    """Images the Fisher information is estimated on."""

    def end(self, step: Step, fit: Fit) -> dict[str, float]:
        # the Fisher information is an expectation over the model's own labels: one is drawn for each image
        batches = fit.sample(step.images, self.samples)
        self.consolidate(mean_over_images(self, batches, drawn_log_likelihood, torch.square))
        return {}


def drawn_log_likelihood(scores: Tensor, draw: Tensor) -> Tensor:
    """log p of a label drawn from p by the uniform number ``draw``."""
    chances = scores.detach().softmax(0).cumsum(0)
    label = (chances < draw * chances[-1]).sum().clamp(max=len(scores) - 1)
    return scores.log_softmax(0).gather(0, label[None])[0]
