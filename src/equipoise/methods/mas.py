"""MAS: memory aware synapses."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from torch import Tensor

from equipoise.data.stream import Step
from equipoise.learn.importance import Consolidating, mean_over_images

if TYPE_CHECKING:
    from equipoise.learn.trainer import Fit


@dataclass(eq=False)
class MAS(Consolidating):
    """A weight's importance is how strongly it moves the squared length of the output, whatever the labels."""

    paper: ClassVar[str] = "Aljundi et al., Memory Aware Synapses: Learning what (not) to forget, ECCV 2018"
    variants: ClassVar = {"mas": {}}

    strength: float = 1.0
    """λ of Eq. 4."""
    samples: int = 500
    """Images the importances are estimated on."""

    def end(self, step: Step, fit: Fit) -> dict[str, float]:
        batches = fit.sample(step.images, self.samples)
        self.consolidate(
            mean_over_images(self, batches, squared_length, Tensor.abs)
        )  # Eq. 2, with g of ‖F‖² (Sec. 4.1)
        return {}


def squared_length(scores: Tensor, draw: Tensor) -> Tensor:
    return scores.square().sum()
