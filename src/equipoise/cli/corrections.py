"""Commands that sort photos and correct a model: sort, rename, merge, move, suspects."""

from __future__ import annotations

import json as json_module
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from equipoise.cli.app import MODELS, Flag, command
from equipoise.cli.models import ModelPath, model_dir
from equipoise.errors import DataError, UsageError

if TYPE_CHECKING:
    from equipoise.engine.results import StepResult


@command(MODELS)
def sort(
    model: ModelPath,
    folder: Path,
    out: Path,
    *,
    how: Literal["copy", "link", "move"] = "copy",
    accept: float = 0.95,
    dry_run: Flag = False,
    json: Flag = False,
) -> None:
    """Sort a heap of photos into folders by class, and photos of unknown classes into folders of similar ones.

    Parameters
    ----------
    folder
        A folder with photos; folders in it are searched, too.
    out
        A new directory. It gets a folder per class, unknown-1, unknown-2, … and a contact sheet.
    how
        Copy the photos, make symbolic links to them, or move them. Nothing is overwritten.
    accept
        Fraction of images of known classes to recognise as such; others are unknown.
    dry_run
        Show what would be done, without doing it.
    json
        Print one JSON object per photo.
    """
    from equipoise.app.console import make_console
    from equipoise.app.sort_console import print_sorted
    from equipoise.app.sorting import sort_photos
    from equipoise.core.progress_line import track

    loaded = model_dir(model).load(images=True)
    photos = sort_photos(
        loaded, folder, out, how, accept, dry_run, lambda items, total: track(items, total, "sorting", "photos")
    )
    if json:
        for photo in photos:
            print(json_module.dumps(photo.to_dict(), ensure_ascii=False))
    else:
        print_sorted(make_console(), photos, model, out, dry_run)
    if failed := sum(photo.error is not None for photo in photos):
        raise DataError(f"{failed} of {len(photos)} photos could not be sorted; they stay where they are")


@command(MODELS)
def rename(model: ModelPath, old: str, new: str, /, *, json: Flag = False) -> None:
    """Give a class another name.

    Parameters
    ----------
    old
        Its name now.
    new
        Its new name.
    json
        Print the step's result as one JSON object.
    """
    from equipoise.app.corrections import rename as change

    _print(change(model_dir(model), old, new), json)


@command(MODELS)
def merge(model: ModelPath, into: str, /, *others: str, json: Flag = False) -> None:
    """Merge classes into the first one: their images become images of it.

    Parameters
    ----------
    into
        The class that stays.
    others
        The classes that become part of it.
    json
        Print the step's result as one JSON object.
    """
    from equipoise.app.console import CorrectionConsole, make_console
    from equipoise.app.corrections import merge as change

    with closing(CorrectionConsole(json, make_console())) as listener:
        result = change(model_dir(model), into, others, listener)
    _print(result, json)


@command(MODELS)
def move(
    model: ModelPath,
    /,
    *images: str,
    create: Flag = False,
    json: Flag = False,
) -> None:
    """Move images that were learned in a wrong class: IMAGE… CLASS, the class last.

    Parameters
    ----------
    images
        Image files that were learned, or names that `equipoise suspects` shows, and then the class they belong to.
    create
        The class may be a new one.
    json
        Print the step's result as one JSON object.
    """
    from equipoise.app.console import CorrectionConsole, make_console
    from equipoise.app.corrections import move as change

    if len(images) < 2:
        raise UsageError("name at least one image, and then the class that it belongs to")
    *files, target = images
    with closing(CorrectionConsole(json, make_console())) as listener:
        result = change(model_dir(model), files, target, create, listener)
    _print(result, json)


def _print(result: StepResult, json: bool) -> None:
    from equipoise.app.card import describe_step
    from equipoise.app.console import make_console, result_lines

    if json:
        print(json_module.dumps(result.to_dict(), ensure_ascii=False))
        return
    print(describe_step(result, most=20))
    if result.kind != "rename":
        make_console().print(*result_lines(result), sep="\n", soft_wrap=True)


@command(MODELS)
def suspects(model: ModelPath, folder: Path | None = None, *, json: Flag = False) -> None:
    """List images that probably are in a wrong class, and nearly equal images in two classes.

    Parameters
    ----------
    folder
        The folder with the photos, to show their files; a model keeps no file names.
    json
        Print one JSON object per image.
    """
    from equipoise.app.console import make_console
    from equipoise.app.suspects import find_suspects, suspect_lines

    found = find_suspects(model_dir(model), folder)
    if json:
        for suspect in found:
            print(json_module.dumps(suspect.to_dict(), ensure_ascii=False))
        return
    make_console().print(*suspect_lines(found, folder), sep="\n", soft_wrap=True)
