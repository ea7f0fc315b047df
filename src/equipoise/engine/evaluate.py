"""Predictions of a model on labelled images."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from equipoise.learn.inference import InferencePass


@dataclass(frozen=True)
class Predictions:
    """One entry per image."""

    labels: Tensor
    top1: Tensor
    """The predicted class."""
    in_top5: Tensor
    """Whether the true class is among the five highest logits."""
    confidence: Tensor
    """The highest softmax probability."""
    all_alike: bool = False
    """Whether every image got the same logits, as from a network that has died."""


def predict_all(images: InferencePass) -> Predictions:
    """Evaluate a method on images. Logits are reduced batch by batch: ImageNet's would take 200 MB."""
    method, labels = images.method, images.images.labels
    rows = images.map_features(lambda x: _reduce(method.classify(x))) if len(labels) else torch.zeros(0, 8)
    return _predictions(rows, labels)


def predictions_from(logits: Tensor, labels: Tensor) -> Predictions:
    """Return the predictions of given logits."""
    return _predictions(_reduce(logits), labels)


def _reduce(logits: Tensor) -> Tensor:
    logits = logits.float()
    five = logits.topk(min(5, logits.shape[1]), dim=1).indices
    five = F.pad(five, (0, 5 - five.shape[1]), value=-1)
    spread = torch.stack([logits.softmax(1).amax(1), logits.logsumexp(1)], 1)
    return torch.cat([logits.argmax(1, keepdim=True), five, spread], 1)


def _predictions(rows: Tensor, labels: Tensor) -> Predictions:
    return Predictions(
        labels,
        top1=rows[:, 0].long(),
        in_top5=(rows[:, 1:6] == labels[:, None]).any(1),
        confidence=rows[:, 6],
        all_alike=bool((rows == rows[:1]).all()),
    )
