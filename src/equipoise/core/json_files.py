"""JSON text for files, and values from untrusted JSON: limited before it is parsed, and strict."""

from __future__ import annotations

import json
import re
from typing import Any

import msgspec

MAX_JSON_BYTES = 128 << 20
"""Maximum size of a file: twice what a model needs that stores a million images one by one."""
MAX_JSON_VALUES = 5_000_000
"""Maximum number of values: as in 200 steps of 5,000 classes. In memory, values take up to 50 times their size."""
_SURROGATE = re.compile("[\ud800-\udfff]")
"""Half of a pair. Python uses it for a byte in the name of a file that is not UTF-8."""


def check_json_size(data: bytes) -> None:
    """Raise ValueError for JSON that would take too much memory, without parsing it."""
    if len(data) > MAX_JSON_BYTES:
        raise ValueError(f"it has {len(data)} bytes, more than the limit of {MAX_JSON_BYTES}")
    # each value but the first follows one of these; those within strings are counted too, which does not matter
    if (count := sum(map(data.count, (b",", b"[", b"{")))) > MAX_JSON_VALUES:
        raise ValueError(f"it has {count} values, more than the limit of {MAX_JSON_VALUES}")


def parse_json(data: bytes) -> Any:
    """Return the value; raise ValueError or RecursionError for anything but valid JSON.

    Numbers that are not finite and halves of surrogate pairs are not valid.
    """
    check_json_size(data)
    return msgspec.json.decode(data)


def parse_json_lines(data: bytes) -> list[Any]:
    """Return the value in each line that is not blank; raises errors like ``parse_json``."""
    check_json_size(data)
    if (count := data.count(b"\n")) > MAX_JSON_VALUES:
        raise ValueError(f"it has {count} lines, more than the limit of {MAX_JSON_VALUES}")
    return [msgspec.json.decode(line) for line in data.split(b"\n") if line.strip()]


def format_json(value: Any, indent: int | None = None) -> str:
    """Return JSON that ``parse_json`` takes; raise ValueError for numbers that are not finite.

    A half of a surrogate pair is written as text, such as ``\\udcff``.
    """
    text = json.dumps(value, indent=indent, ensure_ascii=False, allow_nan=False)
    return _SURROGATE.sub(lambda found: f"\\\\u{ord(found[0]):04x}", text)
