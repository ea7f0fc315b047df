"""Changes of inputs. Everything is drawn from the given random numbers, so that an input can be made again."""

from __future__ import annotations

import json
import os
import struct
import zlib
from collections.abc import Callable, Sequence
from random import Random
from typing import Any

INTEGERS = (0, 1, 2, 3, 7, 8, 9, 127, 128, 255, 256, 32767, 32768, 65535, 65536, 2**24, 2**31 - 1, 2**31, 2**32 - 1)
LARGE = (*INTEGERS, 2**32, 2**48, 2**53, 2**63 - 1, 2**63, 2**64 - 1)
MAX_BYTES = 1 << 20
"""Inputs do not grow beyond this: long inputs are slow and find nothing that short ones do not."""

NESTED: Any = 0
for _ in range(300):
    NESTED = [NESTED]

NUMBERS: tuple[Any, ...] = (
    *(0, -1, 1, 2, 7, 255, 2**31, 2**53 + 1, 2**63, 2**64, -(2**63) - 1, 10**23, 10**400, -(10**400)),
    *(0.0, -0.0, 0.5, -1.5, 1e-300, 5e-324, 1e18, 1e38, 1e39, 1e308, -1e308, float("nan"), float("inf"), -float("inf")),
)
TEXTS = (
    *("", " ", "a", "A", "0", "-1", "1e999", "nan", "true", "null", "auto", "wa", "tiny", "folder", "hub"),
    *("a.b", "=1+1"),
    *(
        "..",
        "../../x",
        "../sentinel/x",
        "../../sentinel/x",
        "/etc/passwd",
        "a/b",
        "a\\b",
        "C:",
        "a\0b",
        "\0",
        "\ud800",
        "a\udcff",
        "\x1b[31m",
        "two\nlines",
    ),
    *("\u202eevil", "\u2028", "\ufeff", "é", "e\u0301", "花", "𝔸", "İ", "ß", "<script>", "</script>", "[x](http://e)"),
    *("{{ 1 }}", "{}", "%s", "%n", "[bold]", "[/]", "$x$", "|", "`", "x" * 300, "9" * 5000),
    *("\U0010ffff", "\u0600" * 40),
)
VALUES: tuple[Any, ...] = (
    *NUMBERS,
    *TEXTS,
    *(None, True, False, [], {}, [[]], [None], [0], [1, 2], ["a"], {"a": 1}, {"": {}}, {"\ud800": 0}),
    *(NESTED, [0] * 500),
)


# ---- bytes


def flip(data: bytearray, random: Random) -> None:
    """Change one bit."""
    if data:
        data[random.randrange(len(data))] ^= 1 << random.randrange(8)


def change_byte(data: bytearray, random: Random) -> None:
    if data:
        data[random.randrange(len(data))] = random.choice((0, 1, 127, 128, 255, random.randrange(256)))


def truncate(data: bytearray, random: Random) -> None:
    del data[random.randrange(len(data) + 1) :]


def insert(data: bytearray, random: Random) -> None:
    place = random.randrange(len(data) + 1)
    data[place:place] = random.choice((random.randbytes(random.randint(1, 16)), bytes(random.randint(1, 64))))


def delete(data: bytearray, random: Random) -> None:
    place = random.randrange(len(data) + 1)
    del data[place : place + random.randint(1, 64)]


