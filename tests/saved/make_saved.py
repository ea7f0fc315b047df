"""Write small run and model directories, so that later versions can test that they still read them.

Each released version has its directories in tests/saved/VERSION. To add those of another version, check it out,
install it into an environment of its own, and run this script there from the root of the current clone:

    CHECKOUT/.venv/bin/python tests/saved/make_saved.py tests/saved/VERSION

The script uses only the command line, ``IncrementalClassifier`` and names of files, and runs on one thread. Two calls
on one machine give the same figures and weights; only times and dates differ. VERSION/made.json names the processor
and the version of torch: others may round differently.
"""

from __future__ import annotations

import io
import json
import os
import platform
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image, ImageDraw
from sklearn.datasets import load_digits
from torch.optim.optimizer import register_optimizer_step_post_hook

SEED = 0
SIZE = 16
"""Width and height of the pictures."""
FIRST, SECOND, THIRD = ("cross", "red disc"), ("ring", "stripes"), ("bar", "frame")
"""Classes of each step; the third is for continuing a saved model."""
PER_CLASS = 6
TINY = ("--set", "net.backbone=tiny", "--set", "stream.classes=4")
RUN = ("--steps", 2, "--epochs", 10, "--memory", 20, *TINY, "--threads", 1)
NEW_MODEL = ("--backbone", "tiny", "--image-size", SIZE, "--memory", 8, "--set", "augment.flip=false")
LEARN = ("--epochs", 60, "--holdout", 0.25, "--threads", 1)
MEASURED = ("seconds", "images_per_second", "seconds_by_part", "memory_peak_mb")
"""Figures of a step that differ from run to run."""
FEATURE_ROWS = [3, 300, 600, 900, 1200]
"""Digits for which the classifier of features stores its probabilities."""
ONE_MORE = 6
"""The class that continues it."""


def main(version_directory: str) -> None:
    """Write every directory and what this version expects of it."""
    out = Path(version_directory).resolve()
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    os.chdir(out)  # commands are stored in the directories, and must not name a path of this machine
    write_json(Path("made.json"), {"equipoise": version("equipoise"), **environment()})
    for step, classes in enumerate((FIRST, SECOND, THIRD), 1):
        draw_pictures(Path(f"pictures-{step}"), classes)
    draw_probes(Path("probe"))
    save_runs()
    save_models()
    save_classifier()
    shutil.rmtree("pictures-1")
    for page in out.rglob("report.html"):
        page.unlink()
    check_paths(out)


def environment() -> dict[str, Any]:
    """Return what decides how numbers are rounded."""
    capabilities: dict[str, Any] = getattr(torch.cpu, "get_capabilities", dict)()
    name = capabilities.get("cpu_name") or platform.processor() or platform.machine()
    return {"torch": torch.__version__, "cpu": f"{name} ({torch.backends.cpu.get_cpu_capability()})"}


# ---- runs


def save_runs() -> None:
    command = ["run", "digits", "--method", "wa"]
    equipoise(*command, "--out", "run-finished", *RUN)
    stopped = Path("run-stopped")
    with stop_training(lambda: (stopped / "metrics.jsonl").exists() and has_epoch(stopped / "checkpoint" / "step", 4)):
        equipoise(*command, "--out", "run-stopped", *RUN, code=130)
    with working_copy(stopped), count_updates() as updates:
        lines = equipoise(*command, "--out", "run-stopped", *RUN, "--json")
    rows = [json.loads(line) for line in lines]
    figures = [{name: value for name, value in row.items() if name not in MEASURED} for row in rows[:-1]]
    expected = {"rows": figures, "summary": rows[-1]["summary"], "updates": len(updates)}
    write_json(Path("run-stopped.expected.json"), expected)
    equipoise("compare", "digits", "--methods", "ce+kd,bic", "--seeds", "0", "--out", "comparison", *RUN)


# ---- models


