"""Glyphs: printed characters with random shapes, colours and noise. Generated in seconds, nothing to download."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated

import numpy as np
import torch
from PIL import Image, ImageDraw, ImageFont
from torch import Tensor
from torch.nn import functional as F

from equipoise.core.ranges import Range
from equipoise.core.seeding import generator
from equipoise.data.augment import Augment
from equipoise.data.dataset import Dataset
from equipoise.data.images import Images

# The printable ASCII characters, except four that look like others in another position: ' and ` (,), | (l) and _ (-)
CHARACTERS = "".join(chr(code) for code in range(33, 127) if chr(code) not in "'`|_")
SIZE = 24
CANVAS = 48  # characters are drawn once, at twice the size


ClassSize = Annotated[int, Range(1, 10_000)]


def load(
    root: Path | None,
    difficulty: Annotated[float, Range(0, 100)] = 1.0,
    train: ClassSize = 120,
    test: ClassSize = 30,
    data_seed: int = 0,
) -> Dataset:
    """Generate 90 classes.

    Parameters
    ----------
    root
        Not used.
    difficulty
        How much shapes, colours and noise vary; 0 is clean print.
    train, test
        Images per class.
    data_seed
        Random seed.
    """
    draws = generator("glyphs", data_seed)
    stamps = torch.stack([_stamp(character) for character in CHARACTERS])
    labels = torch.arange(len(CHARACTERS)).repeat_interleave(train + test)
    # one class at a time, which needs less memory
    pixels = torch.cat([_render(stamp, train + test, difficulty, draws) for stamp in stamps])
    is_train = torch.arange(len(labels)) % (train + test) < train
    everything = Images.of(pixels, labels)
    return Dataset(
        "glyphs",
        train=everything.select(is_train),
        test=everything.select(~is_train),
        classes=tuple(CHARACTERS),
        augment=Augment(mean=(0.5, 0.5, 0.5), std=(0.25, 0.25, 0.25), pad=2),
    )


def _stamp(character: str) -> Tensor:
    """Return the character, centred on a square canvas, with values in 0–1."""
    canvas = Image.new("L", (CANVAS, CANVAS))
    font = ImageFont.load_default(size=CANVAS * 0.72)
    ImageDraw.Draw(canvas).text((CANVAS / 2, CANVAS / 2), character, fill=255, font=font, anchor="mm")
    return torch.from_numpy(np.array(canvas)).float().div(255)


def _render(stamp: Tensor, count: int, difficulty: float, draws: torch.Generator) -> Tensor:
    """Return ``count`` random images of one character as uint8, N × 3 × 24 × 24."""

    def spread(*shape: int) -> Tensor:
        """Draw uniformly from -1 to 1."""
        return torch.rand((count, *shape), generator=draws) * 2 - 1

    angle = spread() * math.radians(20) * difficulty
    scale = 1 / (1 + 0.25 * difficulty * spread().clamp(min=-3 / max(difficulty, 3)))
    shear, shift = spread() * 0.25 * difficulty, spread(2) * 0.18 * difficulty
    cos, sin = angle.cos() * scale, angle.sin() * scale
    rows = [cos, -sin + shear * cos, shift[:, 0], sin, cos + shear * sin, shift[:, 1]]
    affine = torch.stack(rows, 1).view(count, 2, 3)
    grid = F.affine_grid(affine, [count, 1, SIZE, SIZE], align_corners=False)
    ink = F.grid_sample(stamp.expand(count, 1, CANVAS, CANVAS), grid, align_corners=False)

    # two colours with enough contrast, and a gradient of light across the paper
    paper = 0.5 + 0.5 * spread(3, 1, 1) * min(difficulty, 1)
    contrast = (paper < 0.5).float() * 2 - 1
    pen = (paper + contrast * (0.35 + 0.3 * torch.rand((count, 3, 1, 1), generator=draws))).clamp(0, 1)
    ramp = torch.linspace(-1, 1, SIZE)
    slope = spread(2, 1, 1) * 0.2 * difficulty
    light = slope[:, :1] * ramp.view(1, 1, 1, -1) + slope[:, 1:] * ramp.view(1, 1, -1, 1)
    noise = torch.randn((count, 3, SIZE, SIZE), generator=draws) * 0.08 * difficulty
    picture = paper + (pen - paper) * ink + light + noise
    return picture.clamp(0, 1).mul(255).round().to(torch.uint8)
