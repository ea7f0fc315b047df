"""Streams, memory, herding, images, splits, prefetching, augmentation and sources."""

from __future__ import annotations

import gc
import io
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image, ImageOps
from torch import Tensor

import equipoise as eq
from equipoise.app.arrays import decode_all
from equipoise.core.seeding import generator
from equipoise.data.augment import Augment, jitter, shift_and_flip
from equipoise.data.dataset import Dataset
from equipoise.data.decoding import decode
from equipoise.data.images import FileStore, Images, TensorStore, join
from equipoise.data.memory import Memory
from equipoise.data.prefetch import map_ahead
from equipoise.data.sources import SOURCES, load
from equipoise.data.sources.glyphs import CHARACTERS
from equipoise.data.split import hold_out
from equipoise.data.stream import ClassStream, class_order, step_sizes
from equipoise.errors import DataError, UsageError


def toy(counts: list[int]) -> Dataset:
    """Return images whose only pixel is their number."""
    labels = torch.arange(len(counts)).repeat_interleave(torch.tensor(counts))
    pixels = torch.arange(len(labels)).to(torch.uint8).view(-1, 1, 1, 1)
    images = Images.of(pixels, labels)
    return Dataset("toy", images, images, tuple(f"c{i}" for i in range(len(counts))), Augment())


# ---- the stream


def test_named_orders_are_the_published_ones() -> None:
    assert class_order("1993", 100)[:10] == [68, 56, 78, 8, 23, 84, 90, 65, 74, 76]
    assert class_order("icarl", 100)[:10] == [87, 0, 52, 58, 44, 91, 68, 97, 51, 15]
    assert sorted(class_order("icarl", 100)) == list(range(100))
    assert class_order("natural", 4) == [0, 1, 2, 3]
    np.random.seed(7)
    shuffled = np.arange(30)
    np.random.shuffle(shuffled)
    assert class_order(7, 30) == shuffled.tolist()


@pytest.mark.parametrize("order", ["nonsense", [0, 1, 1], [0, 1], "icarl", -1, 2**32])
def test_invalid_orders_are_rejected(order: str | list[int]) -> None:
    with pytest.raises(UsageError):
        class_order(order, 3)


@pytest.mark.parametrize("steps", [7, 0, 101, "50,10", "50,x", [99, 0, 1], [100, 1], "", "1x99999999999"])
def test_steps_that_do_not_add_up_are_rejected(steps: int | str | list[int]) -> None:
    with pytest.raises(UsageError):
        step_sizes(steps, 100)


@settings(max_examples=60, deadline=None)
@given(counts=st.lists(st.integers(1, 4), min_size=1, max_size=12), data=st.data())
def test_every_class_arrives_once_with_all_its_images(counts: list[int], data: st.DataObject) -> None:
    classes = len(counts)
    cuts = data.draw(st.sets(st.integers(1, classes), max_size=classes).map(lambda s: sorted(s | {classes})))
    sizes = [b - a for a, b in zip([0, *cuts], cuts, strict=False)]
    order = data.draw(st.permutations(range(classes)))
    stream = ClassStream(toy(counts), sizes, order)
    seen: list[int] = []
    rows: list[int] = []
    for index, step in enumerate(stream, 1):
        labels = sorted(set(step.images.labels.tolist()))
        assert step.index == index
        assert labels == list(range(step.old, step.seen))
        assert set(stream.tests(step).labels.tolist()) == set(range(step.seen))
        assert set(stream.before(step).labels.tolist()) == set(range(step.old))
        seen += labels
        rows += step.images.rows.tolist()
    assert seen == list(range(classes))
    assert sorted(rows) == list(range(sum(counts)))
    originals = toy(counts).train.labels
    for label, original in enumerate(order):
        mine = stream.train.rows[stream.train.labels == label]
        assert set(originals[mine].tolist()) == {original}


def test_stream_of_some_of_the_classes() -> None:
    stream = ClassStream(toy([2] * 6), 2, "natural", classes=4)
    assert stream.names == ("c0", "c1", "c2", "c3")
    assert stream.sizes == [2, 2]
    with pytest.raises(UsageError, match="between 1 and 6, the classes of toy; got 7"):
        ClassStream(toy([2] * 6), 2, classes=7)


