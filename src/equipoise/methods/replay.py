"""Replay: the simplest rehearsal."""

from dataclasses import dataclass
from typing import ClassVar

from equipoise.methods import Method


@dataclass(eq=False)
class Replay(Method):
    """Cross-entropy on new images and exemplars and nothing else: ``ce`` without WA's clipped head."""

    paper = "Chaudhry et al., On Tiny Episodic Memories in Continual Learning, 2019"
    variants: ClassVar = {"replay": {}}
