"""Archives of data sets."""

from __future__ import annotations

import gzip
import io
import pickle
import tarfile
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
from PIL import Image

from equipoise.data.sources import cifar100, tiny_imagenet
from tests.fuzz.loop import Case, Make
from tests.fuzz.mutate import mutate

OPCODES = b"(.0123FIJKLMNPQRSTUVX]abcdeghijloqrstup}" + bytes((*range(0x80, 0x8D), 0x8E, 0x92, 0x93, 0x94, 0x95))
HOSTILE = (
    *(b"cos\nsystem\n(S'true'\ntR.", b"cbuiltins\neval\n(S'1'\ntR.", b"c__builtin__\nexec\n(S'1'\ntR."),
    *(b"cnumpy\nndarray\n.", b"cnumpy.core.multiarray\n_reconstruct\n("),
    b"c_codecs\nencode\n(X\1\0\0\0aX\3\0\0\0bz2tR.",
    *(b"\x80\x04\x95\xff\xff\xff\xff\xff\xff\xff\x7f", b"\x8e\xff\xff\xff\xff\xff\xff\xff\x7f", b"r\xff\xff\xff\xff"),
    *(b"(" * 9000, b"](" * 999 + b"e" * 999 + b".", b"I" + b"9" * 6000 + b"\n.", b"\x8b\xff\xff\xff\x7f", b"P1\n."),
    *(b"cnumpy\ndtype\n(S'O8'\nI0\nI1\ntR.", b"N)\x81.", b"}" + b"}q\0" * 300 + b".", b"\x80\xff."),
    *(b"\x96\xff\xff\xff\xff\0\0\0\0", b"})" + b"\x85" * 999 + b"Ns.", b"c_codecs\nencode\n}X\5\0\0\0_leftNsb."),
)
SIZES = (b"77777777777", b"00000000000", b"00000001000", b"-0000000001", b"\x80" + b"\xff" * 10, b"\xff" * 10 + b"\0")
COUNT = 200
"""Training images of the small CIFAR-100; the real one has 50,000."""
NAMES = ("../../x", "/etc/passwd", "a\\b", "tiny-imagenet-100/train/../../x", "x" * 300, "é", "\udcff", "")


def part(count: int) -> dict[bytes, Any]:
    data = np.zeros((count, 3072), np.uint8)
    labels = [row % 100 for row in range(count)]
    return {b"data": data, b"fine_labels": labels, b"coarse_labels": [label % 20 for label in labels]}


def change_pickle(data: bytes, random: Random) -> bytes:
    """Return a pickle with other instructions, at the beginning or the end, where it has any."""
    kind = random.random()
    if kind < 0.2:
        return random.choice(HOSTILE)
    if kind < 0.35:
        place = random.choice((random.randrange(min(len(data), 200)), random.randrange(len(data))))
        return data[:place] + random.choice(HOSTILE) + data[place:]
    if kind < 0.7:
        changed = bytearray(data)
        for _ in range(random.choice((1, 2, 4))):
            place = random.choice((random.randrange(min(len(data), 200)), -1 - random.randrange(min(len(data), 900))))
            changed[place] = random.choice(OPCODES)
        return bytes(changed)
    return mutate(data, random)


def packed(members: dict[str, bytes]) -> bytes:
    """Return a tar file."""
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as tar:
        for name, data in members.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(data)
            tar.addfile(entry, io.BytesIO(data))
    return file.getvalue()