def test_class_without_training_images_is_named() -> None:
    with pytest.raises(UsageError, match="'c1' has no training images"):
        ClassStream(toy([2, 0, 2]), 3)


# ---- herding and memory


def quadratic_herding(features: np.ndarray, count: int) -> list[int]:
    """Herd as defined: try every image that is left, and compute the mean of the selected ones again."""
    mean = features.mean(0)
    picked: list[int] = []
    while len(picked) < min(count, len(features)):
        best, best_distance = -1, np.inf
        for candidate in range(len(features)):
            if candidate not in picked:
                distance = float(np.linalg.norm(mean - features[[*picked, candidate]].mean(0)))
                if distance < best_distance - 1e-12:
                    best, best_distance = candidate, distance
        picked.append(best)
    return picked


@pytest.mark.parametrize("normalise", [True, False])
@pytest.mark.parametrize(("n", "d", "m"), [(40, 6, 15), (12, 3, 12), (5, 8, 9), (1, 4, 3)])
def test_herding_follows_its_definition(n: int, d: int, m: int, normalise: bool) -> None:
    features = np.random.default_rng(n + d).normal(size=(n, d)) + 1
    if normalise:
        features /= np.linalg.norm(features, axis=1, keepdims=True)
    assert eq.herd(torch.from_numpy(features), m).tolist() == quadratic_herding(features, m)


def test_herding_needs_rows_of_features() -> None:
    with pytest.raises(UsageError, match="one row of features"):
        eq.herd(torch.ones(3), 2)


def test_herding_in_single_precision_follows_the_definition_in_double() -> None:
    """Far from the origin, products of single precision differ by less than they are rounded."""
    for seed in range(5):
        draws = np.random.default_rng(seed)
        features = (1000 + draws.normal(size=(60, 4))).astype(np.float32)
        expected = quadratic_herding(features.astype(np.float64), 12)
        assert eq.herd(torch.from_numpy(features).requires_grad_(), 12).tolist() == expected


@pytest.mark.parametrize("seed", [1085, 1295, 1322])
def test_two_rows_that_single_precision_confuses_are_compared_in_double(seed: int) -> None:
    features = np.random.default_rng(seed).normal(size=(3, 3))
    features[2] *= 30  # out of reach of rounding
    features = (1000 + features).astype(np.float32)
    expected = quadratic_herding(features.astype(np.float64), 3)
    assert eq.herd(torch.from_numpy(features), 3).tolist() == expected


def test_herding_of_integers_and_of_nothing() -> None:
    assert eq.herd(torch.tensor([[0], [1], [5]]), 3).tolist() == [1, 2, 0]
    assert eq.herd(torch.zeros(0, 3), 2).tolist() == []
    assert eq.herd(torch.ones(2, 3), 0).tolist() == []


def numbers(images: Images) -> Tensor:
    """Return two features of each toy image that depend on its pixel."""
    values = images.read(torch.arange(len(images))).flatten().double()
    return torch.stack([values + 1, (values * 7 % 5) + 1], 1)


@settings(max_examples=60, deadline=None)
@given(
    counts=st.lists(st.integers(1, 9), min_size=1, max_size=8),
    size=st.integers(0, 40),
    per=st.sampled_from(["total", "class"]),
    selection=st.sampled_from(["herding", "random"]),
)
def test_memory_keeps_its_size_and_order(counts: list[int], size: int, per: str, selection: str) -> None:
    stream = ClassStream(toy(counts), [1] * len(counts))
    memory = Memory(size, per, selection)  # type: ignore[arg-type]
    chosen: dict[int, list[int]] = {}
    for step in stream:
        memory.update(step.images, step.seen, numbers, (0,))
        quota = size if per == "class" else size // step.seen
        if per == "total":
            assert len(memory) <= size
        for label, rows in memory.row_indices().items():
            assert len(rows) == min(quota, counts[stream.order[label]])
            assert len(set(rows)) == len(rows)
            assert rows == chosen.setdefault(label, rows)[: len(rows)]  # a smaller quota only truncates
            assert (stream.train.labels[torch.isin(stream.train.rows, torch.tensor(rows))] == label).all()


