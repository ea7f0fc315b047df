"""A run's directory: settings, figures, and a checkpoint from which the same command goes on.

config.json              settings, versions, commit, command
metrics.jsonl            one line a step
summary.json             written when the last step is done
predictions/step-N       what the model said of every test image, before and after the correction
gallery/                 thumbnails of exemplars and of some test images
checkpoint/manifest.json which files are the checkpoint; it is replaced last, so the rest is whole when it is there
checkpoint/step/         the step under way
"""

from __future__ import annotations

import json
import os
import platform
import shlex
import subprocess
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from importlib.metadata import version
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from torch import Tensor

from equipoise.data.images import Images, Store
from equipoise.data.memory import Memory
from equipoise.data.stream import ClassStream
from equipoise.errors import RunError, UsageError
from equipoise.files import locked, read_json, read_tensors, write_json, write_tensors, write_text
from equipoise.learn.method import Method
from equipoise.learn.runtime import processor
from equipoise.settings import build
from equipoise.study.gallery import write_gallery
from equipoise.study.recipe import Settings
from equipoise.study.stages import Stages
from equipoise.version import __version__

FORMAT = 1


@dataclass(frozen=True)
class Manifest:
    """What the checkpoint is made of."""

    format: int
    data: str
    """The data set's fingerprint: rows of the memory mean nothing in other data."""
    steps: int = 0
    """Whole steps."""
    state: str | None = None
    """The file of the method's state after them."""
    memory: tuple[tuple[Any, ...], ...] = ()
    """Label and rows of each class in the memory."""


@dataclass(frozen=True)
class Found:
    """How far a run has come."""

    rows: list[dict[str, Any]]
    """The figures of its whole steps."""
    state: dict[str, Tensor] | None
    """What the method was after them."""
    memory: tuple[tuple[Any, ...], ...]
    epochs: int
    """Finished epochs of the step under way."""


class RunDir:
    """Open as a context: one process at a time."""

    def __init__(self, path: Path, settings: Settings) -> None:
        self.path, self.settings = path, settings
        self._config, self._checkpoint = path / "config.json", path / "checkpoint"
        self._manifest_file = self._checkpoint / "manifest.json"

    def check(self) -> None:
        """Refuse a directory that holds another run. Touches nothing, so it can be asked before data is loaded."""
        if (self.path / "compare.json").exists():
            raise UsageError(f"{self.path} holds a comparison, which is no place for a run: choose another --out")
        if not self._config.exists():
            if self._manifest_file.exists():
                raise self._damaged("config.json is missing")
            return
        known = read_json(self._config)
        if not isinstance(known, dict) or not isinstance(known.get("settings"), dict):
            raise self._damaged("config.json holds no settings")
        if known.get("format") != FORMAT:
            raise RunError(f"{self.path} has format {known.get('format')}, but this version reads {FORMAT}")
        try:
            written = Settings.of(known["settings"]).identity()  # with what is new since then at its default
        except (UsageError, KeyError, TypeError) as error:
            raise self._damaged(f"its settings cannot be read: {error}") from error
        difference = first_difference(written, self.settings.identity())
        if difference:
            raise UsageError(f"{self.path} holds a run with {difference}: choose another --out, or remove it")

    def _damaged(self, why: object) -> RunError:
        return RunError(f"the run in {self.path} is damaged ({why}): remove the directory to start anew")

    def open(self, stream: ClassStream) -> Self:
        """Lock the directory and read how far the run on this stream has come."""
        try:
            self._checkpoint.mkdir(parents=True, exist_ok=True)
            (self.path / "predictions").mkdir(exist_ok=True)
        except OSError as error:
            raise UsageError(f"cannot write to {self.path} ({error.strerror}): choose another --out") from error
        with ExitStack() as stack:
            stack.enter_context(locked(self.path))
            self._read(stream)
            self._lock = stack.pop_all()
        return self

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._lock.close()

    def _read(self, stream: ClassStream) -> None:
        self.check()
        fingerprint = stream.fingerprint()
        if not self._config.exists():
            classes = {"classes": list(stream.names), "sizes": stream.sizes}
            write_json(self._config, {"format": FORMAT, "settings": self.settings.identity(), **classes, **facts()})
        self._manifest = Manifest(FORMAT, fingerprint)
        if self._manifest_file.exists():
            try:
                known = dict(read_json(self._manifest_file))
                known.pop("stages", None)  # until 2026-11-16 it listed the step under way too
                self._manifest = build(Manifest, known, "manifest")
            except (UsageError, TypeError, ValueError) as error:
                raise self._damaged(error) from error
            if self._manifest.data != fingerprint:
                raise RunError(
                    f"the data has changed since the run in {self.path} began: restore it, or choose another --out"
                )
        self._tidy()
        self.stages = self._next_stages()

    # ---- whole steps

    @property
    def steps_done(self) -> int:
        return self._manifest.steps

    def _next_stages(self) -> Stages:
        """Where the step that comes next is kept while it is under way."""
        return Stages(self._checkpoint / "step", f"step {self.steps_done + 1}")

    def found(self) -> Found:
        """All that is needed to go on."""
        manifest = self._manifest
        try:
            state = read_tensors(self._checkpoint / manifest.state) if manifest.state is not None else None
        except RunError as error:
            raise self._damaged(error) from error
        return Found(self.rows(), state, manifest.memory, self.stages.epochs)

    def restore(self, found: Found, method: Method, memory: Memory, store: Store) -> None:
        """Bring a method and its memory to where the last whole step left them."""
        if found.state is None:
            return
        try:
            method.load_state_dict(found.state)
            memory.restore([(int(label), list(rows)) for label, rows in found.memory], store)
        except (RuntimeError, ValueError, TypeError) as error:
            raise self._damaged(str(error).splitlines()[0]) from error

    def rows(self) -> list[dict[str, Any]]:
        """The figures of the steps that are whole."""
        try:
            lines = (self.path / "metrics.jsonl").read_text(encoding="utf-8").splitlines() if self.steps_done else []
            rows = [json.loads(line) for line in lines[: self.steps_done]]
            if [row["step"] for row in rows] != list(range(1, self.steps_done + 1)):
                raise ValueError("lines are missing")
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise self._damaged(f"metrics.jsonl: {error}") from error
        return rows

    def finish_step(
        self,
        row: dict[str, Any],
        state: dict[str, Tensor],
        memory: dict[int, list[int]],
        predictions: dict[str, Tensor],
    ) -> None:
        step = row["step"]
        write_tensors(self.path / "predictions" / f"step-{step}.safetensors", predictions)
        lines = [json.dumps(line, allow_nan=False) for line in [*self.rows(), row]]
        write_text(self.path / "metrics.jsonl", "\n".join(lines) + "\n")
        name = f"step-{step}.safetensors"
        write_tensors(self._checkpoint / name, state)
        self._manifest = replace(self._manifest, steps=step, state=name, memory=tuple(memory.items()))
        write_json(self._manifest_file, asdict(self._manifest))
        self._tidy()
        self.stages = self._next_stages()

    def finish(self, summary: dict[str, float | None], memory: Memory, tests: Images) -> None:
        if not (self.path / "gallery" / "gallery.json").exists():
            said = read_tensors(self.path / "predictions" / f"step-{self.steps_done}.safetensors")
            write_gallery(self.path / "gallery", memory, tests, said)
        write_json(self.path / "summary.json", summary)

    def _tidy(self) -> None:
        """Remove what the manifest does not name, also what a killed process left behind; we hold the lock."""
        wanted = {"manifest.json", "step", self._manifest.state}
        for file in self._checkpoint.iterdir():
            if file.name not in wanted:
                file.unlink()