def change_tar(data: bytes, random: Random) -> bytes:
    """Return a tar file with a changed header whose checksum is right, or with changed bytes."""
    if random.random() < 0.3:
        return mutate(data, random)
    headers, place = [], 0
    while place + 512 <= len(data) and data[place]:
        headers.append(place)
        place += 512 + -(-int(data[place + 124 : place + 135], 8) // 512) * 512
    changed = bytearray(data)
    for _ in range(random.choice((1, 1, 2))):
        start = random.choice(headers)
        header = changed[start : start + 512]
        kind = random.randrange(5)
        if kind == 0:
            header[156:157] = random.choice((*b"0123456789LKSVxgD\0\xff",)).to_bytes()
        elif kind == 1:
            header[:100] = random.choice(NAMES).encode(errors="surrogateescape")[:100].ljust(100, b"\0")
        elif kind == 2:
            header[124:135] = random.choice(SIZES)
        elif kind == 3:
            header[157:257] = random.choice(NAMES).encode(errors="surrogateescape")[:100].ljust(100, b"\0")
        else:
            header = bytearray(mutate(bytes(header), random)[:512].ljust(512, b"\0"))
        header[148:156] = b" " * 8
        header[148:156] = b"%06o\0 " % sum(header)
        changed[start : start + 512] = header
    return bytes(changed)


def change_gzip(data: bytes, random: Random) -> bytes:
    """Compress, and rarely change what is compressed."""
    whole = gzip.compress(data, 1, mtime=0)
    return mutate(whole, random) if random.random() < 0.15 else whole


def cifar(place: Path) -> Make:
    """Read archives of CIFAR-100, and pickles as they are in it."""
    fine, coarse = ([f"{kind}{n}".encode() for n in range(count)] for kind, count in (("fine", 100), ("coarse", 20)))
    meta = {b"fine_label_names": fine, b"coarse_label_names": coarse}
    pickles = [pickle.dumps(part(COUNT), protocol) for protocol in (0, 2, 4)]
    metas = [pickle.dumps(meta, protocol) for protocol in (0, 2, 4)]
    members = {"train": pickle.dumps(part(2), 2), "test": pickle.dumps(part(1), 2), "meta": metas[1]}
    tar = packed({f"cifar-100-python/{name}": data for name, data in members.items()})

    def read_pickle(data: bytes) -> None:
        found = cifar100._unpickle(io.BytesIO(data).read)
        cifar100._images({"train": found}, "train", "fine", COUNT, 100)

    def read_part(data: bytes) -> None:
        folder = place / cifar100.FOLDER
        (folder / "train").write_bytes(data)
        cifar100.load(place)

    def read_archive(data: bytes) -> None:
        root = place / "packed"
        (root / cifar100.ARCHIVE).write_bytes(data)
        cifar100.load(root)

    (place / "packed").mkdir()
    (place / cifar100.FOLDER).mkdir()
    for name, data in members.items():
        (place / cifar100.FOLDER / name).write_bytes(data)
    for data in pickles[1:]:
        read_pickle(data)

    def make(random: Random) -> Case:
        kind = random.random()
        read: Callable[[bytes], None]
        if kind < 0.6:
            read, data = read_pickle, change_pickle(random.choice(pickles[1:]), random)
        elif kind < 0.8:
            read, data = read_part, change_pickle(random.choice((pickles[1], members["train"], *metas)), random)
        else:
            read, data = read_archive, change_gzip(change_tar(tar, random), random)
        return Case(data, lambda: reported(place, read, data), read.__name__)

    return make


def reported(place: Path, read: Callable[[bytes], None], data: bytes) -> None:
    """Read as ``load`` does, which turns all errors of a pickle into one of equipoise."""
    with cifar100._reported(place / "train"):
        read(data)


def tiny(place: Path) -> Make:
    """Read archives of Tiny-ImageNet-100."""
    file = io.BytesIO()
    Image.new("RGB", (8, 8), "red").save(file, "JPEG")
    names = [f"{tiny_imagenet.NAME}/{one}/n{n:08d}/{n}.JPEG" for one in ("train", "val") for n in range(100)]
    tar = packed(dict.fromkeys(names, file.getvalue()))
    archive = place / tiny_imagenet.ARCHIVE

    def read(data: bytes) -> None:
        archive.write_bytes(data)
        tiny_imagenet.load(place, 8)

    read(gzip.compress(tar, 1))

    def make(random: Random) -> Case:
        data = change_gzip(change_tar(tar, random), random)
        return Case(data, lambda: read(data))

    return make
