"""Commands for models: learn, predict, evaluate, history, undo, forget, inspect."""

from __future__ import annotations

import difflib
import os
from collections.abc import Sequence
from contextlib import closing, suppress
from dataclasses import asdict
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Parameter

from equipoise.cli.app import MODELS, Flag, command
from equipoise.cli.options import SetOption
from equipoise.core.open_dir import printable
from equipoise.core.output import print_json, say
from equipoise.errors import UsageError

if TYPE_CHECKING:
    from equipoise.app.model_dir import ModelDir

Device = Annotated[str | None, Parameter(help="Where to compute: cpu, cuda, mps, … (default: cpu).")]
ModelPath = Annotated[Path, Parameter(help="Directory of the model.")]
Threads = Annotated[int | None, Parameter(help="Number of CPU threads.")]
MOST_MODELS = 1000
"""Directories that are searched for a mistyped name."""


@command(
    MODELS,
    "learn pets photos/    # photos/cat/*.jpg, photos/dog/*.jpg",
    "learn pets more-photos/    # adds classes",
    "learn pets photos/ --dry-run",
    "learn digits scans/ --method wa --set train.milestones=[20,30]",
)
def learn(
    model: ModelPath,
    folder: Path,
    *,
    extend: Flag = False,
    holdout: float | None = None,
    method: str | None = None,
    keep: Literal["features", "thumbnails", "statistics"] | None = None,
    memory: str | None = None,
    epochs: str = "auto",
    backbone: str | None = None,
    weights: Path | None = None,
    image_size: str = "auto",
    recipe: str | None = None,
    seed: int | None = None,
    set_: SetOption = None,
    strict: Flag = False,
    dry_run: Flag = False,
    device: Device = None,
    threads: Threads = None,
    json: Flag = False,
    quiet: Flag = False,
) -> None:
    """Teach a model the classes in a folder. The first call creates the model; later calls add classes.

    Parameters
    ----------
    folder
        A folder with one folder of images per class: FOLDER/<class>/*.jpg (png, webp, bmp, gif, tif).
    extend
        Accept images of classes that the model already knows; these classes are learned again.
    holdout
        Fraction of each class's images to hold out for evaluation (default: 0.1, or 0 for ridge, which is
        evaluated by leave-one-out).
    method
        Learning method, fixed when the model is created (default: ridge, which trains nothing); see
        `equipoise methods`.
    keep
        What to keep on disk, for methods that train nothing: features of all images, thumbnails as well, or only
        statistics (class means and one matrix). Statistics do not allow removing a class exactly, and are fixed when
        the model is created (default: features).
    memory
        Number of exemplars to keep, for methods that train (default: 2000).
    epochs
        Number of epochs; auto chooses it from the number of images.
    backbone
        Network: lite0, lite1 or lite2 with ImageNet weights, or resnet32, resnet18 or timm:NAME with random weights;
        fixed when the model is created (default: lite0).
    weights
        Safetensors file with pretrained weights for the backbone, or hub to download those of timm:NAME; fixed when
        the model is created.
    image_size
        Width and height of images in pixels, fixed when the model is created; auto chooses it from the images.
    recipe
        Name of a recipe or a TOML file, fixed when the model is created.
    seed
        Random seed, fixed when the model is created.
    set_
        Any other setting, with a TOML value, such as train.lr=0.05 or train.milestones=[20,30]; may be repeated.
    strict
        Fail if any file cannot be used, instead of skipping it.
    dry_run
        Show what would be learned and how long it would take, without learning anything.
    json
        Print the step's result as one JSON object.
    quiet
        Print only the result.
    """
    from equipoise.app.console import LearnConsole, LearnJson
    from equipoise.app.learn import LearnListener, LearnOptions, learn_folder
    from equipoise.core.config import with_settings
    from equipoise.core.console import make_console
    from equipoise.engine.recipes import parse_overrides

    wanted = LearnOptions(
        method=method,
        backbone=backbone,
        weights=weights,
        image_size=_auto(image_size, "image-size"),
        recipe=recipe,
        keep=keep,
        memory=memory and (memory if memory == "all" else _auto(memory, "memory")),
        epochs=_auto(epochs, "epochs"),
        seed=seed,
        holdout=holdout,
        extend=extend,
        strict=strict,
        overrides=with_settings(parse_overrides(set_ or []), {"runtime.device": device, "runtime.threads": threads}),
    )
    listener: LearnListener = LearnJson(dry_run) if json else LearnConsole(quiet, make_console())
    with closing(listener):
        learn_folder(model_dir(model), folder, wanted, listener, dry_run)


