"""Reading CIFAR-100: the real one if it is available, and files that are not what they claim to be."""

from __future__ import annotations

import gzip
import io
import lzma
import pickle
import signal
import struct
import tarfile
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pooch
import pytest
import torch

from equipoise.app.evaluate import evaluate_folder
from equipoise.app.learn import LearnOptions, learn_folder
from equipoise.app.model_dir import ModelDir
from equipoise.data.sources import load
from equipoise.data.tar_archive import read_archive
from equipoise.errors import DataError
from tests.folders import save_folder


def write_archive(path: Path, parts: dict[str, Any]) -> None:
    with tarfile.open(path, "w:gz", compresslevel=1) as tar:
        for name, content in parts.items():
            data = pickle.dumps(content, protocol=2)
            entry = tarfile.TarInfo(f"cifar-100-python/{name}")
            entry.size = len(data)
            tar.addfile(entry, io.BytesIO(data))


def fake(count: int) -> dict[bytes, Any]:
    data = np.zeros((count, 3072), np.uint8)
    data[:, 0] = np.arange(count) % 251
    labels = [i % 100 for i in range(count)]
    return {b"data": data, b"fine_labels": labels, b"coarse_labels": [label % 20 for label in labels]}


@pytest.fixture(scope="module")
def fakes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Create an archive of the right layout and size without real images."""
    root = tmp_path_factory.mktemp("cifar")
    names = {
        b"fine_label_names": [f"fine{i}".encode() for i in range(100)],
        b"coarse_label_names": [f"coarse{i}".encode() for i in range(20)],
    }
    write_archive(root / "cifar-100-python.tar.gz", {"train": fake(50_000), "test": fake(10_000), "meta": names})
    return root


def test_archive_and_unpacked_folder_read_alike(fakes: Path, tmp_path: Path) -> None:
    packed = load("cifar100", fakes)
    with tarfile.open(fakes / "cifar-100-python.tar.gz") as tar:
        tar.extractall(tmp_path, filter="data")
    unpacked = load("cifar100", tmp_path)
    assert packed.classes == unpacked.classes == tuple(f"fine{i}" for i in range(100))
    rows = torch.arange(0, 50_000, 997)
    assert torch.equal(packed.train.read(rows), unpacked.train.read(rows))
    assert packed.train.read(rows)[:, 0, 0, 0].tolist() == [row % 251 for row in rows.tolist()]
    assert len(load("cifar100", fakes, labels="coarse").classes) == 20


def test_a_truncated_archive_is_reported(fakes: Path, tmp_path: Path) -> None:
    whole = (fakes / "cifar-100-python.tar.gz").read_bytes()
    for keep in (len(whole) // 2, 100, 0):
        (tmp_path / "cifar-100-python.tar.gz").write_bytes(whole[:keep])
        with pytest.raises(DataError, match="truncated or not the CIFAR-100 archive"):
            load("cifar100", tmp_path)


def header(name: str = "x", size: int = 0, **fields: Any) -> bytes:
    """Return the header of a file in an archive."""
    entry = tarfile.TarInfo(name)
    entry.size = size
    for field, value in fields.items():
        setattr(entry, field, value)
    return entry.tobuf(tarfile.GNU_FORMAT)  # it writes negative and large numbers to base 256


PAX: dict[str, Any] = {"type": tarfile.XHDTYPE}
PART = "cifar-100-python/meta"
PICKLE = pickle.dumps({}, 2).ljust(512, b"\0")
HOSTILE_ARCHIVES = {
    "a negative size": (header() + header("y", -512) + header("z"), "a header has a negative size"),
    "a negative size in a pax header": (header(size=512, **PAX) + b"12 size=-512".ljust(512) + header(), "pax header"),
    "a pax header that says nothing": (header(size=512, **PAX) + b"9" * 512 + header(), "pax header is damaged"),
    "a pax header of 3 GB": (header(size=3_000_000_000, **PAX), "an extended header has more than 65,536 bytes"),
    "a long name of 3 GB": (header(size=3 << 30, type=tarfile.GNUTYPE_LONGNAME), "an extended header has more than"),
    "a negative pax header": (header(size=-512, **PAX), "a header has a negative size"),
    "a sparse file": (header(size=10**6, type=tarfile.GNUTYPE_SPARSE), "is a link, a device or a sparse file"),
    "a link": (header("a", type=tarfile.SYMTYPE, linkname="/etc/passwd"), "is a link, a device or a sparse file"),
    "many files": (header() * 1001, "exceeds the limit of 1,000 files for CIFAR-100"),
    "large files": (header() + header("y", 2**40), "has more than 536,870,912 bytes when unpacked"),
    "a part twice": (2 * (header(PART, len(PICKLE)) + PICKLE), "contains the part 'meta' twice"),
    "no part": (header() + bytes(1024), "it has no cifar-100-python/train"),
    "no end": (header(), "unexpected end of data"),
}


@pytest.fixture
def in_time() -> Iterator[None]:
    """Fail a test that hangs."""

    def late(*_: Any) -> None:
        pytest.fail("it hangs")

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(20)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


@pytest.mark.usefixtures("in_time")
@pytest.mark.parametrize("kind", HOSTILE_ARCHIVES)
def test_a_hostile_archive_neither_hangs_nor_takes_memory(kind: str, tmp_path: Path) -> None:
    content, message = HOSTILE_ARCHIVES[kind]
    (tmp_path / "cifar-100-python.tar.gz").write_bytes(gzip.compress(content, 1))
    tracemalloc.start()
    try:
        with pytest.raises(DataError, match=message) as caught:
            load("cifar100", tmp_path)
        assert tracemalloc.get_traced_memory()[1] < 8 << 20
    finally:
        tracemalloc.stop()
    assert str(caught.value).endswith(": download the archive again")


def test_an_archive_is_unpacked_up_to_a_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("equipoise.data.sources.cifar100.MAX_ARCHIVE_BYTES", 10**6)
    for bomb in (header("x", 2 * 10**6) + bytes(2 * 10**6), bytes(2 * 10**6)):  # a file, and what follows the end
        (tmp_path / "cifar-100-python.tar.gz").write_bytes(gzip.compress(bomb))
        with pytest.raises(DataError, match="has more than 1,000,000 bytes when unpacked"):
            load("cifar100", tmp_path)
    (tmp_path / "cifar-100-python.tar.gz").write_bytes(lzma.compress(header() + bytes(1024)))
    with pytest.raises(DataError, match="truncated or not the CIFAR-100 archive"):
        load("cifar100", tmp_path)


def test_long_names_are_read(tmp_path: Path) -> None:
    for form in (tarfile.PAX_FORMAT, tarfile.GNU_FORMAT):
        with tarfile.open(tmp_path / "cifar-100-python.tar.gz", "w:gz", format=form) as tar:
            for name in ("a" * 150, "é" * 300, "./cifar-100-python/meta"):
                tar.addfile(tarfile.TarInfo(name))
        with gzip.open(tmp_path / "cifar-100-python.tar.gz") as file:
            assert file.read(512) != bytes(512)
        names = [file.name for file in read_archive(tmp_path / "cifar-100-python.tar.gz", "x", "y", 10**6, 10)]
        assert names == ["a" * 150, "é" * 300, "cifar-100-python/meta"]


class Evil:
    def __reduce__(self) -> tuple[Any, ...]:
        return (print, ("this must never run",))


def test_code_in_a_pickle_is_never_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_archive(tmp_path / "cifar-100-python.tar.gz", {"train": Evil(), "test": Evil(), "meta": Evil()})
    with pytest.raises(DataError, match="which CIFAR-100 does not"):
        load("cifar100", tmp_path)
    assert capsys.readouterr().out == ""


ENCODE = b"\x80\x02c_codecs\nencode\nq\x00"
COPY = b"h\x00h\x01X\x06\x00\x00\x00latin1\x86R"
"""Opcodes that encode a string that was read before."""


def hostile_pickles() -> dict[str, bytes]:
    """Return pickles that run no code, but would take a lot of memory, or tell NumPy where objects are."""
    whole = np.zeros((50_000, 3072), np.uint8)
    fields = np.dtype({"names": ["a"], "formats": ["O"], "offsets": [0], "itemsize": 8})
    return {
        "announces objects": b"\x80\x02Nr" + (0x0FFFFFFF).to_bytes(4, "little") + b".",
        "announces a shape": pickle.dumps(whole, 2).replace(b"K\x00\x85", b"J\xff\xff\xff\x7f\x85", 1),
        "has objects": pickle.dumps(np.array([None] * 3), 2),
        "has fields": pickle.dumps(np.zeros(3, fields), 2),
        "has numbers": pickle.dumps(np.zeros(3, np.float64), 2),
        "makes lists": b"]" * 5_000_000,
        "makes lists in a frame": b"\x80\x04\x95" + (5_000_000).to_bytes(8, "little") + b"]" * 5_000_000,
        "copies a string": ENCODE + b"X\x00\x00\x00\x01" + b"a" * (1 << 24) + b"q\x01" + COPY * 60 + b".",
        "encodes": b"\x80\x02c_codecs\nencode\n(X\x04\x00\x00\x00\xe2\x82\xacaX\x03\x00\x00\x00bz2tR.",
    }


@pytest.mark.parametrize("kind", hostile_pickles())
def test_a_pickle_cannot_choose_what_memory_is_used(kind: str, fakes: Path, tmp_path: Path) -> None:
    with tarfile.open(fakes / "cifar-100-python.tar.gz") as tar:
        tar.extractall(tmp_path, filter="data")
    (tmp_path / "cifar-100-python" / "train").write_bytes(hostile_pickles()[kind])
    tracemalloc.start()
    try:
        with pytest.raises(DataError, match=r"damaged or not CIFAR-100|has no 'data'"):
            load("cifar100", tmp_path)
        assert tracemalloc.get_traced_memory()[1] < 600 << 20  # three times the real file
    finally:
        tracemalloc.stop()


BAD_PICKLES = {
    "no limit": (ENCODE + b"}X\x05\x00\x00\x00_left\x8a\x08" + struct.pack("<q", 2**62) + b"sb.", "changes objects"),
    "no limit, in a slot": (ENCODE + b"N}X\x05\x00\x00\x00_leftJ\xff\xff\xff\x7fs\x86b.", "changes objects"),
    "a long name": (b"\x80\x02c" + b"A" * 10**6 + b"\nb\n.", "A{98,99}…, which CIFAR-100 does not"),
    "a long number": (b"F" + b"A" * 10**6 + b"\n.", "could not convert string to float"),
    "a nested key": (b"\x80\x02})" + b"\x85" * 1000 + b"K\x01s.", "keys are not strings"),
    "nested keys": (b"\x80\x02}()" + b"\x85" * 1000 + b"K\x01u.", "keys are not strings"),
    "a dict of nested keys": (b"(" + b")" + b"\x85" * 1000 + b"K\x01d.", "keys are not strings"),
    "a set": (b"\x80\x04\x8f(K\x01\x90.", "objects that CIFAR-100 does not have"),
    "a large array": (b"\x80\x05\x96" + (1 << 31).to_bytes(8, "little") + b".", "objects that CIFAR-100 does not have"),
    "many arguments": (b"\x80\x03cnumpy\nndarray\nC\x05aaaaaR.", "calls a function without arguments"),
}


@pytest.mark.parametrize("kind", BAD_PICKLES)
def test_a_pickle_cannot_get_around_the_limits(kind: str, tmp_path: Path) -> None:
    content, message = BAD_PICKLES[kind]
    for part, data in {"train": content, "test": b"", "meta": b""}.items():
        (tmp_path / part).write_bytes(data)
    tracemalloc.start()
    try:
        with pytest.raises(DataError, match=message) as caught:
            load("cifar100", tmp_path)
        assert tracemalloc.get_traced_memory()[1] < 300 << 20  # the limit of a part is reserved
    finally:
        tracemalloc.stop()
    assert len(str(caught.value)) < 500


def test_a_part_may_not_be_larger_than_the_real_one(
    fakes: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("equipoise.data.sources.cifar100.MAX_PART_BYTES", 100 << 20)
    with pytest.raises(DataError, match="a part has more than 100 MB"):
        load("cifar100", fakes)


def test_names_of_classes_have_a_limit(fakes: Path, tmp_path: Path) -> None:
    with tarfile.open(fakes / "cifar-100-python.tar.gz") as tar:
        tar.extractall(tmp_path, filter="data")
    long = b"x" * 10_000_000
    names = {b"fine_label_names": [long] * 100}
    (tmp_path / "cifar-100-python" / "meta").write_bytes(pickle.dumps(names, 2))
    with pytest.raises(DataError, match="no name of at most 100 characters"):
        load("cifar100", tmp_path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({b"data": np.zeros((10, 3072), np.uint8)}, "does not contain 50000 images"),
        ({b"fine_labels": [0] * 50_000}, "does not have 500 labels per class"),
        ({b"fine_labels": [101] * 50_000}, "does not have 500 labels per class"),
        ({b"fine_labels": [-1] * 50_000}, "does not have 500 labels per class"),
        ({b"fine_labels": ["x"] * 50_000}, "does not have 500 labels per class"),
        ({b"fine_labels": 3}, "does not have 500 labels per class"),
    ],
)
def test_contents_are_checked(change: dict[bytes, Any], message: str, tmp_path: Path) -> None:
    names = {b"fine_label_names": [b"x"] * 100}
    write_archive(tmp_path / "cifar-100-python.tar.gz", {"train": fake(50_000) | change, "test": {}, "meta": names})
    with pytest.raises(DataError, match=message):
        load("cifar100", tmp_path)


def test_a_failed_download_is_reported_with_a_remedy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> str:
        raise OSError("no route to host")

    monkeypatch.setattr(pooch, "retrieve", refuse)
    with pytest.raises(DataError, match=r"cannot be downloaded \(no route to host\): put cifar-100"):
        load("cifar100", tmp_path)
    with pytest.raises(DataError, match="is not a directory"):
        load("cifar100", tmp_path / "nowhere")


@pytest.mark.realdata
def test_the_real_cifar_100(cifar_root: Path) -> None:
    data = load("cifar100", cifar_root)
    assert (len(data.train), len(data.test)) == (50_000, 10_000)
    assert data.classes[:3] == ("apple", "aquarium_fish", "baby")
    assert data.classes[99] == "worm"
    pixels = data.train.read(torch.arange(50_000)).double() / 255
    np.testing.assert_allclose(pixels.mean((0, 2, 3)), data.augment.mean, atol=2e-4)
    np.testing.assert_allclose(pixels.std((0, 2, 3)), data.augment.std, atol=2e-3)


@pytest.mark.slow
def test_a_model_remembers_the_first_of_three_folders(cifar_root: Path, tmp_path: Path) -> None:
    """CIFAR classes as PNG folders, five per step: old classes with `wa`, and with fine-tuning and no memory."""
    dataset = load("cifar100", cifar_root)
    for part, images, count in (("train", dataset.train, 60), ("test", dataset.test, 40)):
        for step in range(3):
            names = {c: dataset.classes[c] for c in range(5 * step, 5 * step + 5)}
            save_folder(tmp_path / part / str(step), images, names, count)
    old = {}
    for name, options in (("wa", {"method": "wa", "memory": 200}), ("fine-tuning", {"method": "ce", "memory": 0})):
        place = ModelDir(tmp_path / name)
        for step in range(3):
            first: dict[str, Any] = options | {"backbone": "small"} if step == 0 else {}
            chosen = LearnOptions(epochs=20, overrides={"runtime": {"threads": 1}}, **first)
            learn_folder(place, tmp_path / "train" / str(step), chosen)
        model = place.load()
        correct = [evaluate_folder(model, tmp_path / "test" / str(step))[0]["correct"] for step in range(3)]
        old[name] = 100 * (correct[0] + correct[1]) / 400
        assert correct[2] > 80  # new classes are learned either way
    assert old["wa"] > old["fine-tuning"] + 15, old