def test_memory_herds_normalised_features_of_each_class() -> None:
    stream = ClassStream(toy([9, 9]), 1, "natural")
    memory = Memory(8)
    memory.update(stream[1].images, 2, numbers, (0,))
    for label in (0, 1):
        mine = stream.train.select(stream.train.labels == label)
        features = numbers(mine).numpy()
        features /= np.linalg.norm(features, axis=1, keepdims=True)
        assert memory.row_indices()[label] == mine.rows[quadratic_herding(features, 4)].tolist()


def test_memory_is_that_of_the_paper_by_default() -> None:
    assert Memory() == Memory(2000, "total", "herding", normalise=True)
    assert repr(Memory()) == "Memory(size=2000, per='total', selection='herding', normalise=True)"
    assert [field.name for field in fields(Memory) if not field.init] == ["exemplars"]
    assert [Memory(10).quota(seen) for seen in (0, 1, 3)] == [10, 10, 3]
    assert [Memory(10, "class").quota(seen) for seen in (0, 1, 3)] == [10, 10, 10]


def test_memory_of_everything_keeps_all_images_in_their_order() -> None:
    images = toy([3, 2]).train.select(torch.tensor([4, 1, 0, 3, 2]))
    memory = Memory("all")
    memory.update(images, 2, lambda images: torch.empty(0), (0,))
    assert memory.row_indices() == {0: [1, 0, 2], 1: [4, 3]}
    again = toy([3, 2, 4]).train.select(torch.tensor([5, 6, 7, 8]))
    memory.update(again, 3, lambda images: torch.empty(0), (0,))
    assert memory.row_indices() == {0: [1, 0, 2], 1: [4, 3], 2: [5, 6, 7, 8]}


def test_random_exemplars_are_drawn_for_each_class_by_its_own_generator() -> None:
    images = toy([9, 7]).train
    memory = Memory(6, selection="random")
    memory.update(images, 2, numbers, ("a", 5))
    orders = [torch.randperm(n, generator=generator("a", 5, "exemplars", c))[:3] for c, n in enumerate((9, 7))]
    assert memory.row_indices() == {0: orders[0].tolist(), 1: (9 + orders[1]).tolist()}


def test_features_of_a_few_classes_are_held_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("equipoise.data.memory.FEATURES_AT_ONCE", 5)
    asked: list[list[int]] = []

    def features(images: Images) -> Tensor:
        asked.append(images.labels.tolist())
        return numbers(images)

    counts = [2, 3, 4, 0, 2, 1]
    images = toy(counts).train
    memory, whole = Memory(3, "class"), Memory(3, "class")
    memory.update(images.select(torch.arange(len(images)).flip(0)), 6, features, (0,))
    assert asked == [[0, 0, 1, 1, 1], [2, 2, 2, 2, 4, 4], [5]]
    monkeypatch.undo()
    whole.update(images.select(torch.arange(len(images)).flip(0)), 6, numbers, (0,))
    assert memory.row_indices() == whole.row_indices()


def test_memory_forgets_classes_and_renumbers_the_others() -> None:
    memory = Memory(2, "class")
    assert memory.images() is None
    memory.update(toy([3, 3, 3]).train, 3, numbers, (0,))
    rows = memory.row_indices()
    memory.keep_classes(torch.tensor([0, 2]))
    assert memory.row_indices() == {0: rows[0], 1: rows[2]}
    left = memory.images()
    assert left is not None
    assert left.labels.tolist() == [0, 0, 1, 1]
    assert len(memory) == 4


def test_memory_is_restored_from_row_indices() -> None:
    stream = ClassStream(toy([5, 5]), 1)
    memory, again = Memory(6), Memory(6)
    memory.update(stream[1].images, 2, numbers, (0,))
    again.restore(memory.row_indices().items(), stream.train.store)
    left, right = memory.images(), again.images()
    assert left is not None
    assert right is not None
    assert torch.equal(left.rows, right.rows)
    assert torch.equal(left.labels, right.labels)
    again.restore(reversed(list(memory.row_indices().items())), stream.train.store)
    turned = again.images()
    assert turned is not None
    assert torch.equal(left.rows, turned.rows)  # in the order of labels
    assert list(again.row_indices()) == [0, 1]


