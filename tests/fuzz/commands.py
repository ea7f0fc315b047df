"""Whole commands: on directories with damaged files, links and pipes, and with recipes that ask for anything."""

from __future__ import annotations

import io
import json
import os
import resource
import shlex
import shutil
import sys
import unicodedata
from collections.abc import Callable, Sequence
from contextlib import redirect_stderr, redirect_stdout, suppress
from pathlib import Path
from random import Random
from typing import Any
from unittest.mock import patch

from equipoise.cli import main
from equipoise.core.config import flatten
from equipoise.engine.recipes import resolve
from equipoise.methods.registry import field_names, registry
from tests.fuzz.directories import SAVED, model_files, model_originals, run_files
from tests.fuzz.loop import Case, Make, RefusedError
from tests.fuzz.mutate import NUMBERS, TEXTS, VALUES, argument, change_json, mutate, name, toml
from tests.fuzz.pictures import picture

BIDIRECTIONAL = set("\u061c\u200e\u200f\u2028\u2029\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")
NO_INPUT = io.TextIOWrapper(io.BytesIO())
ROOM = 1 << 30
"""Bytes of address space that a run may take in addition to what the process has."""


def call(words: Sequence[str]) -> None:
    """Call a command as the console script does; it must end with a result, or with one sentence."""
    out, err = io.StringIO(), io.StringIO()
    code: Any = None
    try:
        with redirect_stdout(out), redirect_stderr(err), patch.object(sys, "stdin", NO_INPUT):
            main(words)
    except SystemExit as end:
        code = end.code
    if code not in (0, 1, 2):
        raise AssertionError(f"it ends with {code}")
    if "Traceback (most recent call last)" in err.getvalue():
        raise AssertionError("it prints a traceback")
    for printed in (out.getvalue(), err.getvalue()):
        check_printed(printed)
    if code == 2 and not err.getvalue().splitlines()[-1].startswith("equipoise: "):
        raise AssertionError(f"it gives no reason: {err.getvalue()[-200:]!r}")
    if code:
        raise RefusedError(err.getvalue()[-300:])


def check_printed(text: str) -> None:
    """Raise an error if a text could control a terminal, or reverses its direction."""
    unsafe = {one for one in set(text) if (unicodedata.category(one) in ("Cc", "Cs") and one not in "\n\r")}
    if unsafe := unsafe | (set(text) & BIDIRECTIONAL):
        raise AssertionError(f"it prints {sorted(unsafe)!r}")


# ---- directories

Change = Callable[[Path, Random], str]


def put_link(entry: Path, random: Random) -> str:
    """Exchange a file or directory for a link to the sentinel, to a file of the system or to itself."""
    sentinel = entry.parents[len(entry.parts) - 1 - entry.parts.index("work")].parent / "sentinel"
    targets = [sentinel / entry.name, sentinel, sentinel / "config.json", Path("/etc/passwd"), Path("/dev/zero"), entry]
    target = random.choice(targets)
    remove(entry)
    entry.symlink_to(target)
    return f"a link to {target.name}"


def put_other(entry: Path, random: Random) -> str:
    """Exchange a file or directory for something else, or remove it."""
    directory, kind = entry.is_dir(), random.choice(("nothing", "a pipe", "the other kind", "an empty file"))
    remove(entry)
    if kind == "a pipe":
        os.mkfifo(entry)
    elif kind == "an empty file" or (kind == "the other kind" and directory):
        entry.write_bytes(b"")
    elif kind == "the other kind":
        entry.mkdir()
    return kind


def put_stranger(entry: Path, random: Random) -> str:
    """Add a file with any name."""
    folder = entry if entry.is_dir() else entry.parent
    given = os.fsencode(name(random).encode("utf-8", "replace").replace(b"/", b"").replace(b"\0", b"")[:200] or b"x")
    if given not in (b".", b".."):
        (folder / os.fsdecode(given)).write_bytes(b"x")
    return f"a file {given!r}"


def damage(entry: Path, random: Random) -> str:
    """Change the content of a file."""
    if entry.is_dir():
        return put_other(entry, random)
    data = entry.read_bytes()
    is_json = entry.suffix in (".json", ".jsonl") and random.random() < 0.8
    entry.write_bytes(change_json(data, random, entry.suffix == ".jsonl") if is_json else mutate(data, random))
    return "changed bytes"


