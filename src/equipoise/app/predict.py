"""Ask a model about files: any number of them, in batches, with the next ones being decoded meanwhile."""

from __future__ import annotations

import io
import os
import sys
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Any, BinaryIO

import numpy as np
import torch

from equipoise.app.folder import printable
from equipoise.app.model import Label, Model
from equipoise.data.images import decode, decoders
from equipoise.data.index import ENDINGS
from equipoise.errors import DataError, UsageError

BATCH = 64
MAGIC = (b"\xff\xd8\xff", b"\x89PNG", b"GIF8", b"RIFF", b"II*\0", b"MM\0*")
"""How image files begin; BMP's two letters are told apart from a path by the zeros that follow."""


@dataclass(frozen=True)
class Said:
    """What the model says of one image: the likeliest classes first, or why there is no answer."""

    path: str
    guesses: tuple[tuple[Label, float], ...] = ()
    error: str | None = None

    def plain(self) -> dict[str, Any]:
        if self.error is not None:
            return {"path": self.path, "error": self.error}
        guesses = [{"class": name, "probability": round(share, 6)} for name, share in self.guesses]
        return {"path": self.path, "predictions": guesses}


Source = tuple[str, str | bytes]
"""A name to show, and a path or the image itself."""


def sources(arguments: Iterable[str]) -> Iterator[Source]:
    """Files, folders with all that is below them, or ``-``: an image or a list of paths on standard input."""
    for argument in arguments:
        if argument == "-":
            yield from _standard_input(sys.stdin.buffer)
        elif os.path.isdir(argument):  # noqa: PTH112 - the name may hold bytes that are not UTF-8
            yield from _below(argument)
        else:
            yield printable(argument), argument


def _below(folder: str) -> Iterator[Source]:
    found = False
    for where, inner, names in os.walk(folder):
        inner[:] = sorted(name for name in inner if not name.startswith("."))
        for name in sorted(names):
            if name.lower().endswith(ENDINGS) and not name.startswith("."):
                found = True
                path = f"{where}/{name}"
                yield printable(path), path
    if not found:
        raise UsageError(f"{folder} has no images below it ({', '.join(ENDINGS)}): name another folder")


def _standard_input(stream: BinaryIO) -> Iterator[Source]:
    start = stream.read(16)
    if start.startswith(MAGIC) or (start.startswith(b"BM") and b"\0" in start):
        yield "-", start + stream.read()
        return
    ahead = io.BytesIO(start + stream.readline())
    for lines in (ahead, stream):
        for line in lines:
            path = os.fsdecode(line.rstrip(b"\r\n"))
            if path:
                yield from sources([path]) if path != "-" else ()


def predict(model: Model, asked: Iterable[Source], top: int = 1, batch: int = BATCH) -> Iterator[Said]:
    """Answers in the order of the questions. While a batch is in the network, the next one is being decoded."""
    model.check_takes_pictures()
    if top < 1:
        raise UsageError(f"--top is {top}, but it must be at least 1")
    read = partial(_read, size=model.shape[1])
    stream = iter(asked)
    with decoders() as pool:
        ahead: deque[list[tuple[str, Future[np.ndarray | str]]]] = deque()
        while True:
            while len(ahead) < 2 and (questions := list(islice(stream, batch))):
                ahead.append([(name, pool.submit(read, source)) for name, source in questions])
            if not ahead:
                return
            yield from _answer(model, [(name, future.result()) for name, future in ahead.popleft()], top)


def _read(source: str | bytes, size: int) -> np.ndarray | str:
    """The image, or what is wrong with it."""
    try:
        if isinstance(source, bytes):
            return decode(io.BytesIO(source), size)
        if os.path.exists(source) and not os.path.isfile(source):  # noqa: PTH110, PTH113 - a pipe would wait for ever
            return "it is not a file"
        return decode(source, size)
    except DataError as error:
        cause = error.__cause__
        return (cause.strerror if isinstance(cause, OSError) and cause.strerror else str(cause)) or "it cannot be read"


def _answer(model: Model, batch: Sequence[tuple[str, np.ndarray | str]], top: int) -> Iterator[Said]:
    images = [image for _, image in batch if not isinstance(image, str)]
    if images:
        pixels = torch.from_numpy(np.stack(images)).permute(0, 3, 1, 2)
        best = model.probabilities(pixels).topk(min(top, len(model.classes)), dim=1)
        answers = iter(zip(best.indices.tolist(), best.values.tolist(), strict=True))
    for name, image in batch:
        if isinstance(image, str):
            yield Said(name, error=image)
        else:
            places, shares = next(answers)
            yield Said(name, tuple((model.classes[c], share) for c, share in zip(places, shares, strict=True)))
