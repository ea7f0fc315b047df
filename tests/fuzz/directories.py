"""The JSON files of models, runs and comparisons, read as commands read them."""

from __future__ import annotations

import io
import shutil
from collections.abc import Callable, Sequence
from contextlib import redirect_stderr, redirect_stdout
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import numpy as np

from equipoise.app import card
from equipoise.app.classifier import IncrementalClassifier
from equipoise.app.console import history_rows, history_table
from equipoise.app.inspection import inspect_model, inspection_lines, inspection_table
from equipoise.app.model_dir import ModelDir
from equipoise.app.report.charts import model_figures
from equipoise.app.report.facts import read_facts
from equipoise.app.report.page import render_model
from equipoise.app.suspects import find_suspects, suspect_lines
from equipoise.core.console import SafeConsole
from equipoise.core.directory import Directory
from equipoise.core.escape import json_text
from equipoise.data.dataset import Dataset
from equipoise.data.sources import load
from equipoise.engine.checkpoint import StepCheckpoint, read_stages
from equipoise.engine.settings import Settings
from equipoise.errors import EquipoiseError
from equipoise.learn.runtime import Runtime
from equipoise.study.experiment import Experiment
from equipoise.study.report import report
from equipoise.study.report.comparison_tables import method_table, protocol, title
from equipoise.study.report.groups import read_comparison
from equipoise.study.report.runs import read_run
from equipoise.study.report.thumbnails import read_gallery
from equipoise.study.run_dir import RunDir, flat_settings, read_config
from tests.fuzz.loop import Case, Make
from tests.fuzz.mutate import change_json

SAVED = Path(__file__).parents[1] / "saved" / "0.1.0"
"""Small directories of an older version; reading them upgrades them."""
Read = Callable[[Path], object]


def model_originals(root: Path) -> list[Path]:
    """Make models of several methods and formats, and return their directories."""
    for name in ("model", "model-der", "model-icarl", "model-stopped", "classifier-features"):
        shutil.copytree(SAVED / name, root / name)
    numbers = np.random.default_rng(0)
    for method in ("ridge", "slda", "ncm"):
        classifier = IncrementalClassifier(method=method)
        for labels in (["a", "b"], ["c"]):
            classifier.partial_fit(numbers.normal(size=(8 * len(labels), 5)).astype(np.float32), labels * 8)
        classifier.save(root / method)
    return sorted(root.iterdir())


def model_files(model: Path) -> list[str]:
    """Return the JSON files of a model, and its card."""
    version = ModelDir(model).config().version
    previous = [f"versions/{folder.name}/config.json" for folder in model.glob("versions/*")]
    folder = f"versions/{version}/" if previous else ""
    mine = [f"{folder}steps.json", f"{folder}images.json"]
    files = ["config.json", "config.json", *mine, *mine, *previous, ".step/stages.json", "README.md"]
    return [file for file in files if (model / file).exists()]


def show(*parts: Any) -> None:
    """Print for people, and as JSON."""
    console = SafeConsole(file=io.StringIO(), width=100)
    for part in parts:
        console.print(part)


def show_history(model: Path) -> None:
    steps = ModelDir(model).steps()
    show(history_table(steps))
    json_text(history_rows(steps))


def show_inspection(model: Path) -> None:
    facts = inspect_model(ModelDir(model))
    show(inspection_table(facts), *inspection_lines(facts))
    json_text(facts)


def show_suspects(model: Path) -> None:
    found = find_suspects(ModelDir(model))
    show(*suspect_lines(found, None))
    json_text([suspect.to_dict() for suspect in found])


def show_card(model: Path) -> None:
    place = ModelDir(model)
    config = place.config()
    written = (model / "README.md").read_bytes().decode(errors="surrogateescape")
    card.render(written, config, place.steps_of(config), place.images_of(config))


def read_checkpoint(model: Path) -> None:
    read_stages(Directory(model).sub(".step"))
    checkpoint = StepCheckpoint(Directory(model), ".step", "step 1")
    checkpoint.load(0)


def undo(model: Path) -> None:
    with ModelDir(model).writing():
        ModelDir(model).undo()


def show_model_page(model: Path) -> None:
    facts = read_facts(ModelDir(model))
    render_model(facts, model_figures(facts))


