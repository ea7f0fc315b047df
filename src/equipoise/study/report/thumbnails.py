"""The gallery of a run for its page: sheets of thumbnails, and what they show."""

from __future__ import annotations

import base64
from dataclasses import dataclass, field
from typing import Annotated, Literal

import msgspec

from equipoise.core.directory import Directory
from equipoise.errors import RunError

RENAMED = {"mended": "fixed", "spoiled": "broken", "right": "correct"}
"""Kinds of test images whose names differ in galleries of format 1."""

MAX_SHEET_BYTES = 32 << 20

Count = Annotated[int, msgspec.Meta(ge=1)]
ClassIndex = Annotated[int, msgspec.Meta(ge=0)]


@dataclass(frozen=True)
class ExemplarRow:
    """The exemplars of one class."""

    label: ClassIndex
    kept: int


@dataclass(frozen=True)
class ExampleImage:
    """A test image with its true class and the predictions before and after the correction."""

    kind: Literal["fixed", "broken", "wrong", "correct", "mended", "spoiled", "right"]
    label: ClassIndex
    before: ClassIndex
    after: ClassIndex

    @property
    def css_class(self) -> str:
        return RENAMED.get(self.kind, self.kind)


@dataclass
class Gallery:
    """The content of gallery.json, with the sheets as data URLs."""

    columns: Count
    """Thumbnails per class."""
    exemplars: list[ExemplarRow]
    examples: list[ExampleImage]
    rows: int = 0
    """Classes in a block of the sheet; further blocks are to the right of it. 0: all in one block."""
    sheets: dict[str, str] = field(default_factory=dict)


def read_gallery(directory: Directory, classes: int) -> Gallery | None:
    """Read the gallery of a run with this many classes; None if it has none."""
    if not directory.exists("gallery"):
        return None
    folder = directory.sub("gallery")
    try:
        gallery = msgspec.convert(folder.read_json("gallery.json") | {"sheets": {}}, Gallery)
    except (msgspec.ValidationError, TypeError) as error:
        raise RunError(f"gallery.json is damaged ({error})") from error
    labels = [row.label for row in gallery.exemplars]
    labels += [label for image in gallery.examples for label in (image.label, image.before, image.after)]
    if max(labels, default=0) >= classes:
        raise RunError(f"gallery.json is damaged (class {max(labels)} is none of {classes})")
    gallery.rows = gallery.rows if gallery.rows > 0 else max(len(gallery.exemplars), 1)
    for name, shown in (("exemplars", gallery.exemplars), ("examples", gallery.examples)):
        if shown:
            data = base64.b64encode(folder.read_bytes(f"{name}.webp", MAX_SHEET_BYTES)).decode()
            gallery.sheets[name] = f"data:image/webp;base64,{data}"
    return gallery
