"""A method in its own package."""

from dataclasses import dataclass
from typing import ClassVar

from equipoise.methods import Fit, Method, Step


@dataclass(eq=False)
class Shrink(Method):
    """Cross-entropy with rehearsal, then the new classes' weights times a fixed factor."""

    variants: ClassVar = {"shrink": {}}
    corrects = True

    factor: float = 0.8
    """What the rows of new classes are multiplied by."""

    def end(self, step: Step, fit: Fit) -> dict[str, float]:
        if step.old:
            self.head.weight.data[step.old :] *= self.factor
        return {}
