"""Recipes: published settings in TOML files, and how they are combined with the user's settings."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Mapping
from importlib import resources
from pathlib import Path
from typing import Any

from equipoise.core.config import parse_value
from equipoise.core.files import read_file
from equipoise.core.ranges import shown
from equipoise.data import sources
from equipoise.engine.settings import Settings, upgrade
from equipoise.errors import UsageError, unknown_name
from equipoise.learn.backbones import HUB, check_backbone
from equipoise.methods import registry

SECTIONS = ("data", "stream", "memory", "net", "train", "augment", "runtime", "fields")
TEXTS = ("about", "dataset", "like")
MAX_BYTES = 1 << 16
"""Size of a recipe. The largest published one has 7,000 bytes."""
MAX_DOTS = 200
"""Maximum number of dots in a line: for a dotted key, tomllib needs memory quadratic in their number."""
MAX_PARENTS = 16
"""Maximum number of recipes that extend one another."""
MAX_DEPTH = 6
"""Maximum nesting of tables in a recipe, more than any setting needs."""


FOR_USERS = {"devices": 1, "nodes": 1, "compile": False}
"""Settings of the runtime that start processes, which listen on the network, or a compiler, and harmless values."""


def recipe_names() -> list[str]:
    """Return the names of the published recipes."""
    folder = resources.files("equipoise") / "recipes"
    return sorted(file.name.removesuffix(".toml") for file in folder.iterdir() if file.name.endswith(".toml"))


def read_recipe(name: str, parents: tuple[str, ...] = ()) -> dict[str, Any]:
    """Read a published recipe by name or any TOML file by path; ``like`` names the recipe that it extends."""
    if len(parents) > MAX_PARENTS:
        raise UsageError(f"the recipe {parents[0]} extends more than {MAX_PARENTS} others: merge some of them")
    if name in parents:
        raise UsageError(f"the recipe {name} extends itself through {' and '.join(parents)}: remove one 'like'")
    if name.endswith(".toml"):
        try:
            text = read_file(Path(name), MAX_BYTES, "the recipe file").decode()
        except UnicodeDecodeError as error:
            raise UsageError(
                f"cannot read the recipe file {name} ({error}): check that it is a UTF-8 text file"
            ) from error
    elif name in recipe_names():
        text = (resources.files("equipoise") / "recipes" / f"{name}.toml").read_text(encoding="utf-8")
    else:
        raise unknown_name("recipe", name, recipe_names())
    recipe = _parse(name, text)
    for key, value in recipe.items():
        if key not in (*SECTIONS, *TEXTS, "methods"):
            raise unknown_name(f"section in the recipe {name}", key, (*SECTIONS, "methods"))
        if not isinstance(value, str if key in TEXTS else dict):
            kind = "string" if key in TEXTS else f"table, [{key}]"
            raise UsageError(f"'{key}' in the recipe {name} must be a {kind}, got {shown(value)}")
    for method, special in recipe.get("methods", {}).items():
        registry.lookup(method)
        _check_sections(special, f"methods.{method} of the recipe {name}")
    like = recipe.pop("like", None)
    return recipe if like is None else _merge(read_recipe(like, (*parents, name)), recipe)


def _parse(name: str, text: str) -> dict[str, Any]:
    if any(line.count(".") > MAX_DOTS for line in text.split("\n") if not line.startswith("#")):
        raise UsageError(f"the recipe {name} has a line with more than {MAX_DOTS} dots: split it")
    try:
        recipe = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise UsageError(f"the recipe {name} is not valid TOML: {error}") from error
    except (ValueError, ArithmeticError) as error:
        raise UsageError(f"the recipe {name} has a value that is too large: correct it") from error
    except RecursionError as error:
        raise _nested(name) from error
    tables: list[Any] = [recipe]
    for _ in range(MAX_DEPTH):
        inner = [value for table in tables for value in (table.values() if isinstance(table, dict) else table)]
        tables = [value for value in inner if isinstance(value, dict | list)]
    if tables:
        raise _nested(name)
    return recipe


def _nested(name: str) -> UsageError:
    return UsageError(f"the recipe {name} has values nested more than {MAX_DEPTH} levels deep: correct it")


def _merge(below: dict[str, Any], above: dict[str, Any]) -> dict[str, Any]:
    """Merge two tables section by section; ``above`` wins."""
    tables = [key for key in above if isinstance(above[key], dict) and isinstance(below.get(key), dict)]
    both = {key: _merge(below[key], above[key]) for key in tables}
    return below | above | both


def _check_sections(sections: Any, where: str) -> None:
    if not isinstance(sections, Mapping):
        raise UsageError(f"{where} must be a table of sections such as [train], got {shown(sections)}")
    for section, values in sections.items():
        if section not in SECTIONS:
            raise unknown_name(f"section in {where}", section, SECTIONS)
        if not isinstance(values, Mapping):
            raise UsageError(f"'{section}' in {where} must be a table of settings, got {shown(values)}")


def resolve(
    dataset: str,
    method: str = "wa",
    recipe: str | None = None,
    seed: int = 0,
    overrides: Mapping[str, Mapping[str, Any]] | None = None,
) -> Settings:
    """Return all settings of a run: defaults, then the recipe, its part for this method, and the overrides."""
    source = sources.source(dataset)
    family = registry.family(method)
    recipe = recipe or source.recipe
    table = read_recipe(recipe)
    expected = table.get("dataset", dataset)
    if expected != dataset and not {expected, dataset} <= {"imagenet100", "imagenet100-lucir"}:
        raise UsageError(f"the recipe {recipe} is for the dataset {expected}, not {dataset}: choose another recipe")
    special = table.get("methods", {})
    overrides = {"fields" if section == "method" else section: v for section, v in (overrides or {}).items()}
    _check_sections(overrides, "the overrides")
    layers = [table, special.get(family, {}), special.get(method, {}), overrides]
    merged: dict[str, dict[str, Any]] = {section: {} for section in SECTIONS}
    for layer in layers:
        renamed = upgrade(layer, registry.field_names(method))  # names of older versions are still understood
        for section in SECTIONS:
            merged[section] |= renamed.get(section, {})
    merged["data"] = sources.resolve_options(dataset, merged["data"])
    settings = Settings.build({"dataset": dataset, "method": method, "recipe": recipe, "seed": seed, **merged})
    _check_allowed(recipe, merged, overrides)
    check_backbone(settings.net.backbone)
    if family == "wa" and settings.net.backbone.startswith("timm:") and "clip" not in overrides.get("fields", {}):
        settings.fields["clip"] = False  # clipping assumes features that are never negative (Sec. 4.3)
    return settings


def _check_allowed(recipe: str, merged: Mapping[str, Any], overrides: Mapping[str, Any]) -> None:
    """Raise an error if a recipe, which may be untrusted, starts downloads, processes or a compiler."""
    if merged["net"].get("weights") == HUB and overrides.get("net", {}).get("weights") != HUB:
        raise UsageError(
            f"the recipe {recipe} asks to download weights, which only you can allow: "
            "add --weights hub (in Python, the setting net.weights), or choose other weights"
        )
    for name, harmless in FOR_USERS.items():
        if merged["runtime"].get(name, harmless) != harmless and name not in overrides.get("runtime", {}):
            raise UsageError(
                f"the recipe {recipe} sets runtime.{name}, which a recipe may not do: remove it there, and add "
                f"--set runtime.{name}={shown(merged['runtime'][name])} to the command"
            )


def parse_overrides(assignments: Iterable[str]) -> dict[str, dict[str, Any]]:
    """Parse ``["train.epochs=3", "method.norm=2"]`` into sections; "method" is the section fields.

    >>> parse_overrides(["train.epochs=3", "method.norm=2"])
    {'train': {'epochs': 3}, 'fields': {'norm': 2}}
    """
    overrides: dict[str, dict[str, Any]] = {}
    for assignment in assignments:
        path, equals, text = assignment.partition("=")
        section, dot, name = path.strip().partition(".")
        if not equals or not dot:
            raise UsageError(f"cannot parse --set {assignment}: write SECTION.NAME=VALUE, for example train.epochs=3")
        section = "fields" if section == "method" else section
        if section not in SECTIONS:
            raise unknown_name("section of settings", section, SECTIONS)
        overrides.setdefault(section, {})[name] = parse_value(text.strip())
    return overrides
