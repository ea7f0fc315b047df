"""Commands that correct a model: rename, merge, move, suspects."""

from __future__ import annotations

import json as json_module
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from equipoise.cli.app import MODELS, Flag, command
from equipoise.cli.models import ModelPath, model_dir
from equipoise.cli.options import Repeated
from equipoise.errors import UsageError

if TYPE_CHECKING:
    from equipoise.engine.results import StepResult


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
def merge(model: ModelPath, into: str, others: Annotated[list[str], Repeated], /, *, json: Flag = False) -> None:
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
    images: Annotated[list[str], Repeated],
    /,
    *,
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

    *files, target = images
    if not files:
        raise UsageError("name at least one image, and then the class that it belongs to")
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
