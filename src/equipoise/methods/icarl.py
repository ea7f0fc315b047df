"""iCaRL: the loss of LwF.MC with rehearsal, and a nearest-mean-of-exemplars classifier."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from equipoise.methods import Fit, Memory, Step, UsageError, class_means, nearest_mean
from equipoise.methods.lwf_mc import LwFMC


@dataclass(eq=False)
class ICaRL(LwFMC):
    """Sigmoid distillation with rehearsal; images are classified by the nearest mean of the classes' exemplars."""

    paper = "Rebuffi et al., iCaRL: Incremental Classifier and Representation Learning, CVPR 2017"
    variants: ClassVar = {"icarl": {}}
    corrects = True
    rehearsal = "memory"
    stores = "a mean per class"
    per_class = ("means",)

    def __post_init__(self) -> None:
        super().__post_init__()
        self.means: Tensor | None
        self.register_buffer("means", None)

    def check(self, memory: Memory) -> None:
        if memory.size == 0:
            raise UsageError("icarl classifies with its exemplars, but the memory size is 0: set --memory")

    def begin(self, step: Step, fit: Fit) -> None:
        super().begin(step, fit)
        self.means = None  # they belong to the features before this step

    def end(self, step: Step, fit: Fit) -> dict[str, float]:
        exemplars = fit.update_memory()
        assert exemplars is not None
        flipped = fit.map(exemplars, lambda x: self.features(x.flip(-1)))
        features = torch.cat([fit.features(exemplars), flipped])  # authors' code: flipped exemplars count too
        self.means = class_means(features, exemplars.labels.repeat(2), range(step.seen)).to(self.device)
        return {}

    def classify(self, features: Tensor) -> Tensor:
        return self.logits_from(features) if self.means is None else nearest_mean(features, self.means)  # Alg. 1
