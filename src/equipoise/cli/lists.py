"""What the commands that list methods, data sets and recipes print as JSON."""

from __future__ import annotations

import dataclasses
from typing import Any


def method_rows() -> list[dict[str, Any]]:
    """Return one row per method."""
    from equipoise.methods.registry import registry

    return [_method_row(name) for name in registry()]


def method_facts(name: str) -> dict[str, Any]:
    """Return the facts about a method, with its settings."""
    from equipoise.core.config import field_docs
    from equipoise.methods.registry import make

    method = make(name)
    docs = field_docs(type(method))
    settings = [
        {"name": f"method.{field.name}", "default": getattr(method, field.name), "about": docs.get(field.name, "")}
        for field in dataclasses.fields(method)
    ]
    return _method_row(name) | {"settings": settings}


def _method_row(name: str) -> dict[str, Any]:
    from equipoise.methods.registry import lookup, make
    from equipoise.study.method_list import about

    cls, _ = lookup(name)
    rehearsal = {"kept": "none"}.get(cls.rehearsal, cls.rehearsal)
    teacher, stores, paper = make(name).uses_teacher, cls.stores or None, cls.paper or None
    return {
        "name": name,
        "about": about(name),
        "memory": rehearsal,
        "teacher": teacher,
        "stores": stores,
        "paper": paper,
    }


def dataset_rows() -> list[dict[str, Any]]:
    """Return one row per data set."""
    from equipoise.data.sources import SOURCES

    return [
        {"name": name, "about": source.about, "recipe": source.recipe, "data_root": source.root}
        for name, source in SOURCES.items()
    ]


def recipe_rows() -> list[dict[str, Any]]:
    """Return one row per recipe."""
    from equipoise.engine.recipes import read_recipe, recipe_names

    found = ((name, read_recipe(name)) for name in recipe_names())
    return [
        {"name": name, "about": recipe.get("about", ""), "dataset": recipe.get("dataset")} for name, recipe in found
    ]