def test_memory_smaller_than_the_number_of_classes_is_rejected() -> None:
    with pytest.raises(UsageError, match="a memory of 99 exemplars is too small for 100 classes"):
        Memory(99).check(100)
    with pytest.raises(UsageError, match="a memory of 1 exemplars is too small for 2 classes"):
        Memory(1).check(2)
    with pytest.raises(UsageError, match=r"memory\.size must be between 0 and"):
        Memory(-1)
    Memory(0).check(100)
    Memory(100).check(100)
    Memory("all").check(100)
    Memory(1, "class").check(100)


# ---- images and augmentation


def test_images_keep_their_labels_when_selected_joined_and_read() -> None:
    a = toy([3, 2]).train
    b = Images.of(torch.full((2, 1, 1, 1), 200, dtype=torch.uint8), torch.tensor([7, 8]))
    both = join([a.select(torch.tensor([4, 0])), b])
    assert both.labels.tolist() == [1, 0, 7, 8]
    assert both.read(torch.tensor([3, 0, 1])).flatten().tolist() == [200, 4, 0]
    same = join([a, a.select(a.labels == 1)])
    assert same.store is a.store
    assert same.read(torch.arange(7)).flatten().tolist() == [0, 1, 2, 3, 4, 3, 4]


def test_invalid_images_are_rejected() -> None:
    with pytest.raises(DataError, match="uint8"):
        TensorStore(torch.zeros(2, 1, 4, 4))
    with pytest.raises(DataError, match="got 2 images but 3 labels"):
        Images.of(torch.zeros(2, 1, 4, 4, dtype=torch.uint8), torch.zeros(3))
    with pytest.raises(DataError, match="different shapes"):
        join([toy([1]).train, Images.of(torch.zeros(1, 3, 4, 4, dtype=torch.uint8), torch.zeros(1))])


def test_validation_images_replace_the_test_images() -> None:
    whole = toy([5, 9, 7])
    part = whole.with_validation(3)
    assert torch.bincount(part.test.labels).tolist() == [3, 3, 3]
    assert torch.bincount(part.train.labels).tolist() == [2, 6, 4]
    assert sorted([*part.train.rows.tolist(), *part.test.rows.tolist()]) == sorted(whole.train.rows.tolist())
    assert torch.equal(whole.train.labels[part.test.rows], part.test.labels)  # training images only
    assert torch.equal(part.test.rows, whole.with_validation(3).test.rows)
    assert (part.name, part.classes, part.augment) == (whole.name, whole.classes, whole.augment)
    assert torch.equal(whole.test.rows, toy([5, 9, 7]).test.rows)  # the original is unchanged
    for count in (-1, 0, 5, 6):
        with pytest.raises(UsageError, match=f"stream.validation must be below 5, .*; got {count}"):
            whole.with_validation(count)


# ---- splits


