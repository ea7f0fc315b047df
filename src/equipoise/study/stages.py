"""The step under way, on disk: its training stages, each after its last finished epoch. The trainer's journal."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from equipoise.errors import RunError
from equipoise.files import read_json, read_tensors, write_json, write_tensors
from equipoise.learn.journal import StageState


class Stages:
    """``of`` says which step of what this is; what is found of any other is thrown away."""

    def __init__(self, folder: Path, of: str) -> None:
        self.folder, self.of = folder, of
        self._manifest = folder / "stages.json"
        self.dropped = False
        """Whether another step was found and thrown away."""
        self._stages = self._read()
        self._tidy()

    def _read(self) -> list[dict[str, Any]]:
        if not self._manifest.exists():
            return []
        found = read_json(self._manifest)
        if not isinstance(found, dict) or not isinstance(found.get("stages"), list):
            raise self._damaged("stages.json lists no stages")
        self.dropped = found.get("of") != self.of
        return [] if self.dropped else found["stages"]

    def _damaged(self, why: object) -> RunError:
        return RunError(f"the step under way in {self.folder} is damaged ({why}): remove it to redo the step")

    @property
    def epochs(self) -> int:
        """Finished epochs of the stage that was under way."""
        return int(self._stages[-1]["epochs"]) if self._stages else 0

    def load(self, stage: int) -> StageState | None:
        if stage >= len(self._stages):
            return None
        try:
            entry = self._stages[stage]
            return StageState(entry["epochs"], entry["seconds"], read_tensors(self.folder / entry["file"]))
        except (RunError, KeyError, TypeError) as error:
            raise self._damaged(error) from error

    def save(self, stage: int, state: StageState) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        name = f"stage-{stage}-epoch-{state.epochs}.safetensors"
        write_tensors(self.folder / name, state.tensors)
        entry = {"file": name, "epochs": state.epochs, "seconds": state.seconds}
        self._stages = [*self._stages[:stage], entry]
        write_json(self._manifest, {"of": self.of, "stages": self._stages})
        self._tidy()

    def clear(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)
        self._stages = []

    def _tidy(self) -> None:
        """Remove what the manifest does not name, also what a killed process left behind."""
        if not self._stages:
            self.clear()
            return
        wanted = {self._manifest.name, *(entry.get("file") for entry in self._stages)}
        for file in self.folder.iterdir():
            if file.name not in wanted:
                file.unlink()
