"""Old classes with many photos and new ones with few, the reverse, and a burst of frames, in two steps of 18 classes.

Usage: python benchmarks/imbalance.py DATA, where DATA/train and DATA/test hold a folder of photos per class (36
classes). Every closed-form method learns features of lite0, with and without even class weights, beside scikit-learn on
the same features. Prints a Markdown table: macro accuracy, e(o, n) and e(n, o), which are test photos of old classes
that are predicted as new ones and the other way round, and seconds of learning. Means of several draws.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import mean
from typing import Any

import numpy as np
import torch
from PIL import Image, ImageEnhance
from sklearn.linear_model import LogisticRegression, RidgeClassifierCV
from torch import Tensor

from equipoise.app.learn import photo_augment
from equipoise.app.model import Model
from equipoise.app.photo_folder import read_images, scan_folder
from equipoise.app.step_plan import prepare
from equipoise.data.decoding import decode
from equipoise.data.images import FeatureStore, Images
from equipoise.engine.recipes import resolve

METHODS = ("ncm", "slda", "ridge", "ranpac", "acil", "fecam")
WEIGHTED = ("slda", "ridge", "ranpac", "acil")
"""Methods with the setting ``even``; the others know only class means."""
PROTOCOLS = {"40 old, 40 new": (40, 40), "40 old, 5 new": (40, 5), "5 old, 40 new": (5, 40)}
BURST = "40 old, 5 new and a burst of 30"
FRAMES, OLD = 30, 18
Labelled = dict[int, Tensor]
"""Rows of features of each class."""


@dataclass(frozen=True)
class Figures:
    """How well one classifier did on one draw."""

    macro: float
    old_as_new: int
    new_as_old: int
    seconds: float


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("--draws", type=int, default=3)
    parser.add_argument("--out", type=Path, default=Path("imbalance.json"))
    options = parser.parse_args()
    model = make_model("ridge", True)
    train, test = (read_features(model, options.data / part) for part in ("train", "test"))
    found: dict[str, dict[str, list[Figures]]] = {}
    for draw in range(options.draws):
        order = np.random.default_rng(draw).permutation(len(train)).tolist()
        tests = {place: test[c] for place, c in enumerate(order)}
        for protocol, photos in draw_photos(model, train, order, draw, options.data / "train").items():
            for name, learn in classifiers().items():
                figures = evaluate(learn, photos, tests)
                found.setdefault(protocol, {}).setdefault(name, []).append(figures)
                print(f"draw {draw}, {protocol}, {name}: {figures}", file=sys.stderr, flush=True)
            options.out.write_text(json.dumps(found, default=vars, indent=1) + "\n")
    print(table(found))


def make_model(method: str, even: bool) -> Model:
    """Return a new model as `equipoise learn --method METHOD` creates it."""
    fields = {"even": even} if method in WEIGHTED else {}
    settings = resolve("folder", method, "photos", 0, {"fields": fields, "memory": {"size": "all"}})
    shape = (3, settings.data["size"], settings.data["size"])
    return Model.create(settings, shape, photo_augment(shape, settings))


def read_features(model: Model, folder: Path) -> Labelled:
    images = read_images(scan_folder(folder), model.shape[1], extractor=model.extractor)
    return {c: mine.read().flatten(1) for c, mine in enumerate(images.values())}


def draw_photos(model: Model, train: Labelled, order: list[int], draw: int, folder: Path) -> dict[str, Labelled]:
    """Return training photos of each protocol; classes 0 to 17 are old."""
    shuffled = {c: np.random.default_rng((draw, c)).permutation(len(train[c]))[:40] for c in order}
    drawn = {
        name: {p: train[c][shuffled[c][: old if p < OLD else new]] for p, c in enumerate(order)}
        for name, (old, new) in PROTOCOLS.items()
    }
    drawn[BURST] = dict(drawn["40 old, 5 new"])
    files = list(scan_folder(folder).classes.values())
    for place, c in list(enumerate(order))[OLD:]:
        frames = make_burst(files[c][shuffled[c][0]], model.shape[1], (draw, c))
        drawn[BURST][place] = torch.cat([drawn[BURST][place], model.inputs(frames).read().flatten(1)])
    return drawn


def make_burst(file: str, size: int, seed: tuple[int, int]) -> Tensor:
    """Return frames of one photo as a shaking webcam would take them: shifted, and a little lighter or darker."""
    draws = np.random.default_rng(seed)
    large = Image.fromarray(decode(file, size + 8, bicubic=True))
    frames = []
    for _ in range(FRAMES):
        left, top = draws.integers(9, size=2).tolist()
        frame = large.crop((left, top, left + size, top + size))
        frames.append(np.asarray(ImageEnhance.Brightness(frame).enhance(draws.uniform(0.95, 1.05))))
    return torch.from_numpy(np.stack(frames)).permute(0, 3, 1, 2)


Classifier = Callable[[Labelled], Callable[[Tensor], Tensor]]
"""Learns old and new classes, and returns what predicts."""


def classifiers() -> dict[str, Classifier]:
    found: dict[str, Classifier] = {}
    for method in METHODS:
        found[method] = partial(learn_steps, method, True)
        if method in WEIGHTED:
            found[f"{method}, not weighted"] = partial(learn_steps, method, False)
    for weight in ("balanced", None):
        more = "" if weight else ", not weighted"
        ridge = partial(RidgeClassifierCV, np.logspace(-1, 5, 13), class_weight=weight)
        logistic = partial(LogisticRegression, max_iter=1000, class_weight=weight)
        found[f"RidgeClassifierCV{more}"] = partial(learn_sklearn, ridge)
        found[f"LogisticRegression{more}"] = partial(learn_sklearn, logistic)
    return found


def learn_steps(method: str, even: bool, photos: Labelled) -> Callable[[Tensor], Tensor]:
    """Learn the old classes, then the new ones."""
    model = make_model(method, even)
    for part in (range(OLD), range(OLD, len(photos))):
        prepare(model, {c: as_images(photos[c]) for c in part}, 0.0, extend=False, train={}).learn()
    return lambda rows: model.probabilities(as_images(rows)).argmax(1)


def as_images(rows: Tensor) -> Images:
    store = FeatureStore(rows, ids=[f"{number:032x}" for number in range(len(rows))])
    return Images(store, torch.arange(len(rows)), torch.zeros(len(rows), dtype=torch.long))


def learn_sklearn(make: Callable[[], Any], photos: Labelled) -> Callable[[Tensor], Tensor]:
    """Learn all classes at once."""
    labels = np.repeat(list(photos), [len(rows) for rows in photos.values()])
    fitted = make().fit(torch.cat(list(photos.values())).numpy(), labels)
    return lambda rows: torch.from_numpy(fitted.predict(rows.numpy()))


def evaluate(learn: Classifier, photos: Labelled, tests: Mapping[int, Tensor]) -> Figures:
    started = time.perf_counter()
    predict = learn(photos)
    seconds = time.perf_counter() - started
    predicted = {c: predict(rows) for c, rows in tests.items()}
    return Figures(
        100 * mean(float((answers == c).double().mean()) for c, answers in predicted.items()),
        sum(int((answers >= OLD).sum()) for c, answers in predicted.items() if c < OLD),
        sum(int((answers < OLD).sum()) for c, answers in predicted.items() if c >= OLD),
        seconds,
    )


def table(found: Mapping[str, Mapping[str, list[Figures]]]) -> str:
    """Return macro accuracy (e(o, n), e(n, o)) of each classifier and protocol, and seconds with 40 photos each."""
    lines = [f"| | {' | '.join(found)} | seconds |", "|---|" + "---|" * (len(found) + 1)]
    for name in classifiers():
        cells = []
        for results in (mine[name] for mine in found.values()):
            away = f"{mean(r.old_as_new for r in results):.1f}, {mean(r.new_as_old for r in results):.1f}"
            cells.append(f"{mean(r.macro for r in results):.1f} ({away})")
        took = mean(r.seconds for r in next(iter(found.values()))[name])
        lines.append(f"| `{name}` | {' | '.join(cells)} | {took:.1f} |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
