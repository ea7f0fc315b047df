"""Joint training: the upper bound that no incremental method can be expected to pass."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

from equipoise.data.stream import Step
from equipoise.learn.method import Method

if TYPE_CHECKING:
    from equipoise.learn.trainer import Fit


@dataclass(eq=False)
class Joint(Method):
    """Train on all images of all classes seen so far: what forgetting costs is measured from here."""

    variants: ClassVar = {"joint": {}}
    rehearses: ClassVar[Literal["memory", "everything", "nothing"]] = "everything"

    fresh: bool = True
    """Start each step from a new network, instead of from the last one."""

    def begin(self, step: Step, fit: Fit) -> None:
        if self.fresh:
            self.build(self.architecture)
            self.head.grow(step.old)
        super().begin(step, fit)
