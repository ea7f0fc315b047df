"""Plain values (from TOML, JSON or the command line) become dataclasses, checked; a dataclass tells what it is for.

A settings class documents each field with a string under it. ``describe`` reads those strings, so that the command
line, the documentation and the code share one source.
"""

from __future__ import annotations

import ast
import dataclasses
import inspect
import textwrap
import types
from collections.abc import Mapping
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from equipoise.errors import UsageError, unknown

T = TypeVar("T")


def build(cls: type[T], values: Mapping[str, Any], where: str) -> T:
    """``cls(**values)``, with unknown names and wrong types refused in one sentence that starts with ``where``."""
    fields = {field.name for field in dataclasses.fields(cls) if field.init}  # type: ignore[arg-type]
    hints = get_type_hints(cls)
    for name in values:
        if name not in fields:
            raise unknown(f"setting in [{where}] named", name, fields)
    checked = {name: fitted(value, hints[name], f"{where}.{name}") for name, value in values.items()}
    return cls(**checked)


def fitted(value: Any, hint: Any, where: str) -> Any:
    """``value`` as ``hint`` wants it: lists become tuples, whole numbers pass for floats; anything else is refused."""
    origin, args = get_origin(hint), get_args(hint)
    if hint is Any:
        return value
    if origin is Literal:
        for arg in args:
            seen = str(value) if isinstance(arg, str) else value  # a text such as "32" is a number on the command line
            if seen == arg and type(seen) is type(arg):
                return arg
    elif origin in (Union, types.UnionType):
        for option in args:
            try:
                return fitted(value, option, where)
            except UsageError:
                continue
    elif origin is tuple:  # a lone value is a list of one, as on the command line
        return tuple(fitted(item, args[0], where) for item in (value if isinstance(value, list | tuple) else [value]))
    elif origin is dict and isinstance(value, dict):
        return value
    elif hint is float and isinstance(value, int | float) and not isinstance(value, bool):
        return float(value)
    elif hint is None or hint is type(None):
        if value is None:
            return value
    elif isinstance(hint, type) and type(value) is hint:
        return value
    raise UsageError(f"{where} is {value!r}, but it takes {_say(hint)}")


def _say(hint: Any) -> str:
    origin, args = get_origin(hint), get_args(hint)
    if origin is Literal:
        return " or ".join(repr(arg) for arg in args)
    if origin in (Union, types.UnionType):
        return " or ".join(_say(arg) for arg in args)
    if origin is tuple:
        return f"a list of {_say(args[0])}s"
    if hint is type(None):
        return "nothing"
    words = {float: "a number", int: "a whole number", bool: "true or false", str: "a text"}
    return words.get(hint, str(hint))


def literal(text: str) -> Any:
    """A value written on the command line: a number, true/false, none, a comma list, or else the text itself.

    >>> literal("0.1"), literal("true"), literal("none"), literal("50,10"), literal("herding")
    (0.1, True, None, [50, 10], 'herding')
    """
    words = {"true": True, "false": False, "none": None}
    if text.lower() in words:
        return words[text.lower()]
    if "," in text:
        return [literal(part) for part in text.split(",") if part]
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def describe(cls: type) -> dict[str, str]:
    """The string under each field of a dataclass and of its dataclass bases, by field name."""
    docs: dict[str, str] = {}
    for base in reversed(cls.__mro__):
        if not dataclasses.is_dataclass(base):
            continue
        body = ast.parse(textwrap.dedent(inspect.getsource(base))).body[0]
        assert isinstance(body, ast.ClassDef)
        for this, after in zip(body.body, body.body[1:], strict=False):
            if (
                isinstance(this, ast.AnnAssign)
                and isinstance(this.target, ast.Name)
                and isinstance(after, ast.Expr)
                and isinstance(after.value, ast.Constant)
                and isinstance(after.value.value, str)
            ):
                docs[this.target.id] = inspect.cleandoc(after.value.value).replace("\n", " ")
    return docs


def flat(sections: Mapping[str, Any], above: str = "") -> dict[str, Any]:
    """Nested settings in one layer.

    >>> flat({"train": {"lr": 0.1, "milestones": [3, 5]}, "seed": 0})
    {'train.lr': 0.1, 'train.milestones': [3, 5], 'seed': 0}
    """
    found: dict[str, Any] = {}
    for name, value in sections.items():
        found |= flat(value, f"{above}{name}.") if isinstance(value, Mapping) else {above + name: value}
    return found
