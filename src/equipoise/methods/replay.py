"""Replay: the plainest way to remember."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from equipoise.learn.method import Method


@dataclass(eq=False)
class Replay(Method):
    """Cross-entropy on new images and exemplars, and nothing else: ``ce`` without WA's clipped head."""

    paper: ClassVar[str] = "Chaudhry et al., On Tiny Episodic Memories in Continual Learning, 2019"
    variants: ClassVar = {"replay": {}}
