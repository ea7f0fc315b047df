"""Where data sets come from. A source is a function ``load(root, **options) -> Dataset`` in a module of its own."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from equipoise.data.dataset import Dataset
from equipoise.errors import DataError, UsageError, unknown
from equipoise.settings import fitted


@dataclass(frozen=True)
class Source:
    """An entry of the list of data sets."""

    function: str
    """module:function"""
    recipe: str
    """The recipe that is used when none is named."""
    about: str
    needs_root: bool = False


SOURCES = {
    "glyphs": Source(
        "glyphs:load", "glyphs", "90 printed characters, generated: 120 + 30 images a class, 24×24 colour"
    ),
    "digits": Source("digits:load", "digits", "10 handwritten digits, 8×8 grey, inside scikit-learn: tiny, for tests"),
    "cifar100": Source(
        "cifar100:load", "cifar100-paper", "100 classes, 500 + 100 images each, 32×32 (found or downloaded)"
    ),
    "imagenet100": Source(
        "imagenet:load100", "imagenet100-paper", "the first 100 synsets by name (WA, BiC, PODNet, DER)", True
    ),
    "imagenet100-lucir": Source(
        "imagenet:load100_lucir", "imagenet100-paper", "100 synsets drawn with seed 1993 (LUCIR, PyCIL)", True
    ),
    "imagenet1000": Source("imagenet:load1000", "imagenet1000-paper", "all 1,000 synsets: train/ and val/ trees", True),
    "folder": Source("folder:load", "folder", "your own tree of class folders", True),
}


def source(name: str) -> Source:
    if name not in SOURCES:
        raise unknown("dataset", name, SOURCES)
    return SOURCES[name]


def options(name: str) -> dict[str, Any]:
    """The options of a data set and their defaults."""
    parameters = list(inspect.signature(_function(name)).parameters.values())[1:]
    return {parameter.name: parameter.default for parameter in parameters}


def settle(name: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """All options of a data set: those that are given, which must be of the right kind, and defaults."""
    known = options(name)
    for option in given:
        if option not in known:
            raise unknown(f"option of the dataset {name} named", option, known)
    return known | {option: fitted(value, type(known[option]), f"data.{option}") for option, value in given.items()}


def load(name: str, root: str | Path | None = None, **given: Any) -> Dataset:
    """The data set ``name``, found under ``root`` (else under ``EQUIPOISE_DATA``, else in the user's cache)."""
    return _function(name)(data_root(name, root), **settle(name, given))


def data_root(name: str, root: str | Path | None) -> Path | None:
    """The directory of ``name``'s files: ``root``, else what ``EQUIPOISE_DATA`` names."""
    root = root or os.environ.get("EQUIPOISE_DATA") or None
    if root is None and source(name).needs_root:
        raise UsageError(f"the dataset {name} is read from files: name their directory with --data-root DIR")
    if root is not None and source(name).needs_root and not Path(root).is_dir():
        raise DataError(f"the data root {root} is not a directory: create it or name another with --data-root")
    return None if root is None else Path(root)


def _function(name: str) -> Callable[..., Dataset]:
    module, function = source(name).function.split(":")
    found: Callable[..., Dataset] = getattr(import_module(f"{__name__}.{module}"), function)
    return found
