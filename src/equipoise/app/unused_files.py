"""Files in a model directory that no version uses any more, and files that are not ours."""

from __future__ import annotations

import re
from collections.abc import Container, Sequence
from contextlib import suppress

from equipoise.app.model_files import KINDS, VERSION, ModelImages
from equipoise.app.stored_images import IDENTITY, folder_name, stem
from equipoise.core.directory import Directory
from equipoise.engine.results import Label
from equipoise.errors import RunError

BY_SYSTEM = (".DS_Store", "Thumbs.db", "desktop.ini")
"""Files that file managers create in every directory they show."""


def other_files(directory: Directory, owned: Container[str]) -> list[str]:
    """Name what is in a directory besides ``owned``."""
    names = (entry.name for entry in directory.entries())
    return [name for name in names if name not in owned and name not in BY_SYSTEM and not name.endswith(".tmp")]


def delete_versions(directory: Directory, keep: set[str], files: re.Pattern[str]) -> None:
    """Delete all versions but some; ``files`` matches the names of what a version consists of."""
    for entry in _entries(directory, "versions"):
        if VERSION.fullmatch(entry) and entry not in keep:
            with suppress(RunError):  # a link of this name must not keep the images of a forgotten class
                directory.remove_tree(f"versions/{entry}", files)


def delete_images(directory: Directory, versions: Sequence[tuple[Sequence[Label], ModelImages]]) -> None:
    """Delete the images that none of these versions has, given by their classes and images."""
    keep = set()
    for classes, images in versions:
        for kind in KINDS:
            for label, names in zip(classes, images.of(kind), strict=True):
                folder = folder_name(label).casefold()  # some file systems ignore case
                keep |= {(kind, folder, name) for name in names}
    for kind in KINDS:
        for folder in _entries(directory, kind):
            for file in images_in(directory, f"{kind}/{folder}"):
                if (kind, folder.casefold(), stem(file)) not in keep:
                    with suppress(RunError):
                        directory.remove(file)
            with suppress(RunError):
                directory.remove_dir(f"{kind}/{folder}")


def images_in(directory: Directory, folder: str) -> list[str]:
    """Return the files in a folder that are named like stored images."""
    return [f"{folder}/{file}" for file in _entries(directory, folder) if IDENTITY.fullmatch(stem(file))]


def _entries(directory: Directory, name: str) -> list[str]:
    return [entry.name for entry in directory.entries(name)] if directory.is_dir(name) else []