MODEL_READS: dict[str, tuple[float, bool, Read]] = {
    "load": (4, False, lambda model: ModelDir(model).load(Runtime("cpu"), images=True)),
    "history": (3, False, show_history),
    "inspect": (2, False, show_inspection),
    "suspects": (2, False, show_suspects),
    "card": (3, False, show_card),
    "checkpoint": (1, True, read_checkpoint),
    "undo": (1, True, undo),
    "report": (0.1, False, show_model_page),
}
"""How often each is tried, whether it changes the directory, and what it does."""


def run_files(run: Path) -> list[str]:
    """Return the JSON files of a run or comparison."""
    files = ("config.json", "metrics.jsonl", "summary.json", "gallery/gallery.json")
    paused = ("checkpoint/manifest.json", "checkpoint/step/stages.json")
    own = [file for file in (*files, *paused) if (run / file).exists()]
    compared = ["compare.json"] if (run / "compare.json").exists() else []
    return own + compared + [f"bic/steps-2/seed-0/{file}" for file in files if compared]


def show_run(run: Path) -> None:
    record = read_run(run)
    record.check()
    flat_settings(record.settings)
    read_gallery(record.directory, record.seen)


def continue_run(run: Path, settings: dict[str, Settings], data: Dataset) -> None:
    """Continue as ``run`` does, up to the next step; the settings are those of the unchanged run."""
    run_dir = RunDir(run, settings[run.name])
    run_dir.check()
    experiment = Experiment.prepare(settings[run.name], data)
    learner, stream = experiment.learner, experiment.stream
    with run_dir.open(stream, learner.method) as progress:
        run_dir.restore(progress, learner, stream.train.store)
        json_text(progress.epochs)
        run_dir.current_step.load(0)


def show_comparison(root: Path) -> None:
    found = read_comparison(Directory(root))
    title(found)
    protocol(found)
    method_table(found, [])


def run_reads() -> dict[str, tuple[float, bool, Read]]:
    """Return how runs are read; see ``MODEL_READS``."""
    own = {name: read_config(Directory(SAVED / name))["settings"] for name in ("run-finished", "run-stopped")}
    settings = {name: Settings.from_identity(identity) for name, identity in own.items()}
    settings["comparison"] = settings["run-stopped"]
    return {
        "show": (6, False, show_run),
        "continue": (2, True, partial(continue_run, settings=settings, data=load("digits"))),
        "compare": (3, False, show_comparison),
        "report": (0.15, True, report),
    }


def models(place: Path) -> Make:
    """Read the JSON files of models."""
    return _directories(place, model_originals(place / "originals"), model_files, MODEL_READS)


def runs(place: Path) -> Make:
    """Read the JSON files of runs and comparisons."""
    for name in ("run-finished", "run-stopped", "comparison"):
        shutil.copytree(SAVED / name, place / "originals" / name)
    return _directories(place, sorted((place / "originals").iterdir()), run_files, run_reads())


def _directories(
    place: Path,
    originals: Sequence[Path],
    files_of: Callable[[Path], list[str]],
    reads: dict[str, tuple[float, bool, Read]],
) -> Make:
    """Return a function that changes one file of one of these directories."""
    files = {original: files_of(original) for original in originals}
    weights = [weight for weight, _, _ in reads.values()]
    for original in originals:
        shutil.copytree(original, place / original.name)
        for _, changes, function in reads.values():
            try:
                function(place / original.name)
            except EquipoiseError:  # it is not for directories of this kind
                continue
            finally:
                if changes:
                    shutil.rmtree(place / original.name)
                    shutil.copytree(original, place / original.name)

    def make(random: Random) -> Case:
        original = random.choice(originals)
        file = random.choice(files[original])
        (name,) = random.choices(list(reads), weights)
        _, changes, function = reads[name]
        text = (original / file).read_bytes()
        data = change_json(text, random, file.endswith(".jsonl"))
        copy = place / original.name

        def read() -> None:
            (copy / file).write_bytes(data)
            try:
                with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
                    function(copy)
            finally:
                if changes:
                    shutil.rmtree(copy)
                    shutil.copytree(original, copy)
                else:
                    (copy / file).write_bytes(text)

        return Case(data, read, f"{name} {original.name}/{file}")

    return make
