"""Ranges of settings: declared beside each field, and checked here.

    lr: Annotated[float, Range(0, 100, above=True)] = 0.1

A number without a range has to be finite.
"""

from __future__ import annotations

import dataclasses
import math
import types
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Annotated, Any, Union, get_args, get_origin, get_type_hints

from equipoise.errors import UsageError

MAX_VALUES = 100_000
"""Values of a list."""
MAX_TEXT = 4096
"""Characters of a string: as many as a path may have."""


@dataclass(frozen=True)
class Range:
    """The values that a number may have."""

    low: float
    high: float
    above: bool = False
    """Exclude ``low`` itself."""
    below: bool = False
    """Exclude ``high`` itself."""
    why: str = ""
    """The reason for a limit that users would not expect."""

    def __str__(self) -> str:
        """Describe the range.

        >>> str(Range(1, 10**6)), str(Range(0, 1, above=True))
        ('between 1 and 1,000,000', 'above 0 and at most 1')
        """
        low, high = _number(self.low), _number(self.high)
        text = f"between {low} and {high}"
        if self.above or self.below:
            text = f"{'above' if self.above else 'at least'} {low} and {'below' if self.below else 'at most'} {high}"
        return f"{text} ({self.why})" if self.why else text

    def check(self, value: float, where: str) -> None:
        """Raise an error for a number outside."""
        if self.low < value < self.high or (value == self.low and not self.above):
            return
        if value == self.high and not self.below:
            return
        if not _finite(value):
            remedy = "use a finite number"
        elif value <= self.low:
            remedy = f"use a number above {_number(self.low)}" if self.above else f"raise it to {_number(self.low)}"
        else:
            remedy = f"use a number below {_number(self.high)}" if self.below else f"lower it to {_number(self.high)}"
        raise UsageError(f"{where} must be {self}, got {shown(value)}: {remedy}")


@dataclass(frozen=True)
class Length:
    """The range of lengths that a list may have."""

    low: int
    high: int

    def check(self, values: tuple[Any, ...], where: str) -> None:
        """Raise an error for a list that is too short or too long."""
        if not self.low <= len(values) <= self.high:
            raise UsageError(f"{where} must have {_number(self.low)} to {_number(self.high)} values, got {len(values)}")


Epochs = Annotated[int, Range(1, 10**9)]
Fraction = Annotated[float, Range(0, 1)]
Positive = Annotated[float, Range(0, 10**6, above=True)]
Weight = Annotated[float, Range(0, 10**6)]
"""The weight of a term, which may be 0."""
HOLD_OUT = Range(0, 1, above=True, below=True)
"""A fraction that leaves both parts non-empty."""
IMAGE_SIDE = Range(8, 2048, why="pixels")
Temperature = Annotated[float, Range(0.001, 10**6)]
"""Logits are divided by it: a smaller one would overflow."""


def check_values(settings: Any, where: str) -> None:
    """Raise an error for the first field of a settings dataclass whose value is out of its range."""
    kind: Any = type(settings)
    for name, hint in field_hints(kind).items():
        check_value(getattr(settings, name), hint, f"{where}.{name}")


@lru_cache
def field_hints(cls: Any) -> Mapping[str, Any]:
    """Return the type hints of a dataclass's fields with their ranges."""
    hints = get_type_hints(cls, include_extras=True)
    return {field.name: hints[field.name] for field in dataclasses.fields(cls) if field.init}


def parameter_hints(function: Callable[..., Any]) -> Mapping[str, Any]:
    """Return the type hints of a function's parameters with their ranges."""
    return get_type_hints(function, include_extras=True)


def check_value(value: Any, hint: Any, where: str) -> None:
    """Raise an error if a value is out of the range that its type hint declares."""
    if get_origin(hint) in (Union, types.UnionType):
        hint = next((kind for kind in get_args(hint) if _is_kind(value, kind)), None)
    limits = getattr(hint, "__metadata__", ())
    plain = get_args(hint)[0] if limits else hint
    if isinstance(value, str):
        _check_text(value, where)
    elif isinstance(value, tuple):
        found = [limit for limit in limits if isinstance(limit, Length)] or [Length(0, MAX_VALUES)]
        found[0].check(value, where)
        for inner in value:
            check_value(inner, (get_args(plain) or (None,))[0], where)
    elif isinstance(value, int | float) and not isinstance(value, bool):
        found_ranges = [limit for limit in limits if isinstance(limit, Range)]
        for limit in found_ranges:
            limit.check(value, where)
        if not found_ranges and not _finite(value):
            raise UsageError(f"{where} must be a finite number, got {shown(value)}: use a smaller one")


def _is_kind(value: Any, hint: Any) -> bool:
    """Return whether a hint, which may be one of several, is the one for a value."""
    plain = get_args(hint)[0] if hasattr(hint, "__metadata__") else hint
    kind = get_origin(plain) or plain
    return isinstance(kind, type) and isinstance(value, (int, float) if kind is float else kind)


def _finite(value: float) -> bool:
    try:
        return math.isfinite(value)
    except OverflowError:  # a whole number that no float can hold
        return False


def _check_text(text: str, where: str) -> None:
    if len(text) > MAX_TEXT:
        raise UsageError(f"{where} must have at most {_number(MAX_TEXT)} characters, got {len(text):,}")
    if "\0" in text or text.encode(errors="replace").decode() != text:
        raise UsageError(f"{where} must be valid Unicode without null characters, got {shown(text)}")


def _number(value: float) -> str:
    return f"{value:,}" if isinstance(value, int) else f"{value:g}"


def shown(value: Any) -> str:
    """Return a value for an error message: on one line, and not too long.

    >>> shown("x" * 1000)[-5:]
    'xxxx…'
    """
    try:
        text = ascii(value) if isinstance(value, str) and not value.isprintable() else repr(value)
    except (ValueError, RecursionError):  # too many digits, or nested too deeply
        text = f"a value of type {type(value).__name__} that is too long to show"
    return text if len(text) <= 80 else text[:79] + "…"