def remove(entry: Path) -> None:
    if entry.is_dir() and not entry.is_symlink():
        shutil.rmtree(entry)
    else:
        entry.unlink()


CHANGES: tuple[tuple[Change, int], ...] = ((damage, 4), (put_link, 3), (put_other, 2), (put_stranger, 1))


def pictures_in(folder: Path, labels: Sequence[str] = ("ring", "new one")) -> Path:
    """Write photos of some classes."""
    for side, label in enumerate(labels, 20):
        (folder / label).mkdir(parents=True)
        for number in range(3):
            picture("RGB", side, 24 + number).rotate(40 * number).save(folder / label / f"{number}.png")
    return folder


def model_commands(model: Path, photos: Path, out: Path, random: Random) -> list[list[str]]:
    """Return words of every command that reads a model."""
    found = json.loads((model / "config.json").read_text())
    labels = [str(label) for label in found.get("classes", [])] or ["a"]
    one, other, file = (
        random.choice(labels),
        argument(random.choice([*labels, name(random)])),
        str(photos / "ring" / "0.png"),
    )
    place, json_flag = str(model), random.choice(([], ["--json"]))
    read = [["history"], ["inspect"], ["suspects"], ["evaluate", place, str(photos)]]
    return [
        *([command[0], place, *command[2:], *json_flag] for command in read),
        *(["card", place], ["predict", place, file, *json_flag], ["predict", place, str(photos), "--csv"]),
        ["suspects", place, str(photos)],
        *(["undo", place, *json_flag], ["forget", place, other], ["rename", place, one, other]),
        *(["merge", place, one, other], ["move", place, file, other, "--create"]),
        *(["export", place, str(out)], ["export", place, str(out), "--no-memory"]),
        ["sort", place, str(photos), str(out), *random.choice(([], ["--how", "link"], ["--dry-run"]))],
        ["learn", place, str(photos), "--extend", "--dry-run"],
        ["learn", place, f"{photos} 2", "--epochs", "1", *json_flag],
        ["report", place, "--out", f"{out}.html"] if random.random() < 0.2 else ["history", place],
    ]


def run_commands(run: Path, random: Random) -> list[list[str]]:
    """Return words of every command that reads a run or comparison."""
    one = run / "bic/steps-2/seed-0" if run.name == "comparison" else run
    words = shlex.split(json.loads((one / "config.json").read_text())["command"])[1:]
    words[words.index("--out") + 1] = str(run)
    return [["report", str(run)], words, [*words, "--json"]]


def commands(place: Path) -> Make:
    """Call every command on directories with one to three changes anywhere in them."""
    root, photos, out = place / "originals", place / "photos", place / "out"
    model_originals(root)
    runs = ("run-finished", "run-stopped", "comparison")
    for one in runs:
        shutil.copytree(SAVED / one, root / one)
    originals = sorted(root.iterdir())
    pictures_in(photos)
    pictures_in(Path(f"{photos} 2"), ("new one", "another"))

    def restore(original: Path) -> Path:
        copy = place / original.name
        for old in (copy, out, out.with_suffix(".html"), place / "runs"):
            if old.exists() or old.is_symlink():
                remove(old)
        return shutil.copytree(original, copy)

    def words_for(copy: Path, random: Random) -> list[list[str]]:
        return run_commands(copy, random) if copy.name in runs else model_commands(copy, photos, out, random)

    for one in ("model", "run-finished", "comparison"):  # modules that are imported late may run code of their own
        for words in words_for(restore(root / one), Random(0)):
            restore(root / one)
            with suppress(RefusedError):
                call(words)

    call(["learn", str(out), str(photos)])  # as for a directory whose config.json is gone

    def changed(copy: Path, random: Random) -> str:
        original = root / copy.name
        files = run_files(original) if copy.name in runs else model_files(original)
        told = []
        for _ in range(random.choice((1, 1, 1, 2, 3))):
            everything = sorted(path for path in copy.rglob("*") if not path.is_symlink())
            important = [copy / file for file in files if (copy / file).is_file()]
            entries = important if important and random.random() < 0.5 else everything
            entries = [entry for entry in entries if entry.is_dir() or entry.is_file()] or [copy]
            entry = random.choice(entries)
            (change,) = random.choices([one for one, _ in CHANGES], [weight for _, weight in CHANGES])
            told.append(f"{entry.relative_to(copy)}: {change(entry, random)}")
        return ", ".join(told)

    def make(random: Random) -> Case:
        original = random.choice(originals)
        copy = restore(original)
        words = random.choice(words_for(copy, random))
        told = changed(copy, random)
        return Case(told.encode(errors="replace"), lambda: call(words), f"{words} {told}"[:600], stop_after=4)

    return make


