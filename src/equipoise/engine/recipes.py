"""Recipes: published settings in TOML files, and how they are combined with what the user asks for."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Mapping
from importlib import resources
from pathlib import Path
from typing import Any

from equipoise.core.config import build, parse_value
from equipoise.data import sources
from equipoise.data.augment import Augment
from equipoise.engine.settings import Settings, upgrade
from equipoise.errors import UsageError, unknown_name
from equipoise.learn.backbones import check_backbone
from equipoise.methods import registry

SECTIONS = ("data", "stream", "memory", "net", "train", "augment", "runtime", "fields")
TEXTS = ("about", "dataset", "like")


def recipe_names() -> list[str]:
    """Return the names of the published recipes."""
    folder = resources.files("equipoise") / "recipes"
    return sorted(file.name.removesuffix(".toml") for file in folder.iterdir() if file.name.endswith(".toml"))


def read_recipe(name: str, parents: tuple[str, ...] = ()) -> dict[str, Any]:
    """Read a published recipe by name or any TOML file by path; ``like`` names the recipe that it extends."""
    if name in parents:
        raise UsageError(f"the recipe {name} extends itself through {' and '.join(parents)}: remove one 'like'")
    if name.endswith(".toml"):
        file = Path(name)
        if not file.is_file():
            raise UsageError(f"the recipe file {name} does not exist")
        try:
            text = file.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise UsageError(
                f"cannot read the recipe file {name} ({error}): check that it is a UTF-8 text file"
            ) from error
    elif name in recipe_names():
        text = (resources.files("equipoise") / "recipes" / f"{name}.toml").read_text(encoding="utf-8")
    else:
        raise unknown_name("recipe", name, recipe_names())
    try:
        recipe = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise UsageError(f"the recipe {name} is not valid TOML: {error}") from error
    for key, value in recipe.items():
        if key not in (*SECTIONS, *TEXTS, "methods"):
            raise unknown_name(f"section in the recipe {name}", key, (*SECTIONS, "methods"))
        if not isinstance(value, str if key in TEXTS else dict):
            kind = "string" if key in TEXTS else f"table, [{key}]"
            raise UsageError(f"'{key}' in the recipe {name} must be a {kind}, got {value!r}")
    for method, special in recipe.get("methods", {}).items():
        registry.lookup(method)
        _check_sections(special, f"methods.{method} of the recipe {name}")
    like = recipe.pop("like", None)
    return recipe if like is None else _merge(read_recipe(like, (*parents, name)), recipe)


def _merge(below: dict[str, Any], above: dict[str, Any]) -> dict[str, Any]:
    """Merge two tables section by section; ``above`` wins."""
    both = {key: _merge(below[key], value) for key, value in above.items() if isinstance(value, dict) and key in below}
    return below | above | both


def _check_sections(sections: Any, where: str) -> None:
    if not isinstance(sections, Mapping):
        raise UsageError(f"{where} must be a table of sections such as [train], got {sections!r}")
    for section, values in sections.items():
        if section not in SECTIONS:
            raise unknown_name(f"section in {where}", section, SECTIONS)
        if not isinstance(values, Mapping):
            raise UsageError(f"'{section}' in {where} must be a table of settings, got {values!r}")


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
    build(Augment, merged["augment"], "augment")
    settings = Settings.build({"dataset": dataset, "method": method, "recipe": recipe, "seed": seed, **merged})
    check_backbone(settings.net.backbone)
    if family == "wa" and settings.net.backbone.startswith("timm:") and "clip" not in overrides.get("fields", {}):
        settings.fields["clip"] = False  # clipping assumes features that are never negative (Sec. 4.3)
    return settings


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