def save_models() -> None:
    save_model("model", "wa", "pictures-1", "pictures-2")
    save_model("model-icarl", "icarl", "pictures-1")
    save_model("model-der", "der", "pictures-1", "pictures-2", "--set", "method.tune_epochs=20")
    save_stopped_model()


def save_model(name: str, method: str, first: str, second: str | None = None, *extra: str) -> None:
    equipoise("learn", name, first, "--method", method, *NEW_MODEL, *LEARN, *extra)
    if second is not None:
        equipoise("learn", name, second, *LEARN)
    expected = answers(name)
    changes: dict[str, list[Any]] = {
        "continued": ["learn", name, "pictures-3", *LEARN],
        "forgotten": ["forget", name, FIRST[1]],
    }
    if second is not None:
        changes["undone"] = ["undo", name]
    for change, command in changes.items():
        with working_copy(Path(name)):
            equipoise(*command)
            expected[change] = {"command": command, "predictions": predictions(name)}
    write_json(Path(f"{name}.expected.json"), expected)


def save_stopped_model() -> None:
    place = Path("model-stopped")
    equipoise("learn", place, "pictures-1", *NEW_MODEL, *LEARN)
    command = ["learn", str(place), "pictures-2", *LEARN]
    with stop_training(lambda: has_epoch(place / ".step", 20)):
        equipoise(*command, code=130)
    with working_copy(place):
        with count_updates() as updates:
            equipoise(*command)
        expected = {"command": command, "updates": len(updates), **answers(place)}
    write_json(Path("model-stopped.expected.json"), expected)


def answers(model: object) -> dict[str, Any]:
    """Return what the commands print about a model, and what it predicts for the probe images."""
    (history,), (facts,) = equipoise("history", model, "--json"), equipoise("inspect", model, "--json")
    return {"predictions": predictions(model), "history": json.loads(history), "inspect": json.loads(facts)}


def predictions(model: object) -> list[dict[str, Any]]:
    return [json.loads(line) for line in equipoise("predict", model, "probe", "--json", "--top", 6)]


def save_classifier() -> None:
    """Save a classifier of feature rows that has learned two steps, as a plain copy without versions/."""
    import equipoise as eq

    features, labels = digit_features()
    settings = {"runtime": {"threads": 1}}
    classifier = eq.IncrementalClassifier(memory=12, seed=SEED, epochs=10, holdout=0.1, settings=settings)
    for classes in ((0, 1, 2), (3, 4, 5)):
        learned = np.flatnonzero(np.isin(labels, classes))[:45]
        classifier.partial_fit(features[learned], labels[learned])
    classifier.save("classifier-features")
    shutil.rmtree("classifier-features/versions")  # half of its size; the files at the top are enough
    rows = features[FEATURE_ROWS]
    expected = {"classes": classifier.classes_.tolist(), "rows": FEATURE_ROWS}
    expected["probabilities"] = classifier.predict_proba(rows).tolist()
    loaded = eq.load("classifier-features")
    teach_one_more(loaded)
    expected["continued"] = loaded.predict_proba(rows).tolist()
    write_json(Path("classifier-features.expected.json"), expected)


def teach_one_more(classifier: Any) -> None:
    """Teach a loaded classifier of feature rows one more class."""
    features, labels = digit_features()
    learned = np.flatnonzero(labels == ONE_MORE)[:15]
    classifier.set_params(epochs=10).partial_fit(features[learned], labels[learned])


def digit_features() -> tuple[np.ndarray, np.ndarray]:
    """Return 16 features of each of scikit-learn's digits (means of 2 × 2 pixels), and their labels."""
    pixels, labels = load_digits(return_X_y=True)
    return pixels.reshape(-1, 4, 2, 4, 2).mean((2, 4)).reshape(-1, 16), labels


# ---- pictures


def draw_pictures(folder: Path, shapes: Sequence[str]) -> None:
    """Draw a folder of pictures for each class."""
    for shape in shapes:
        (folder / shape).mkdir(parents=True)
        for number in range(PER_CLASS):
            draw(shape, number).save(folder / shape / f"{number}.png")


