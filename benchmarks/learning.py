"""Compare a step of `equipoise learn` on photos with decoding them and passing them through the network once."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from statistics import median

import numpy as np
import torch
from extraction import decode_all, make_extractor, save_photos
from timing import Row, interleave, seconds, speedup

from equipoise.app.learn import LearnOptions, learn_folder
from equipoise.app.model_dir import ModelDir
from equipoise.data.decoding import decode
from equipoise.learn.backbones.pretrained import PRETRAINED
from equipoise.learn.extractor import CHUNK, best_engine


def measure(count: int = 240, classes: int = 6, rounds: int = 3) -> Iterator[Row]:
    """Compare the first step of a model; start-up and imports are not counted."""
    size = PRETRAINED["lite0"].size
    extractor = make_extractor(best_engine("lite0"), size)
    with tempfile.TemporaryDirectory() as folder:
        root, files, steps = Path(folder), list[str](), iter(range(rounds + 1))
        for number in range(classes):
            files += save_photos(root / "photos" / f"class {number}", count // classes, number)
        batch = torch.from_numpy(np.stack([decode(file, size, bicubic=True) for file in files[:CHUNK]]))
        batch = batch.permute(0, 3, 1, 2)

        def bare() -> float:
            network = seconds(lambda: extractor.rows(batch)) / len(batch)
            return seconds(partial(decode_all, files, size)) + network * count

        def ours() -> float:
            place = ModelDir(root / f"model {next(steps)}")
            return seconds(lambda: learn_folder(place, root / "photos", LearnOptions()))

        times = interleave({"ours": ours, "bare": bare}, rounds)
    yield Row(
        what=f"a step of learn, {count} photos",
        ours=round(median(times["ours"]), 2),
        baseline=round(median(times["bare"]), 2),
        unit="s",
        ratio=speedup(times, "ours", "bare"),
        versus="decoding and one forward pass, one after the other",
    )


if __name__ == "__main__":
    for row in measure():
        print(row, flush=True)
