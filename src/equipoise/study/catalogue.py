"""The methods, as `equipoise methods` lists them."""

from __future__ import annotations

import dataclasses

from equipoise.methods import lookup, make, registry
from equipoise.settings import describe


def about(name: str) -> str:
    """What a method does, in one line."""
    cls, _ = lookup(name)
    return cls.abouts.get(name) or (cls.__doc__ or "").strip().splitlines()[0]


def list_methods() -> str:
    """Every method: what it keeps and needs, what it does, and whose it is."""
    lines = []
    for name, (cls, _) in registry().items():
        memory = {"memory": "memory", "everything": "all images", "nothing": "no memory"}[cls.rehearses]
        teacher = ", teacher" if make(name).uses_teacher else ""
        extra = f", {cls.extra}" if cls.extra != "none" else ""
        lines += [f"{name:12} {about(name)}", f"{'':12} {memory}{teacher}{extra}"]
        lines += [f"{'':12} {cls.paper}"] if cls.paper else []
    return "\n".join(lines)


def describe_method(name: str) -> str:
    """The settings of one method, as ``--set method.NAME=VALUE`` takes them."""
    method, docs = make(name), describe(type(make(name)))
    lines = [f"{name}: {about(name)}", *([method.paper] if method.paper else [])]
    for field in dataclasses.fields(method):
        value = getattr(method, field.name)
        lines += [f"  method.{field.name} = {'none' if value is None else value}", f"      {docs[field.name]}"]
    return "\n".join(lines)