def duplicate(data: bytearray, random: Random) -> None:
    """Copy a part to another place, over what is there or in between."""
    start = random.randrange(len(data) + 1)
    part = data[start : start + random.randint(1, max(len(data) // 4, 1))]
    place = random.randrange(len(data) + 1)
    data[place : place + random.choice((0, len(part)))] = part


def put_integer(data: bytearray, random: Random) -> None:
    """Overwrite 1, 2, 4 or 8 bytes by an interesting integer."""
    size = random.choice((1, 2, 4, 8))
    value = random.choice(LARGE) % 256**size
    place = random.randrange(max(len(data) - size, 0) + 1)
    data[place : place + size] = value.to_bytes(size, random.choice(("little", "big")))


CHANGES: tuple[Callable[[bytearray, Random], None], ...] = (
    *(flip, change_byte, put_integer, put_integer),
    *(truncate, insert, delete, duplicate),
)


def mutate(data: bytes, random: Random, others: Sequence[bytes] = ()) -> bytes:
    """Return changed bytes: one to four changes, most of them near the beginning, or a splice with another input."""
    if others and random.random() < 0.05:
        other = random.choice(others)
        return (data[: random.randrange(len(data) + 1)] + other[random.randrange(len(other) + 1) :])[:MAX_BYTES]
    changed = bytearray(data)
    head = bytearray()
    if random.random() < 0.5:  # headers decide more than what follows
        size = random.choice((32, 64, 128, 512))
        head, changed = changed[size:], changed[:size]
    for _ in range(random.choice((1, 1, 1, 2, 3, 4))):
        random.choice(CHANGES)(changed, random)
    return bytes(changed + head)[:MAX_BYTES]


def repair_png(data: bytes) -> bytes:
    """Return a PNG file with right checksums: Pillow looks no further into a chunk with a wrong one."""
    fixed, place = bytearray(data), 8
    while place + 12 <= len(fixed):
        (length,) = struct.unpack_from(">I", fixed, place)
        if place + 12 + length > len(fixed):
            break
        checked = zlib.crc32(fixed[place + 4 : place + 8 + length])
        struct.pack_into(">I", fixed, place + 8 + length, checked)
        place += 12 + length
    return bytes(fixed)


# ---- values


def paths(value: Any) -> list[tuple[Any, ...]]:
    """Return the path of every value in a JSON or TOML value, itself included."""
    found: list[tuple[Any, ...]] = [()]
    for path in found:
        inner = at(value, path)
        if isinstance(inner, dict):
            found += [(*path, key) for key in inner]
        elif isinstance(inner, list):
            found += [(*path, place) for place in range(len(inner))]
    return found


def at(value: Any, path: Sequence[Any]) -> Any:
    """Return the value at a path."""
    for key in path:
        value = value[key]
    return value


def random_path(everywhere: Sequence[tuple[Any, ...]], random: Random) -> tuple[Any, ...]:
    """Return one of these paths; places in lists count as one, so that long lists do not hide short ones."""
    groups: dict[tuple[Any, ...], list[tuple[Any, ...]]] = {}
    for path in everywhere:
        groups.setdefault(tuple("*" if isinstance(key, int) else key for key in path), []).append(path)
    return random.choice(groups[random.choice(list(groups))])


def change_value(value: Any, random: Random, values: Sequence[Any] = VALUES) -> Any:
    """Return a value with one part replaced, removed, repeated or moved elsewhere."""
    everywhere = paths(value)
    path = random_path(everywhere, random)
    new = at(value, random.choice(everywhere)) if random.random() < 0.15 else random.choice(values)
    kind = random.random()
    if not path:
        return new if kind < 0.2 or not isinstance(value, dict) else value | {random.choice(TEXTS): new}
    return _changed(value, path, lambda parent, key: _change(parent, key, new, kind))


def _changed(value: Any, path: Sequence[Any], change: Callable[[Any, Any], None]) -> Any:
    copy = value.copy()
    if len(path) == 1:
        change(copy, path[0])
    else:
        copy[path[0]] = _changed(value[path[0]], path[1:], change)
    return copy


def _change(parent: Any, key: Any, new: Any, kind: float) -> None:
    if kind < 0.08:
        del parent[key]
    elif kind < 0.16 and isinstance(parent, list):
        parent.insert(key, parent[key])
    elif kind < 0.3 and isinstance(parent[key], int | float):  # near values are refused less often
        parent[key] = random_step(parent[key], kind)
    else:
        parent[key] = new


def random_step(number: float, kind: float) -> float:
    """Return a number near another one."""
    return number * -1 if kind < 0.2 else number + 1 if kind < 0.25 else number * 1000


def change_json(text: bytes, random: Random, lines: bool = False) -> bytes:
    """Return changed JSON, or JSON lines: a value in a third of the cases, otherwise only bytes."""
    if random.random() < 0.3:
        return mutate(text, random)
    try:
        value = [json.loads(line) for line in text.splitlines()] if lines else json.loads(text)
        for _ in range(random.choice((1, 1, 1, 2, 3))):
            value = change_value(value, random)
        if lines and isinstance(value, list):
            return "\n".join(json.dumps(line) for line in value).encode()
        return json.dumps(value).encode()
    except (
        ValueError,
        KeyError,
        IndexError,
        TypeError,
        AttributeError,
        RecursionError,
    ):  # it is no JSON, or no list any more
        return mutate(text, random)


# ---- TOML


def toml(value: Any) -> str:
    """Write a table as TOML; what TOML cannot express is written as it would be in JSON."""
    lines: list[str] = []
    try:
        _table(value, [], lines)
    except RecursionError:  # deep values inside of deep values
        return f"[train]\na = {'[' * 999}{']' * 999}\n"
    return "\n".join(lines) + "\n"


def _table(table: dict[Any, Any], names: list[str], lines: list[str]) -> None:
    if names:
        lines.append(f"[{'.'.join(names)}]")
    inner = {key: value for key, value in table.items() if isinstance(value, dict)}
    lines += [f"{_key(key)} = {_value(value)}" for key, value in table.items() if key not in inner]
    for key, value in inner.items():
        _table(value, [*names, _key(key)], lines)


def _key(key: Any) -> str:
    return json.dumps(str(key))


def _value(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{_key(key)} = {_value(inner)}" for key, inner in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_value, value)) + "]"
    if isinstance(value, float):
        return repr(value)
    return json.dumps(value, ensure_ascii=False)


# ---- names

ALPHABETS = (
    "abcXYZ019 _-.",
    "/\\:*?\"<>|'`$&;%#{}[]()!~^=+@,",
    "\0\x01\x07\x08\t\n\x0b\r\x1b\x7f\x80\x85\x9b\xa0\xad",
    "\u061c\u200b\u200e\u200f\u2028\u2029\u202a\u202e\u2066\u2069\ufeff\ufffe\uffff",
    "éÉßİıſﬁÅÅ가각́̂̈͏",
    "花犬猫אבגعرب🐕👩‍🔬🇩🇪𝔸\U000e0041\U0010ffff",
    "\ud800\udbff\udc00\udcff\udfff",
)


def name(random: Random) -> str:
    """Return any text: of one alphabet, of several, or of any characters."""
    kind = random.random()
    if kind < 0.2:
        return random.choice(TEXTS)
    length = random.choice((1, 2, 3, 8, 30, 120, 300))
    if kind < 0.4:
        return "".join(chr(random.randrange(0x110000)) for _ in range(length))
    letters = "".join(random.sample(ALPHABETS, random.randint(1, 3)))
    return "".join(random.choices(letters, k=length))


def argument(text: str) -> str:
    """Return a text as the system can give it to a program: any bytes but zero."""
    try:
        data = os.fsencode(text)
    except UnicodeEncodeError:
        data = text.encode(errors="replace")
    return os.fsdecode(data.replace(b"\0", b""))
