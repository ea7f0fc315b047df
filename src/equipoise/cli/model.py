"""Commands of people who keep a classifier: learn, predict, evaluate, history, undo, forget, inspect, export, card."""

from __future__ import annotations

import json as json_module
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from equipoise.cli.base import MODELS, Flag, app
from equipoise.errors import UsageError

Repeated = Parameter(negative=())
Device = Annotated[str | None, Parameter(help="cpu, cuda, mps, …")]
Threads = Annotated[int | None, Parameter(help="CPU threads.")]


@app.command(group=MODELS)
def learn(
    model: Path,
    folder: Path,
    *,
    extend: Flag = False,
    holdout: float = 0.1,
    method: str | None = None,
    memory: int | None = None,
    epochs: str = "auto",
    backbone: str | None = None,
    weights: Path | None = None,
    image_size: str = "auto",
    recipe: str | None = None,
    seed: int | None = None,
    set_: Annotated[list[str] | None, Parameter(name="--set", negative=())] = None,
    strict: Flag = False,
    dry_run: Flag = False,
    device: Device = None,
    threads: Threads = None,
    json: Flag = False,
    quiet: Flag = False,
) -> None:
    """Teach a model the classes in a folder; the first call makes the model, each later one is a step.

    Parameters
    ----------
    model
        The model's directory.
    folder
        A folder with a folder of images for each class: FOLDER/<class>/*.jpg (png, webp, bmp, gif, tif).
    extend
        Add images to classes that are known already.
    holdout
        Share of each class's images that is kept for judging the model, and never trained on.
    method
        How it learns, chosen at the first call; wa unless told: see `equipoise methods`.
    memory
        Images of old classes that may be kept; 2000 unless told.
    epochs
        Passes over the images; auto follows from their number.
    backbone
        resnet32, resnet18 or timm:NAME, chosen at the first call; resnet32 unless told.
    weights
        A local safetensors file from which the backbone starts, at the first call.
    image_size
        Pixels along each side, chosen at the first call; auto follows from the pictures.
    recipe
        Settings by name, or your own TOML file, chosen at the first call.
    seed
        Another seed, another draw; chosen at the first call.
    set_
        Any other setting, as train.lr=0.05, method.norm=2 or augment.flip=false; may be repeated.
    strict
        Refuse a folder in which anything is wrong, instead of leaving it out.
    dry_run
        Show what would be learned, and how long it would take, and stop.
    json
        The step's record as one JSON object.
    quiet
        Only the verdict.
    """
    from equipoise.app.learn import Onlooker, Wishes, learn_folder
    from equipoise.app.modeldir import ModelDir
    from equipoise.app.show import JsonLines, Show, console
    from equipoise.study.recipe import parse_overrides

    overrides = parse_overrides(set_ or [])
    for name, value in (("device", device), ("threads", threads)):
        if value is not None:
            overrides.setdefault("runtime", {})[name] = value
    wishes = Wishes(
        method=method,
        backbone=backbone,
        weights=weights,
        image_size=_auto(image_size, "image-size"),
        recipe=recipe,
        memory=memory,
        epochs=_auto(epochs, "epochs"),
        seed=seed,
        holdout=holdout,
        extend=extend,
        strict=strict,
        overrides=overrides,
    )
    onlooker: Onlooker = JsonLines(dry_run) if json else Show(quiet, console())
    try:
        learn_folder(ModelDir(model), folder, wishes, onlooker, dry_run)
    finally:
        onlooker.close()


def _auto(text: str, option: str) -> int | None:
    if text == "auto":
        return None
    if not text.isdecimal():
        raise UsageError(f"--{option} is '{text}', but it takes a whole number, or auto")
    return int(text)


@app.command(group=MODELS)
def predict(
    model: Path,
    images: Annotated[list[str], Parameter(allow_leading_hyphen=True, negative=())],
    /,
    *,
    top: int = 1,
    json: Flag = False,
    csv: Flag = False,
    device: Device = None,
    threads: Threads = None,
) -> None:
    """Name what is on pictures, with probabilities.

    Parameters
    ----------
    model
        The model's directory.
    images
        Files, folders (with all below them), or - for an image or a list of paths on standard input.
    top
        How many classes to name, the likeliest first.
    json
        One JSON object a line and image.
    csv
        A table with commas: path, class, probability, and so on for --top.
    """
    from equipoise.app.modeldir import ModelDir
    from equipoise.app.predict import predict as ask
    from equipoise.app.predict import sources
    from equipoise.app.say import answers

    if json and csv:
        raise UsageError("--json and --csv are two forms of the same answers: choose one")
    loaded = ModelDir(model).load(_runtime(device, threads))
    top = min(top, len(loaded.classes))
    answers(ask(loaded, sources(images), top), top, "json" if json else "csv" if csv else "text")


def _runtime(device: str | None, threads: int | None) -> Any:
    import torch

    from equipoise.learn.runtime import Runtime

    runtime = Runtime(device or "cpu", threads=threads)
    if threads is not None:
        torch.set_num_threads(threads)
    return runtime


