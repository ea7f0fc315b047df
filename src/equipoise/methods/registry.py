"""Find methods by name: those in this package, and plug-ins with an entry point in the group equipoise.methods."""

from __future__ import annotations

import dataclasses
import pkgutil
from collections.abc import Mapping
from functools import cache
from importlib import import_module
from importlib.metadata import entry_points
from typing import Any

import equipoise.methods
from equipoise.core.config import build
from equipoise.core.ranges import shown
from equipoise.errors import UsageError, unknown_name
from equipoise.learn.method import Method


@cache
def registry() -> dict[str, tuple[type[Method], Mapping[str, Any]]]:
    """Return the class of each name and the field values that the name stands for."""
    names = [found.name for found in pkgutil.iter_modules(equipoise.methods.__path__)]
    modules = [import_module(f"equipoise.methods.{name}") for name in names]
    classes = [value for module in modules for value in vars(module).values() if _is_method(value)]
    found = {name: (cls, fields) for cls in classes for name, fields in cls.variants.items()}
    for entry in entry_points(group="equipoise.methods"):
        try:
            plugin: type[Method] = entry.load()
            variants = dict(plugin.variants)
        except Exception as error:  # a plug-in may fail in any way
            raise UsageError(f"cannot load the plug-in {entry.name} ({error}): fix or uninstall it") from error
        for name, fields in variants.items():
            if name in found:
                raise UsageError(f"the plug-in {entry.name} defines the method {name}, which already exists: rename it")
            found[name] = plugin, fields
    return found


def register(cls: type[Method]) -> str:
    """Register a method that is not installed as a plug-in, for this process only; return its first name."""
    registry().update({name: (cls, fields) for name, fields in cls.variants.items()})
    return next(iter(cls.variants))


def _is_method(value: object) -> bool:
    return isinstance(value, type) and issubclass(value, Method) and bool(value.variants)


def lookup(name: str) -> tuple[type[Method], Mapping[str, Any]]:
    """Return the class and field values of a name."""
    if name not in registry():
        raise unknown_name("method", name, registry())
    return registry()[name]


def field_names(name: str) -> set[str]:
    """Return the names of a method's hyper-parameters."""
    return {field.name for field in dataclasses.fields(lookup(name)[0])}


def family(name: str) -> str:
    """Return the first name of a method's class, which recipes use for all its variants."""
    return next(iter(lookup(name)[0].variants))


def make(name: str, fields: Mapping[str, Any] | None = None) -> Method:
    """Return the method ``name`` with the given hyper-parameters."""
    cls, preset = lookup(name)
    for field, value in (fields or {}).items():
        if field in preset and preset[field] != value:
            other = f"choose another method for {field}={shown(value)}"
            raise UsageError(f"'{name}' implies {field}={preset[field]}: {other}")
    return build(cls, {**(fields or {}), **preset}, "method")
