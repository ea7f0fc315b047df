"""Folders of photos as people have them."""

from __future__ import annotations

import io
import os
import struct
import time
import warnings
import zlib
from collections.abc import Callable
from pathlib import Path
from threading import Thread
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image, PngImagePlugin, TiffImagePlugin

from equipoise.app.learn import LearnListener, LearnOptions, learn_folder
from equipoise.app.model_dir import ModelDir
from equipoise.app.photo_folder import FolderScan, SkippedFile, read_images, scan_folder
from equipoise.app.predict import expand_paths, predict
from equipoise.data.decoding import decode, short_side
from equipoise.data.picture_files import decoding_bytes, reading, tiff_block_bytes
from equipoise.errors import DataError
from tests.conftest import Ran
from tests.folders import glyph_folder, messy_folder
from tests.models import QUICK, learn

Cli = Callable[..., Ran]


def test_the_good_images_of_a_messy_folder_are_learned(tmp_path: Path) -> None:
    expected = messy_folder(tmp_path / "pictures")
    skipped: list[SkippedFile] = []

    class Notes(LearnListener):
        def plan(self, plan: Any, found: FolderScan, seconds: float, epochs_done: int) -> None:
            skipped.extend(found.skipped)

    options = LearnOptions(epochs=3, image_size=32, overrides=QUICK, holdout=0.2)
    result = learn_folder(ModelDir(tmp_path / "m"), tmp_path / "pictures", options, Notes())
    assert result is not None
    assert result.classes == ["Blüte 花", "linked class", "old temple"]
    reasons = {entry.path: entry.reason for entry in skipped}
    assert reasons.keys() == expected.keys()
    for path, reason in expected.items():
        assert reason in reasons[path], path
    assert result.skipped_files == len(expected)
    assert result.images + result.held_out == 14 + 4 + 14 + 8 + 1 - 2
    model = ModelDir(tmp_path / "m").load()
    sources = list(expand_paths([str(tmp_path / "pictures" / "old temple")]))
    assert len([one for one in predict(model, sources) if one.classes]) == len(sources) == 23


def test_folders_behind_links_are_read_once(tmp_path: Path) -> None:
    glyph_folder(tmp_path / "elsewhere", [0])
    (tmp_path / "pictures" / "up").mkdir(parents=True)
    (tmp_path / "pictures" / "linked").symlink_to(tmp_path / "elsewhere", target_is_directory=True)
    (tmp_path / "pictures" / "up" / "again").symlink_to(tmp_path / "pictures", target_is_directory=True)
    inside = [file for file in (tmp_path / "elsewhere").rglob("*") if file.is_file()]
    assert len(list(expand_paths([str(tmp_path / "pictures")]))) == len(inside) > 0


def test_strict_rejects_a_messy_folder(tmp_path: Path) -> None:
    messy_folder(tmp_path / "pictures")
    with pytest.raises(DataError, match=r"and \d+ more\); nothing was learned because of --strict"):
        learn_folder(ModelDir(tmp_path / "m"), tmp_path / "pictures", LearnOptions(strict=True, overrides=QUICK))
    assert not ModelDir(tmp_path / "m").exists


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda root: None, "is not a directory"),
        (lambda root: root.mkdir(), "no class folders with images found"),
        (lambda root: (root / "a").mkdir(parents=True), "no class folders with images found"),
        (lambda root: glyph_folder(root / "train", [0, 1]), "holds splits such as train, not classes: .*/train$"),
        (lambda root: [glyph_folder(root / part, [0]) for part in ("train/x", "test/x")], "use the folder .*/train$"),
    ],
)
def test_folders_without_classes_are_rejected(make: Any, message: str, tmp_path: Path) -> None:
    make(tmp_path / "pictures")
    with pytest.raises(DataError, match=message):
        learn_folder(ModelDir(tmp_path / "m"), tmp_path / "pictures", LearnOptions())
    assert not (tmp_path / "m").exists()


def test_a_class_may_be_called_train(tmp_path: Path) -> None:
    glyph_folder(tmp_path, [0])
    (tmp_path / "A").rename(tmp_path / "train")
    assert list(scan_folder(tmp_path).classes) == ["train"]


def test_pixels_of_an_unreadable_file_are_always_the_same(tmp_path: Path) -> None:
    """An interrupted step is recognised by all pixels, and uninitialised memory could hold anything."""
    glyph_folder(tmp_path, [0], count=4)
    (tmp_path / "A" / "001.png").write_bytes(b"rubbish")
    fingerprints = set()
    for value in (7, 8):
        freed = torch.full((4, 3, 24, 24), value, dtype=torch.uint8)
        del freed  # the next tensor of this size may get its memory
        fingerprints.add(read_images(scan_folder(tmp_path), 24)["A"].fingerprint())
    assert len(fingerprints) == 1


