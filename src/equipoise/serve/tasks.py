"""The work of a job, in the worker process. A task is a dict as in ``schema.Task``, with files instead of pictures."""

from __future__ import annotations

import re
import shutil
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from equipoise.app.card import counted, describe_step
from equipoise.app.corrections import checked_name, merge, move, rename
from equipoise.app.export import export_onnx
from equipoise.app.forget import forget
from equipoise.app.learn import LearnListener, LearnOptions, learn_files
from equipoise.app.model_dir import ModelDir
from equipoise.app.photo_folder import Decoded, FolderScan, decode_file
from equipoise.app.start_again import start_again
from equipoise.app.step_plan import StepPlan
from equipoise.app.stored_features import ids_of
from equipoise.engine.results import StepResult
from equipoise.errors import DataError, LockedError, UsageError
from equipoise.serve.limits import LOCK_SECONDS
from equipoise.serve.overview import class_average, tested_on
from equipoise.serve.words import percent, pictures

Send = Callable[[dict[str, Any]], None]
Task = Mapping[str, Any]


class JobListener(LearnListener):
    """Sends the progress of a step, at most ten times per second."""

    def __init__(self, send: Send) -> None:
        self.send, self.last = send, 0.0
        self.started, self.passed, self.total = time.monotonic(), 0, 0

    def progress(self, text: str, done: int = 0, total: int = 0) -> None:
        now = time.monotonic()
        if done and done < total and now - self.last < 0.1:
            return
        self.last = now
        left = (now - self.started) * (total - done) / done if done and now - self.started > 0.5 else None
        self.send({"progress": {"text": text, "done": done, "total": total, "seconds_left": left}})

    def reading(self, images: Iterable[Decoded], total: int) -> Iterable[Decoded]:
        self.started = time.monotonic()
        for done, image in enumerate(images):
            self.progress("looking at pictures", done, total)
            yield image
        self.progress("learning")

    def plan(self, plan: StepPlan, found: FolderScan, seconds: float, epochs_done: int) -> None:
        self.started, self.passed, self.total = time.monotonic(), 0, plan.load if plan.model.trains else 0
        self.progress("training" if plan.model.trains else "learning", 0, self.total)

    def batch(self, images: int) -> None:
        self.passed += images
        self.progress("training", min(self.passed, self.total), self.total)


def run_task(place: ModelDir, task: Task, folder: Path, send: Send) -> dict[str, Any]:
    """Execute a task; wait if another process is changing the model.

    Returns
    -------
    dict
        ``message``, and where they apply ``problems`` and ``file``.
    """
    until = time.monotonic() + LOCK_SECONDS
    while True:
        try:
            return TASKS[task["kind"]](place, task, folder, send)
        except LockedError:
            if time.monotonic() > until:
                raise
            send({"progress": {"text": "waiting for another process that is changing the model"}})
            time.sleep(0.5)


def _learn(place: ModelDir, task: Task, folder: Path, send: Send) -> dict[str, Any]:
    place.check_free()
    # new models keep thumbnails, because the page shows them
    wanted = LearnOptions(extend=task["extend"], keep=None if place.exists else "thumbnails")
    found = FolderScan(folder)
    for name, files in task["classes"].items():  # two names may be the same letters, written in two ways
        found.classes.setdefault(checked_name(name), []).extend(files)
    try:
        result = learn_files(place, found, wanted, JobListener(send))
    except DataError:
        problems = _problems(found)
        if len(problems) < sum(map(len, found.classes.values())):
            raise
        send({"problems": problems})
        raise DataError(f"none of these pictures can be used ({problems[0]['reason']}): add others") from None
    return {"message": describe(result), "problems": _problems(found)}


def _problems(found: FolderScan) -> list[dict[str, str]]:
    """Return the pictures that were not used."""
    files = [entry for entry in found.skipped if entry.path.endswith(".png")]  # not whole classes
    return [{"picture": Path(entry.path).stem, "reason": _reason(entry.reason)} for entry in files]


def _reason(reason: str) -> str:
    """Return why a picture was not used, without our own file names."""
    if "No such file" in reason:
        return "the picture is not there any more: upload it again"
    return "another picture is the same" if reason.startswith("duplicate of ") else pictures(reason)