def test_hold_out_draws_the_given_number_of_each_class() -> None:
    labels = torch.tensor([2, 0, 2, 2, 0, 2, 5, 2])
    held = hold_out(labels, lambda images: images // 2, lambda label: generator("test", label))
    assert held.dtype == torch.bool
    assert held.shape == labels.shape
    assert torch.bincount(labels[held], minlength=6).tolist() == [1, 0, 2, 0, 0, 0]
    assert not hold_out(labels, lambda images: 0, lambda label: generator("test", label)).any()
    assert hold_out(labels, lambda images: images, lambda label: generator("test", label)).all()
    assert hold_out(labels[:0], lambda images: images, lambda label: generator("test", label)).tolist() == []


def test_hold_out_of_a_class_depends_only_on_its_own_generator() -> None:
    asked: list[int] = []

    def random(label: int) -> torch.Generator:
        asked.append(label)
        return generator("test", label)

    labels = torch.tensor([0] * 40 + [1] * 40)
    held = hold_out(labels, lambda images: 10, random)
    assert asked == [0, 1]
    assert torch.equal(held, hold_out(labels, lambda images: 10, random))
    other = hold_out(labels + 1, lambda images: 10, random)  # class 1 comes first now, with the draws of class 1
    assert torch.equal(held[40:], other[:40])
    assert not torch.equal(held[:40], other[:40])
    alone = hold_out(labels[40:], lambda images: 10, random)
    assert torch.equal(held[40:], alone)


# ---- prefetching


def slow_square(number: int) -> int:
    time.sleep(0.002 * (number % 3))
    return number * number


@pytest.mark.parametrize("threads", [None, 1, 4])
@pytest.mark.parametrize("ahead", [0, 1, 5, 100])
def test_map_ahead_keeps_the_order(ahead: int, threads: int | None) -> None:
    pool = None if threads is None else ThreadPoolExecutor(threads)
    assert list(map_ahead(slow_square, range(20), ahead, pool)) == [n * n for n in range(20)]
    assert list(map_ahead(slow_square, [], ahead)) == []


def test_map_ahead_without_a_pool_calls_the_function_in_order() -> None:
    called: list[int] = []
    list(map_ahead(called.append, range(50), 10))
    assert called == list(range(50))


def test_map_ahead_takes_no_more_items_than_it_may() -> None:
    taken = 0

    def items() -> Iterator[int]:
        nonlocal taken
        for number in range(100):
            taken += 1
            yield number

    results = map_ahead(slow_square, items(), 3, ThreadPoolExecutor(2))
    assert taken == 0  # nothing happens before the first result is asked for
    for done in range(1, 6):
        next(results)
        assert taken == done + 3
    results.close()  # type: ignore[attr-defined]
    assert taken == 8


def test_map_ahead_works_while_the_caller_does() -> None:
    second = threading.Event()

    def work(number: int) -> int:
        if number == 1:
            second.set()
        return number

    results = map_ahead(work, range(3), 1)
    assert next(results) == 0
    assert second.wait(10)
    assert list(results) == [1, 2]


@pytest.mark.parametrize("how", ["close", "delete"])
def test_map_ahead_cancels_what_has_not_started_when_it_is_closed(how: str) -> None:
    started: list[int] = []
    blocked, resume = threading.Event(), threading.Event()

    def work(number: int) -> int:
        started.append(number)
        if number == 1:
            blocked.set()
            resume.wait(10)
        return number

    pool = ThreadPoolExecutor(1)
    results = map_ahead(work, range(100), 20, pool)
    assert next(results) == 0
    assert blocked.wait(10)
    threading.Timer(0.05, resume.set).start()
    if how == "close":
        results.close()  # type: ignore[attr-defined]
    else:
        del results
        gc.collect()
    assert started == [0, 1]  # the running call was waited for, and no other was started
    with pytest.raises(RuntimeError, match="shutdown"):
        pool.submit(work, 2)


def test_map_ahead_raises_the_error_of_an_item_in_its_turn() -> None:
    def work(number: int) -> int:
        if number == 2:
            raise DataError("no good")
        return number

    pool = ThreadPoolExecutor(2)
    results = map_ahead(work, range(100), 4, pool)
    assert [next(results), next(results)] == [0, 1]
    with pytest.raises(DataError, match="no good"):
        next(results)
    assert list(results) == []  # it has ended
    with pytest.raises(RuntimeError, match="shutdown"):
        pool.submit(work, 2)


def test_map_ahead_raises_the_error_of_the_items() -> None:
    def items() -> Iterator[int]:
        yield 1
        raise DataError("no more")

    with pytest.raises(DataError, match="no more"):
        list(map_ahead(slow_square, items(), 4))


# ---- augmentation and decoding


def test_shift_and_flip_crops_each_padded_image_at_its_own_position() -> None:
    pixels = torch.randint(1, 256, (64, 2, 6, 5), dtype=torch.uint8)
    shifted = shift_and_flip(pixels, 2, False, torch.rand(64, 3))
    padded = np.pad(pixels.numpy(), ((0, 0), (0, 0), (2, 2), (2, 2)))
    positions = set()
    for image, canvas in zip(shifted.numpy(), padded, strict=True):
        found = [(i, j) for i in range(5) for j in range(5) if (canvas[:, i : i + 6, j : j + 5] == image).all()]
        assert len(found) == 1
        positions.add(found[0])
    assert len(positions) > 12  # of 25


def test_augment_normalises_and_flips_half_of_the_images() -> None:
    pixels = torch.zeros(400, 1, 2, 2, dtype=torch.uint8)
    pixels[:, :, :, 1] = 255
    augment = Augment(mean=(0.5,), std=(0.25,), flip=True)
    images = Images.of(pixels, torch.zeros(400))
    batch = augment.batch(images, torch.arange(400), augment.draw(400, torch.Generator().manual_seed(1)))
    assert set(batch.flatten().tolist()) == {-2.0, 2.0}
    assert 140 < (batch[:, 0, 0, 0] > 0).sum() < 260
    assert batch.is_contiguous(memory_format=torch.channels_last)
    torch.testing.assert_close(augment.plain(images, torch.arange(3)), (pixels[:3] / 255 - 0.5) / 0.25)


def test_jitter_stays_within_its_bounds_and_differs_per_image() -> None:
    pixels = torch.randint(100, 156, (200, 1, 4, 4), dtype=torch.uint8)
    lit = jitter(pixels, 0.1, 0.5, torch.rand(200, 2)).double()
    before = pixels.double()
    shift = (lit.mean((1, 2, 3)) - before.mean((1, 2, 3))) / 255
    stretch = lit.std((1, 2, 3)) / before.std((1, 2, 3))
    assert -0.11 < shift.min() < -0.08 < 0.08 < shift.max() < 0.11
    assert 0.45 < stretch.min() < 0.6 < 1.4 < stretch.max() < 1.55


def test_files_of_every_mode_are_decoded_alike(tmp_path: Path) -> None:
    gradient = np.linspace(0, 255, 90 * 120).reshape(90, 120).astype(np.uint8)
    picture = Image.fromarray(gradient)
    kinds = {"grey.png": "L", "colour.jpg": "RGB", "print.jpg": "CMYK", "glass.png": "RGBA", "table.gif": "P"}
    for name, mode in kinds.items():
        picture.convert("RGB").convert(mode).save(tmp_path / name)
    store = FileStore([tmp_path / name for name in kinds], size=16, margin=256 / 224)
    read = store.read(torch.arange(len(kinds)))
    assert read.shape == (5, 3, 16, 16)
    expected = picture.convert("RGB").resize((16, 16), Image.Resampling.BILINEAR, (20.625, 5.625, 99.375, 84.375))
    for image in read:
        np.testing.assert_allclose(image.permute(1, 2, 0), np.asarray(expected), atol=14)


@pytest.mark.parametrize("ending", ["png", "tif"])
@pytest.mark.parametrize("orientation", range(1, 9))
def test_images_are_turned_upright_as_pillow_does_it(orientation: int, ending: str, tmp_path: Path) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (40, 60, 3), dtype=np.uint8)
    exif = Image.Exif()
    exif[0x0112] = orientation
    file = tmp_path / f"held.{ending}"
    Image.fromarray(pixels).save(file, exif=exif)
    upright = ImageOps.exif_transpose(Image.open(file))
    expected = np.asarray(ImageOps.fit(upright, (16, 16), Image.Resampling.BILINEAR))
    np.testing.assert_allclose(decode(str(file), 16), expected, atol=1)
    np.testing.assert_allclose(decode(Image.open(file), 16), expected, atol=1)


