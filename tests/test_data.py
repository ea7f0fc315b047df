"""Stream, memory, herding, images and augmentation."""

from __future__ import annotations

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
from equipoise.data.augment import Augment, relight, shift_and_mirror
from equipoise.data.dataset import Dataset
from equipoise.data.images import FileStore, Images, TensorStore, decode, join
from equipoise.data.memory import Memory
from equipoise.data.sources import SOURCES, load
from equipoise.data.sources.glyphs import CHARACTERS
from equipoise.data.stream import ClassStream, class_order, step_sizes
from equipoise.errors import DataError, UsageError


def toy(counts: list[int]) -> Dataset:
    """Images whose only pixel is their number."""
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
def test_impossible_orders_are_refused(order: str | list[int]) -> None:
    with pytest.raises(UsageError):
        class_order(order, 3)


@pytest.mark.parametrize("steps", [7, 0, 101, "50,10", "50,x", [99, 0, 1], [100, 1], "", "1x99999999999"])
def test_steps_that_do_not_fit_are_refused(steps: int | str | list[int]) -> None:
    with pytest.raises(UsageError):
        step_sizes(steps, 100)


@settings(max_examples=60, deadline=None)
@given(counts=st.lists(st.integers(1, 4), min_size=1, max_size=12), data=st.data())
def test_every_class_comes_once_with_all_its_images(counts: list[int], data: st.DataObject) -> None:
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
    for place, original in enumerate(order):
        mine = stream.train.rows[stream.train.labels == place]
        assert set(originals[mine].tolist()) == {original}


def test_stream_of_a_part_of_the_classes() -> None:
    stream = ClassStream(toy([2] * 6), 2, "natural", classes=4)
    assert stream.names == ("c0", "c1", "c2", "c3")
    assert stream.sizes == [2, 2]
    with pytest.raises(UsageError, match="has 6 classes"):
        ClassStream(toy([2] * 6), 2, classes=7)


def test_class_without_training_images_is_named() -> None:
    with pytest.raises(UsageError, match="'c1' has no training images"):
        ClassStream(toy([2, 0, 2]), 3)


# ---- herding and memory


def quadratic_herding(features: np.ndarray, count: int) -> list[int]:
    """The definition, word for word: try every unpicked image, sum the picked set anew."""
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
def test_herding_is_the_plain_definition(n: int, d: int, m: int, normalise: bool) -> None:
    features = np.random.default_rng(n + d).normal(size=(n, d)) + 1
    if normalise:
        features /= np.linalg.norm(features, axis=1, keepdims=True)
    assert eq.herd(torch.from_numpy(features), m).tolist() == quadratic_herding(features, m)


def test_herding_wants_rows_of_features() -> None:
    with pytest.raises(UsageError, match="one row of features"):
        eq.herd(torch.ones(3), 2)


def numbers(images: Images) -> Tensor:
    """Features of toy images: two that depend on the pixel."""
    values = images.read(torch.arange(len(images))).flatten().double()
    return torch.stack([values + 1, (values * 7 % 5) + 1], 1)


@settings(max_examples=60, deadline=None)
@given(
    counts=st.lists(st.integers(1, 9), min_size=1, max_size=8),
    size=st.integers(0, 40),
    per=st.sampled_from(["total", "class"]),
    selection=st.sampled_from(["herding", "random"]),
)
def test_memory_keeps_its_budget_and_its_order(counts: list[int], size: int, per: str, selection: str) -> None:
    stream = ClassStream(toy(counts), [1] * len(counts))
    memory = Memory(size, per, selection)  # type: ignore[arg-type]
    chosen: dict[int, list[int]] = {}
    for step in stream:
        memory.update(step.images, step.seen, numbers, (0,))
        quota = size if per == "class" else size // step.seen
        if per == "total":
            assert len(memory) <= size
        for label, rows in memory.rows().items():
            assert len(rows) == min(quota, counts[stream.order[label]])
            assert len(set(rows)) == len(rows)
            assert rows == chosen.setdefault(label, rows)[: len(rows)]  # cutting is truncation
            assert (stream.train.labels[torch.isin(stream.train.rows, torch.tensor(rows))] == label).all()


def test_memory_herds_normalised_features_of_each_class() -> None:
    stream = ClassStream(toy([9, 9]), 1, "natural")
    memory = Memory(8)
    memory.update(stream[1].images, 2, numbers, (0,))
    for label in (0, 1):
        mine = stream.train.select(stream.train.labels == label)
        features = numbers(mine).numpy()
        features /= np.linalg.norm(features, axis=1, keepdims=True)
        assert memory.rows()[label] == mine.rows[quadratic_herding(features, 4)].tolist()


