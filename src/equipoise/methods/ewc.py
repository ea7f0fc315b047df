"""EWC: elastic weight consolidation."""

from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
from torch import Tensor

from equipoise.methods import Fit, ImportanceMethod, Range, Step, Weight, mean_over_images


@dataclass(eq=False)
class EWC(ImportanceMethod):
    """A quadratic penalty on changes of weights with high Fisher information about old classes.

    One anchor, the latest, with the sum of the steps' informations (Huszár 2018); the paper has a penalty per step.
    """

    paper = "Kirkpatrick et al., Overcoming catastrophic forgetting in neural networks, PNAS 2017"
    variants: ClassVar = {"ewc": {}}

    strength: Weight = 100.0
    """λ/2 of Eq. 3; the steps' Fisher informations are summed."""
    cap: Weight = 0.01
    """Upper bound of an importance, so that SGD does not diverge (not in the paper)."""
    samples: Annotated[int, Range(1, 10**9)] = 500
    """Number of images to estimate the Fisher information on."""

    def end(self, step: Step, fit: Fit) -> dict[str, float]:
        # the expectation is over the model's own labels: one is drawn per image
        batches = fit.sample(step.images, self.samples)
        self.consolidate(mean_over_images(self, batches, drawn_log_likelihood, torch.square))
        return {}


def drawn_log_likelihood(logits: Tensor, draw: Tensor) -> Tensor:
    """Return log p of a label drawn from p with the uniform number ``draw``."""
    chances = logits.detach().softmax(0).cumsum(0)
    label = (chances < draw * chances[-1]).sum().clamp(max=len(logits) - 1)
    return logits.log_softmax(0).gather(0, label[None])[0]
