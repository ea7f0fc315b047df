"""Calibration, unknown classes, groups of unknown photos and images in a wrong class, on real photos.

Usage: python benchmarks/unknown.py DATA [--cifar DIR]. DATA/train and DATA/test hold a folder of photos per class,
and DIR holds cifar-100-python.tar.gz. `ridge` on lite0, as `equipoise learn` creates it; every threshold is chosen on
training photos. Prints a Markdown list.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import torch
from imbalance import Labelled, as_images, make_model, read_features
from PIL import Image
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score
from torch import Tensor

from equipoise.app.model import Model
from equipoise.app.step_plan import prepare
from equipoise.app.suspects import misplaced
from equipoise.data.decoding import decode
from equipoise.data.sources import load
from equipoise.engine.metrics import calibration_error
from equipoise.learn.clusters import cluster

FLIPPED = 0.05
CIFAR_IMAGES = 54


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("--cifar", type=Path)
    parser.add_argument("--splits", type=int, default=5)
    options = parser.parse_args()
    empty = make_model("ridge", True)
    train, test = (read_features(empty, options.data / part) for part in ("train", "test"))
    half = len(train) // 2
    whole = learn(train, [range(half), range(half, len(train))])
    print(f"* photos: {calibration(whole, train, test)}")
    print(f"* photos: {acceptance(whole, test, half)}")
    few = {c: rows[:5] if c % 2 else rows for c, rows in train.items()}
    mixed = learn(few, [range(len(train))])
    print(f"* every second class with 5 photos: {acceptance(mixed, test, None)}")
    pair = {c: rows[:2] if c == 0 else rows for c, rows in train.items()}
    print(f"* one class with 2 photos: {acceptance(learn(pair, [range(len(train))]), test, None)}")
    if options.cifar:
        ours, theirs = cifar(empty, options.cifar)
        model = learn(ours, [range(5), range(5, 10)])
        print(f"* ten classes of CIFAR-100 with {CIFAR_IMAGES} images: {calibration(model, ours, theirs)}")
        print(f"* ten classes of CIFAR-100: {acceptance(model, theirs, 5)}")
    for split in range(options.splits):
        print(f"* split {split}: {unknown_classes(train, test, split)}", flush=True)
    for seed in range(options.splits):
        print(f"* {FLIPPED:.0%} of the labels flipped, seed {seed}: {suspects(whole, train, seed)}", flush=True)


def learn(photos: Mapping[int, Tensor], steps: Sequence[range]) -> Model:
    model = make_model("ridge", True)
    for part in steps:
        prepare(model, {c: as_images(photos[c]) for c in part}, 0.0, extend=False, train={}).learn()
    return model


def cifar(model: Model, folder: Path) -> tuple[Labelled, Labelled]:
    """Return features of the first ten classes, as if each image were a PNG file."""
    dataset = load("cifar100", folder)
    parts = []
    for images, most in ((dataset.train, CIFAR_IMAGES), (dataset.test, 100)):
        found = {}
        for c in range(10):
            pixels = images.select((images.labels == c).nonzero()[:most, 0]).read().permute(0, 2, 3, 1).numpy()
            large = [decode(Image.fromarray(one), model.shape[1], bicubic=True) for one in pixels]
            found[c] = model.inputs(torch.from_numpy(np.stack(large)).permute(0, 3, 1, 2)).read().flatten(1)
        parts.append(found)
    return parts[0], parts[1]


def joined(photos: Mapping[int, Tensor]) -> tuple[Tensor, Tensor]:
    labels = torch.tensor([c for c, rows in photos.items() for _ in rows])
    return torch.cat(list(photos.values())), labels


def answer(model: Model, rows: Tensor) -> tuple[Tensor, Tensor]:
    """Return probabilities in the order of labels, and familiarity."""
    probabilities, familiar = model.predictor()(as_images(rows))
    order = [model.classes.index(c) for c in sorted(model.classes)]
    return probabilities[:, order].double(), familiar.double()


def calibration(model: Model, train: Mapping[int, Tensor], test: Mapping[int, Tensor]) -> str:
    """Compare the calibration of a model with that of logistic regression on the same features."""
    (x, y), (rows, labels) = joined(train), joined(test)
    logistic = LogisticRegression(max_iter=1000).fit(x.numpy(), y.numpy())
    texts = []
    for name, found in (
        ("ridge", answer(model, rows)[0]),
        ("logistic regression", torch.from_numpy(logistic.predict_proba(rows.numpy())).double()),
    ):
        confidence, predicted = found.max(1)
        error = calibration_error(confidence, predicted == labels)
        loss = -found.gather(1, labels[:, None]).clamp(min=1e-12).log().mean()
        texts.append(
            f"{name}: {(predicted == labels).double().mean():.1%} correct, calibration error {error:.1f} %, "
            f"log loss {loss:.3f}"
        )
    return "; ".join(texts)


def acceptance(model: Model, test: Mapping[int, Tensor], half: int | None) -> str:
    """Return the share of test photos that are accepted at 0.95, by groups of classes."""
    rows, labels = joined(test)
    accepted = (answer(model, rows)[1] >= model.least_familiar(0.95)).double()
    texts = [f"accepted {accepted.mean():.1%} of {len(rows)}"]
    counts = {c: len(kept[0]) for c, kept in model.images_by_class().items()}
    if half is not None:
        groups = {"old": labels < half, "new": labels >= half}
    else:
        median = float(np.median(list(counts.values())))
        size = torch.tensor([counts[int(c)] for c in labels])
        groups = {"few photos": size < min(median, 20), "many photos": size >= min(median, 20)}
    return ", ".join(
        [*texts, *(f"{name} {accepted[mine].mean():.1%} of {int(mine.sum())}" for name, mine in groups.items())]
    )


def unknown_classes(train: Labelled, test: Labelled, split: int) -> str:
    """Learn half of the classes; the others are unknown."""
    order = np.random.default_rng(split).permutation(len(train)).tolist()
    known, others = order[: len(order) // 2], order[len(order) // 2 :]
    model = learn({place: train[c] for place, c in enumerate(known)}, [range(len(known))])
    inside, _ = joined({c: test[c] for c in known})
    outside, truth = joined({c: test[c] for c in others})
    scores = [answer(model, rows)[1] for rows in (inside, outside)]
    area = roc_auc_score([1] * len(inside) + [0] * len(outside), torch.cat(scores))
    least = model.least_familiar(0.95)
    strange = scores[1] < least
    found, labels = joined({place: train[c] for place, c in enumerate(known)})
    groups = cluster(outside[strange], found, labels)
    table = torch.zeros(int(groups.max()) + 1, len(train)).index_put_(
        (groups, truth[strange]), torch.tensor(1.0), accumulate=True
    )
    return (
        f"AUROC {area:.3f}; accepted {(scores[0] >= least).double().mean():.1%} of known and "
        f"{(~strange).double().mean():.1%} of unknown photos; {len(table)} groups for "
        f"{len(truth[strange].unique())} classes, purity {table.amax(1).sum() / table.sum():.2f}, "
        f"completeness {table.amax(0).sum() / table.sum():.2f}"
    )


def suspects(model: Model, train: Labelled, seed: int) -> str:
    """Flip labels and look for them."""
    rows, labels = joined(train)
    draws = np.random.default_rng(seed)
    flipped = draws.choice(len(labels), round(FLIPPED * len(labels)), replace=False)
    wrong = labels.clone()
    wrong[flipped] = (labels[flipped] + torch.from_numpy(draws.integers(1, len(train), len(flipped)))) % len(train)
    names = [str(number) for number in range(len(labels))]
    found = {int(one.image) for one in misplaced(model, rows, wrong, names)}
    right = len(found & set(flipped.tolist()))
    return f"{len(found)} suspects, precision {right / max(len(found), 1):.2f}, recall {right / len(flipped):.2f}"


if __name__ == "__main__":
    main()