def test_memory_restores_what_a_checkpoint_knows() -> None:
    stream = ClassStream(toy([5, 5]), 1)
    memory, again = Memory(6), Memory(6)
    memory.update(stream[1].images, 2, numbers, (0,))
    again.restore(memory.rows().items(), stream.train.store)
    left, right = memory.images(), again.images()
    assert left is not None
    assert right is not None
    assert torch.equal(left.rows, right.rows)
    assert torch.equal(left.labels, right.labels)


def test_memory_smaller_than_the_classes_is_refused() -> None:
    with pytest.raises(UsageError, match="smaller than the 100 classes"):
        Memory(99).check(100)
    Memory(0).check(100)
    Memory(1, "class").check(100)


# ---- images and augmentation


def test_images_select_join_and_read_without_copying_labels_wrongly() -> None:
    a = toy([3, 2]).train
    b = Images.of(torch.full((2, 1, 1, 1), 200, dtype=torch.uint8), torch.tensor([7, 8]))
    both = join([a.select(torch.tensor([4, 0])), b])
    assert both.labels.tolist() == [1, 0, 7, 8]
    assert both.read(torch.tensor([3, 0, 1])).flatten().tolist() == [200, 4, 0]
    same = join([a, a.select(a.labels == 1)])
    assert same.store is a.store
    assert same.read(torch.arange(7)).flatten().tolist() == [0, 1, 2, 3, 4, 3, 4]


def test_images_of_the_wrong_kind_are_refused() -> None:
    with pytest.raises(DataError, match="uint8"):
        TensorStore(torch.zeros(2, 1, 4, 4))
    with pytest.raises(DataError, match="came with"):
        Images.of(torch.zeros(2, 1, 4, 4, dtype=torch.uint8), torch.zeros(3))
    with pytest.raises(DataError, match="different shapes"):
        join([toy([1]).train, Images.of(torch.zeros(1, 3, 4, 4, dtype=torch.uint8), torch.zeros(1))])


def test_settings_are_chosen_by_training_images_kept_aside() -> None:
    whole = toy([5, 9, 7])
    part = whole.validating(3)
    assert torch.bincount(part.test.labels).tolist() == [3, 3, 3]
    assert torch.bincount(part.train.labels).tolist() == [2, 6, 4]
    assert sorted([*part.train.rows.tolist(), *part.test.rows.tolist()]) == sorted(whole.train.rows.tolist())
    assert torch.equal(whole.train.labels[part.test.rows], part.test.labels)  # nothing of the test images
    assert torch.equal(part.test.rows, whole.validating(3).test.rows)
    with pytest.raises(UsageError, match=r"stream\.validation is 5, but a class has 5"):
        whole.validating(5)


def test_shift_and_mirror_is_a_crop_of_the_padded_image_with_a_draw_for_each() -> None:
    pixels = torch.randint(1, 256, (64, 2, 6, 5), dtype=torch.uint8)
    shifted = shift_and_mirror(pixels, 2, False, torch.rand(64, 3))
    padded = np.pad(pixels.numpy(), ((0, 0), (0, 0), (2, 2), (2, 2)))
    places = set()
    for image, canvas in zip(shifted.numpy(), padded, strict=True):
        found = [(i, j) for i in range(5) for j in range(5) if (canvas[:, i : i + 6, j : j + 5] == image).all()]
        assert len(found) == 1
        places.add(found[0])
    assert len(places) > 12  # of 25


def test_augment_normalises_and_flips_half() -> None:
    pixels = torch.zeros(400, 1, 2, 2, dtype=torch.uint8)
    pixels[:, :, :, 1] = 255
    augment = Augment(mean=(0.5,), std=(0.25,), flip=True)
    images = Images.of(pixels, torch.zeros(400))
    batch = augment.batch(images, torch.arange(400), augment.draw(400, torch.Generator().manual_seed(1)))
    assert set(batch.flatten().tolist()) == {-2.0, 2.0}
    assert 140 < (batch[:, 0, 0, 0] > 0).sum() < 260
    assert batch.is_contiguous(memory_format=torch.channels_last)
    torch.testing.assert_close(augment.plain(images, torch.arange(3)), (pixels[:3] / 255 - 0.5) / 0.25)


def test_relighting_stays_within_its_bounds_with_a_draw_for_each() -> None:
    pixels = torch.randint(100, 156, (200, 1, 4, 4), dtype=torch.uint8)
    lit = relight(pixels, 0.1, 0.5, torch.rand(200, 2)).double()
    before = pixels.double()
    shift = (lit.mean((1, 2, 3)) - before.mean((1, 2, 3))) / 255
    stretch = lit.std((1, 2, 3)) / before.std((1, 2, 3))
    assert -0.11 < shift.min() < -0.08 < 0.08 < shift.max() < 0.11
    assert 0.45 < stretch.min() < 0.6 < 1.4 < stretch.max() < 1.55


