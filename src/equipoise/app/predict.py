"""Predict the classes of image files, any number of them, decoding ahead."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from typing import Any, BinaryIO

import numpy as np
import torch
from torch import Tensor

from equipoise.app.model import ACCEPT, Model
from equipoise.app.photo_folder import printable
from equipoise.data.decoding import decode
from equipoise.data.images import Images
from equipoise.data.index import ENDINGS, is_image_name
from equipoise.data.picture_files import FILE_BYTES
from equipoise.data.prefetch import decoder_pool, map_ahead
from equipoise.engine.results import Label
from equipoise.errors import DataError, UsageError
from equipoise.learn.inference import batch_size

BATCH = 64
MAX_LINE = 1 << 16
"""Bytes of a path in the standard input."""
MAGIC = (b"\xff\xd8\xff", b"\x89PNG", b"GIF8", b"RIFF", b"II*\0", b"MM\0*")
"""First bytes of image files; BMP's two letters are told apart from a path by the zeros that follow."""


@dataclass(frozen=True)
class Prediction:
    """The most probable classes of one image, or why there is no prediction."""

    path: str
    classes: tuple[tuple[Label, float], ...] = ()
    """Names with probabilities, the most probable first."""
    unknown: bool = False
    """Whether the image looks like none of the classes."""
    error: str | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        if self.error is not None:
            return {"path": self.path, "error": self.error}
        predictions = [{"class": name, "probability": round(value, 6)} for name, value in self.classes]
        return {"path": self.path, "unknown": self.unknown, "predictions": predictions}


Source = tuple[str, str | bytes]
"""A name to show, and a path or the content of an image file."""


def expand_paths(arguments: Iterable[str]) -> Iterator[Source]:
    """Yield files, all images below folders, and for ``-`` an image or a list of paths on standard input."""
    for argument in arguments:
        if argument == "-":
            yield from _standard_input(sys.stdin.buffer)
        elif os.path.isdir(argument):  # noqa: PTH112 - the name may hold bytes that are not UTF-8
            yield from images_below(argument)
        else:
            yield printable(argument), argument


def images_below(folder: str, links: bool = True) -> Iterator[tuple[str, str]]:
    """Yield all images below a folder: a name to show, and a path.

    Parameters
    ----------
    folder
        The folder.
    links
        Follow links to folders, and look into directories of models and runs.
    """
    found, seen = False, {os.path.realpath(folder)}
    failed: list[OSError] = []
    for where, inner, names in os.walk(folder, followlinks=links, onerror=failed.append):  # a link may lead back up
        real = {name: os.path.realpath(f"{where}/{name}") for name in inner}
        inner[:] = sorted(name for name in inner if not name.startswith(".") and real[name] not in seen)
        if not links:
            inner[:] = [name for name in inner if not is_ours(f"{where}/{name}")]
        seen.update(real[name] for name in inner)
        for name in sorted(names):
            if is_image_name(name) and not name.startswith("."):
                found = True
                path = f"{where}/{name}"
                yield printable(path), path
    for error in failed:
        yield printable(error.filename), error.filename
    if not found and not failed:
        raise UsageError(f"no images found in {folder} (looked for {', '.join(ENDINGS)})")


def is_ours(folder: str) -> bool:
    """Return whether a folder is the directory of a model or run, whose images are not the user's photos."""
    return os.path.lexists(f"{folder}/config.json") and any(
        os.path.lexists(f"{folder}/{name}") for name in ("versions", "metrics.jsonl", "model.safetensors")
    )


def _standard_input(stream: BinaryIO) -> Iterator[Source]:
    start = stream.read(16)
    if start.startswith(MAGIC) or (start.startswith(b"BM") and b"\0" in start):
        yield "-", start + stream.read(FILE_BYTES)
        return
    ahead = io.BytesIO(start + stream.readline(MAX_LINE))
    for line in chain(ahead, iter(lambda: stream.readline(MAX_LINE), b"")):
        path = os.fsdecode(line.rstrip(b"\r\n"))
        if path:
            yield from expand_paths([path]) if path != "-" else ()


def predict(
    model: Model, sources: Iterable[Source], top: int = 1, batch: int = BATCH, accept: float = ACCEPT
) -> Iterator[Prediction]:
    """Yield a prediction for each source, in order, with the ``top`` most probable classes.

    An image is unknown if it looks less familiar than a fraction ``accept`` of known images.
    """
    model.check_takes_photos()
    if top < 1:
        raise UsageError(f"--top must be at least 1, got {top}")
    least = model.least_familiar(accept)

    def read(source: Source) -> tuple[str, np.ndarray | str]:
        return source[0], decode_source(source[1], model.shape[1], model.bicubic)

    batch = batch_size(model.shape, batch)
    decoded, predictor = map_ahead(read, sources, 2 * batch, decoder_pool()), model.predictor()
    while images := list(islice(decoded, batch)):
        yield from predict_batch(model, predictor, images, top, least)


def decode_source(content: str | bytes, size: int, bicubic: bool) -> np.ndarray | str:
    """Return the image, or what is wrong with it."""
    try:
        if isinstance(content, str) and os.path.isdir(content):  # noqa: PTH112
            return "cannot read the folder"
        return decode(content, size, bicubic=bicubic)
    except DataError as error:
        cause = error.__cause__
        return (cause.strerror if isinstance(cause, OSError) and cause.strerror else str(cause)) or "cannot read it"


def predict_batch(
    model: Model,
    predictor: Callable[[Images], tuple[Tensor, Tensor]],
    batch: Sequence[tuple[str, np.ndarray | str]],
    top: int,
    least: float,
) -> Iterator[Prediction]:
    """Yield a prediction for each decoded image, or what is wrong with it; see ``predict``."""
    images = [image for _, image in batch if not isinstance(image, str)]
    rows: Iterator[tuple[list[int], list[float], bool]] = iter(())
    if images:
        found = model.inputs(torch.from_numpy(np.stack(images)).permute(0, 3, 1, 2))
        probabilities, familiar = predictor(found)
        best = probabilities.topk(min(top, len(model.classes)), dim=1)
        rows = zip(best.indices.tolist(), best.values.tolist(), (familiar < least).tolist(), strict=True)
    for name, image in batch:
        if isinstance(image, str):
            yield Prediction(name, error=image)
        else:
            indices, values, unknown = next(rows)
            answers = tuple((model.classes[c], value) for c, value in zip(indices, values, strict=True))
            yield Prediction(name, answers, unknown)
