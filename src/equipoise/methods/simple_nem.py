"""Simple NEM: learn features in the first step, then only class means. A baseline that many methods do not beat."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from equipoise.methods import Fit, Method, Step, class_means, nearest_mean


@dataclass(eq=False)
class SimpleNEM(Method):
    """The backbone is trained in step 1 and then frozen; each class is the mean of its features. No memory, no teacher.

    With a frozen pretrained backbone (``net.weights``, ``net.frozen``), nothing is trained, as in the paper.
    """

    paper = "Janson et al., A Simple Baseline that Questions the Use of Pretrained Models, 2022"
    variants: ClassVar = {"simple-nem": {}}
    rehearsal = "none"
    has_linear_head = False
    stores = "a mean per class"
    per_class = ("means",)

    def __post_init__(self) -> None:
        super().__post_init__()
        self.means: Tensor = nn.Buffer(torch.zeros(0, 0))

    def begin(self, step: Step, fit: Fit) -> None:
        super().begin(step, fit)
        if step.old:
            self.requires_grad_(False)
            fit.images = None  # nothing is trained any more

    def end(self, step: Step, fit: Fit) -> dict[str, float]:
        images = step.images
        new = class_means(fit.features(images), images.labels, range(step.old, step.seen)).to(self.device)
        self.means = torch.cat([self.means, new]) if step.old else new
        return {}

    def classify(self, features: Tensor) -> Tensor:
        return nearest_mean(features, self.means)

    def weight_norms(self, norm: int) -> None:
        """Return None: the head is only used to learn the features."""
