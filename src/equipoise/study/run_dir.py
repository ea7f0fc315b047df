"""A run's directory: settings, results, and a checkpoint to continue from.

config.json              settings, versions, commit, command
metrics.jsonl            one line per step
summary.json             written after the last step
predictions/step-N       predictions on every test image, before and after the correction
gallery/                 thumbnails of exemplars and of some test images
checkpoint/manifest.json the files of the checkpoint; replaced last, so that they are complete when it names them
checkpoint/step/         the current step
"""

from __future__ import annotations

import json
import os
import platform
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from functools import partial
from importlib.metadata import version
from itertools import accumulate
from pathlib import Path
from typing import Any

import msgspec
from torch import Tensor

from equipoise.core.config import flatten
from equipoise.core.directory import MAX_FILE_BYTES, Directory
from equipoise.core.open_dir import printable
from equipoise.core.tensors import read_tensors, write_tensors
from equipoise.data.images import Images, Store
from equipoise.data.memory import Memory
from equipoise.data.stream import ClassStream
from equipoise.engine.checkpoint import StepCheckpoint
from equipoise.engine.learner import Learner
from equipoise.engine.results import FORMAT, StepResult, read_results, write_lines
from equipoise.engine.settings import Settings
from equipoise.engine.step import StepOutcome
from equipoise.errors import RunError, UsageError
from equipoise.learn.method import Method
from equipoise.learn.runtime import processor
from equipoise.learn.saved_state import check_layout, check_loaded
from equipoise.learn.stage import TrainedStages
from equipoise.study.gallery import write_gallery
from equipoise.version import __version__

OWNED: dict[str, Any] = {
    **dict.fromkeys(("config.json", "metrics.jsonl", "summary.json", "report.html", ".lock"), "file"),
    **dict.fromkeys(("predictions", "gallery", "tracking", "checkpoint", "checkpoint/step"), "dir"),
    "checkpoint/manifest.json": "file",
}
"""What equipoise writes into a run directory."""
STATE = re.compile(r"step-\d+\.safetensors")


@dataclass(frozen=True)
class Manifest:
    """The content of checkpoint/manifest.json."""

    format: int
    data: str
    """The data set's fingerprint: rows of the memory are meaningless for other data."""
    steps: int = 0
    """Finished steps."""
    state: str | None = None
    """The file with the method's state after them."""
    memory: list[tuple[int, list[int]]] = field(default_factory=list)
    """Label and training rows of the exemplars of each class."""


@dataclass(frozen=True)
class Progress:
    """Progress of a run."""

    results: list[StepResult]
    """Results of the finished steps."""
    state: dict[str, Tensor] | None
    """The method's state after them."""
    memory: list[tuple[int, list[int]]]
    epochs: int
    """Finished epochs of the interrupted step."""


