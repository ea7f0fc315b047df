"""Thumbnails of a run for its report: exemplars and some test images."""

from __future__ import annotations

import io
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from equipoise.core.directory import Directory
from equipoise.data.images import Images, pictures
from equipoise.data.memory import Memory

EDGE = 48
"""Maximum width of a thumbnail in pixels."""
THUMBNAILS = 1000
"""Maximum number of exemplars; each class shows its first ones."""
PER_CLASS = 10
MAX_HEIGHT = 16_383
"""WebP's limit in pixels; further classes go into blocks side by side."""
KINDS = {"fixed": 10, "broken": 5, "wrong": 5, "correct": 4}
"""Test images of each kind: fixed or broken by the correction, or wrong or correct before and after it."""


def write_gallery(folder: Directory, memory: Memory, tests: Images, predictions: dict[str, Tensor]) -> None:
    """Write sheets of thumbnails and gallery.json, which describes them and is written last."""
    folder.make_dir()
    exemplars = sorted(memory.exemplars.items())
    columns = max(1, min(PER_CLASS, THUMBNAILS // max(len(exemplars), 1)))
    rows = [pictures(images.select(slice(columns))) for _, images in exemplars]
    kept = [{"label": label, "kept": len(images)} for label, images in exemplars]
    shown = choose_examples(predictions)
    contents: dict[str, Any] = {"columns": columns, "exemplars": kept, "examples": shown}
    if rows:
        contents["edge"], contents["rows"] = _write_sheet(folder, "exemplars.webp", rows, columns)
    if shown:
        where = torch.tensor([entry["image"] for entry in shown])
        contents["example_edge"], _ = _write_sheet(folder, "examples.webp", [pictures(tests.select(where))], len(shown))
    folder.write_json("gallery.json", contents)


def choose_examples(predictions: dict[str, Tensor]) -> list[dict[str, Any]]:
    """Choose a few test images of each kind, spread evenly over the classes."""
    labels, after = predictions["labels"], predictions["top1"]
    before = predictions.get("top1_uncorrected", after)
    was, is_ = before == labels, after == labels
    masks = {"fixed": ~was & is_, "broken": was & ~is_, "wrong": ~was & ~is_, "correct": was & is_}
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


def _write_sheet(folder: Directory, name: str, rows: Sequence[Images], columns: int) -> tuple[int, int]:
    """Write an image with a row of thumbnails for each of ``rows``; return their width and the rows per block."""
    _, height, width = rows[0].store.shape
    edge = min(EDGE, max(height, width))
    tall = min(len(rows), MAX_HEIGHT // edge)
    sheet = np.full((tall * edge, math.ceil(len(rows) / tall) * columns * edge, 3), 255, np.uint8)
    for number, images in enumerate(rows):
        block, down = divmod(number, tall)
        for across, pixels in enumerate(images.read(torch.arange(len(images))), block * columns):
            picture = Image.fromarray(pixels.expand(3, -1, -1).permute(1, 2, 0).numpy())
            picture = picture.resize((edge, edge), Image.Resampling.BILINEAR if width > edge else Image.Resampling.BOX)
            sheet[down * edge : (down + 1) * edge, across * edge : (across + 1) * edge] = np.asarray(picture)
    encoded = io.BytesIO()
    Image.fromarray(sheet).save(encoded, "WEBP", quality=60, method=4)
    folder.write_bytes(name, encoded.getvalue())
    return edge, tall