def test_names_that_are_not_utf8_are_shown_and_learned(tmp_path: Path) -> None:
    glyph_folder(tmp_path / "pictures", [0, 1])
    (tmp_path / "pictures" / "A").rename(tmp_path / "pictures" / os.fsdecode(b"caf\xe9"))
    result = learn(tmp_path / "m", tmp_path / "pictures", epochs=1)
    assert result.classes == ["B", "caf\\xe9"]


def test_a_link_to_the_folder_itself_is_no_class(tmp_path: Path) -> None:
    pictures = tmp_path / "pictures"
    glyph_folder(pictures, [0, 1])
    (pictures / "all").symlink_to(pictures, target_is_directory=True)
    (pictures / "above").symlink_to(tmp_path, target_is_directory=True)
    found = scan_folder(pictures)
    assert sorted(found.classes) == ["A", "B"]
    assert {entry.reason for entry in found.skipped} == {"the link leads back to the folder itself"}


def test_circular_links_and_pipes_are_skipped(tmp_path: Path) -> None:
    pictures = glyph_folder(tmp_path / "pictures", [0, 1])
    (pictures / "A" / "loop.jpg").symlink_to("loop.jpg")
    (pictures / "round").symlink_to("round")
    os.mkfifo(pictures / "A" / "pipe.jpg")
    reasons = {entry.path: entry.reason for entry in scan_folder(pictures).skipped}
    assert reasons["A/pipe.jpg"] == "it is not a regular file"
    assert {"A/loop.jpg", "round"} < reasons.keys()
    assert learn(tmp_path / "m", pictures, epochs=1).skipped_files == 3
    predictions = list(predict(ModelDir(tmp_path / "m").load(), expand_paths([str(pictures)])))
    assert {Path(one.path).name for one in predictions if one.error} == {"pipe.jpg", "loop.jpg"}


def test_photos_with_a_second_picture_inside_are_read_as_plain_ones() -> None:
    """Phones store a map of the brightness behind the photo; Pillow calls such a JPEG file MPO."""
    photo = Image.fromarray(np.random.default_rng(0).integers(0, 255, (1200, 1600, 3), np.uint8))
    plain, double = io.BytesIO(), io.BytesIO()
    photo.save(plain, "JPEG", quality=90)
    photo.save(double, "MPO", quality=90, save_all=True, append_images=[photo.resize((400, 300))])
    assert Image.open(double).format == "MPO"
    assert np.array_equal(decode(double.getvalue(), 64, bicubic=True), decode(plain.getvalue(), 64, bicubic=True))


def test_other_formats_are_not_decoded() -> None:
    """Pillow would start another program for some of them."""
    file = io.BytesIO()
    Image.new("RGB", (20, 20)).save(file, "EPS")
    with pytest.raises(DataError, match="it is not one of JPEG"):
        decode(file.getvalue(), 16)


def test_a_picture_with_too_many_pixels_is_not_decoded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("equipoise.data.picture_files.MAX_PIXELS", 9_999)
    for kind in ("PNG", "TIFF"):
        file = io.BytesIO()
        Image.new("RGB", (100, 100)).save(file, kind)
        for bicubic in (True, False):
            with pytest.raises(DataError, match="million pixels"):
                decode(file.getvalue(), 16, bicubic=bicubic)


def tiff(order: str, tags: list[tuple[int, int]], large: bool = False) -> bytes:
    """Return a TIFF file of 64 × 64 grey pixels in one packed tile of zeros, whose tags are replaced by others."""
    packed = zlib.compress(bytes(64 * 64))
    start = 16 if large else 8
    values = {256: 64, 257: 64, 258: 8, 259: 8, 262: 1, 277: 1, 322: 64, 323: 64, 324: start, 325: len(packed)}
    every = sorted([*((tag, value) for tag, value in values.items() if tag not in dict(tags)), *tags])
    mark = b"II" if order == "<" else b"MM"
    place = start + len(packed)
    begin = (
        struct.pack(order + "2sHHHQ", mark, 43, 8, 0, place) if large else struct.pack(order + "2sHL", mark, 42, place)
    )
    count = struct.pack(order + ("Q" if large else "H"), len(every))
    entries = [struct.pack(order + ("HHQQ" if large else "HHLL"), tag, 4, 1, value) for tag, value in every]
    return begin + packed + count + b"".join(entries) + bytes(8)


