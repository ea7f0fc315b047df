"""Settings of a run: a published recipe, then what the user asks for, then every default written out."""

from __future__ import annotations

import dataclasses
import json
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

from equipoise import methods
from equipoise.data import sources
from equipoise.data.augment import Augment
from equipoise.data.memory import Memory
from equipoise.errors import UsageError, unknown
from equipoise.learn.nets import Architecture, check_backbone
from equipoise.learn.runtime import Runtime
from equipoise.learn.schedule import Schedule
from equipoise.settings import build, literal


@dataclass(frozen=True)
class StreamSettings:
    """How classes arrive."""

    steps: int | str | tuple[int, ...] = 5
    """A number of equal steps, or their sizes: 5, "50,10x5"."""
    order: int | str | tuple[int, ...] = "1993"
    """1993 (or any seed), icarl, natural, or a list of class numbers."""
    classes: int | None = None
    """Use only the first so many classes of the order; none is all."""
    validation: int = 0
    """Judge by so many training images of each class, kept aside, instead of by test images: to choose settings."""


@dataclass(frozen=True)
class Net:
    """Which network."""

    backbone: str = "resnet32"
    """resnet32, resnet18, fast, fast-wide, small, tiny, mlp (for rows of features) or timm:NAME."""
    mirror: bool = False
    """Judge an image and its mirror image together, when the network is asked and not trained."""


SECTIONS = ("data", "stream", "memory", "net", "train", "augment", "runtime", "fields")
TEXTS = ("about", "dataset", "like")


@dataclass(frozen=True)
class Settings:
    """Everything that decides a run's result."""

    dataset: str
    method: str
    recipe: str
    seed: int
    data: dict[str, Any]
    stream: StreamSettings
    memory: dict[str, Any]
    net: Net
    train: Schedule
    augment: dict[str, Any]
    """What differs from the data set's own augmentation."""
    runtime: Runtime
    fields: dict[str, Any]
    """The method's hyper-parameters."""

    def make_memory(self) -> Memory:
        return build(Memory, self.memory, "memory")

    def architecture(self, shape: tuple[int, int, int]) -> Architecture:
        """The network for images of that shape."""
        return Architecture(self.net.backbone, shape, self.net.mirror, self.runtime.precision == "bf16")

    def identity(self) -> dict[str, Any]:
        """Plain values, without those that say only where to compute: two runs with the same ones are the same run."""
        plain = dataclasses.asdict(self)
        plain["runtime"] = {"precision": self.runtime.precision}
        listed: dict[str, Any] = json.loads(json.dumps(plain))  # tuples are lists, as when it is read back
        return listed

    @staticmethod
    def of(identity: Mapping[str, Any], runtime: Runtime | None = None) -> Settings:
        """The settings whose ``identity`` was written down, here and now on ``runtime``."""
        plain = dict(identity)
        precision = build(Runtime, plain.pop("runtime"), "runtime").precision
        plain["stream"] = build(StreamSettings, plain["stream"], "stream")
        plain["net"], plain["train"] = build(Net, plain["net"], "net"), build(Schedule, plain["train"], "train")
        plain["memory"] = _init_values(build(Memory, plain["memory"], "memory"))
        plain["fields"] = _init_values(methods.make(plain["method"], plain["fields"]))
        return Settings(**plain, runtime=dataclasses.replace(runtime or Runtime(), precision=precision))


def recipe_names() -> list[str]:
    folder = resources.files("equipoise") / "recipes"
    return sorted(file.name.removesuffix(".toml") for file in folder.iterdir() if file.name.endswith(".toml"))


def read_recipe(name: str, heirs: tuple[str, ...] = ()) -> dict[str, Any]:
    """A published recipe by name, or any TOML file by its path; over the one it says it is ``like``, if it does."""
    if name in heirs:
        raise UsageError(f"the recipe {name} is like itself, by way of {' and '.join(heirs)}: take one 'like' out")
    if name.endswith(".toml"):
        file = Path(name)
        if not file.is_file():
            raise UsageError(f"the recipe file {name} does not exist")
        try:
            text = file.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise UsageError(f"the recipe file {name} cannot be read as text ({error})") from error
    elif name in recipe_names():
        text = (resources.files("equipoise") / "recipes" / f"{name}.toml").read_text(encoding="utf-8")
    else:
        raise unknown("recipe", name, recipe_names())
    try:
        recipe = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise UsageError(f"the recipe {name} is not TOML: {error}") from error
    for key, value in recipe.items():
        if key not in (*SECTIONS, *TEXTS, "methods"):
            raise unknown(f"section in the recipe {name} named", key, (*SECTIONS, "methods"))
        if not isinstance(value, str if key in TEXTS else dict):
            raise UsageError(f"'{key}' in the recipe {name} is {value!r}: it must be a {_kind(key)}")
    for method, special in recipe.get("methods", {}).items():
        methods.lookup(method)
        _check_sections(special, f"methods.{method} of the recipe {name}")
    like = recipe.pop("like", None)
    return recipe if like is None else _over(read_recipe(like, (*heirs, name)), recipe)


