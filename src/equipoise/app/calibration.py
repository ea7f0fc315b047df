"""After a step: calibrate the probabilities, and fit the familiarity of known images.

Both need images that the model was not fitted to: leave-one-out predictions if the method has them, otherwise the
held-out images.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from equipoise.app.model import Model
from equipoise.data.images import Images
from equipoise.engine.metrics import calibration_error
from equipoise.learn.closed_form import canonical_order
from equipoise.learn.ridge import best_temperature, one_thread
from equipoise.learn.unknown import Familiarity, class_cosines, cosines_without_self, mean_features

MOST = 20_000
"""Maximum number of images to use: enough for a quantile, and few enough for any number of classes."""


@dataclass(frozen=True)
class Evidence:
    """Images that were left out or held out, one row per image."""

    labels: Tensor
    logits: Tensor
    cosines: Tensor
    """With the mean features of each class."""
    means: Tensor
    counts: Tensor
    """Images behind each mean."""
    left_out: bool


def calibrate(model: Model, everything: Images | None) -> float | None:
    """Set ``model.temperature`` and ``model.familiarity``; return the calibration error in percent, if it is known.

    Parameters
    ----------
    model
        The model.
    everything
        The images that its leave-one-out predictions are about.
    """
    model.temperature, model.familiarity = 1.0, None
    if len(model.classes) < 2:
        return None
    with one_thread():  # the same bits for any number of threads
        evidence = leave_one_out(model, everything) or held_out(model)
        if evidence is None:
            return None
        model.familiarity = Familiarity.fit(evidence.logits, evidence.cosines, evidence.means, evidence.counts)
    if not evidence.left_out:  # leave-one-out has chosen a temperature already
        model.temperature = choose_temperature(evidence.logits.double(), evidence.labels)
    confidence, predicted = (evidence.logits / model.temperature).softmax(1).max(1)
    return calibration_error(confidence, predicted == evidence.labels)


def choose_temperature(logits: Tensor, labels: Tensor) -> float:
    """Return the temperature with the least loss, every class counting the same."""
    share = 1 / torch.bincount(labels, minlength=logits.shape[1]).double()[labels]
    none = torch.zeros(logits.shape[1], dtype=torch.float64)
    # the logits of some methods are squared distances, of any size: expect what their spread suggests
    expected = logits.std(1).mean().clamp(min=1e-3).item() / 2
    return best_temperature(logits, none, labels, share / share.sum(), expected)[1]


def leave_one_out(model: Model, everything: Images | None) -> Evidence | None:
    """Return the leave-one-out predictions of the last step, if the method has them and no images were held out."""
    method = model.method
    if everything is None or method.loo_logits is None or method.loo_rows is None or len(model.holdout):
        return None
    every = max(1, -(-len(method.loo_rows) // MOST))
    rows, logits = method.loo_rows[::every], method.loo_logits[::every]
    if not len(rows):
        return None
    means, counts = class_means(model, everything)
    images = everything.select(rows)
    cosines = cosines_without_self(features_of(model, images), images.labels, means, counts)
    return Evidence(images.labels, logits, cosines, means, counts, left_out=True)


def held_out(model: Model) -> Evidence | None:
    """Return the predictions of the held-out images, if there are any."""
    held, kept = model.holdout, model.memory.images()
    if not len(held):
        return None
    held = held.select(torch.arange(0, len(held), -(-len(held) // MOST)))
    logits, features = model.over(held).map_features(model.method.classify), features_of(model, held)
    means, counts = class_means(model, held if kept is None else kept)
    if kept is None:
        cosines = cosines_without_self(features, held.labels, means, counts)
    else:
        cosines = class_cosines(features, means)
    return Evidence(held.labels, logits, cosines, means, counts, left_out=False)


def class_means(model: Model, images: Images) -> tuple[Tensor, Tensor]:
    """Return the mean features of each class and the number of its images, whatever the order of images is."""
    features = features_of(model, images)
    return mean_features(features, images.labels, len(model.classes), canonical_order(features))


def features_of(model: Model, images: Images) -> Tensor:
    """Return the features that the method classifies."""
    return model.over(images).map_features(lambda features: features)
