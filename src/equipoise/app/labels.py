"""Labels as JSON and NumPy can store them exactly. Imports little, because ``equipoise predict`` needs it."""

from __future__ import annotations

import math
import unicodedata
from collections.abc import Iterable
from typing import Any

import numpy as np

from equipoise.core.ranges import shown
from equipoise.engine.results import Label
from equipoise.errors import UsageError

MAX_LABEL = 1000
"""Characters of a label."""


def normal(text: str) -> str:
    """Return a name with composed accents, so that there is one spelling of it."""
    return unicodedata.normalize("NFC", text)


def plain_label(label: Any) -> Label:
    """Return a label that JSON and NumPy can store exactly; see ``IncrementalClassifier`` for what is allowed."""
    value = label.item() if isinstance(label, np.generic) else label
    if isinstance(value, str):
        if value.encode(errors="replace").decode() != value or "\0" in value:
            raise UsageError(f"labels must be valid Unicode without null characters, got {shown(value)}")
        if len(value) > MAX_LABEL:
            raise UsageError(f"labels must have at most {MAX_LABEL} characters, got {len(value):,}: shorten them")
        return normal(str(value))
    if isinstance(value, int) and not -(2**63) <= value < 2**63:
        raise UsageError(f"labels must be 64-bit signed integers, got {shown(value)}: use strings instead")
    if isinstance(value, float) and not math.isfinite(value):
        raise UsageError(f"labels must not be NaN or infinite, got {value}: remove these images")
    if isinstance(value, int | float):
        return value
    raise UsageError(f"labels must be strings, numbers or booleans, got {shown(label)} ({type(value).__name__})")


def check_labels(labels: Iterable[Any]) -> list[Label]:
    """Return plain labels of one type; raises an error if there are several, because NumPy would convert them."""
    plain = [plain_label(label) for label in labels]
    first = {type(label): label for label in reversed(plain)}
    if len(first) > 1:
        one, other = list(first.values())[:2]
        raise UsageError(f"labels {shown(other)} and {shown(one)} have different types: use one")
    return plain