def _correct(place: ModelDir, task: Task, folder: Path, send: Send) -> dict[str, Any]:
    """Teach one picture, or move it if it was learned in another class."""
    place.check()
    model = place.load(images=True)
    found = decode_file(task["file"], model.shape[1], model.bicubic)
    if isinstance(found, DataError):
        raise found
    kept = model.images_by_class().items()
    name = next((name for name, parts in kept if any(found[1] in ids_of(part) for part in parts)), None)
    if name is not None:
        if str(name) == task["to"]:
            raise UsageError(f"the model has already learned this picture as {name}: more pictures of it would help")
        if sum(map(len, model.images_by_class()[name])) == 1:  # the class is this picture
            known = task["to"] in map(str, model.classes)
            result = merge(place, task["to"], [str(name)]) if known else rename(place, str(name), task["to"])
            return {"message": describe(result)}
        return {"message": describe(move(place, [found[1]], task["to"], create=True, listener=JobListener(send)))}
    return _learn(place, {"classes": {task["to"]: [task["file"]]}, "extend": True}, folder, send)


def _rename(place: ModelDir, task: Task, folder: Path, send: Send) -> dict[str, Any]:
    return {"message": what(rename(place, task["name"], task["to"]))}


def _merge(place: ModelDir, task: Task, folder: Path, send: Send) -> dict[str, Any]:
    return {"message": describe(merge(place, task["to"], task["names"], JobListener(send)))}


def _move(place: ModelDir, task: Task, folder: Path, send: Send) -> dict[str, Any]:
    return {"message": describe(move(place, task["images"], task["to"], create=True, listener=JobListener(send)))}


def _forget(place: ModelDir, task: Task, folder: Path, send: Send) -> dict[str, Any]:
    gone = forget(place, task["names"])
    return {"message": f"forgot {', '.join(map(str, gone.classes))}; {counted(gone.images, 'picture')} removed"}


def _undo(place: ModelDir, task: Task, folder: Path, send: Send) -> dict[str, Any]:
    place.check()
    with place.writing():
        if task["version"] and task["version"] != place.config().version:
            raise UsageError("the model has changed meanwhile: look at its history before you undo")
        undone = place.undo()
    return {"message": "undid the last step" if undone is None else f"undid: {what(undone)}"}


def _start_again(place: ModelDir, task: Task, folder: Path, send: Send) -> dict[str, Any]:
    start_again(place)
    return {"message": "deleted the model, with all its classes and pictures"}


def _export(place: ModelDir, task: Task, folder: Path, send: Send) -> dict[str, Any]:
    place.check()
    target = export_folder(folder, task["id"])
    target.mkdir(exist_ok=True)
    if task["format"] == "onnx":
        file = target / "model.onnx"
        send({"progress": {"text": "creating and checking the ONNX file"}})
        made = export_onnx(place.load(), file)
        checked = f", checked on {made.pictures} pictures" if made.pictures else ""
        return {"message": f"created an ONNX file: takes {made.takes}{checked}", "file": str(file)}
    send({"progress": {"text": "packing the model"}})
    place.copy_to(target / "packed" / plain_name(place.path))
    file = Path(shutil.make_archive(str(target / "model"), "zip", target / "packed"))
    shutil.rmtree(target / "packed")
    return {"message": "packed the whole model", "file": str(file)}


def export_folder(folder: Path, job: str) -> Path:
    """Return where a job puts its file; the server deletes it if the job is not finished."""
    return folder / f"export-{job}"


def plain_name(model: Path) -> str:
    """Return a file name for a download."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", model.resolve().name).strip("-.") or "model"


def describe(result: StepResult) -> str:
    """Describe a step and how well the model performs after it."""
    accuracy = class_average(result)
    if accuracy is None or result.seen < 2:
        return what(result)
    return f"{what(result)}: accuracy {percent(accuracy)} on {tested_on(result)}"


def what(result: StepResult) -> str:
    """Describe what a step did."""
    text = describe_step(result, most=8, noun="picture")
    return f"learned {text}" if result.kind == "learn" else text


def warm_up(place: ModelDir) -> None:
    """Import and compute everything that the first job needs, so that it does not have to wait."""
    if place.exists:
        model = place.load()
        model.settings.runtime.start(model.trains)
        model.inputs(torch.from_numpy(np.zeros((1, *model.shape), np.uint8)))


TASKS: dict[str, Callable[[ModelDir, Task, Path, Send], dict[str, Any]]] = {
    "learn": _learn,
    "correct": _correct,
    "rename": _rename,
    "merge": _merge,
    "move": _move,
    "forget": _forget,
    "undo": _undo,
    "start_again": _start_again,
    "export": _export,
}
