"""Pictures of a run for its report: the exemplars that were kept, and test images the model was asked about."""

from __future__ import annotations

import io
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from equipoise.data.images import Images
from equipoise.data.memory import Memory
from equipoise.files import write_bytes, write_json

EDGE = 48
"""Thumbnails are at most this wide."""
THUMBNAILS = 1000
"""Exemplars shown in all; a class shows its first ones."""
PER_CLASS = 10
TALLEST = 16_383
"""Pixels; WebP knows no taller picture, so that more classes stand in blocks side by side."""
KINDS = {"mended": 10, "spoiled": 5, "wrong": 5, "right": 4}
"""Test images shown of each kind: the correction made it right or wrong, or it is wrong or right all the same."""


def write_gallery(folder: Path, memory: Memory, tests: Images, said: dict[str, Tensor]) -> None:
    """Sheets of thumbnails and what they show; gallery.json is written last."""
    folder.mkdir(exist_ok=True)
    columns = max(1, min(PER_CLASS, THUMBNAILS // max(len(memory.kept), 1)))
    rows = [images.select(torch.arange(min(columns, len(images)))) for _, images in sorted(memory.kept.items())]
    shown = choose_examples(said)
    contents: dict[str, Any] = {"columns": columns, "exemplars": [], "examples": shown}
    if rows:
        contents["edge"], contents["rows"] = _sheet(folder / "exemplars.webp", rows, columns)
        contents["exemplars"] = [{"label": label, "kept": len(images)} for label, images in sorted(memory.kept.items())]
    if shown:
        where = torch.tensor([entry["image"] for entry in shown])
        contents["example_edge"], _ = _sheet(folder / "examples.webp", [tests.select(where)], len(shown))
    write_json(folder / "gallery.json", contents)


def choose_examples(said: dict[str, Tensor]) -> list[dict[str, Any]]:
    """A few test images of each kind, spread evenly over the classes."""
    labels, after = said["labels"], said["top1"]
    before = said.get("top1_uncorrected", after)
    was, is_ = before == labels, after == labels
    masks = {"mended": ~was & is_, "spoiled": was & ~is_, "wrong": ~was & ~is_, "right": was & is_}
    examples = []
    for kind, count in KINDS.items():
        places = masks[kind].nonzero().flatten()
        places = places[labels[places].argsort(stable=True)]
        chosen = places[torch.linspace(0, len(places) - 1, min(count, len(places))).round().long()]
        examples += [
            {"image": i, "kind": kind, "label": int(labels[i]), "before": int(before[i]), "after": int(after[i])}
            for i in chosen.tolist()
        ]
    return examples


def _sheet(path: Path, rows: Sequence[Images], columns: int) -> tuple[int, int]:
    """Write one picture with a row of thumbnails for each of ``rows``; returns their width, and the rows of a block."""
    _, height, width = rows[0].store.shape
    edge = min(EDGE, max(height, width))
    tall = min(len(rows), TALLEST // edge)
    sheet = np.full((tall * edge, math.ceil(len(rows) / tall) * columns * edge, 3), 255, np.uint8)
    for number, images in enumerate(rows):
        block, down = divmod(number, tall)
        for across, pixels in enumerate(images.read(torch.arange(len(images))), block * columns):
            picture = Image.fromarray(pixels.expand(3, -1, -1).permute(1, 2, 0).numpy())
            picture = picture.resize((edge, edge), Image.Resampling.BILINEAR if width > edge else Image.Resampling.BOX)
            sheet[down * edge : (down + 1) * edge, across * edge : (across + 1) * edge] = np.asarray(picture)
    encoded = io.BytesIO()
    Image.fromarray(sheet).save(encoded, "WEBP", quality=60, method=4)
    write_bytes(path, encoded.getvalue())
    return edge, tall
