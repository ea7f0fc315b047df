"""The readers, and the share of the inputs that each gets."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tests.fuzz import archives, commands, directories, names, pictures, settings, tensor_files
from tests.fuzz.loop import Prepare


@dataclass(frozen=True)
class Reader:
    """A reader, its weight among all, and how many inputs it reads in a second, for estimates only."""

    prepare: Prepare
    weight: int
    rate: float


READERS = {
    "pictures": Reader(pictures.photos, 180, 3000),
    "uploads": Reader(pictures.uploads, 100, 3000),
    "stored images": Reader(pictures.stored, 50, 600),
    "models": Reader(directories.models, 180, 145),
    "runs": Reader(directories.runs, 100, 300),
    "weights": Reader(tensor_files.weights, 130, 3000),
    "checkpoints": Reader(tensor_files.checkpoints, 30, 170),
    "stored features": Reader(tensor_files.stored_features, 90, 2000),
    "recipes": Reader(settings.recipes, 90, 1100),
    "command line": Reader(settings.words, 50, 350),
    "names": Reader(names.names, 60, 4000),
    "cifar100": Reader(archives.cifar, 50, 1500),
    "tiny-imagenet-100": Reader(archives.tiny, 14, 110),
    "commands": Reader(commands.commands, 50, 36),
    "experiments": Reader(commands.experiments, 22, 17),
}


def share(name: str, inputs: int, names: Sequence[str]) -> int:
    """Return how many of all inputs a reader gets."""
    return max(1, inputs * READERS[name].weight // sum(READERS[other].weight for other in names))