class RunDir:
    """The directory of a run; one process at a time may open it."""

    def __init__(self, path: Path, settings: Settings, trained: TrainedStages | None = None) -> None:
        self.path, self.settings, self.trained = path, settings, trained
        self.directory = Directory(path)
        self._checkpoint = self.directory.sub("checkpoint")

    def check(self) -> None:
        """Raise an error if the directory holds something else; changes nothing."""
        if self.directory.exists("compare.json"):
            raise UsageError(f"{self.path} holds a comparison: choose another --out for a run")
        self.directory.check_owned(OWNED)
        if not self.directory.exists("config.json"):
            if self._checkpoint.exists("manifest.json"):
                raise self._damaged("config.json is missing")
            return
        try:
            config = read_config(self.directory)
            stored = Settings.from_identity(config["settings"]).identity()
        except (UsageError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise self._damaged(f"cannot read its settings: {error}") from error
        old, new = flatten(stored), flatten(self.settings.identity())
        for name in old | new:
            if old.get(name) != new.get(name):
                what = f"{_shown_name(name)}={_shown(old.get(name))}, but this command has {_shown(new.get(name))}"
                raise UsageError(f"{self.path} holds a run with {printable(what)}: choose another --out or remove it")

    def _damaged(self, why: object) -> RunError:
        return RunError(f"the run in {self.path} is damaged ({printable(str(why))}): remove it to start again")

    @contextmanager
    def open(self, stream: ClassStream, method: Method) -> Iterator[Progress]:
        """Lock the directory and read the progress of the run; ``method`` takes the shapes of the state."""
        make_dirs(self.directory, "checkpoint", "predictions")
        with self.directory.lock():
            self._read(stream)
            yield self._progress(method)

    def _read(self, stream: ClassStream) -> None:
        self.check()
        fingerprint = stream.fingerprint()
        if not self.directory.exists("config.json"):
            config = {"settings": self.settings.identity(), "classes": list(stream.names), "sizes": stream.sizes}
            self.directory.write_json("config.json", {"format": FORMAT, **config, **environment()})
        self._names, self._sizes = stream.names, stream.sizes
        self._manifest = self._read_manifest() or Manifest(FORMAT, fingerprint)
        if self._manifest.data != fingerprint:
            raise RunError(f"the data changed since the run in {self.path} began: restore it, or choose another --out")
        self._remove_temporary()
        self._begin_step()

    def _read_manifest(self) -> Manifest | None:
        """Read and check the manifest: files that it does not name will be deleted."""
        if not self._checkpoint.exists("manifest.json"):
            return None
        content = self._checkpoint.read_json("manifest.json")
        try:
            manifest = msgspec.convert(content, Manifest)
            state = _state_name(manifest.steps) if manifest.steps else None
            if not 0 <= manifest.steps <= len(self._sizes) or manifest.state != state:
                raise ValueError("manifest.json names a state that its steps do not have")
        except ValueError as error:
            raise self._damaged(error) from error
        _check_format(manifest.format, self.path)
        return manifest

    # ---- finished steps

    def _progress(self, method: Method) -> Progress:
        """Return everything that is needed to continue."""
        manifest, state = self._manifest, None
        seen = sum(self._sizes[: manifest.steps])
        try:
            if manifest.state is not None:
                fits = partial(check_layout, method, classes=seen)
                state = read_tensors(self._checkpoint, manifest.state, fits)
            return Progress(self.results(), state, manifest.memory, self.current_step.epochs)
        except RunError as error:
            raise self._damaged(error) from error

    def restore(self, progress: Progress, learner: Learner, store: Store) -> None:
        """Bring a learner to the end of the last finished step."""
        if progress.state is None:
            return
        try:
            learner.method.load_state_dict(progress.state)
            seen = progress.results[-1].seen
            check_loaded(learner.method, seen)
            for label, rows in progress.memory:
                if not 0 <= label < seen or not all(0 <= row < len(store) for row in rows):
                    raise ValueError("an exemplar is not a training image")
            learner.memory.restore(progress.memory, store)
        except (RuntimeError, ValueError, TypeError, KeyError, IndexError) as error:
            raise self._damaged(str(error).splitlines()[0]) from error

    def results(self) -> list[StepResult]:
        """Return the results of the finished steps."""
        done = self._manifest.steps
        if not done:
            return []
        lines = self.directory.read_json_lines("metrics.jsonl")[:done]
        results = read_results(lines, "metrics.jsonl", self._names)
        if [result.seen for result in results] != list(accumulate(self._sizes[:done])):
            raise RunError("metrics.jsonl does not have the steps of this run")
        return results

    def finish_step(self, outcome: StepOutcome, learner: Learner) -> None:
        """Save a finished step; replacing the manifest commits it."""
        result, memory = outcome.result, list(learner.memory.row_indices().items())
        write_tensors(self.directory, f"predictions/step-{result.step}.safetensors", outcome.tensors())
        self.directory.write_json_text("metrics.jsonl", write_lines([*self.results(), result]))
        name = _state_name(result.step)
        write_tensors(self._checkpoint, name, learner.method.state_dict())
        self._manifest = Manifest(FORMAT, self._manifest.data, result.step, name, memory)
        self._checkpoint.write_json("manifest.json", asdict(self._manifest))
        self._begin_step()

    def finish(self, summary: Mapping[str, float | None], memory: Memory, tests: Images) -> None:
        """Save the files that are written after the last step."""
        gallery = self.directory.sub("gallery")
        if not gallery.exists("gallery.json"):
            name = f"predictions/step-{self._manifest.steps}.safetensors"
            predictions = read_tensors(self.directory, name, limit=MAX_FILE_BYTES)
            write_gallery(gallery, memory, tests, predictions)
        self.directory.write_json("summary.json", dict(summary))

    def _remove_temporary(self) -> None:
        """Delete what a killed process left behind; the lock is held."""
        self.directory.remove_temporary(below=False)
        for name in ("checkpoint", "predictions", "gallery"):  # not tracking: those files are not ours
            if self.directory.exists(name):
                self.directory.remove_temporary(name)

    def _begin_step(self) -> None:
        """Delete old states, and open the checkpoint of the next step."""
        for entry in self._checkpoint.entries():
            if STATE.fullmatch(entry.name) and entry.name != self._manifest.state:
                self._checkpoint.remove(entry.name)
        self.current_step = StepCheckpoint(self._checkpoint, "step", f"step {self._manifest.steps + 1}")
        self.current_step.trained = self.trained


def make_dirs(directory: Directory, *names: str, option: str = "--out") -> None:
    """Create directories below a path that the user chose with ``option``; an empty name is the path itself."""
    try:
        for name in names:
            directory.make_dir(name)
    except RunError as error:
        raise UsageError(f"{error}; choose another {option}") from error


def read_config(directory: Directory) -> dict[str, Any]:
    """Read config.json of a run of this or an older version."""
    config: dict[str, Any] = directory.read_json("config.json")
    for name, kind in {"settings": dict, "format": int}.items():
        if not isinstance(config, dict) or not isinstance(config.get(name), kind):
            raise RunError(f"{directory.path / 'config.json'} is damaged (it has no {name}): restore it from a copy")
    _check_format(config["format"], directory.path)
    return config


def _check_format(found: int, path: Path) -> None:
    if found > FORMAT:
        raise RunError(
            f"{path} has format {found}, but this version of equipoise reads up to {FORMAT}: update equipoise"
        )


def _state_name(step: int) -> str:
    """Return the file with a method's state after a step."""
    return f"step-{step}.safetensors"


def flat_settings(settings: Mapping[str, Any]) -> dict[str, str]:
    """Return the settings as text, by the names that ``--set`` takes."""
    return {_shown_name(name): _shown(value) for name, value in flatten(settings).items()}


def _shown_name(name: str) -> str:
    return name.replace("fields.", "method.")


def _shown(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def environment() -> dict[str, Any]:
    """Return the command, versions and machine, for config.json."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return {
        "command": shlex.join([Path(sys.argv[0]).name, *sys.argv[1:]]),
        "equipoise": __version__,
        "commit": _commit_of(Path(__file__).parent),
        "python": platform.python_version(),
        "versions": {name: version(name) for name in ("torch", "numpy", "pillow", "scikit-learn")},
        "machine": {"system": platform.platform(), "cores": cores, "cpu": processor()},
    }


def _commit_of(folder: Path) -> str | None:
    """Return the commit of a source checkout, with + for uncommitted changes; None for an installed package."""

    def git(*arguments: str) -> str:
        command = ["git", "--no-optional-locks", "-C", str(folder), *arguments]  # leave no index.lock in the checkout
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()

    try:
        top = Path(git("rev-parse", "--show-toplevel")).resolve()
        if top not in folder.resolve().parents or ".venv" in folder.parts:
            return None
        return git("rev-parse", "HEAD") + ("+" if git("status", "--porcelain", ".") else "")
    except (OSError, subprocess.CalledProcessError):
        return None
