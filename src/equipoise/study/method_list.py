"""The list of methods that `equipoise methods` prints."""

from __future__ import annotations

import dataclasses

from equipoise.core.config import field_docs
from equipoise.methods.registry import lookup, make, registry


def about(name: str) -> str:
    """Describe a method in one line."""
    cls, fields = lookup(name)
    return getattr(fields, "about", "") or (cls.__doc__ or "").strip().splitlines()[0]


def list_methods() -> list[str]:
    """Return lines about every method: what it does, what it stores, and its paper."""
    lines = []
    for name, (cls, _) in registry().items():
        memory = {"memory": "memory", "all": "all images", "none": "no memory", "kept": "no memory"}[cls.rehearsal]
        teacher = ", teacher" if make(name).uses_teacher else ""
        extra = f", {cls.stores}" if cls.stores else ""
        lines += [f"{name:12} {about(name)}", f"{'':12} {memory}{teacher}{extra}"]
        lines += [f"{'':12} {cls.paper}"] if cls.paper else []
    return lines


def describe_method(name: str) -> list[str]:
    """Return lines about the settings of one method, as ``--set method.NAME=VALUE`` takes them."""
    method = make(name)
    docs = field_docs(type(method))
    lines = [f"{name}: {about(name)}", *([method.paper] if method.paper else [])]
    for field in dataclasses.fields(method):
        value = getattr(method, field.name)
        lines += [f"  method.{field.name} = {'none' if value is None else value}", f"      {docs.get(field.name, '')}"]
    return lines