def first_difference(old: Any, new: Any, where: str = "") -> str | None:
    """The first setting in which two runs differ, in words."""
    if isinstance(old, dict) and isinstance(new, dict):
        for key in [*old, *(key for key in new if key not in old)]:
            found = first_difference(old.get(key), new.get(key), f"{where}.{key}" if where else key)
            if found:
                return found
        return None
    if old == new:
        return None
    name = where.replace("fields.", "method.")
    return f"{name} = {_shown(old)}, and this command has {_shown(new)}"


def _shown(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def facts() -> dict[str, Any]:
    """What else a reader of the run may want to know."""
    return {
        "command": shlex.join([Path(sys.argv[0]).name, *sys.argv[1:]]),
        "equipoise": __version__,
        "commit": _commit_of(Path(__file__).parent),
        "python": platform.python_version(),
        "versions": {name: version(name) for name in ("torch", "numpy", "pillow", "scikit-learn")},
        "machine": {"system": platform.platform(), "cores": len(_affinity()), "cpu": processor()},
    }


def _affinity() -> Sequence[int]:
    return list(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else range(os.cpu_count() or 1)


def _commit_of(folder: Path) -> str | None:
    """The commit of a source checkout, with + if files were changed since; None for an installed package."""
    git = ["git", "-C", str(folder)]
    try:
        top = subprocess.run([*git, "rev-parse", "--show-toplevel"], capture_output=True, text=True, check=True)
        if Path(top.stdout.strip()).resolve() not in folder.resolve().parents or ".venv" in folder.parts:
            return None
        head = subprocess.run([*git, "rev-parse", "HEAD"], capture_output=True, text=True, check=True)
        changed = subprocess.run([*git, "status", "--porcelain", "."], capture_output=True, text=True, check=True)
        return head.stdout.strip() + ("+" if changed.stdout.strip() else "")
    except (OSError, subprocess.CalledProcessError):
        return None
