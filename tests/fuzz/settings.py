"""Recipes, and words of the command line."""

from __future__ import annotations

import io
import tomllib
from collections.abc import Iterator
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import replace
from importlib import resources
from pathlib import Path
from random import Random
from typing import Any

from cyclopts import App, CycloptsError

from equipoise.cli.app import app
from equipoise.cli.launch_options import LaunchOptions
from equipoise.cli.models import _auto
from equipoise.cli.options import CommonOptions, RunOptions, step_count
from equipoise.data import sources
from equipoise.data.augment import Augment
from equipoise.data.stream import class_order, step_sizes
from equipoise.engine.recipes import read_recipe, recipe_names, resolve
from equipoise.methods.registry import registry
from tests.fuzz.loop import Case, Make
from tests.fuzz.mutate import NUMBERS, TEXTS, argument, change_value, mutate, name, toml

NESTING = ("[" * 5000, "{a=" * 2000, "[" * 300 + "]" * 300, "a." * 5000 + "b=1", "a=" + "9" * 5000, '"""' + "x" * 99)


def check(settings: Any) -> None:
    """Do what happens with settings before anything is trained."""
    settings.identity()
    settings.make_memory()
    settings.train.for_step(1)
    step_sizes(settings.stream.steps, 100)
    class_order(settings.stream.order, 100)
    replace(Augment(), **settings.augment).check((3, 32, 32))


def recipes(place: Path) -> Make:
    """Read recipes from strangers, and combine them with the settings of data sets and methods."""
    texts = {one: (resources.files("equipoise") / "recipes" / f"{one}.toml").read_bytes() for one in recipe_names()}
    tables = {one: tomllib.loads(text.decode()) for one, text in texts.items()}
    methods, datasets = sorted(registry()), sorted(sources.SOURCES)
    file = place / "recipe.toml"
    for one in texts:
        read_recipe(one)
    for method in methods:
        resolve("digits", method)

    def make(random: Random) -> Case:
        kind, one = random.random(), random.choice(list(texts))
        if kind < 0.35:
            data = mutate(texts[one], random, list(texts.values()))
        elif kind < 0.4:
            data = texts[one] + random.choice(NESTING).encode()
        else:
            data = toml(changed(tables[one], random)).encode(errors="surrogatepass" if kind < 0.5 else "replace")
        method = random.choice(methods)
        dataset = tables[one].get("dataset", "digits") if random.random() < 0.8 else random.choice(datasets)

        def read() -> None:
            file.write_bytes(data)
            check(resolve(dataset, method, str(file)))

        return Case(data, read, f"{dataset} {method}")

    return make


def changed(table: dict[str, Any], random: Random) -> dict[str, Any]:
    """Return a recipe with other values, or with settings that it does not have."""
    value: Any = table
    for _ in range(random.choice((1, 1, 2, 3))):
        value = change_value(value, random)
        if not isinstance(value, dict):
            return {"train": value}
    if random.random() < 0.3:
        section, setting, new = random.choice(MORE)
        inner = value.get(section)
        value = value | {section: (inner if isinstance(inner, dict) else {}) | {setting: new}}
    return value  # type: ignore[no-any-return]


MORE: tuple[tuple[str, str, Any], ...] = tuple(
    (path.partition(".")[0], path.partition(".")[2], value)
    for path in (
        *("data.size", "data.test_fraction", "data.difficulty", "data.labels", "stream.steps", "stream.order"),
        *("stream.classes", "stream.validation", "memory.size", "memory.per", "memory.selection", "net.backbone"),
        *("net.weights", "net.input_size", "net.frozen", "train.epochs", "train.lr", "train.batch_size", "train.sizes"),
        *("train.milestones", "train.warmup", "train.optimizer", "train.versions", "augment.mean", "augment.std"),
        *("augment.pad", "augment.flip", "runtime.device", "runtime.threads", "runtime.devices", "runtime.precision"),
        *("fields.norm", "fields.temperature", "fields.lambda", "fields.tune_epochs", "like.like"),
    )
    for value in (*NUMBERS, *TEXTS, [1e308], [-1, 2], [[1]], True)
)


# ---- the command line


def commands(group: App, names: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Yield the words of every command."""
    for word in group:
        if not word.startswith("-"):
            inner = group[word]
            yield from commands(inner, (*names, word)) if inner.default_command is None else [(*names, word)]


def command_of(words: tuple[str, ...]) -> App:
    found = app
    for word in words:
        found = found[word]
    return found


def options_of(words: tuple[str, ...]) -> list[str]:
    """Return the options of a command."""
    found = command_of(words).assemble_argument_collection()
    return [option for argument in found for option in argument.names if option.startswith("--")]


def words(place: Path) -> Make:
    """Parse any words as options of every command; nothing is executed."""
    known = {command: options_of(command) for command in commands(app)}
    if len(known) < 20 or not all(known[command] for command in (("run",), ("learn",), ("predict",))):
        raise RuntimeError(f"the commands are not found: {known}")
    kinds, methods = list(known), sorted(registry())
    for tokens in (["run", "digits"], ["learn", "model", "folder"], ["predict", "model", "a.jpg"], ["datasets"]):
        app.parse_args(tokens, exit_on_error=False, print_error=False)

    def value(random: Random) -> str:
        kind = random.random()
        if kind < 0.2:
            return random.choice(("auto", "all", "5", "0.5", "wa", "digits", "1,2", "50,10x5", "a=1", *methods))
        if kind < 0.35:
            return f"{random.choice(MORE)[0]}.{random.choice(MORE)[1]}={random.choice((*NUMBERS, *TEXTS))}"[:6000]
        if kind < 0.5:
            return str(random.choice(NUMBERS))[:400]
        return name(random)

    def make(random: Random) -> Case:
        command = random.choice(kinds)
        given: list[str] = [value(random) for _ in range(random.choice((0, 1, 2, 2, 3)))]
        for _ in range(random.choice((0, 1, 1, 2, 4))):
            option = random.choice(known[command] or ["--help"])
            given += [f"{option}={value(random)}"] if random.random() < 0.3 else [option, value(random)]
        tokens = [*command, *map(argument, given)]

        def read() -> None:
            with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
                _, bound, _ = app.parse_args(tokens, exit_on_error=False, print_error=False)
                convert(bound.arguments)

        data = "\0".join(tokens).encode(errors="surrogateescape")
        return Case(data, read, repr(tokens)[:200], refused=(*Case.refused, CycloptsError))

    return make


def convert(arguments: dict[str, Any]) -> None:
    """Convert what commands convert before they do anything."""
    for option in ("epochs", "image_size", "memory"):
        if isinstance(arguments.get(option), str):
            _auto(arguments[option], option)
    options = arguments.get("options")
    dataset, method = arguments.get("dataset", "digits"), arguments.get("method") or "wa"
    if isinstance(arguments.get("set_"), list):
        options = CommonOptions(set_=arguments["set_"])
    if isinstance(options, CommonOptions):
        overrides = RunOptions.overrides(options) if isinstance(options, RunOptions) else options.overrides()
        recipe = options.recipe or arguments.get("recipe")
        check(resolve(dataset, method, recipe, arguments.get("seed") or 0, overrides))
    launch = arguments.get("launch")
    if isinstance(launch, LaunchOptions) and launch.launcher in ("local", "processes"):
        launch.make(Path("out"), getattr(options, "track", ""))
    for text in arguments.get("steps") or []:
        step_sizes(step_count(text), 100)