@pytest.mark.parametrize("mode", ["RGB", "RGBA", "P", "1", "CMYK", "I;16"])
def test_the_bicubic_crop_is_that_of_the_upright_image(mode: str, tmp_path: Path) -> None:
    """With unequal margins, the crop would be another one if it was made before the image is turned."""
    pixels = np.random.default_rng(0).integers(0, 256, (40, 61, 3), dtype=np.uint8)
    picture = Image.fromarray(pixels[:, :, 0].astype(np.uint16) * 257) if mode == "I;16" else Image.fromarray(pixels)
    for orientation in range(1, 9):
        exif = Image.Exif()
        exif[0x0112] = orientation
        file = tmp_path / f"{orientation}.{'tif' if mode == 'CMYK' else 'png'}"
        (picture if mode == "I;16" else picture.convert(mode)).save(file, exif=exif)
        # Pillow maps a plain TIFF file into memory with its sides exchanged, but not one that is in memory already
        upright = ImageOps.exif_transpose(Image.open(io.BytesIO(file.read_bytes())))
        assert upright.size == ((61, 40) if orientation <= 4 else (40, 61))
        for source in (str(file), Image.open(io.BytesIO(file.read_bytes()))):
            np.testing.assert_array_equal(decode(source, 16, bicubic=True), decode(upright, 16, bicubic=True))
        left, top = (upright.width - 40) // 2, (upright.height - 40) // 2
        square = upright.crop((left, top, left + 40, top + 40))
        np.testing.assert_array_equal(decode(str(file), 40, bicubic=True), decode(square, 40, bicubic=True))


