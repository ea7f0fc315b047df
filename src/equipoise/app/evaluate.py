"""Judge a model by a folder of pictures that it has not seen."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from equipoise.app.folder import Survey, read, survey
from equipoise.app.learn import Onlooker
from equipoise.app.model import Model, collect
from equipoise.errors import DataError
from equipoise.study.evaluate import confusion


def evaluate_folder(model: Model, folder: Path, onlooker: Onlooker | None = None) -> tuple[dict[str, Any], Survey]:
    """Figures over the images of classes that the model knows, and what was left out."""
    model.check_takes_pictures()
    onlooker, found = onlooker or Onlooker(), survey(folder)
    known = {str(name): place for place, name in enumerate(model.classes)}
    for name in [name for name in found.classes if name not in known]:
        del found.classes[name]
        found.leave_out(folder / name, "the model does not know this class")
    if not found.classes:
        raise DataError(f"{folder} has no class that the model knows ({', '.join(list(known)[:5])}, …)")
    onlooker.reading(found)
    images = read(found, model.shape[1], progress=onlooker.decoded)
    if not images:
        raise DataError(f"no image in {folder} can be read (the first: {found.left_out[0].path})")
    together = collect(images, model.shape)
    labels = torch.tensor([known[str(name)] for name in images])[together.labels]
    return evaluation(model, labels, model.probabilities_of(together).argmax(1)), found


def evaluation(model: Model, labels: torch.Tensor, said: torch.Tensor) -> dict[str, Any]:
    """Accuracy over all images, for each class, and the most frequent confusions."""
    counts = confusion(labels, said, len(model.classes))
    right = int(counts.diagonal().sum())
    wrong = counts.clone().fill_diagonal_(0)
    order = wrong.flatten().argsort(descending=True, stable=True)[:10].tolist()
    pairs = [(place // len(counts), place % len(counts)) for place in order]
    return {
        "images": len(labels),
        "right": right,
        "accuracy": 100 * right / len(labels),
        "classes": [
            {"class": name, "images": int(counts[c].sum()), "right": int(counts[c, c])}
            for c, name in enumerate(model.classes)
            if counts[c].sum()
        ],
        "confusions": [
            {"class": model.classes[i], "taken_for": model.classes[j], "images": int(wrong[i, j])}
            for i, j in pairs
            if wrong[i, j]
        ],
    }
