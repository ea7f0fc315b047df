"""Networks, schedules and batches."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from equipoise.errors import UsageError
from equipoise.learn.backbones import Architecture
from equipoise.learn.backbones.base import Backbone
from equipoise.learn.loop import _shuffled_batches
from equipoise.learn.schedule import Schedule


def make_backbone(name: str, channels: int, final_relu: bool = True) -> Backbone:
    return Architecture(name, (channels, 32, 32))(final_relu)


def count(net: torch.nn.Module) -> int:
    return sum(p.numel() for p in net.parameters())


def test_resnet32_matches_the_paper() -> None:
    """Parameters counted by hand: stem, 3 groups of 5 pre-activation blocks, last batch norm."""
    net = make_backbone("resnet32", 3)
    expected = 27 * 16
    for group, width in enumerate((16, 32, 64)):
        for block in range(5):
            inputs = width // 2 if group and not block else width
            expected += 2 * inputs + 9 * inputs * width + 2 * width + 9 * width * width
            expected += inputs * width if inputs != width else 0
    expected += 2 * 64
    assert count(net) == expected
    convolutions = [m for m in net.modules() if isinstance(m, torch.nn.Conv2d) and m.kernel_size == (3, 3)]
    assert len(convolutions) == 31  # and the head makes 32
    assert net(torch.rand(2, 3, 32, 32)).shape == (2, 64)


def test_resnet18_accepts_large_photos() -> None:
    net = make_backbone("resnet18", 3).eval()
    convolutions = [m for m in net.modules() if isinstance(m, torch.nn.Conv2d) and m.kernel_size != (1, 1)]
    assert len(convolutions) == 17
    assert net(torch.rand(1, 3, 224, 224)).shape == (1, 512)


def test_he_initialisation() -> None:
    net = make_backbone("resnet18", 3)
    weight = next(p for p in net.parameters() if p.shape == (512, 512, 3, 3))
    assert weight.std().item() == pytest.approx(math.sqrt(2 / (512 * 9)), rel=0.01)


def test_schedules() -> None:
    cosine = Schedule(epochs=10, lr=1.0, lr_schedule="cosine")
    assert [cosine.lr_at(t) for t in (0, 5, 10)] == pytest.approx([1, 0.5, 0])
    cycle = Schedule(epochs=10, lr=1.0, lr_schedule="one-cycle", warmup=0.2)
    assert [cycle.lr_at(t) for t in (0, 1, 2, 6, 10)] == pytest.approx([0, 0.5, 1, 0.5, 0])
    steps = Schedule(epochs=10, lr=1.0, lr_schedule="milestones", milestones=(3, 6))
    assert [steps.lr_at(t) for t in (0, 2.9, 3, 5.9, 6, 9)] == pytest.approx([1, 1, 0.1, 0.1, 0.01, 0.01])
    assert Schedule(lr_schedule="constant", lr=0.3).lr_at(7) == 0.3
    with pytest.raises(UsageError, match=r"train\.epochs must be between 1 and"):
        Schedule(epochs=0)
    with pytest.raises(UsageError, match=r"train\.lr must be above 0"):
        Schedule(lr=0.0)


@settings(max_examples=100, deadline=None)
@given(images=st.integers(1, 200), size=st.integers(1, 64))
def test_batches_are_a_permutation_and_never_hold_a_single_image(images: int, size: int) -> None:
    batches = _shuffled_batches(images, size, torch.Generator().manual_seed(0))
    flat = torch.cat(batches).tolist()
    assert sorted(set(flat)) == list(range(images))
    assert len(flat) == (images if images > 1 else 2)
    assert all(len(batch) <= size + 1 for batch in batches[:-1] or [])
    if size > 1:
        assert all(len(batch) > 1 for batch in batches)
