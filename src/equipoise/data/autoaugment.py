"""AutoAugment (Cubuk et al. 2019) and cutout (DeVries and Taylor 2017), with random numbers per image."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import torch
from PIL import Image, ImageEnhance, ImageOps
from torch import Tensor

DRAWS = 7
"""Random numbers per image: one for the sub-policy, two for each of its operations, two for the hole of cutout."""
TOP = 9
"""The highest level of an operation, from 0."""
GREY = 128
"""The colour of what comes from outside of an image."""

Operation = tuple[str, float, int]
"""A name from ``OPERATIONS``, the probability that it is applied, and its level."""


def auto_augment(pixels: Tensor, policy: str, draws: Tensor) -> Tensor:
    """Change each image by a random sub-policy; each of its two operations is applied with its own probability."""
    changed = []
    images = pixels.permute(0, 2, 3, 1).cpu().numpy()  # Pillow computes on the CPU
    for image, (which, *chances) in zip(images, draws[:, :5].tolist(), strict=True):
        picture = Image.fromarray(image if image.shape[2] == 3 else image[:, :, 0])
        operations = POLICIES[policy][int(which * len(POLICIES[policy]))]
        for (name, probability, level), chance, sign in zip(operations, chances[::2], chances[1::2], strict=True):
            if chance < probability:
                picture = OPERATIONS[name](picture, level / TOP * (1 if sign < 0.5 else -1))
        changed.append(np.asarray(picture).reshape(image.shape))
    return torch.from_numpy(np.stack(changed)).permute(0, 3, 1, 2).contiguous().to(pixels.device)


def cut_out(pixels: Tensor, side: int, draws: Tensor) -> Tensor:
    """Make a square of each image black; its centre is anywhere in the image, so a part of it may lie outside."""
    rows, columns = (
        _within(torch.arange(length, device=pixels.device), (draws[:, number] * length).long()[:, None], side)
        for number, length in zip((5, 6), pixels.shape[2:], strict=True)
    )
    return pixels.masked_fill((rows[:, :, None] & columns[:, None, :])[:, None], 0)


def _within(places: Tensor, centre: Tensor, side: int) -> Tensor:
    first = centre - side // 2
    return (places >= first) & (places < first + side)


# ---- operations: a picture and a level from -1 to 1, whose sign is random


def _affine(x_of_y: float, x: float, y_of_x: float, y: float) -> Callable[[Image.Image, float], Image.Image]:
    """Return a shear (bicubic) or a shift by a fraction of the size (nearest pixel)."""
    resample = Image.Resampling.BICUBIC if x_of_y or y_of_x else Image.Resampling.NEAREST

    def change(picture: Image.Image, level: float) -> Image.Image:
        width, height = picture.size
        matrix = (1, level * x_of_y, level * x * width, level * y_of_x, 1, level * y * height)
        grey = (GREY,) * len(picture.getbands())
        return picture.transform(picture.size, Image.Transform.AFFINE, matrix, resample, fillcolor=grey)

    return change


def _rotate(picture: Image.Image, level: float) -> Image.Image:
    return picture.rotate(30 * level, fillcolor=(GREY,) * len(picture.getbands()))


def _enhance(kind: Callable[[Image.Image], ImageEnhance._Enhance]) -> Callable[[Image.Image, float], Image.Image]:
    return lambda picture, level: kind(picture).enhance(1 + 0.9 * level)


SHIFT = 150 / 331  # of the size: 150 pixels of the 331 that the policy was searched with

OPERATIONS: dict[str, Callable[[Image.Image, float], Image.Image]] = {
    "shear-x": _affine(0.3, 0, 0, 0),
    "shear-y": _affine(0, 0, 0.3, 0),
    "shift-x": _affine(0, SHIFT, 0, 0),
    "shift-y": _affine(0, 0, 0, SHIFT),
    "rotate": _rotate,
    "color": _enhance(ImageEnhance.Color),
    "contrast": _enhance(ImageEnhance.Contrast),
    "sharpness": _enhance(ImageEnhance.Sharpness),
    "brightness": _enhance(ImageEnhance.Brightness),
    "posterize": lambda picture, level: ImageOps.posterize(picture, round(8 - 4 * abs(level))),
    "solarize": lambda picture, level: ImageOps.solarize(picture, math.ceil(256 * (1 - abs(level)))),
    "autocontrast": lambda picture, level: ImageOps.autocontrast(picture),
    "equalize": lambda picture, level: ImageOps.equalize(picture),
    "invert": lambda picture, level: ImageOps.invert(picture),
}

POLICIES: dict[str, list[tuple[Operation, Operation]]] = {
    "cifar10": [
        (("invert", 0.1, 7), ("contrast", 0.2, 6)),
        (("rotate", 0.7, 2), ("shift-x", 0.3, 9)),
        (("sharpness", 0.8, 1), ("sharpness", 0.9, 3)),
        (("shear-y", 0.5, 8), ("shift-y", 0.7, 9)),
        (("autocontrast", 0.5, 8), ("equalize", 0.9, 2)),
        (("shear-y", 0.2, 7), ("posterize", 0.3, 7)),
        (("color", 0.4, 3), ("brightness", 0.6, 7)),
        (("sharpness", 0.3, 9), ("brightness", 0.7, 9)),
        (("equalize", 0.6, 5), ("equalize", 0.5, 1)),
        (("contrast", 0.6, 7), ("sharpness", 0.6, 5)),
        (("color", 0.7, 7), ("shift-x", 0.5, 8)),
        (("equalize", 0.3, 7), ("autocontrast", 0.4, 8)),
        (("shift-y", 0.4, 3), ("sharpness", 0.2, 6)),
        (("brightness", 0.9, 6), ("color", 0.2, 8)),
        (("solarize", 0.5, 2), ("invert", 0.0, 3)),
        (("equalize", 0.2, 0), ("autocontrast", 0.6, 0)),
        (("equalize", 0.2, 8), ("equalize", 0.6, 4)),
        (("color", 0.9, 9), ("equalize", 0.6, 6)),
        (("autocontrast", 0.8, 4), ("solarize", 0.2, 8)),
        (("brightness", 0.1, 3), ("color", 0.7, 0)),
        (("solarize", 0.4, 5), ("autocontrast", 0.9, 3)),
        (("shift-y", 0.9, 9), ("shift-y", 0.7, 9)),
        (("autocontrast", 0.9, 2), ("solarize", 0.8, 3)),
        (("equalize", 0.8, 8), ("invert", 0.1, 3)),
        (("shift-y", 0.7, 9), ("autocontrast", 0.9, 1)),
    ],
    "imagenet": [
        (("posterize", 0.4, 8), ("rotate", 0.6, 9)),
        (("solarize", 0.6, 5), ("autocontrast", 0.6, 5)),
        (("equalize", 0.8, 8), ("equalize", 0.6, 3)),
        (("posterize", 0.6, 7), ("posterize", 0.6, 6)),
        (("equalize", 0.4, 7), ("solarize", 0.2, 4)),
        (("equalize", 0.4, 4), ("rotate", 0.8, 8)),
        (("solarize", 0.6, 3), ("equalize", 0.6, 7)),
        (("posterize", 0.8, 5), ("equalize", 1.0, 2)),
        (("rotate", 0.2, 3), ("solarize", 0.6, 8)),
        (("equalize", 0.6, 8), ("posterize", 0.4, 6)),
        (("rotate", 0.8, 8), ("color", 0.4, 0)),
        (("rotate", 0.4, 9), ("equalize", 0.6, 2)),
        (("equalize", 0.0, 7), ("equalize", 0.8, 8)),
        (("invert", 0.6, 4), ("equalize", 1.0, 8)),
        (("color", 0.6, 4), ("contrast", 1.0, 8)),
        (("rotate", 0.8, 8), ("color", 1.0, 2)),
        (("color", 0.8, 8), ("solarize", 0.8, 7)),
        (("sharpness", 0.4, 7), ("invert", 0.6, 8)),
        (("shear-x", 0.6, 5), ("equalize", 1.0, 9)),
        (("color", 0.4, 0), ("equalize", 0.6, 3)),
        (("equalize", 0.4, 7), ("solarize", 0.2, 4)),
        (("solarize", 0.6, 5), ("autocontrast", 0.6, 5)),
        (("invert", 0.6, 4), ("equalize", 1.0, 8)),
        (("color", 0.6, 4), ("contrast", 1.0, 8)),
        (("equalize", 0.8, 8), ("equalize", 0.6, 3)),
    ],
}
"""The best sub-policies of the paper's appendix, for data like CIFAR and ImageNet; two operations each."""
