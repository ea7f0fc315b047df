"""NCM: each class is the mean of its features; with a pretrained backbone, this is SimpleCIL."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from equipoise.methods import Fit, Method, Positive, Step


@dataclass(eq=False)
class NCM(Method):
    """Predicts the class whose mean has the largest cosine with the features. Nothing is trained."""

    scale: Positive = 20.0
    """Factor of the cosines; it makes their softmax less flat and changes no prediction."""

    paper = "Zhou et al., Revisiting Class-Incremental Learning with Pre-Trained Models, IJCV 2024"
    variants: ClassVar = {"ncm": {}}
    rehearsal = "kept"
    has_linear_head = False
    stores = "a mean per class"
    per_class = ("means",)

    def __post_init__(self) -> None:
        super().__post_init__()
        self.means: Tensor = nn.Buffer(torch.zeros(0, 0))

    def begin(self, step: Step, fit: Fit) -> None:
        super().begin(step, fit)
        fit.images = None  # nothing is trained

    def end(self, step: Step, fit: Fit) -> dict[str, float]:
        features, labels = fit.features(step.images), step.images.labels
        new = torch.stack([features[labels == c].mean(0) for c in range(step.old, step.seen)]).to(self.device)
        self.means = torch.cat([self.means, new]) if step.old else new
        return {}

    def classify(self, features: Tensor) -> Tensor:
        return self.scale * F.normalize(features, dim=1) @ F.normalize(self.means, dim=1).T

    def weight_norms(self, norm: int) -> None:
        """Return None: the head is not used."""
