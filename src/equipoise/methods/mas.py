"""MAS: memory aware synapses."""

from dataclasses import dataclass
from typing import Annotated, ClassVar

from torch import Tensor

from equipoise.methods import Fit, ImportanceMethod, Range, Step, Weight, mean_over_images


@dataclass(eq=False)
class MAS(ImportanceMethod):
    """A weight's importance is its mean absolute gradient of the squared output norm; labels are not needed."""

    paper = "Aljundi et al., Memory Aware Synapses: Learning what (not) to forget, ECCV 2018"
    variants: ClassVar = {"mas": {}}

    strength: Weight = 1.0
    """λ of Eq. 4."""
    samples: Annotated[int, Range(1, 10**9)] = 500
    """Number of images to estimate the importances on."""

    def end(self, step: Step, fit: Fit) -> dict[str, float]:
        batches = fit.sample(step.images, self.samples)
        self.consolidate(mean_over_images(self, batches, squared_norm, Tensor.abs))  # Eq. 2, g of ‖F‖² (Sec. 4.1)
        return {}


def squared_norm(logits: Tensor, draw: Tensor) -> Tensor:
    return logits.square().sum()
