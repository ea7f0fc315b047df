"""The current step on disk: each of its training stages after the last finished epoch."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field

import msgspec

from equipoise.core.directory import TEMPORARY, Directory
from equipoise.core.tensors import read_tensors, write_tensors
from equipoise.errors import RunError
from equipoise.learn.stage import StageState, StageStore, damaged_step

MANIFEST = "stages.json"
STAGE = re.compile(r"stage-\d+-epoch-\d+\.safetensors")
OURS = re.compile(rf"{re.escape(MANIFEST)}|{STAGE.pattern}|{TEMPORARY.pattern}", re.DOTALL)


@dataclass(frozen=True)
class StageEntry:
    """A stage as stages.json lists it."""

    file: str
    epochs: int
    seconds: float


@dataclass(frozen=True)
class StageList:
    """The content of stages.json."""

    of: str = ""
    """The step that the stages belong to."""
    stages: list[StageEntry] = field(default_factory=list)


class StepCheckpoint(StageStore):
    """The stages of one step in a folder; a checkpoint of any other step is deleted.

    Parameters
    ----------
    parent
        The directory that holds the folder.
    folder
        Where the stages are stored.
    of
        Identifies the step.
    also
        Other identities of the same step, from older versions.
    """

    def __init__(self, parent: Directory, folder: str, of: str, also: Sequence[str] = ()) -> None:
        self.parent, self.folder, self.of = parent, folder, of
        self.directory = parent.sub(folder, remedy="")
        found = read_stages(self.directory)
        self.dropped = bool(found.stages) and found.of not in (of, *also)
        """Whether the checkpoint of another step was deleted."""
        self._stages = [] if self.dropped else found.stages
        self._tidy()

    @property
    def epochs(self) -> int:
        """Finished epochs of the last stage."""
        return self._stages[-1].epochs if self._stages else 0

    def load(self, stage: int) -> StageState | None:
        """Return the state of a stage, or None if it has not begun."""
        if stage >= len(self._stages):
            return None
        entry = self._stages[stage]
        try:
            tensors = read_tensors(self.directory, entry.file)
            return StageState(entry.epochs, entry.seconds, tensors, str(self.directory.path))
        except RunError as error:
            raise damaged_step(self.directory.path, error) from error

    def save(self, stage: int, state: StageState) -> None:
        """Replace the state of a stage."""
        name = f"stage-{stage}-epoch-{state.epochs}.safetensors"
        self.directory.make_dir()
        write_tensors(self.directory, name, state.tensors)
        self._stages = [*self._stages[:stage], StageEntry(name, state.epochs, state.seconds)]
        self.directory.write_json(MANIFEST, asdict(StageList(self.of, self._stages)))
        self._tidy()

    def clear(self) -> None:
        """Delete the checkpoint."""
        self.parent.remove_tree(self.folder, OURS)
        self._stages = []

    def _tidy(self) -> None:
        """Delete files that stages.json does not name, such as those of a killed process."""
        if not self._stages:
            self.clear()
            return
        wanted = {MANIFEST, *(entry.file for entry in self._stages)}
        for entry in self.directory.entries():
            if entry.name not in wanted and OURS.fullmatch(entry.name):
                self.directory.remove(entry.name)


def read_stages(directory: Directory) -> StageList:
    """Return the stages in a directory, none if there is no checkpoint."""
    if not directory.exists(MANIFEST):
        return StageList()
    try:
        found = msgspec.convert(directory.read_json(MANIFEST), StageList)
    except (RunError, msgspec.ValidationError) as error:
        raise damaged_step(directory.path, error) from error
    if not all(STAGE.fullmatch(entry.file) and entry.epochs > 0 for entry in found.stages):
        raise damaged_step(directory.path, f"{MANIFEST} lists something that is not a stage")
    return found
