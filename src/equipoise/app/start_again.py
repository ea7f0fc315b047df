"""Empty a model directory, as it was before the first step."""

from __future__ import annotations

import re
from contextlib import suppress

from equipoise.app import card
from equipoise.app.model_dir import BACKBONE, LINKED, MAX_CARD_BYTES, OWNED, VERSION_FILES, ModelDir
from equipoise.app.model_files import KINDS, VERSION, read_config
from equipoise.app.unused_files import delete_images, images_in, other_files
from equipoise.core.signals import defer_signals
from equipoise.errors import RunError, UsageError

VERSIONS = re.compile(rf"{VERSION.pattern}|{VERSION_FILES.pattern}", re.DOTALL)


def start_again(place: ModelDir) -> None:
    """Delete the model for good, even if it can no longer be read.

    If this is interrupted, there is either the whole model or none: removing config.json decides. Files that remain
    after an interruption are deleted with the next step. Only our own files are deleted, and text that the owner
    added to the card stays. So does the lock, because another process may have it open.
    """
    place.check()
    _check_ours(place)
    directory = place.directory
    with directory.lock():  # not writing(), which has to read the model
        place.check()  # another process may have been here
        with defer_signals():
            place.before_commit(None)
            directory.remove("config.json")
            place.abandon_step()  # which also makes sure that config.json does not come back after a power cut
            place.on_commit()
        directory.remove_temporary()
        for name in (*LINKED, BACKBONE):
            directory.remove(name)
        directory.remove_tree("versions", VERSIONS)
        delete_images(directory, [])
        for kind in KINDS:
            directory.remove_dir(kind)
        _remove_card(place)
        if left := _images_left(place):
            raise RunError(f"the model is deleted, but {place.path / left[0]} is still there: delete it yourself")


def _check_ours(place: ModelDir) -> None:
    """Raise an error if this may not be an equipoise model: other programs also write a config.json."""
    if others := other_files(place.directory, OWNED):
        raise UsageError(
            f"{place.path} also holds {others[0]}, which is not part of the model: move it elsewhere first"
        )
    with suppress(RunError):
        place.config()
        return
    folder = place.directory.sub("versions")
    for entry in folder.entries() if folder.is_dir() else ():
        with suppress(RunError):
            if VERSION.fullmatch(entry.name):
                read_config(folder, f"{entry.name}/config.json")
                return
    raise UsageError(f"{place.path} does not look like an equipoise model: choose another directory")


def _remove_card(place: ModelDir) -> None:
    """Delete the generated part of README.md."""
    directory = place.directory
    with suppress(RunError):
        old = directory.read_bytes("README.md", MAX_CARD_BYTES).decode(errors="surrogateescape")
        new = card.without_card(old)
        if not new.strip():
            directory.remove("README.md")
        elif new != old:
            directory.write_bytes("README.md", new.encode(errors="surrogateescape"))


def _images_left(place: ModelDir) -> list[str]:
    directory = place.directory
    folders = [f"{kind}/{entry.name}" for kind in KINDS if directory.is_dir(kind) for entry in directory.entries(kind)]
    return [file for folder in folders for file in images_in(directory, folder)]