def _over(below: dict[str, Any], above: dict[str, Any]) -> dict[str, Any]:
    """Two tables as one: sections are joined, and where both say something, the upper one counts."""
    both = {key: _over(below[key], value) for key, value in above.items() if isinstance(value, dict) and key in below}
    return below | above | both


def _kind(key: str) -> str:
    return "text" if key in TEXTS else f"section, [{key}]"


def _check_sections(sections: Any, where: str) -> None:
    if not isinstance(sections, Mapping):
        raise UsageError(f"{where} is {sections!r}, but it holds sections, as [train]")
    for section, values in sections.items():
        if section not in SECTIONS:
            raise unknown(f"section in {where} named", section, SECTIONS)
        if not isinstance(values, Mapping):
            raise UsageError(f"'{section}' in {where} is {values!r}: it must be a section of settings")


def resolve(
    dataset: str,
    method: str = "wa",
    recipe: str | None = None,
    seed: int = 0,
    overrides: Mapping[str, Mapping[str, Any]] | None = None,
) -> Settings:
    """All settings of a run: defaults, then the recipe, what it says of this method, and the overrides."""
    source = sources.source(dataset)
    family = methods.family(method)
    recipe = recipe or source.recipe
    table = read_recipe(recipe)
    meant = table.get("dataset", dataset)
    if meant != dataset and not {meant, dataset} <= {"imagenet100", "imagenet100-lucir"}:
        raise UsageError(f"the recipe {recipe} is for the dataset {meant}, not {dataset}: choose another recipe")
    special = table.get("methods", {})
    _check_sections(overrides or {}, "the overrides")
    layers = [
        table,
        special.get(family, {}),
        special.get(method, {}) if method != family else {},
        overrides or {},
    ]
    merged: dict[str, dict[str, Any]] = {section: {} for section in SECTIONS}
    for layer in layers:
        for section in SECTIONS:
            merged[section] |= layer.get(section, {})
    instance = methods.make(method, merged["fields"])
    net = build(Net, merged["net"], "net")
    check_backbone(net.backbone)
    build(Augment, merged["augment"], "augment")
    memory = build(Memory, merged["memory"], "memory")
    return Settings(
        dataset=dataset,
        method=method,
        recipe=recipe,
        seed=seed,
        data=sources.settle(dataset, merged["data"]),
        stream=build(StreamSettings, merged["stream"], "stream"),
        memory=_init_values(memory),
        net=net,
        train=build(Schedule, merged["train"], "train"),
        augment=merged["augment"],
        runtime=build(Runtime, merged["runtime"], "runtime"),
        fields=_init_values(instance),
    )


def _init_values(instance: Any) -> dict[str, Any]:
    return {field.name: getattr(instance, field.name) for field in dataclasses.fields(instance) if field.init}


def parse_overrides(assignments: Iterable[str]) -> dict[str, dict[str, Any]]:
    """``["train.epochs=3", "method.norm=2"]`` as sections; "method" is a friendlier name for the section fields.

    >>> parse_overrides(["train.epochs=3", "method.norm=2"])
    {'train': {'epochs': 3}, 'fields': {'norm': 2}}
    """
    overrides: dict[str, dict[str, Any]] = {}
    for assignment in assignments:
        path, equals, text = assignment.partition("=")
        section, dot, name = path.strip().partition(".")
        if not equals or not dot:
            raise UsageError(f"'{assignment}' cannot be set: write SECTION.NAME=VALUE, as train.epochs=3")
        section = "fields" if section == "method" else section
        if section not in SECTIONS:
            raise unknown("section of settings named", section, SECTIONS)
        overrides.setdefault(section, {})[name] = literal(text.strip())
    return overrides
