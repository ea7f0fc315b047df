"""A complete method: cross-entropy with rehearsal, then smaller weights for the new classes."""

from dataclasses import dataclass
from typing import ClassVar

from equipoise.methods import Fit, Method, Step


@dataclass(eq=False)
class Shrink(Method):
    """Cross-entropy with rehearsal; afterwards the new classes' weights are multiplied by a fixed factor."""

    variants: ClassVar = {"shrink": {}}
    corrects = True

    factor: float = 0.8
    """Factor of the new classes' weights."""

    def end(self, step: Step, fit: Fit) -> dict[str, float]:
        if step.old:
            self.head.weight.data[step.old :] *= self.factor
        return {}