def model_dir(model: Path) -> ModelDir:
    """Return the directory of a model for a command; Ctrl-C is ignored once the command has changed it."""
    from equipoise.app.model_dir import ModelDir
    from equipoise.core.signals import ignore_interrupts

    return ModelDir(model, on_commit=ignore_interrupts)


def existing_model(model: Path) -> ModelDir:
    """Return the directory of an existing model; for a mistyped name, the error suggests the closest one."""
    if not os.path.lexists(model) and (close := _similar_model(model)) is not None:
        raise UsageError(f"{printable(model)} does not exist: did you mean {printable(close)}?")
    return model_dir(model)


def _similar_model(model: Path) -> Path | None:
    """Return the directory beside ``model`` that holds a model and has the most similar name."""
    with suppress(OSError, ValueError):
        names = [file.parent.name for file in islice(model.parent.glob("*/config.json"), MOST_MODELS)]
        close = difflib.get_close_matches(model.name, [name for name in names if name], n=1, cutoff=0.6)
        return model.with_name(close[0]) if close else None
    return None


def require_some(arguments: Sequence[str], what: str) -> None:
    """Raise an error if nothing is named. (After an option, cyclopts loses the end of lists that must not be empty.)"""
    if not arguments:
        raise UsageError(f"name at least one {what}")


def _auto(text: str, option: str) -> int | None:
    if text == "auto":
        return None
    from equipoise.core.config import parse_whole
    from equipoise.core.ranges import shown

    number = parse_whole(text)
    if number is None:
        raise UsageError(f"--{option} must be a whole number or auto, got {shown(text)}")
    return number


@command(MODELS, "predict pets photo.jpg", "predict pets holiday/ --top 3", "predict pets holiday/ --csv > found.csv")
def predict(
    model: ModelPath,
    /,
    *images: Annotated[str, Parameter(allow_leading_hyphen=True)],
    top: int = 1,
    accept: float = 0.95,
    json: Flag = False,
    csv: Flag = False,
    device: Device = None,
    threads: Threads = None,
) -> None:
    """Predict the classes of images, with probabilities.

    Parameters
    ----------
    images
        Files, folders (searched recursively), or - for an image or a list of paths on standard input.
    top
        Number of classes to show, the most probable first.
    accept
        Fraction of images of known classes to recognise as such; the others are reported as unknown. With a higher
        value, fewer images are unknown; with 1, none are.
    json
        Print one JSON object per image.
    csv
        Print CSV with the columns path, class, probability and unknown; --top adds more.
    """
    from equipoise.app import predict as prediction
    from equipoise.app.console import print_predictions

    require_some(images, "image")
    if json and csv:
        raise UsageError("--json and --csv exclude each other: choose one")
    loaded = _load(model, device, threads)
    top = min(top, len(loaded.classes))
    predictions = prediction.predict(loaded, prediction.expand_paths(images), top, accept=accept)
    print_predictions(predictions, top, "json" if json else "csv" if csv else "text")


def _load(model: Path, device: str | None, threads: int | None) -> Any:
    import torch

    from equipoise.learn.runtime import Runtime

    runtime = Runtime(device or "cpu", threads=threads)
    if threads is not None:
        torch.set_num_threads(threads)
    return existing_model(model).load(runtime)


