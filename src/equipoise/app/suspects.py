"""Images that are probably in the wrong class, and nearly identical images in two classes.

The solution without an image in the wrong class predicts its true class with high probability. So an image is
suspect if the solution without it gives its class less than ``DOUBT`` and another one more than ``SURE``. With 5 % of
the labels of flowers flipped, nearly all suspects are flipped images, and nine in ten are found (docs/performance.md).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from equipoise.app.calibration import features_of
from equipoise.app.card import counted
from equipoise.app.model import Model
from equipoise.app.model_dir import ModelDir
from equipoise.app.photo_folder import decode_file, printable, scan_folder
from equipoise.app.stored_features import ids_of
from equipoise.core.progress_line import track
from equipoise.data.images import Images
from equipoise.data.prefetch import decoder_pool, map_ahead
from equipoise.engine.results import Label
from equipoise.errors import DataError, RunError, UsageError
from equipoise.learn.closed_form import canonical_order
from equipoise.learn.ridge import fit_ridge

DOUBT, SURE = 0.05, 0.5
"""An image is suspect if its own class is less probable than the first, and another class more than the second."""
SAME = 0.03
"""Squared distance, relative to the norms, below which two images are nearly equal."""
MOST = 50_000
"""Images, at most, among which nearly equal ones are looked for: the time grows with the square of their number."""
CHUNK = 1024


@dataclass(frozen=True)
class Suspect:
    """An image that is probably in the wrong class, or nearly identical to one in another class."""

    image: str
    """Name of the stored image."""
    label: Label
    """Its class."""
    looks_like: Label
    """The class that it looks like, or that the other image is in."""
    probability: float | None = None
    """Of the class that it looks like; None for nearly equal images."""
    same_as: str | None = None
    """Name of the nearly equal image."""
    file: str | None = None
    same_file: str | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        facts = asdict(self)
        return {"image": facts.pop("image"), "class": facts.pop("label"), **facts}


def find_suspects(place: ModelDir, folder: Path | None = None) -> list[Suspect]:
    """Return suspect images, the most suspect first; files of ``folder`` are named if they are among them."""
    place.check()
    model = place.load(images=True)
    kept = model.memory.images()
    if not model.keeps_all or kept is None:
        if model.method.rehearsal == "kept":
            raise UsageError("this model keeps only statistics: create one with --keep features to find suspects")
        raise UsageError(
            f"suspects are found by leave-one-out among all images, but this model ({model.settings.method}) keeps "
            "only some or none: create a model with the default method"
        )
    found = suspects_in(model, kept)
    if folder is None:
        return found
    files = files_by_id(folder, model)
    return [
        replace(one, file=files.get(one.image), same_file=files.get(one.same_as) if one.same_as else None)
        for one in found
    ]


def suspects_in(model: Model, kept: Images, pairs: bool = True) -> list[Suspect]:
    """Return suspects among all images of a model; ``pairs`` also adds nearly identical images."""
    features, ids = features_of(model, kept), ids_of(kept)
    found = misplaced(model, features, kept.labels, ids)
    return [*found, *nearly_equal(model, features, kept.labels, ids)] if pairs else found


def misplaced(model: Model, features: Tensor, labels: Tensor, ids: Sequence[str]) -> list[Suspect]:
    """Return the images that leave-one-out puts into another class."""
    empty = torch.bincount(labels, minlength=len(model.classes)).argmin()
    if not (labels == empty).any():
        raise RunError(f"the model keeps no image of {model.classes[empty]}: learn some with --extend")
    order = canonical_order(features)
    photos = model.extractor is not None  # rows of features have no bursts
    solution = fit_ridge(features[order], labels[order], len(model.classes), merge=photos)
    rows = order[solution.loo_rows]
    probabilities = solution.loo.softmax(1)
    own = probabilities.gather(1, labels[rows, None])[:, 0]
    best = probabilities.max(1)
    return [
        Suspect(
            ids[int(rows[place])],
            model.classes[labels[rows[place]]],
            model.classes[best.indices[place]],
            probability=round(best.values[place].item(), 6),
        )
        for place in own.argsort(stable=True).tolist()
        if own[place] < DOUBT and best.values[place] > SURE
    ]


def nearly_equal(model: Model, features: Tensor, labels: Tensor, ids: Sequence[str]) -> Iterator[Suspect]:
    """Yield pairs of nearly equal images in different classes."""
    features, labels = features[:MOST].double(), labels[:MOST]
    squares = features.square().sum(1)
    for start in range(0, len(features), CHUNK):
        rows = slice(start, start + CHUNK)
        distances = squares[rows, None] + squares - 2 * features[rows] @ features.T
        near = distances < SAME * (squares[rows, None] * squares).sqrt()
        near &= labels[rows, None] != labels
        for place, other in near.nonzero().tolist():
            one = start + place
            if one > other:  # the pair was found before
                continue
            yield Suspect(ids[one], model.classes[labels[one]], model.classes[labels[other]], same_as=ids[other])


def files_by_id(folder: Path, model: Model) -> dict[str, str]:
    """Return the files below the class folders of a folder, by the hash of their pixels."""
    files = [file for files in scan_folder(folder).classes.values() for file in files]
    decoded = map_ahead(lambda file: decode_file(file, model.shape[1], model.bicubic), files, 256, decoder_pool())
    answers = track(zip(files, decoded, strict=True), len(files), "reading", "images")
    return {answer[1]: printable(file) for file, answer in answers if not isinstance(answer, DataError)}


def suspect_lines(found: Sequence[Suspect], folder: Path | None) -> list[str]:
    """Describe the suspects for people."""
    from rich.markup import escape

    if not found:
        return ["no image seems to be in the wrong class"]
    lines = []
    for one in found:
        image = one.file or one.image[:12]
        if one.same_as is None:
            what = f"is in {one.label}, looks like {one.looks_like} ({one.probability:.0%})"
        else:
            what = f"is in {one.label}, and nearly identical to {one.same_file or one.same_as[:12]} in {one.looks_like}"
        lines.append(escape(f"{image}  {printable(what)}"))
    lines.append(f"{counted(len(found), 'image')} to look at; `equipoise move MODEL IMAGE… CLASS` moves them")
    if folder is None:
        lines.append("a model keeps no file names: name the folder with the photos to see which files these are")
    return lines