def draw_probes(folder: Path) -> None:
    """Draw a picture of each class that no model has seen."""
    folder.mkdir()
    for shape in (*FIRST, *SECOND, *THIRD):
        draw(shape, PER_CLASS).save(folder / f"{shape}.png")


def draw(shape: str, number: int) -> Image.Image:
    """Draw one shape in random colours, a little out of the centre."""
    random = np.random.default_rng([SEED, number, *shape.encode()])
    dark, light = (tuple(random.integers(low, low + 90, 3).tolist()) for low in (0, 160))
    ink = (200, 20, 20) if shape == "red disc" else dark
    picture = Image.new("RGB", (SIZE, SIZE), light)
    canvas = ImageDraw.Draw(picture)
    x, y = random.integers(-2, 3, 2).tolist()
    box, middle_x, middle_y = (x + 3, y + 3, x + 12, y + 12), x + 8, y + 8
    if shape == "cross":
        canvas.line((x + 3, middle_y, x + 12, middle_y), ink, 3)
        canvas.line((middle_x, y + 3, middle_x, y + 12), ink, 3)
    elif shape == "red disc":
        canvas.ellipse(box, ink)
    elif shape == "ring":
        canvas.ellipse(box, None, ink, 2)
    elif shape == "stripes":
        for row in range(y % 4, SIZE, 4):
            canvas.line((0, row, SIZE, row), ink, 2)
    elif shape == "bar":
        canvas.rectangle((middle_x - 1, 0, middle_x + 1, SIZE), ink)
    else:
        canvas.rectangle(box, None, ink, 2)
    return picture


# ---- tools


def equipoise(*arguments: object, code: int = 0) -> list[str]:
    """Run a command in this process; return the lines it prints."""
    from equipoise.cli import main as start

    words = [str(argument) for argument in arguments]
    sys.argv = ["equipoise", *words]  # a run stores the command it was started with
    printed = io.StringIO()
    try:
        with redirect_stdout(printed):
            start(words)
    except SystemExit as end:
        if end.code != code:
            raise RuntimeError(f"`equipoise {' '.join(words)}` ended with {end.code}, not with {code}") from end
    return printed.getvalue().splitlines()


def has_epoch(folder: Path, epoch: int) -> bool:
    """Return whether this epoch of the step under way is saved."""
    return any(folder.glob(f"*-epoch-{epoch}.safetensors"))


@contextmanager
def stop_training(when: Callable[[], bool]) -> Iterator[None]:
    """Interrupt training, as Ctrl-C does, at the first update of the weights for which ``when`` is true."""

    def interrupt(*_: object) -> None:
        if when():
            raise KeyboardInterrupt

    hook = register_optimizer_step_post_hook(interrupt)
    try:
        yield
    finally:
        hook.remove()


@contextmanager
def count_updates() -> Iterator[list[None]]:
    """Collect one entry per update of any network's weights."""
    updates: list[None] = []
    hook = register_optimizer_step_post_hook(lambda *_: updates.append(None))
    try:
        yield updates
    finally:
        hook.remove()


@contextmanager
def working_copy(directory: Path) -> Iterator[None]:
    """Put a directory back as it is now when the block ends."""
    with tempfile.TemporaryDirectory() as folder:
        kept = shutil.copytree(directory, Path(folder) / "kept")
        yield
        shutil.rmtree(directory)
        shutil.copytree(kept, directory)


def write_json(file: Path, value: Any) -> None:
    file.write_text(json.dumps(value, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def check_paths(out: Path) -> None:
    """Refuse files that name a directory of this machine."""
    private = [str(path).encode() for path in (out.parent, Path.home(), Path(sys.prefix), Path(tempfile.gettempdir()))]
    for file in out.rglob("*"):
        if file.is_file() and any(path in file.read_bytes() for path in private):
            raise RuntimeError(f"{file} names a directory of this machine")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    main(sys.argv[1])
