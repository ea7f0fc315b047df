"""AutoAugment and cutout: their tables, operations and random numbers."""

from __future__ import annotations

import ast
import re
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from equipoise.data.augment import DRAWS, Augment
from equipoise.data.autoaugment import OPERATIONS, POLICIES, auto_augment, cut_out
from equipoise.data.images import Images
from equipoise.errors import UsageError


def draws_for(policy: str, number: int, *rest: float) -> torch.Tensor:
    """Return the draws of one image for a sub-policy, then chance and sign of its two operations."""
    return torch.tensor([[(number + 0.5) / len(POLICIES[policy]), *rest, 0.0, 0.0]])


def random_images(*shape: int) -> torch.Tensor:
    return torch.randint(256, shape, dtype=torch.uint8, generator=torch.Generator().manual_seed(3))


def test_other_options_keep_their_random_numbers() -> None:
    def draw(**options: Any) -> torch.Tensor:
        return Augment(flip=True, **options).draw(6, torch.Generator().manual_seed(1))

    expected = torch.rand((6, DRAWS), generator=torch.Generator().manual_seed(1))
    assert torch.equal(draw(), expected)
    for options in ({"auto": "cifar10"}, {"cutout": 4}):
        assert torch.equal(draw(**options)[:, :DRAWS], expected)
        assert draw(**options).shape == (6, DRAWS + 7)


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("policy", sorted(POLICIES))
def test_an_image_does_not_depend_on_its_batch(policy: Any, channels: int) -> None:
    augment = Augment(pad=2, flip=True, auto=policy, cutout=5)
    images = Images.of(random_images(200, channels, 12, 10), torch.zeros(200))
    draws = augment.draw(200, torch.Generator().manual_seed(2))
    batch = augment.batch(images, torch.arange(200), draws)
    assert batch.shape == (200, channels, 12, 10)
    for row in (0, 7, 199):
        assert torch.equal(augment.batch(images, torch.tensor([row]), draws[row : row + 1])[0], batch[row])
    plain = Augment(pad=2, flip=True).batch(images, torch.arange(200), draws)
    changed = (batch != plain).flatten(1).any(1).float().mean()
    assert changed > 0.9


def test_policies_are_those_of_torchvision() -> None:
    """Read from its source: importing it needs a build that fits this torch."""
    spec = find_spec("torchvision")
    if spec is None or spec.origin is None:
        pytest.skip("torchvision is not installed")
    source = (Path(spec.origin).parent / "transforms" / "autoaugment.py").read_text()
    rows = re.findall(r"^ +(\(\(\"\w+\", .*\)\)),$", source, re.MULTILINE)
    theirs = [ast.literal_eval(row) for row in rows]
    names = {"shear-x": "ShearX", "shear-y": "ShearY", "shift-x": "TranslateX", "shift-y": "TranslateY"}
    names |= {"autocontrast": "AutoContrast"}
    without_level = {"autocontrast", "equalize", "invert"}
    found = [
        tuple(
            (names.get(operation, operation.capitalize()), chance, None if operation in without_level else level)
            for operation, chance, level in pair
        )
        for pair in POLICIES["imagenet"] + POLICIES["cifar10"]
    ]
    assert found == theirs[:50]


def test_each_operation_is_applied_with_its_own_probability() -> None:
    """Sub-policy 14 is solarize with probability 0.5, then nothing; 23 is equalize (0.8), then invert (0.1)."""
    image = random_images(1, 3, 8, 8)
    array = image.numpy().astype(int)
    threshold = 256 - 256 * 2 / 9
    solarized = np.where(array < threshold, array, 255 - array)
    assert np.array_equal(auto_augment(image, "cifar10", draws_for("cifar10", 14, 0.49, 0, 0, 0)), solarized)
    assert torch.equal(auto_augment(image, "cifar10", draws_for("cifar10", 14, 0.5, 0, 0, 0)), image)
    inverted = auto_augment(image, "cifar10", draws_for("cifar10", 23, 0.8, 0, 0.09, 0))
    assert torch.equal(inverted, 255 - image)