@pytest.mark.parametrize(("order", "large"), [("<", False), (">", False), ("<", True)])
def test_a_tile_of_a_tiff_may_not_be_much_larger_than_the_picture(order: str, large: bool) -> None:
    assert decode(tiff(order, [], large), 16).shape == (16, 16, 3)
    for tags in (
        [(322, 30_000), (323, 30_000)],
        [(322, 64), (323, 2**24)],
        [(277, 2), (338, 0), (322, 2**20), (323, 320)],
    ):
        with pytest.raises(DataError, match="takes too much memory to decode"):
            decode(tiff(order, tags, large), 16)
    for tag, value in {256: 64, 257: 64, 258: 8, 277: 1, 278: 1, 322: 64, 323: 64}.items():
        with pytest.raises(DataError, match=f"its tag {tag} is repeated"):  # Pillow and libtiff may choose another
            decode(tiff(order, [(tag, value), (tag, value)], large), 16)


def test_no_warning_of_pillow_is_shown(two_steps: Path, tmp_path: Path, cli: Cli) -> None:
    (tmp_path / "a.tif").write_bytes(tiff("<", [])[:-60])
    with warnings.catch_warnings(record=True) as shown:
        warnings.simplefilter("always")
        ran = cli("predict", two_steps, "a.tif")
    assert ran.code == 2
    assert ran.err.startswith("equipoise: a.tif: decoder error")
    assert not shown


def test_a_tile_of_a_tiff_has_a_size() -> None:
    odd = tiff("<", []).replace(struct.pack("<HHLL", 322, 4, 1, 64), struct.pack("<HHLL", 322, 5, 1, 64))
    with pytest.raises(DataError, match="its tag 322 is not a number"):
        decode(odd, 16)
    picture = Image.open(io.BytesIO(tiff("<", [])))
    assert isinstance(picture, TiffImagePlugin.TiffImageFile)
    with pytest.raises(ValueError, match="big-endian BigTIFF"):
        tiff_block_bytes(picture, tiff(">", [], large=True))


@pytest.mark.parametrize("compression", [None, "tiff_lzw", "jpeg", "packbits"])
@pytest.mark.parametrize("mode", ["L", "RGB", "RGBA", "YCbCr", "I;16"])
def test_ordinary_tiff_files_take_no_more_than_other_pictures(mode: str, compression: str | None) -> None:
    if compression == "jpeg" and mode in ("RGBA", "I;16"):
        return
    file = io.BytesIO()
    Image.new(mode, (300, 200)).save(file, "TIFF", compression=compression)
    picture = Image.open(file)
    assert decoding_bytes(picture, picture.size, file.getvalue()) <= 4 * 300 * 200 * (5 if mode == "RGBA" else 3)
    decode(file.getvalue(), 16)


def test_large_files_are_decoded_one_after_the_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of them may take twice its size, and there are as many threads as processors."""
    monkeypatch.setattr("equipoise.data.picture_files.LARGE_FILE_BYTES", 100)
    (tmp_path / "large").write_bytes(bytes(101))
    (tmp_path / "small").write_bytes(bytes(100))
    order: list[str] = []

    def read(name: str) -> None:
        with reading(str(tmp_path / name)):
            order.append(name)

    with reading(str(tmp_path / "large")):
        threads = [Thread(target=read, args=(name,)) for name in ("large", "small")]
        for thread in threads:
            thread.start()
        threads[1].join(10)
        time.sleep(0.1)
        order.append("first")
    threads[0].join(10)
    assert order == ["small", "first", "large"]


def test_files_that_are_no_pictures_are_named_as_such() -> None:
    with pytest.raises(DataError, match=r"it is not one of JPEG, PNG, WEBP, BMP, GIF, TIFF\): fix or remove it"):
        decode(b"no picture", 8)


def test_a_decoder_may_raise_anything(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    file = tmp_path / "a.png"
    Image.new("RGB", (9, 9)).save(file)

    def explode(*_: Any) -> None:
        raise RuntimeError("a bug in a decoder")

    monkeypatch.setattr(PngImagePlugin.PngImageFile, "load", explode)
    with pytest.raises(DataError, match="a bug in a decoder"):
        decode(str(file), 8)
    monkeypatch.setattr(PngImagePlugin.PngImageFile, "_open", explode)
    assert short_side([str(file)]) == 0