# ---- experiments

OWN = {"runtime.devices", "runtime.nodes", "runtime.threads", "runtime.compile", "runtime.device"}
"""Settings that start processes or compilers, or need a device that is not here."""
LIKELY: dict[type, tuple[Any, ...]] = {
    bool: (True, False),
    int: (0, 1, 2, 3, 5, 8, 30, 1000),
    float: (0.0, 0.01, 0.1, 0.5, 0.9, 1.0, 1.5, 3.0, 1000.0, 1e-9, 1e9),
    str: ("sgd", "adamw", "muon", "multistep", "cosine", "herding", "random", "reflect", "class", "total", "natural"),
    list: ([1], [1, 2], [0.5, 0.5, 0.5], []),
}
"""Values that many settings of a type accept."""


def defaults(method: str) -> dict[str, Any]:
    """Return all settings of a run with their values."""
    found = flatten(resolve("folder", method).identity())
    return {name: value for name, value in found.items() if "." in name and name not in OWN}


def some_value(default: Any, random: Random) -> Any:
    """Return a value for a setting, which usually has its type."""
    kind = type(default) if default is not None else random.choice(list(LIKELY))
    return random.choice(LIKELY[kind] if kind in LIKELY and random.random() < 0.7 else VALUES)


def base_recipe(method: str) -> dict[str, Any]:
    """Return a recipe for a run that takes a fraction of a second."""
    fields = {one: 1 for one in ("finetune_epochs", "bias_epochs") if one in field_names(method)}
    return {
        "dataset": "folder",
        "data": {"size": 8},
        "stream": {"steps": 2},
        "memory": {"size": 4},
        "net": {"backbone": "tiny"},
        "train": {"epochs": 1, "batch_size": 8},
        "fields": fields,
    }


def limit_memory() -> None:
    """Let this process take little more memory: a run that needs more has to end with a sentence."""
    with Path("/proc/self/statm").open() as file:
        now = int(file.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (now + ROOM, now + ROOM))


def experiments(place: Path) -> Make:
    """Run recipes from strangers: every setting of every method, with any value."""
    photos, file, out = place / "photos", place / "recipe.toml", place / "out"
    pictures_in(photos)
    methods = sorted(registry())
    settings = {method: defaults(method) for method in methods}
    own = ["--devices", "1", "--nodes", "1", "--threads", "1", "--device", "cpu"]
    file.write_text(toml(base_recipe("wa")))
    call(["run", "folder", "--recipe", str(file), "--data-root", str(photos), "--out", str(out), "--quiet", *own])
    limit_memory()

    def make(random: Random) -> Case:
        method = random.choice(methods)
        recipe, sets = base_recipe(method), []
        for _ in range(random.choice((1, 1, 1, 2, 3))):
            path = random.choice(list(settings[method]))
            value = some_value(settings[method][path], random)
            section, _, setting = path.partition(".")
            if random.random() < 0.2:
                text = argument(str(random.choice((*NUMBERS, *TEXTS)))[:400])
                sets += ["--set", f"{path.replace('fields.', 'method.')}={text}"]
            else:
                recipe[section] = {**recipe.get(section, {}), setting: value}
        data = toml(recipe).encode(errors="replace")
        if out.exists():
            shutil.rmtree(out)
        words = ["run", "folder", "--method", method, "--recipe", str(file), "--data-root", str(photos)]
        words += ["--out", str(out), "--quiet", *own, *sets]

        def read() -> None:
            file.write_bytes(data)
            call(words)

        return Case(data, read, f"{method} {sets} {recipe}"[:600], stop_after=1.5)

    return make
