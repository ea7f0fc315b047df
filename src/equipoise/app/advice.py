"""What would improve a model most: photos of one class, or a network that is trained.

More images of a class lower its error. How much is estimated from the learning curve of the model: its error falls like
n^(−b), where b follows from two points: the solution from every second image, evaluated on the others, and
leave-one-out. The advice names the class whose error would fall most with a few more images.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from equipoise.app.calibration import features_of
from equipoise.app.card import counted
from equipoise.app.model import Model
from equipoise.core.open_dir import printable
from equipoise.data.images import Images
from equipoise.engine.metrics import confusion
from equipoise.engine.results import StepResult
from equipoise.learn.closed_form import canonical_order
from equipoise.learn.ridge import fit_ridge

MORE = 10
"""Images to add to a class."""
WORTH = 0.03
"""Minimum reduction of the class's error that is worth the effort."""
PRIOR = 5
"""Images of the average class to mix into the error of each class: of two images, both may be wrong by chance."""
CURVE = (0.1, 1.0)
"""Range of b: more images always help a little, and no classifier learns faster than 1/n."""
MOST = 20_000
"""Maximum number of images that the curve is fitted to."""


@dataclass(frozen=True)
class ClassNeed:
    """A class that needs more images, and the class that it is confused with."""

    index: int
    error: float
    """Expected now."""
    error_after: float
    """Expected with ``MORE`` images."""
    confused_with: int


def advise(model: Model, result: StepResult, everything: Images | None) -> str | None:
    """Return advice, if it is worth giving; ``everything`` has the images of the leave-one-out predictions."""
    method = model.method
    if result.evaluated != "leave-one-out" or everything is None or method.loo_logits is None or result.seen < 2:
        return None
    enough = len(model.memory) >= 20 * result.seen
    if enough and (result.accuracy_macro or 100) < 70:
        return (
            f"the features of {model.settings.net.backbone} do not separate these classes well; with this many images, "
            "a new model with --method wa, which also trains the network, may do better (it takes many minutes)"
        )
    wrong = confusion(everything.labels[method.loo_rows], method.loo_logits.argmax(1), result.seen)
    if int(wrong.sum() - wrong.diagonal().sum()) == 0:
        return None
    need = most_needed(wrong, torch.bincount(everything.labels, minlength=result.seen), exponent(model, everything))
    return None if need is None else describe(model, need, everything)


def most_needed(wrong: Tensor, images: Tensor, b: float) -> ClassNeed | None:
    """Return the class whose error would fall most; ``wrong`` counts how often class i is predicted as class j."""
    right, tested = wrong.diagonal().double(), wrong.sum(1).double()
    average = float((tested - right).sum() / tested.sum())
    error = (tested - right + PRIOR * average) / (tested + PRIOR)
    after = error * ((images + MORE) / images.clamp(min=1)) ** -b
    best = int((error - after).argmax())
    others = wrong[best].clone()
    others[best] = 0
    if error[best] - after[best] < WORTH or not others.any():
        return None
    return ClassNeed(best, float(error[best]), float(after[best]), int(others.argmax()))


def exponent(model: Model, everything: Images) -> float:
    """Return b of the learning curve."""
    method = model.method
    assert method.loo_logits is not None
    some = everything.select(torch.arange(0, len(everything), -(-len(everything) // MOST)))
    features = features_of(model, some)
    order = canonical_order(features)
    features, labels = features[order], some.labels[order]
    place = torch.zeros_like(labels)  # of each row among those of its class
    for label in labels.unique():
        mine = (labels == label).nonzero()[:, 0]
        place[mine] = torch.arange(len(mine))
    half, several = place % 2 == 0, labels.bincount(minlength=len(model.classes))[labels] > 1
    solution = fit_ridge(features[half], labels[half], len(model.classes), merge=model.extractor is not None)
    rest = features[~half & several]
    predicted = (rest.double() @ solution.weight.T + solution.bias).argmax(1)
    before = (float((predicted != labels[~half & several]).sum()) + 1) / (len(rest) + 1)
    misses = method.loo_logits.argmax(1) != everything.labels[method.loo_rows]
    now = (float(misses.sum()) + 1) / (len(misses) + 1)
    return min(max(math.log2(before / now), CURVE[0]), CURVE[1])


def describe(model: Model, need: ClassNeed, everything: Images) -> str:
    """Put it into words."""
    name, other = (printable(str(model.classes[index])) for index in (need.index, need.confused_with))
    images = counted(int((everything.labels == need.index).sum()), "image")
    return (
        f"{name}: {images}, sometimes predicted as {other}; more images of {name} would help most "
        f"(expected errors: {100 * need.error:.0f} % now, {100 * need.error_after:.0f} % with {MORE} more)"
    )
