"""Evaluate a model on a folder of labelled photos."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from equipoise.app.learn import LearnListener
from equipoise.app.model import Model, collect
from equipoise.app.photo_folder import FolderScan, read_images, scan_folder
from equipoise.engine.metrics import confusion, per_class
from equipoise.errors import DataError


def evaluate_folder(
    model: Model, folder: Path, listener: LearnListener | None = None
) -> tuple[dict[str, Any], FolderScan]:
    """Return the metrics on images of known classes, and the folder scan with the skipped files."""
    model.check_takes_photos()
    listener, found = listener or LearnListener(), scan_folder(folder)
    known = {str(name): index for index, name in enumerate(model.classes)}
    for name in [name for name in found.classes if name not in known]:
        del found.classes[name]
        found.skip(folder / name, "the model does not know this class")
    if not found.classes:
        names = ", ".join(list(known)[:5]) + (", …" if len(known) > 5 else "")
        raise DataError(
            f"{folder} has no class that the model knows: name its folders after the model's classes ({names})"
        )
    images = read_images(found, model.shape[1], listener.reading, extractor=model.extractor, bicubic=model.bicubic)
    together = collect(images, model.stored_shape)
    labels = torch.tensor([known[name] for name in images])[together.labels]
    return evaluation(model, labels, model.probabilities(together).argmax(1)), found


def evaluation(model: Model, labels: torch.Tensor, predicted: torch.Tensor) -> dict[str, Any]:
    """Return accuracy over all images, per class, and the most frequent confusions."""
    wrong = confusion(labels, predicted, len(model.classes)).fill_diagonal_(0)
    order = wrong.flatten().argsort(descending=True, stable=True)[:10].tolist()
    pairs = [(index // len(wrong), index % len(wrong)) for index in order]
    correct = int((labels == predicted).sum())
    return {
        "correct": correct,
        "total": len(labels),
        "accuracy": 100 * correct / len(labels),
        "per_class": [asdict(result) for result in per_class(labels, predicted, model.classes) if result.total],
        "confusions": [
            {"class": model.classes[i], "predicted_as": model.classes[j], "images": int(wrong[i, j])}
            for i, j in pairs
            if wrong[i, j]
        ],
    }