@app.command(group=MODELS)
def evaluate(model: Path, folder: Path, *, json: Flag = False, device: Device = None, threads: Threads = None) -> None:
    """Judge a model by a folder of images it has not seen: FOLDER/<class>/*.jpg.

    Parameters
    ----------
    model
        The model's directory.
    folder
        A folder with a folder of images for each class.
    json
        All figures as one JSON object.
    """
    from rich.markup import escape

    from equipoise.app.evaluate import evaluate_folder
    from equipoise.app.modeldir import ModelDir
    from equipoise.app.show import Show, console, evaluation_table, left_out, plain_left_out

    screen = console()
    show = Show(quiet=json, console=screen)
    try:
        facts, found = evaluate_folder(ModelDir(model).load(_runtime(device, threads)), folder, show)
    finally:
        show.close()
    if json:
        print(json_module.dumps(facts | {"left_out": plain_left_out(found)}, ensure_ascii=False))
        return
    screen.print(left_out(found.left_out), soft_wrap=True, end="")
    screen.print(evaluation_table(facts))
    for entry in facts["confusions"]:
        names = f"{escape(str(entry['class']))} taken for {escape(str(entry['taken_for']))}"
        screen.print(f"  {entry['images']} × {names}", style="dim", soft_wrap=True)
    screen.print(f"[bold]{facts['accuracy']:.1f} %[/] of {facts['images']:,} images right")


@app.command(group=MODELS)
def history(model: Path, *, json: Flag = False) -> None:
    """What a model has learned, step by step: when, which classes, how well then and now.

    Parameters
    ----------
    model
        The model's directory.
    json
        The steps as one JSON list.
    """
    from equipoise.app.modeldir import ModelDir
    from equipoise.app.show import console, history_rows, history_table

    steps = ModelDir(model).steps()
    if json:
        print(json_module.dumps(history_rows(steps), ensure_ascii=False))
        return
    screen = console()
    screen.print(history_table(steps))
    screen.print(
        "then, now: accuracy of the step's own classes, on held-out images, after it and today; γ: the correction",
        style="dim",
        soft_wrap=True,
    )


@app.command(group=MODELS)
def undo(model: Path, *, json: Flag = False) -> None:
    """Take the last step back: the model is, to the bit, what it was before.

    Parameters
    ----------
    model
        The model's directory.
    json
        The step that was undone, as one JSON object.
    """
    from equipoise.app.card import what
    from equipoise.app.modeldir import ModelDir

    place = ModelDir(model)
    place.check()
    with place.writing():
        record = place.undo()
    if json:
        print(json_module.dumps(record, ensure_ascii=False))
    else:
        print(f"undone: step {record['step']} ({what(record)}); {len(place.config()['classes'])} classes are known")


@app.command(group=MODELS)
def forget(model: Path, classes: Annotated[list[str], Repeated], /, *, json: Flag = False) -> None:
    """Remove classes for good: exemplars, held-out images, weights of the head, names, and all earlier versions.

    Parameters
    ----------
    model
        The model's directory.
    classes
        Names of classes.
    json
        What was removed, as one JSON object.
    """
    from equipoise.app.forget import forget as remove
    from equipoise.app.modeldir import ModelDir

    gone = remove(ModelDir(model), classes)
    if json:
        facts = {"classes": gone.classes, "images": gone.images, "scanned": gone.scanned, "record": gone.record}
        print(json_module.dumps(facts, ensure_ascii=False))
        return
    print(f"forgotten: {', '.join(map(str, gone.classes))}; {gone.images} images removed")
    print(f"looked through all {gone.scanned} files of {model}: nothing of them is left, and no step can be undone")
    print("the network's inner weights were trained with them: where that is too much, learn anew without them")


@app.command(group=MODELS)
def inspect(model: Path, *, json: Flag = False) -> None:
    """What a model is made of: classes, memory, norms, size on disk.

    Parameters
    ----------
    model
        The model's directory.
    json
        All facts as one JSON object.
    """
    from equipoise.app.modeldir import ModelDir
    from equipoise.app.show import console, inspection, inspection_lines, inspection_table

    place = ModelDir(model)
    facts = inspection(place)
    if json:
        print(json_module.dumps(facts, ensure_ascii=False))
        return
    screen = console()
    for line in inspection_lines(facts):
        screen.print(line, soft_wrap=True)
    screen.print(inspection_table(facts))


@app.command(group=MODELS)
def export(model: Path, out: Path, *, memory: Annotated[bool, Parameter(negative="--no-memory")] = True) -> None:
    """Write a model as one ONNX file (OUT.onnx), or copy it, as it is now, into a new directory.

    Parameters
    ----------
    model
        The model's directory.
    out
        A file that ends in .onnx, or a directory.
    memory
        A copy without the memory has no exemplars and no held-out images: it predicts, and learns no more.
    """
    from equipoise.app.export import export_onnx
    from equipoise.app.modeldir import ModelDir
    from equipoise.app.show import console

    place = ModelDir(model)
    if out.suffix == ".onnx":
        with console().status("exporting"):
            takes = export_onnx(place.load(), out)
        print(f"wrote {out}: {takes} in, probabilities out, names in its metadata")
    else:
        place.copy_to(out, memory)
        print(f"copied to {out}" + ("" if memory else ", without exemplars and held-out images"))


@app.command(group=MODELS)
def card(model: Path) -> None:
    """Print a model's card, which is its README.md.

    Parameters
    ----------
    model
        The model's directory.
    """
    from equipoise.app.card import facts
    from equipoise.app.modeldir import ModelDir

    place = ModelDir(model)
    print(place.steadily(lambda config: facts(config, place.steps_of(config), place.images_of(config))))
