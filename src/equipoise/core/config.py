"""Plain values (from TOML, JSON or the command line) to validated dataclasses, and the documentation of their fields.

A settings class documents each field with a string below it. ``field_docs`` reads those strings, so that the command
line, the documentation and the code share one source.
"""

from __future__ import annotations

import ast
import dataclasses
import difflib
import inspect
import re
import textwrap
import tomllib
import types
from collections.abc import Mapping, Sequence
from contextlib import suppress
from itertools import pairwise
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

import msgspec

from equipoise.core.ranges import shown
from equipoise.errors import UsageError, unknown_name

T = TypeVar("T")


def build(cls: type[T], values: Mapping[str, Any], where: str) -> T:
    """Return ``cls(**values)``; unknown names and wrong types raise an error that starts with ``where``."""
    fields = {field.name for field in dataclasses.fields(cls) if field.init}  # type: ignore[arg-type]
    hints = get_type_hints(cls)
    for name in values:
        if name not in fields:
            raise unknown_name(f"setting in [{where}]", name, fields)
    return cls(**{name: convert(value, hints[name], f"{where}.{name}") for name, value in values.items()})


def convert(value: Any, hint: Any, where: str) -> Any:
    """Validate ``value`` against a type hint: lists become tuples and whole numbers become floats where asked for."""
    kinds = [kind for kind in get_args(hint) if kind is not type(None)]
    inner = kinds[0] if type(None) in get_args(hint) and len(kinds) == 1 else hint
    choices = get_args(inner) if get_origin(inner) is Literal else ()
    if get_origin(inner) is tuple and not isinstance(value, list | tuple | None):
        value = [value]  # a single value on the command line
    if choices and isinstance(value, int) and not isinstance(value, bool) and shown(value) in choices:
        value = str(value)  # "32" is a number on the command line
    try:
        return msgspec.convert(value, hint)
    except (msgspec.ValidationError, ValueError, RecursionError, OverflowError) as error:
        wanted = f"one of {', '.join(map(str, choices))}" if choices else _describe(hint)
        raise UsageError(f"{where} must be {wanted}, got {shown(value)}{_nearest(value, choices)}") from error


def _nearest(value: Any, choices: Sequence[Any]) -> str:
    """Return a question that suggests the choice closest to a mistyped one, or nothing."""
    names = [choice for choice in choices if isinstance(choice, str)]
    close = difflib.get_close_matches(value[:100], names, n=1, cutoff=0.4) if isinstance(value, str) else []
    return f": did you mean '{close[0]}'?" if close else ""


def _describe(hint: Any) -> str:
    """Describe a type for people."""
    if get_origin(hint) is tuple:
        return f"a list ({_describe(get_args(hint)[0])} each)"
    if get_origin(hint) in (Union, types.UnionType):
        return " or ".join(map(_describe, get_args(hint)))
    if get_origin(hint) is Literal:
        return " or ".join(map(repr, get_args(hint)))
    words = {int: "a whole number", float: "a number", bool: "true or false", str: "a string", type(None): "none"}
    return words.get(hint, str(hint))


def parse_value(text: str) -> Any:
    """Parse a TOML value from the command line; quotes and brackets are optional, and none means None.

    >>> parse_value("0.1"), parse_value("true"), parse_value("none"), parse_value("herding")
    (0.1, True, None, 'herding')
    >>> parse_value("[50, 10]"), parse_value("50,10"), parse_value("[a, b]"), parse_value('"true"')
    ([50, 10], [50, 10], ['a', 'b'], 'true')
    """
    text, words = text.strip(), {"true": True, "false": False, "none": None}
    if text.lower() in words:
        return words[text.lower()]
    if text[:1] in ('"', "'", "[") or text[:2].lower() in ("0x", "0o", "0b"):
        with suppress(ValueError, RecursionError):
            table = tomllib.loads(f"value = {text}")
            if table.keys() == {"value"}:  # a line feed in the text could begin another setting
                return table["value"]
    listed = re.fullmatch(r"\[([^\[\]]*)\]", text)
    if listed or "," in text:
        return [parse_value(part) for part in (listed[1] if listed else text).split(",") if part.strip()]
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def parse_whole(text: str) -> int | None:
    """Return a whole number without a sign, or None for anything else and for more digits than any setting has."""
    return int(text) if text.isdecimal() and len(text) <= 100 else None


def field_docs(cls: type) -> dict[str, str]:
    """Return the string below each field of a dataclass and of its dataclass bases, by field name."""
    docs: dict[str, str] = {}
    for base in reversed(cls.__mro__):
        if not dataclasses.is_dataclass(base):
            continue
        body = ast.parse(textwrap.dedent(inspect.getsource(base))).body[0]
        assert isinstance(body, ast.ClassDef)
        for pair in pairwise(body.body):
            match pair:
                case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(text))):
                    docs[name] = inspect.cleandoc(text).replace("\n", " ")
    return docs


def init_values(instance: Any) -> dict[str, Any]:
    """Return the values that would build the same dataclass again."""
    return {field.name: getattr(instance, field.name) for field in dataclasses.fields(instance) if field.init}


def with_settings(sections: Mapping[str, Mapping[str, Any]], named: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Return a copy of nested settings with all ``named`` ones that are not None.

    >>> with_settings({"train": {"lr": 0.1}}, {"train.epochs": 3, "net.backbone": None})
    {'train': {'lr': 0.1, 'epochs': 3}}
    """
    found = {section: dict(values) for section, values in sections.items()}
    for path, value in named.items():
        section, _, name = path.partition(".")
        if value is not None:
            found.setdefault(section, {})[name] = value
    return found


def flatten(sections: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Flatten nested settings.

    >>> flatten({"train": {"lr": 0.1, "milestones": [3, 5]}, "seed": 0})
    {'train.lr': 0.1, 'train.milestones': [3, 5], 'seed': 0}
    """
    found: dict[str, Any] = {}
    for name, value in sections.items():
        found |= flatten(value, f"{prefix}{name}.") if isinstance(value, Mapping) else {prefix + name: value}
    return found
