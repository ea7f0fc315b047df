"""Data sets by name. Each source is a function ``load(root, **options) -> Dataset`` in its own module.

Those of ImageNet share a module, whose ``load`` takes the name first.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any, Literal

from equipoise.core.config import convert
from equipoise.core.ranges import check_value, parameter_hints
from equipoise.data.dataset import Dataset
from equipoise.errors import DataError, UsageError, unknown_name


@dataclass(frozen=True)
class Source:
    """Where a data set comes from."""

    recipe: str
    """The default recipe."""
    about: str
    """One line for the user."""
    root: Literal["unused", "optional", "required"] = "unused"
    """Whether the data set is read from a directory; without one, an optional one is the user's cache."""


SOURCES = {
    "glyphs": Source("glyphs", "90 printed characters, generated: 120 + 30 images per class, 24×24, colour"),
    "digits": Source("digits", "10 handwritten digits, 8×8, grey, from scikit-learn: tiny, for tests"),
    "cifar100": Source(
        "cifar100-paper", "100 classes, 500 + 100 images per class, 32×32 (downloaded if needed)", "optional"
    ),
    "imagenet100": Source("imagenet100-paper", "the first 100 synsets by name (WA, BiC, PODNet, DER)", "required"),
    "imagenet100-lucir": Source("imagenet100-paper", "100 synsets chosen with seed 1993 (LUCIR, PyCIL)", "required"),
    "imagenet1000": Source("imagenet1000-paper", "all 1,000 synsets, in train/ and val/", "required"),
    "tiny-imagenet-100": Source(
        "tiny-imagenet-lite", "100 synsets of Tiny-ImageNet, 250 + 50 images per class, 64×64", "required"
    ),
    "folder": Source("folder", "your own tree of class folders", "required"),
}
MODULES = {"tiny-imagenet-100": "tiny_imagenet"}
"""Modules whose name differs from that of their data set."""


def source(name: str) -> Source:
    """Return the source of a data set."""
    if name not in SOURCES:
        raise unknown_name("dataset", name, SOURCES)
    return SOURCES[name]


def options(name: str) -> dict[str, Any]:
    """Return the options of a data set with their defaults."""
    parameters = list(inspect.signature(_loader(name)).parameters.values())[1:]
    return {parameter.name: parameter.default for parameter in parameters}


def resolve_options(name: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return all options of a data set: the given ones, whose types are checked, and defaults."""
    known = options(name)
    for option in given:
        if option not in known:
            raise unknown_name(f"option of the dataset {name}", option, known)
    loader = _loader(name)
    hints = parameter_hints(loader.func if isinstance(loader, partial) else loader)
    converted = {option: convert(value, type(known[option]), f"data.{option}") for option, value in given.items()}
    for option, value in converted.items():
        check_value(value, hints[option], f"data.{option}")
    return known | converted


def load(name: str, root: str | Path | None = None, **given: Any) -> Dataset:
    """Load a data set.

    Parameters
    ----------
    name
        Name of the data set.
    root
        Directory of its files (default: EQUIPOISE_DATA, or the user's cache).
    **given
        Options of the data set, such as ``size``.
    """
    return _loader(name)(data_root(name, root), **resolve_options(name, given))


def data_root(name: str, root: str | Path | None) -> Path | None:
    """Return the directory of a data set's files: ``root`` or EQUIPOISE_DATA; None if it needs none."""
    use = source(name).root
    root = root or os.environ.get("EQUIPOISE_DATA") or None
    if use == "unused" or (use == "optional" and root is None):
        return None
    if root is None:
        raise UsageError(f"the dataset {name} is read from files: pass their directory with --data-root DIR")
    if not Path(root).is_dir():
        raise DataError(f"the data root {root} is not a directory: create it, or choose another with --data-root")
    return Path(root)


def _loader(name: str) -> Callable[..., Dataset]:
    source(name)  # raises an error for an unknown name
    if name.startswith("imagenet"):
        return partial(import_module(f"{__name__}.imagenet").load, name)
    load_dataset: Callable[..., Dataset] = import_module(f"{__name__}.{MODULES.get(name, name)}").load
    return load_dataset
