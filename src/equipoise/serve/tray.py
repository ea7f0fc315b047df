"""The tray: pictures of unknown classes, grouped by similarity, waiting for a name."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from threading import Lock

import numpy as np
import torch
from torch import Tensor

from equipoise.app.model import ACCEPT
from equipoise.app.predict import BATCH, Prediction
from equipoise.learn.clusters import cluster
from equipoise.serve.limits import TRAY
from equipoise.serve.pictures import NotFoundError, Picture, Pictures
from equipoise.serve.snapshot import Snapshot


@dataclass(frozen=True)
class Features:
    """Features of a picture, and the backbone that computed them."""

    backbone: str | None
    row: Tensor


class Tray:
    """Groups unknown pictures; features of a frozen backbone are computed once.

    Pictures of another size stay where they are: they belong to a model that was here before, and may come back.
    """

    def __init__(self, pictures: Pictures) -> None:
        self.pictures = pictures
        self._features: dict[str, Features] = {}
        self._lock = Lock()

    def add(self, picture: Picture, prediction: Prediction, version: str) -> None:
        """Put a picture into the tray if it is unknown and not there already."""
        label, probability = prediction.classes[0]
        picture.nearest, picture.probability, picture.version = str(label), round(probability, 6), version
        others = {other.content for other in self.pictures.in_tray(picture.size) if other is not picture}
        picture.in_tray = prediction.unknown and picture.content not in others

    def groups(self, snapshot: Snapshot) -> list[list[Picture]]:
        """Return the pictures in groups of similar ones, the largest group first."""
        self.predict_again(snapshot)  # another version may have been asked since, by a request that took long
        with self._lock:
            found = self._compute(snapshot, self.pictures.in_tray(snapshot.size)[-TRAY:])
            if not found:
                return []
            rows = torch.stack([self._features[picture.id].row for picture in found])
            known, labels = snapshot.known_features
            known = known if len(known) else rows[:0]  # images of models that train their network have other features
            numbers = cluster(rows, known, labels).tolist()
            groups: list[list[Picture]] = [[] for _ in range(max(numbers) + 1)]
            for picture, number in zip(found, numbers, strict=True):
                groups[number].append(picture)
            return groups

    def predict_again(self, snapshot: Snapshot) -> bool:
        """If the version changed, remove pictures that it recognises; return whether anything changed."""
        before = self.pictures.in_tray(snapshot.size)
        for part in self._batches([picture for picture in before if picture.version != snapshot.version]):
            predictions = snapshot.predict([pixels for _, pixels in part], 1, ACCEPT)
            for (picture, _), prediction in zip(part, predictions, strict=True):
                self.add(picture, prediction, snapshot.version)
        return any(not picture.in_tray for picture in before)

    def _batches(self, pictures: Sequence[Picture]) -> Iterator[list[tuple[Picture, np.ndarray]]]:
        """Read pictures, some at a time; those that are removed meanwhile are left out."""
        for start in range(0, len(pictures), BATCH):
            found = []
            for picture in pictures[start : start + BATCH]:
                try:
                    found.append((picture, self.pictures.read(picture)))
                except NotFoundError:
                    continue
            if found:
                yield found

    def _compute(self, snapshot: Snapshot, pictures: Sequence[Picture]) -> list[Picture]:
        """Compute the features that are missing; return the pictures that have some."""
        backbone = snapshot.config.extractor or snapshot.version
        known = {name: own for name, own in self._features.items() if own.backbone == backbone}
        self._features = {picture.id: known[picture.id] for picture in pictures if picture.id in known}
        for part in self._batches([picture for picture in pictures if picture.id not in known]):
            rows = snapshot.features([pixels for _, pixels in part])
            self._features |= {
                picture.id: Features(backbone, row) for (picture, _), row in zip(part, rows, strict=True)
            }
        return [picture for picture in pictures if picture.id in self._features]
