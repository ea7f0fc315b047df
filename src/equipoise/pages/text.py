"""Format numbers and names for pages and tables."""

from __future__ import annotations

import math
import unicodedata

from equipoise.core.open_dir import printable

SHORT = 40
"""Characters of a name in a sentence, at most."""


def one_decimal(value: float | None, sign: str = "") -> str:
    """Format a number with one decimal.

    >>> one_decimal(66.64), one_decimal(1.25, "+"), one_decimal(None)
    ('66.6', '+1.2', '–')
    """
    return "–" if value is None or math.isnan(value) else f"{value:{sign}.1f}"


def name_in_text(name: object) -> str:
    r"""Return a name for a sentence: shortened, without control characters, and isolated if it is right-to-left.

    >>> name_in_text("two\nlines"), name_in_text("x" * 50)[-3:]
    ('two\\nlines', 'xx…')
    """
    plain = printable(str(name))
    plain = plain if len(plain) <= SHORT else plain[: SHORT - 1] + "…"
    if any(unicodedata.bidirectional(c) in ("R", "AL") for c in plain):
        return f"\u2068{plain}\u2069"  # otherwise it would change the order of the words around it
    return plain
