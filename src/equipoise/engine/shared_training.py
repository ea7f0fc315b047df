"""Share training between runs of a comparison, by content address: each network is trained once."""

from __future__ import annotations

import re
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from equipoise.core.directory import TEMPORARY, Directory
from equipoise.core.tensors import read_tensors, write_tensors
from equipoise.errors import RunError
from equipoise.learn.stage import StageState, TrainedStages

FOLDER = "shared"
LIMIT = 4 << 30
"""Maximum total size of all files, so that many large networks do not fill the disk."""
NAME = re.compile(r"([0-9a-f]{32})-(\d{1,9})-(\d{1,12}\.\d{3})\.safetensors")
"""The address, epochs and seconds of a file."""
OURS = re.compile(rf"[0-9a-f]{{32}}|{NAME.pattern}|{TEMPORARY.pattern}", re.DOTALL)


@dataclass(frozen=True)
class SharedTraining(TrainedStages):
    """Trained networks in the directory of a comparison.

    Parameters
    ----------
    path
        The directory of the comparison.
    group
        Only runs of the same group can share anything; its files are deleted when all its runs have ended.
    """

    path: Path
    group: str

    def find(self, address: str) -> StageState | None:
        for found in self._files():
            if found[1] == address:
                with suppress(RunError):  # damaged, or deleted since: train again
                    tensors = read_tensors(self._directory, found[0])
                    return StageState(int(found[2]), float(found[3]), tensors, str(self._directory.path / found[0]))
        return None

    def add(self, address: str, state: StageState) -> None:
        weights = {name: value for name, value in state.tensors.items() if name.startswith("method.")}
        size = sum(value.numel() * value.element_size() for value in weights.values())
        name = f"{address}-{state.epochs}-{state.seconds:.3f}.safetensors"
        with suppress(RunError):  # what cannot be kept is trained again
            if size + self._bytes() <= LIMIT and all(found[1] != address for found in self._files()):
                self._directory.make_dir()
                write_tensors(self._directory, name, weights)

    def clear(self) -> None:
        """Delete the files of the group."""
        comparison = Directory(self.path)
        comparison.remove_tree(f"{FOLDER}/{self.group}", OURS)
        comparison.remove_dir(FOLDER)

    @property
    def _directory(self) -> Directory:
        return Directory(self.path).sub(f"{FOLDER}/{self.group}")

    def _files(self) -> list[re.Match[str]]:
        entries = self._directory.entries() if self._directory.is_dir() else []
        return [found for entry in entries if (found := NAME.fullmatch(entry.name))]

    def _bytes(self) -> int:
        everything = Directory(self.path).sub(FOLDER)
        files = everything.walk() if everything.is_dir() else ()
        return sum(everything.size(entry.name) for entry in files if entry.kind == "file")
