"""Commands that sort photos and correct a model: sort, rename, merge, move, suspects."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from equipoise.cli.app import MODELS, Flag, command
from equipoise.cli.models import ModelPath, existing_model
from equipoise.core.output import print_json, say
from equipoise.errors import DataError, UsageError

if TYPE_CHECKING:
    from equipoise.engine.results import StepResult


@command(MODELS, "sort pets camera/ sorted/ --dry-run", "sort pets camera/ sorted/ --how link")
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
    """Sort photos into folders by class, and group photos of unknown classes by similarity.

    Parameters
    ----------
    folder
        A folder with photos; its subfolders are searched as well.
    out
        A new directory, for one folder per class, unknown-1, unknown-2, … and a contact sheet.
    how
        Copy the photos, make symbolic links to them, or move them. Nothing is overwritten.
    accept
        Fraction of images of known classes to recognise as such; the others are treated as unknown.
    dry_run
        Show what would be done, without changing anything.
    json
        Print one JSON object per photo.
    """
    from equipoise.app.sort_console import print_sorted
    from equipoise.app.sorting import sort_photos
    from equipoise.core.console import make_console
    from equipoise.core.progress_line import track

    loaded = existing_model(model).load(images=True)
    photos = sort_photos(
        loaded, folder, out, how, accept, dry_run, lambda items, total: track(items, total, "sorting", "photos")
    )
    if json:
        for photo in photos:
            print_json(photo.to_dict())
    else:
        print_sorted(make_console(), photos, model, out, dry_run)
    if failed := sum(photo.error is not None for photo in photos):
        raise DataError(f"{failed} of {len(photos)} photos could not be sorted; they were left where they are")


@command(MODELS, 'rename pets cat "house cat"', "rename pets cat tabby --json")
def rename(model: ModelPath, old: str, new: str, /, *, json: Flag = False) -> None:
    """Rename a class.

    Parameters
    ----------
    old
        Current name of the class.
    new
        New name of the class.
    json
        Print the step's result as one JSON object.
    """
    from equipoise.app.corrections import rename as change

    _print(change(existing_model(model), old, new), json)


@command(MODELS, "merge pets cat kitten", "merge pets dog puppy hound")
def merge(model: ModelPath, into: str, /, *others: str, json: Flag = False) -> None:
    """Merge classes into the first one, which gets their images.

    Parameters
    ----------
    into
        The class to keep.
    others
        The classes to merge into it.
    json
        Print the step's result as one JSON object.
    """
    from equipoise.app.console import CorrectionConsole
    from equipoise.app.corrections import merge as change
    from equipoise.core.console import make_console

    with closing(CorrectionConsole(json, make_console())) as listener:
        result = change(existing_model(model), into, others, listener)
    _print(result, json)


@command(MODELS, "move pets photos/cat/rex.jpg dog", "move pets a.jpg b.jpg ferret --create")
def move(
    model: ModelPath,
    /,
    *images: str,
    create: Flag = False,
    json: Flag = False,
) -> None:
    """Move images to the class they belong to: IMAGE… CLASS.

    Parameters
    ----------
    images
        Image files that were learned, or names that `equipoise suspects` shows, followed by the class they belong to.
    create
        Allow the class to be a new one.
    json
        Print the step's result as one JSON object.
    """
    from equipoise.app.console import CorrectionConsole
    from equipoise.app.corrections import move as change
    from equipoise.core.console import make_console

    if len(images) < 2:
        raise UsageError("name at least one image, followed by the class that it belongs to")
    *files, target = images
    with closing(CorrectionConsole(json, make_console())) as listener:
        result = change(existing_model(model), files, target, create, listener)
    _print(result, json)


def _print(result: StepResult, json: bool) -> None:
    from equipoise.app.card import describe_step
    from equipoise.app.console import result_lines
    from equipoise.core.console import make_console, print_lines

    if json:
        print_json(result.to_dict())
        return
    say(describe_step(result, most=20))
    if result.kind != "rename":
        print_lines(make_console(), result_lines(result))


@command(MODELS, "suspects pets", "suspects pets photos/ --json")
def suspects(model: ModelPath, folder: Path | None = None, *, json: Flag = False) -> None:
    """List images that are probably in the wrong class, and nearly identical images in two classes.

    Parameters
    ----------
    folder
        The folder with the photos, to show their file names, which a model does not keep.
    json
        Print one JSON object per image.
    """
    from equipoise.app.suspects import find_suspects, suspect_lines
    from equipoise.core.console import make_console, print_lines

    found = find_suspects(existing_model(model), folder)
    if json:
        for suspect in found:
            print_json(suspect.to_dict())
        return
    print_lines(make_console(), suspect_lines(found, folder))
