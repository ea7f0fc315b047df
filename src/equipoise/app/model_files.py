"""The JSON files of a model directory, checked when they are read."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

import msgspec

from equipoise.app.stored_images import IDENTITY
from equipoise.core.directory import Directory
from equipoise.engine.learner import Shape
from equipoise.engine.results import FORMAT, Label, StepResult, read_results
from equipoise.errors import RunError

VERSION = re.compile(r"\d{4,}-[0-9a-f]{8}")
"""The name of a version: its number of steps and the beginning of a hash of its weights and classes."""
METHOD = re.compile(r"[\w.+/-]{0,100}")
"""The name of a method, also of a plug-in that is not installed here."""
KINDS = ("memory", "holdout")
"""Folders of images."""


@dataclass(frozen=True)
class ModelConfig:
    """The content of config.json."""

    format: int
    version: str
    """The version it describes; a directory below versions/."""
    previous: str | None
    """The previous version, if it is kept."""
    weights: str
    """Hash of model.safetensors."""
    shape: Shape
    classes: list[Label]
    augment: dict[str, Any]
    settings: dict[str, Any]
    extractor: str | None = None
    """Hash of backbone.safetensors, if the model has a frozen backbone."""
    thumbnails: bool = False
    """Whether thumbnails of new images are kept."""
    bicubic: bool = False
    """Whether photos are cropped at whole pixels and resized with a bicubic filter; models of format 1 do not."""
    library: str = "equipoise"
    equipoise: str = ""

    @property
    def method(self) -> str:
        return str(self.settings.get("method", ""))

    @property
    def backbone(self) -> str:
        net = self.settings.get("net")
        return str(net.get("backbone", "")) if isinstance(net, dict) else ""


@dataclass(frozen=True)
class ModelImages:
    """The content of images.json: names of the exemplars and held-out images, or of blocks of features, by class."""

    memory: list[list[str]]
    holdout: list[list[str]]
    sizes: dict[str, int] = field(default_factory=dict)
    """Number of images in each block of features."""

    def of(self, kind: str) -> list[list[str]]:
        return self.memory if kind == "memory" else self.holdout

    def counts(self, kind: str) -> list[int]:
        """Return the number of images of each class."""
        return [sum(self.sizes.get(name, 1) for name in names) for names in self.of(kind)]

    def count(self, kind: str) -> int:
        return sum(self.counts(kind))


def read_config(directory: Directory, name: str) -> ModelConfig:
    """Read a config.json of this or an older version."""
    data = directory.read_json(name)
    if isinstance(data, dict) and isinstance(data.get("format"), int) and data["format"] > FORMAT:
        raise RunError(f"{directory.path} was written by a newer equipoise (format {data['format']}): update equipoise")
    try:
        config = msgspec.convert(data, ModelConfig)
        for version in (config.version, config.previous):
            if version is not None and not VERSION.fullmatch(version):
                raise ValueError(f"{version!r} is not the name of a version")
        method = config.settings.get("method", "")
        if not isinstance(method, str) or not METHOD.fullmatch(method):
            raise ValueError("settings.method is not the name of a method")
        if not config.classes or min(config.shape) < 1:
            raise ValueError("it has no classes or no image size")
        if min(len({str(name) for name in config.classes}), len(set(config.classes))) < len(config.classes):
            raise ValueError("two classes have the same name")
        "".join(map(str, config.classes)).encode()  # raises an error for lone surrogates
    except (msgspec.ValidationError, ValueError) as error:
        raise RunError(f"{directory.path / name} is damaged ({error}): {directory.remedy}") from error
    return config


def read_images(directory: Directory, name: str, classes: int) -> ModelImages:
    """Read an images.json."""
    try:
        images = msgspec.convert(directory.read_json(name), ModelImages)
        for kind in KINDS:
            if len(images.of(kind)) != classes:
                raise ValueError(f"{kind} does not list {classes} classes")
            if not all(IDENTITY.fullmatch(image) for names in images.of(kind) for image in names):
                raise ValueError(f"{kind} lists a name that is not an image")
        if not all(0 < size < 2**40 for size in images.sizes.values()):
            raise ValueError("a block of features has an impossible size")
    except (msgspec.ValidationError, ValueError) as error:
        raise RunError(f"{directory.path / name} is damaged ({error}): {directory.remedy}") from error
    return images


def read_steps(directory: Directory, name: str) -> list[StepResult]:
    """Read a steps.json."""
    where, rows = str(directory.path / name), directory.read_json(name)
    try:
        steps = read_results(rows, where)
        if not steps:
            raise RunError(f"{where} is damaged (it lists no steps)")
    except RunError as error:
        raise RunError(f"{error}: {directory.remedy}") from error
    return steps