@command(MODELS, "evaluate pets labelled/", "evaluate pets labelled/ --json")
def evaluate(
    model: ModelPath, folder: Path, *, json: Flag = False, device: Device = None, threads: Threads = None
) -> None:
    """Evaluate a model on a folder of labelled images, FOLDER/<class>/*.jpg.

    Parameters
    ----------
    folder
        A folder with one folder of images per class.
    json
        Print all figures as one JSON object.
    """
    from rich.markup import escape

    from equipoise.app.card import counted
    from equipoise.app.console import LearnConsole, evaluation_table, skipped_lines, skipped_list
    from equipoise.app.evaluate import evaluate_folder
    from equipoise.core.console import make_console, print_lines

    console = make_console()
    with closing(LearnConsole(quiet=json, console=console)) as listener:
        facts, found = evaluate_folder(_load(model, device, threads), folder, listener)
    if json:
        print_json(facts | {"skipped": skipped_list(found)})
        return
    print_lines(console, skipped_lines(found.skipped))
    console.print(evaluation_table(facts))
    for entry in facts["confusions"]:
        names = f"{escape(str(entry['class']))} predicted as {escape(str(entry['predicted_as']))}"
        console.print(f"  {entry['images']} × {names}", style="dim", soft_wrap=True)
    console.print(f"[bold]accuracy {facts['accuracy']:.1f} %[/] on {counted(facts['total'], 'image')}")


@command(MODELS, "history pets", "history pets --json")
def history(model: ModelPath, *, json: Flag = False) -> None:
    """Show what a model learned step by step: when, which classes, and their accuracy then and now.

    Parameters
    ----------
    json
        Print the steps as one JSON list.
    """
    from equipoise.app.console import history_rows, history_table
    from equipoise.core.console import make_console

    steps = existing_model(model).steps()
    if json:
        print_json(history_rows(steps))
        return
    console = make_console()
    console.print(history_table(steps))
    console.print(
        "then, now: accuracy of the step's classes after the step and now, on held-out images or by leave-one-out; "
        "all: accuracy of all classes after the step; γ: factor of the correction",
        style="dim",
        soft_wrap=True,
    )


@command(MODELS, "undo pets", "undo pets --json")
def undo(model: ModelPath, *, json: Flag = False) -> None:
    """Undo the last step and restore the previous version exactly.

    Parameters
    ----------
    json
        Print the undone step as one JSON object.
    """
    from equipoise.app.card import counted, describe_step

    place = existing_model(model)
    place.check()
    with place.writing():
        undone = place.undo()
    if json:
        print_json(None if undone is None else undone.to_dict())
    else:
        what = "the last step" if undone is None else f"step {undone.step} ({describe_step(undone)})"
        say(f"undid {what}; the model knows {counted(len(place.config().classes), 'class')}")


REMAINS = {
    "nothing": "the model now predicts as if it had never seen them",
    "statistics": "the matrix of all features still contains theirs; if that is a concern, learn with --keep features",
    "head": "the head was trained with them; if that is a concern, train a new model without them",
    "backbone": "the backbone's weights were trained with them; if that is a concern, train a new model without them",
}
"""What is left of forgotten classes, as a sentence."""


@command(MODELS, "forget pets hamster", 'forget pets "guinea pig" hamster --json')
def forget(model: ModelPath, /, *classes: str, json: Flag = False) -> None:
    """Remove classes for good: exemplars, held-out images, head weights, names, and all earlier versions.

    Parameters
    ----------
    classes
        Names of the classes to remove.
    json
        Print what was removed as one JSON object.
    """
    from equipoise.app.card import counted
    from equipoise.app.forget import forget as remove

    require_some(classes, "class")
    gone = remove(existing_model(model), classes)
    if json:
        print_json(asdict(gone))
        return
    say(f"forgot {', '.join(map(str, gone.classes))}; {counted(gone.images, 'image')} removed")
    say(f"searched all {gone.scanned:,} files of {model}: none of their images or names is left; no step can be undone")
    say(REMAINS[gone.remains])


@command(MODELS, "inspect pets", "inspect pets --json")
def inspect(model: ModelPath, *, json: Flag = False) -> None:
    """Show what is in a model: classes, exemplars, weight norms, size on disk.

    Parameters
    ----------
    json
        Print all facts as one JSON object.
    """
    from equipoise.app.inspection import inspect_model, inspection_lines, inspection_table
    from equipoise.core.console import make_console, print_lines

    facts = inspect_model(existing_model(model))
    if json:
        print_json(facts)
        return
    console = make_console()
    print_lines(console, inspection_lines(facts))
    console.print(inspection_table(facts))