def test_files_are_decoded_lazily_alike_in_every_mode(tmp_path: Path) -> None:
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
def test_pictures_are_set_upright_as_pillow_does_it(orientation: int, ending: str, tmp_path: Path) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (40, 60, 3), dtype=np.uint8)
    exif = Image.Exif()
    exif[0x0112] = orientation
    file = tmp_path / f"held.{ending}"
    Image.fromarray(pixels).save(file, exif=exif)
    upright = ImageOps.exif_transpose(Image.open(file))
    expected = np.asarray(ImageOps.fit(upright, (16, 16), Image.Resampling.BILINEAR))
    np.testing.assert_allclose(decode(str(file), 16), expected, atol=1)
    np.testing.assert_allclose(decode(Image.open(file), 16), expected, atol=1)


@pytest.mark.parametrize("kind", [np.int32, np.float32])
def test_pixels_of_32_bits_are_refused_and_not_clipped(kind: type, tmp_path: Path) -> None:
    Image.fromarray(np.arange(256, dtype=kind).reshape(16, 16)).save(tmp_path / "deep.tif")
    with pytest.raises(DataError, match="its pixels have 32 bits: save it with 8 or 16"):
        decode(str(tmp_path / "deep.tif"), 16)


def test_a_picture_of_somebody_else_is_left_as_it_is(tmp_path: Path) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (300, 400, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(tmp_path / "large.jpg")
    picture = Image.open(tmp_path / "large.jpg")
    first, again = decode_all([picture, picture], 16)
    assert picture.size == (400, 300)
    assert torch.equal(first, again)


@pytest.mark.parametrize("mode", ["RGBA", "LA", "P"])
def test_what_is_transparent_is_white(mode: str, tmp_path: Path) -> None:
    picture = Image.new("RGBA", (16, 16), (200, 0, 0, 0)).convert("RGBA")
    picture.paste((200, 0, 0, 255), (0, 0, 16, 8))
    if mode == "P":
        picture = picture.quantize()
    picture.convert(mode).save(tmp_path / "glass.png")
    seen = decode(str(tmp_path / "glass.png"), 16)
    assert (seen[12:] == 255).all()
    assert (seen[:4] != 255).any()


def test_small_pictures_are_seen_whole(tmp_path: Path) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (32, 32, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(tmp_path / "a.png")
    np.testing.assert_array_equal(decode(str(tmp_path / "a.png"), 32), pixels)


def test_sixteen_bits_are_scaled_not_clipped(tmp_path: Path) -> None:
    Image.fromarray(np.full((16, 16), 32_896, np.uint16)).save(tmp_path / "deep.png")
    assert set(decode(str(tmp_path / "deep.png"), 8).flatten().tolist()) == {128}


def test_random_resized_crops_follow_their_draws(tmp_path: Path) -> None:
    Image.fromarray(np.arange(64 * 64, dtype=np.uint16).reshape(64, 64).astype(np.uint8)).save(tmp_path / "a.png")
    path = str(tmp_path / "a.png")
    whole = decode(path, 8, (1.0, 0.5, 0.0, 0.0))
    corner, other = decode(path, 8, (0.0, 0.5, 0.0, 0.0)), decode(path, 8, (0.0, 0.5, 1.0, 1.0))
    np.testing.assert_array_equal(whole, decode(path, 8, (1.0, 0.5, 1.0, 1.0)))  # a whole image has one place
    assert (corner != other).any()


def test_broken_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "broken.jpg").write_bytes(b"not a picture")
    with pytest.raises(DataError, match=r"broken\.jpg cannot be read as an image"):
        decode(str(tmp_path / "broken.jpg"), 8)


# ---- sources


def test_glyphs_are_the_same_every_time_and_harder_by_request() -> None:
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


def test_digits_are_real_and_split_by_class(digits: Dataset) -> None:
    assert len(digits.train) + len(digits.test) == 1797
    share = torch.bincount(digits.test.labels) / (
        torch.bincount(digits.train.labels) + torch.bincount(digits.test.labels)
    )
    assert ((share > 0.19) & (share < 0.21)).all()


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
    with pytest.raises(DataError, match="has no images"):
        load("folder", tmp_path / "flat")


def test_both_imagenet_100s(tmp_path: Path) -> None:
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
    with pytest.raises(DataError, match="n00000003 has no images"):
        load("imagenet1000", tmp_path)


def test_every_source_says_what_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("EQUIPOISE_DATA", raising=False)
    for name, source in SOURCES.items():
        assert source.about, name
    with pytest.raises(UsageError, match="did you mean 'cifar100'"):
        load("cifar10")
    with pytest.raises(UsageError, match="no option of the dataset glyphs"):
        load("glyphs", hardness=2)
    for share in (0.0, 1.0, -1.0, float("nan")):
        with pytest.raises(UsageError, match="test_share"):
            load("digits", test_share=share)
    with pytest.raises(UsageError, match="data-root"):
        load("imagenet1000")