def test_a_sign_decides_the_direction() -> None:
    """Sub-policy 21 shifts by 150 / 331 of the height, up or down; what comes from outside is grey."""
    image = random_images(1, 3, 20, 6)
    rows = 20 * 150 / 331  # 9.06
    up = auto_augment(image, "cifar10", draws_for("cifar10", 21, 0.1, 0.2, 0.99, 0))
    down = auto_augment(image, "cifar10", draws_for("cifar10", 21, 0.1, 0.7, 0.99, 0))
    whole = int(rows)
    assert torch.equal(up[:, :, : 20 - whole], image[:, :, whole:])
    assert (up[:, :, 20 - whole :] == 128).all()
    assert torch.equal(down[:, :, whole:], image[:, :, : 20 - whole])
    assert (down[:, :, :whole] == 128).all()


@pytest.mark.parametrize("level", [-1.0, 4 / 9])
def test_operations_have_the_published_ranges(level: float) -> None:
    array = random_images(16, 16, 3).numpy()
    picture, values = Image.fromarray(array), array.astype(float)

    def found(name: str) -> Any:
        return np.asarray(OPERATIONS[name](picture, level)).astype(float)

    factor = 1 + 0.9 * level
    np.testing.assert_allclose(found("brightness"), np.clip(values * factor, 0, 255), atol=1)
    grey = np.asarray(picture.convert("L")).astype(float)
    for name, base in (("color", grey[:, :, None]), ("contrast", np.round(grey.mean()))):
        np.testing.assert_allclose(found(name), np.clip(base + factor * (values - base), 0, 255), atol=1.01)
    bits = round(8 - 4 * abs(level))
    assert np.array_equal(found("posterize"), array & (256 - 2 ** (8 - bits)))
    assert np.array_equal(found("invert"), 255 - values)
    # shear-x: the row y is shifted by 0.3 · level · y; a horizontal ramp shows by how much
    ramp = Image.fromarray(np.tile(np.arange(0, 240, 6, dtype=np.uint8), (40, 1)))
    sheared = np.asarray(OPERATIONS["shear-x"](ramp, level)).astype(float)
    row, column = 10, 20
    assert sheared[row, column] == pytest.approx(6 * (column + 0.3 * level * (row + 0.5)), abs=1.5)
    tilted = np.asarray(OPERATIONS["rotate"](ramp, level)).astype(float)
    angle = np.radians(30 * level)  # counter-clockwise about the centre
    x, y = column + 0.5 - 20, row + 0.5 - 20
    assert tilted[row, column] == pytest.approx(6 * (20 + np.cos(angle) * x - np.sin(angle) * y - 0.5), abs=6)


def test_equalize_and_autocontrast_use_the_full_range() -> None:
    picture = Image.fromarray(random_images(64, 64).numpy() // 4 + 90)
    for name in ("equalize", "autocontrast"):
        changed = np.asarray(OPERATIONS[name](picture, 0.0))
        assert changed.min() == 0
        assert changed.max() >= 254


@pytest.mark.parametrize("side", [4, 5, 40])
def test_cutout_makes_one_square_black(side: int) -> None:
    pixels = random_images(300, 2, 9, 7).clamp(min=1)
    draws = torch.rand(300, 7, generator=torch.Generator().manual_seed(0))
    cut = cut_out(pixels, side, draws).numpy()
    centres = set()
    for image, before, row in zip(cut, pixels.numpy(), draws.tolist(), strict=True):
        y, x = int(row[5] * 9), int(row[6] * 7)
        centres.add((y, x))
        expected = before.copy()
        for i in range(9):
            for j in range(7):
                if y - side // 2 <= i < y - side // 2 + side and x - side // 2 <= j < x - side // 2 + side:
                    expected[:, i, j] = 0
        assert np.array_equal(image, expected)
    assert len(centres) > 55  # of 63


def test_settings_that_cannot_work_are_rejected() -> None:
    with pytest.raises(UsageError, match=r"augment\.cutout must be between 0 and 65,536, got -1"):
        Augment(cutout=-1)
    with pytest.raises(UsageError, match=r"augment\.auto is for grey or RGB images, not for 4 channels"):
        Augment(auto="cifar10").check((4, 32, 32))
    Augment(auto="cifar10").check((3, 32, 32))
