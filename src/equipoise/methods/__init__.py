"""One small file a method. Every ``Method`` in this package, and every plug-in's, is found by its names."""

from __future__ import annotations

import pkgutil
from collections.abc import Mapping
from functools import cache
from importlib import import_module
from importlib.metadata import entry_points
from typing import Any

from equipoise.errors import UsageError, unknown
from equipoise.learn.method import Method
from equipoise.settings import build


@cache
def registry() -> dict[str, tuple[type[Method], dict[str, Any]]]:
    """Each name's class and the fields that the name sets. Plug-ins: entry points in the group equipoise.methods."""
    modules = [import_module(f"{__name__}.{found.name}") for found in pkgutil.iter_modules(__path__)]
    classes = [value for module in modules for value in vars(module).values() if _is_method(value)]
    classes += [entry.load() for entry in entry_points(group="equipoise.methods")]
    return {name: (cls, dict(fields)) for cls in classes for name, fields in cls.variants.items()}


def _is_method(value: object) -> bool:
    return isinstance(value, type) and issubclass(value, Method) and bool(value.variants)


def lookup(name: str) -> tuple[type[Method], dict[str, Any]]:
    if name not in registry():
        raise unknown("method", name, registry())
    return registry()[name]


def family(name: str) -> str:
    """The first name of a method's class, under which recipes speak of all its variants."""
    return next(iter(lookup(name)[0].variants))


def make(name: str, fields: Mapping[str, Any] | None = None) -> Method:
    """The method called ``name``, with some fields of its own."""
    cls, preset = lookup(name)
    for field, value in (fields or {}).items():
        if field in preset and preset[field] != value:
            raise UsageError(f"the method '{name}' means {field} = {preset[field]}: choose another method for {value}")
    return build(cls, {**(fields or {}), **preset}, f"methods.{name}")
