"""Joint training: the upper bound."""

from dataclasses import dataclass
from typing import ClassVar

from equipoise.methods import Fit, Method, Step


@dataclass(eq=False)
class Joint(Method):
    """Train on all images of all classes seen so far: the upper bound for incremental methods."""

    variants: ClassVar = {"joint": {}}
    rehearsal = "all"

    fresh: bool = True
    """Start each step from a new network instead of the previous one."""

    def begin(self, step: Step, fit: Fit) -> None:
        if self.fresh:
            self.build(self.architecture)
            self.head.grow(step.old)
        super().begin(step, fit)