@pytest.mark.parametrize("kind", [np.int32, np.float32])
def test_pixels_of_32_bits_are_rejected_and_not_clipped(kind: type, tmp_path: Path) -> None:
    Image.fromarray(np.arange(256, dtype=kind).reshape(16, 16)).save(tmp_path / "deep.tif")
    with pytest.raises(DataError, match="its pixels have 32 bits: save it with 8 or 16"):
        decode(str(tmp_path / "deep.tif"), 16)


def test_decoding_does_not_change_the_callers_image(tmp_path: Path) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (300, 400, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(tmp_path / "large.jpg")
    picture = Image.open(tmp_path / "large.jpg")
    first, again = decode_all([picture, picture], 16, True)
    assert picture.size == (400, 300)
    assert torch.equal(first, again)


@pytest.mark.parametrize("mode", ["RGBA", "LA", "P"])
def test_transparent_pixels_become_white(mode: str, tmp_path: Path) -> None:
    picture = Image.new("RGBA", (16, 16), (200, 0, 0, 0)).convert("RGBA")
    picture.paste((200, 0, 0, 255), (0, 0, 16, 8))
    if mode == "P":
        picture = picture.quantize()
    picture.convert(mode).save(tmp_path / "glass.png")
    seen = decode(str(tmp_path / "glass.png"), 16)
    assert (seen[12:] == 255).all()
    assert (seen[:4] != 255).any()


def test_small_images_are_not_cropped(tmp_path: Path) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (32, 32, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(tmp_path / "a.png")
    np.testing.assert_array_equal(decode(str(tmp_path / "a.png"), 32), pixels)


def test_pixels_of_16_bits_are_scaled_and_not_clipped(tmp_path: Path) -> None:
    Image.fromarray(np.full((16, 16), 32_896, np.uint16)).save(tmp_path / "deep.png")
    assert set(decode(str(tmp_path / "deep.png"), 8).flatten().tolist()) == {128}


def test_random_resized_crops_follow_their_draws(tmp_path: Path) -> None:
    Image.fromarray(np.arange(64 * 64, dtype=np.uint16).reshape(64, 64).astype(np.uint8)).save(tmp_path / "a.png")
    path = str(tmp_path / "a.png")
    whole = decode(path, 8, (1.0, 0.5, 0.0, 0.0))
    corner, other = decode(path, 8, (0.0, 0.5, 0.0, 0.0)), decode(path, 8, (0.0, 0.5, 1.0, 1.0))
    np.testing.assert_array_equal(whole, decode(path, 8, (1.0, 0.5, 1.0, 1.0)))  # the whole image
    assert (corner != other).any()


def test_error_names_the_broken_file(tmp_path: Path) -> None:
    (tmp_path / "broken.jpg").write_bytes(b"not a picture")
    with pytest.raises(DataError, match=r"cannot read .*broken\.jpg as an image"):
        decode(str(tmp_path / "broken.jpg"), 8)


# ---- sources


def test_glyphs_are_reproducible_and_as_difficult_as_asked_for() -> None:
    one, two = load("glyphs", train=3, test=2), load("glyphs", train=3, test=2)
    other = load("glyphs", train=3, test=2, data_seed=1)
    rows = torch.arange(len(one.train))
    assert (len(one.train), len(one.test), len(one.classes)) == (270, 180, 90)
    assert len(set(CHARACTERS)) == 90
    assert one.train.store.shape == (3, 24, 24)
    assert torch.equal(one.train.read(rows), two.train.read(rows))
    assert not torch.equal(one.train.read(rows), other.train.read(rows))
    clean = load("glyphs", train=3, test=1, difficulty=0.0)
    spread = clean.train.read(torch.arange(3)).float().std(0).mean()
    assert spread < one.train.read(torch.arange(3)).float().std(0).mean() / 3


def test_digits_are_split_per_class(digits: Dataset) -> None:
    assert len(digits.train) + len(digits.test) == 1797
    train, test = torch.bincount(digits.train.labels), torch.bincount(digits.test.labels)
    fraction = test / (train + test)
    assert ((fraction > 0.19) & (fraction < 0.21)).all()
    few = load("digits", test_fraction=0.001)
    assert torch.bincount(few.test.labels).tolist() == [1] * 10  # at least one


def make_tree(root: Path, classes: list[str], images: int) -> None:
    for index, name in enumerate(classes):
        folder = root / name
        folder.mkdir(parents=True)
        for number in range(images):
            Image.new("RGB", (20, 16), (index % 256, number * 10, 0)).save(folder / f"{number}.png")


def test_folder_with_and_without_a_test_part(tmp_path: Path) -> None:
    make_tree(tmp_path / "flat", ["b c", "a"], 5)
    flat = load("folder", tmp_path / "flat", size=8)
    assert flat.classes == ("a", "b c")
    assert (len(flat.train), len(flat.test)) == (8, 2)
    make_tree(tmp_path / "split" / "train", ["a", "b"], 3)
    make_tree(tmp_path / "split" / "val", ["a", "b"], 2)
    split = load("folder", tmp_path / "split", size=8)
    assert (len(split.train), len(split.test)) == (6, 4)
    make_tree(tmp_path / "half" / "train", ["a", "b"], 3)
    with pytest.raises(DataError, match="neither test nor val"):
        load("folder", tmp_path / "half")
    (tmp_path / "flat" / "empty").mkdir()
    with pytest.raises(DataError, match=r"no images found in the class folder .*empty"):
        load("folder", tmp_path / "flat")


def test_both_versions_of_imagenet_100(tmp_path: Path) -> None:
    synsets = [f"n{number:08d}" for number in range(1000)]
    for part in ("train", "val"):
        for synset in synsets:
            folder = tmp_path / part / synset
            folder.mkdir(parents=True)
            (folder / "x.JPEG").touch()
    assert load("imagenet100", tmp_path).classes == tuple(synsets[:100])
    shuffled = np.arange(1000)
    np.random.RandomState(1993).shuffle(shuffled)
    assert load("imagenet100-lucir", tmp_path).classes == tuple(synsets[c] for c in shuffled[:100])
    assert len(load("imagenet1000", tmp_path).classes) == 1000
    (tmp_path / "val" / "n00000003" / "x.JPEG").unlink()
    with pytest.raises(DataError, match=r"no images found in the class folder .*n00000003"):
        load("imagenet1000", tmp_path)


def test_sources_are_documented_and_check_their_options(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("EQUIPOISE_DATA", raising=False)
    for name, source in SOURCES.items():
        assert source.about, name
    with pytest.raises(UsageError, match="did you mean 'cifar100'"):
        load("cifar10")
    with pytest.raises(UsageError, match="unknown option of the dataset glyphs 'hardness'"):
        load("glyphs", hardness=2)
    for fraction in (0.0, 1.0, -1.0, float("nan")):
        with pytest.raises(UsageError, match=r"data\.test_fraction must be above 0 and below 1, got"):
            load("digits", test_fraction=fraction)
    with pytest.raises(UsageError, match="data-root"):
        load("imagenet1000")
