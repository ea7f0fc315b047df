"""Fine-tuning: the lower bound."""

from dataclasses import dataclass
from typing import ClassVar

from equipoise.methods import Method


@dataclass(eq=False)
class Finetune(Method):
    """Cross-entropy on the new images only, without any memory: the lower bound for incremental methods."""

    variants: ClassVar = {"finetune": {}}
    rehearsal = "none"
