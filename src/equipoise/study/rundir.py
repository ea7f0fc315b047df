"""A run's directory: settings, figures, and a checkpoint from which the same command goes on.

config.json              settings, versions, commit, command
metrics.jsonl            one line a step
summary.json             written when the last step is done
predictions/step-N       what the model said of every test image, before and after the correction
checkpoint/manifest.json which files are the checkpoint; it is replaced last, so the rest is whole when it is there
"""

from __future__ import annotations

import fcntl
import json
import os
import platform
import shlex
import subprocess
import sys
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from torch import Tensor

import equipoise
from equipoise.errors import RunError, UsageError
from equipoise.files import read_json, read_tensors, write_json, write_tensors, write_text
from equipoise.learn.trainer import StageState
from equipoise.study.recipe import Settings

FORMAT = 1


class RunDir:
    """Open as a context: one process at a time."""

    def __init__(self, path: Path, settings: Settings) -> None:
        self.path, self.settings = path, settings

    def check(self) -> None:
        """Refuse a directory that holds another run. Touches nothing, so it can be asked before data is loaded."""
        config = self.path / "config.json"
        if not config.exists():
            return
        known = read_json(config)
        if known.get("format") != FORMAT:
            raise RunError(f"{self.path} has format {known.get('format')}, but this version reads {FORMAT}")
        difference = first_difference(known["settings"], self.settings.identity())
        if difference:
            raise UsageError(f"{self.path} holds a run with {difference}: choose another --out, or remove it")

    def __enter__(self) -> Self:
        try:
            (self.path / "checkpoint").mkdir(parents=True, exist_ok=True)
            (self.path / "predictions").mkdir(exist_ok=True)
            self._lock = (self.path / ".lock").open("w")
        except OSError as error:
            raise UsageError(f"cannot write to {self.path} ({error.strerror}): choose another --out") from error
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            self._lock.close()
            raise RunError(
                f"another process is writing to {self.path}: wait for it, or choose another --out"
            ) from error
        try:
            self._open()
        except BaseException:
            self._lock.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._lock.close()

    def _open(self) -> None:
        self.check()
        config = self.path / "config.json"
        if not config.exists():
            write_json(config, {"format": FORMAT, "settings": self.settings.identity(), **facts()})
        self._manifest: dict[str, Any] = {
            "format": FORMAT,
            "steps": 0,
            "state": None,
            "memory": [],
            "stages": [],
        }
        if self._manifest_file.exists():
            self._manifest = read_json(self._manifest_file)

    @property
    def _manifest_file(self) -> Path:
        return self.path / "checkpoint" / "manifest.json"

    # ---- whole steps

    @property
    def steps_done(self) -> int:
        return int(self._manifest["steps"])

    @property
    def epochs_done(self) -> int:
        """Of the stage that was under way when the run stopped."""
        return int(self._manifest["stages"][-1]["epochs"]) if self._manifest["stages"] else 0

    def state(self) -> dict[str, Tensor] | None:
        """The method's state after the last whole step."""
        name = self._manifest["state"]
        return None if name is None else read_tensors(self.path / "checkpoint" / name)

    @property
    def memory_rows(self) -> list[tuple[int, list[int]]]:
        return [(label, rows) for label, rows in self._manifest["memory"]]

    def rows(self) -> list[dict[str, Any]]:
        """The figures of the steps that are whole."""
        file = self.path / "metrics.jsonl"
        lines = file.read_text(encoding="utf-8").splitlines() if file.exists() else []
        return [json.loads(line) for line in lines[: self.steps_done]]

    def finish_step(
        self,
        row: dict[str, Any],
        state: dict[str, Tensor],
        memory: dict[int, list[int]],
        predictions: dict[str, Tensor],
    ) -> None:
        step = row["step"]
        write_tensors(self.path / "predictions" / f"step-{step}.safetensors", predictions)
        lines = [json.dumps(line) for line in [*self.rows(), row]]
        write_text(self.path / "metrics.jsonl", "\n".join(lines) + "\n")
        name = f"step-{step}.safetensors"
        write_tensors(self.path / "checkpoint" / name, state)
        self._commit(steps=step, state=name, memory=list(memory.items()), stages=[])

    def finish(self, summary: dict[str, float | None]) -> None:
        write_json(self.path / "summary.json", summary)

    # ---- stages within a step (the trainer's journal)

    def load(self, stage: int) -> StageState | None:
        stages = self._manifest["stages"]
        if stage >= len(stages):
            return None
        entry = stages[stage]
        return StageState(entry["epochs"], entry["seconds"], read_tensors(self.path / "checkpoint" / entry["file"]))

    def save(self, stage: int, state: StageState) -> None:
        name = f"step-{self.steps_done + 1}-stage-{stage}-epoch-{state.epochs}.safetensors"
        write_tensors(self.path / "checkpoint" / name, state.tensors)
        entry = {"file": name, "epochs": state.epochs, "seconds": state.seconds}
        self._commit(stages=[*self._manifest["stages"][:stage], entry])

    def _commit(self, **changes: Any) -> None:
        """Replace the manifest, then remove what it no longer names."""
        self._manifest = self._manifest | changes
        write_json(self._manifest_file, self._manifest)
        wanted = {self._manifest["state"], *(entry["file"] for entry in self._manifest["stages"])}
        for file in self._manifest_file.parent.glob("*.safetensors"):
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
        "equipoise": equipoise.__version__,
        "commit": _commit_of(Path(__file__).parent),
        "python": platform.python_version(),
        "versions": {name: version(name) for name in ("torch", "numpy", "pillow", "scikit-learn")},
        "machine": {"system": platform.platform(), "cores": len(_affinity())},
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
