"""Read untrusted picture files, and limit the memory and time that decoding may take."""

from __future__ import annotations

import ctypes
import os
import stat
import struct
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from threading import Condition, Lock

from PIL import Image, JpegImagePlugin, TiffImagePlugin

FORMATS = ("JPEG", "PNG", "WEBP", "BMP", "GIF", "TIFF")
"""Formats that are decoded. Pillow supports many more, and some of them start other programs."""
FILE_BYTES = 256 << 20
"""Maximum size of a file."""
MAX_PIXELS = 100_000_000
"""Maximum number of pixels to decode; a large JPEG is decoded at a fraction of its size."""
DECODING_BYTES = 640 << 20
"""Memory that all pictures that are decoded at the same time may take."""
LARGE_BYTES = 64 << 20
"""Pictures that take less are not counted."""
LARGE_FILE_BYTES = 16 << 20
"""Larger files are decoded one after the other."""
BLOCK_TAGS = (
    TiffImagePlugin.IMAGEWIDTH,
    TiffImagePlugin.IMAGELENGTH,
    TiffImagePlugin.BITSPERSAMPLE,
    TiffImagePlugin.SAMPLESPERPIXEL,
    TiffImagePlugin.ROWSPERSTRIP,
    TiffImagePlugin.TILEWIDTH,
    TiffImagePlugin.TILELENGTH,
)
"""Tags of a TIFF file that set the size of its tiles and strips."""
TIFF_NUMBERS = {1: "B", 3: "H", 4: "L", 16: "Q"}
"""Types of whole numbers in a TIFF file."""
YCBCR = 6
SCANNED_PIXELS = 2_000_000_000
"""Pixels of a JPEG times its scans: a scan of 200 bytes can take as long as decoding the whole picture."""
_OPEN = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0) | getattr(os, "O_CLOEXEC", 0)


@contextmanager
def reading(path: str) -> Iterator[bytes]:
    """Read a regular file of limited size, for as long as its content is needed; anything else could block.

    Only one thread at a time has the content of a large one.
    """
    with open(os.open(path, _OPEN), "rb") as file:  # noqa: PTH123 - a descriptor
        state = os.fstat(file.fileno())
        if not stat.S_ISREG(state.st_mode):
            raise ValueError("it is not a regular file")
        if state.st_size > FILE_BYTES:
            raise ValueError(f"it has {state.st_size >> 20} MB, more than the limit of {FILE_BYTES >> 20}")
        with _large_file if state.st_size > LARGE_FILE_BYTES else nullcontext():
            yield file.read(state.st_size)


@contextmanager
def decoding(picture: Image.Image, full: tuple[int, int], data: bytes) -> Iterator[None]:
    """Wait until there is memory to decode a picture, or raise a ValueError if it needs too much.

    Parameters
    ----------
    picture
        The picture; a JPEG may be set to decode at a fraction of its size.
    full
        Its size in the file.
    data
        The content of the file.
    """
    pixels = picture.size[0] * picture.size[1]
    if pixels > MAX_PIXELS:
        raise ValueError(f"it has {pixels / 1e6:.0f} million pixels, and at most {MAX_PIXELS / 1e6:.0f} are decoded")
    memory = decoding_bytes(picture, full, data)
    if problem := cost_problem(picture, full, data, memory):
        raise ValueError(f"it {problem}")
    if memory < LARGE_BYTES:
        yield
        return
    with _budget.spend(memory):
        try:
            yield
        finally:
            return_memory()


def cost_problem(picture: Image.Image, full: tuple[int, int], data: bytes, memory: int) -> str | None:
    """Return why decoding a picture would take too long, or too much memory."""
    if isinstance(picture, JpegImagePlugin.JpegImageFile) and has_many_scans(data):
        scans = data.count(b"\xff\xda")  # at least as many as there are
        if full[0] * full[1] * scans > SCANNED_PIXELS:
            return "has too many scans for its size: save it again"
    return "takes too much memory to decode: make it smaller" if memory > DECODING_BYTES else None


def decoding_bytes(picture: Image.Image, full: tuple[int, int], data: bytes) -> int:
    """Estimate the memory that decoding an open picture takes."""
    pixels = picture.size[0] * picture.size[1]
    if isinstance(picture, JpegImagePlugin.JpegImageFile):
        # of a JPEG with several scans, all coefficients are kept, also if it is decoded at a fraction of its size
        areas = [across * down for _, across, down, _ in picture.layer]
        kept = 2 * full[0] * full[1] * sum(areas) // max(areas) if has_many_scans(data) else 0
        return kept + 8 * pixels
    copies = 2 + 3 * picture.has_transparency_data + 2 * (picture.format == "WEBP")
    if isinstance(picture, TiffImagePlugin.TiffImageFile):
        return max(4 * pixels * copies, 4 * pixels + tiff_block_bytes(picture, data))
    return 4 * pixels * copies


def tiff_block_bytes(picture: TiffImagePlugin.TiffImageFile, data: bytes) -> int:
    """Return the size of an unpacked tile or strip; libtiff unpacks whole ones, even if the picture is smaller."""
    tags = _tiff_tags(data, picture.tag_v2.offset)
    width, height = tags.get(TiffImagePlugin.IMAGEWIDTH, 0), tags.get(TiffImagePlugin.IMAGELENGTH, 0)
    if TiffImagePlugin.TILEWIDTH in tags or TiffImagePlugin.TILELENGTH in tags:
        across, down = tags.get(TiffImagePlugin.TILEWIDTH, width), tags.get(TiffImagePlugin.TILELENGTH, height)
    else:
        across, down = width, min(height, tags.get(TiffImagePlugin.ROWSPERSTRIP, height))
    bits = max(picture.tag_v2.get(TiffImagePlugin.BITSPERSAMPLE, (1,))) * tags.get(TiffImagePlugin.SAMPLESPERPIXEL, 1)
    if picture.tag_v2.get(TiffImagePlugin.PHOTOMETRIC_INTERPRETATION) == YCBCR:
        bits = max(bits, 3 * 8) + 4 * 8  # it is also converted to RGBA
    return across * down * int(bits) // 8


def _tiff_tags(data: bytes, place: int) -> dict[int, int]:
    """Read the tags that set the size of tiles and strips, as libtiff does; Pillow may choose another of two values."""
    large = data[2:3] == b"+"  # BigTIFF
    if data[:4] == b"MM\0+":  # not BigTIFF for Pillow, but for libtiff
        raise ValueError("it is a big-endian BigTIFF file: save it as TIFF")
    order = ">" if data[:2] == b"MM" else "<"
    header = struct.Struct(order + ("Q" if large else "H"))
    entry = struct.Struct(order + ("HHQ8s" if large else "HHL4s"))
    count = header.unpack_from(data, place)[0]
    place += header.size
    count = min(count, (len(data) - place) // entry.size)
    tags: dict[int, int] = {}
    for tag, kind, length, value in entry.iter_unpack(data[place : place + count * entry.size]):
        if tag not in BLOCK_TAGS:
            continue
        if tag in tags:
            raise ValueError(f"its tag {tag} is repeated: save it again")
        if tag == TiffImagePlugin.BITSPERSAMPLE:  # one number per sample, which Pillow checks
            tags[tag] = 0
            continue
        if kind not in TIFF_NUMBERS or length != 1:
            raise ValueError(f"its tag {tag} is not a number: save it again")
        tags[tag] = struct.unpack_from(order + TIFF_NUMBERS[kind], value)[0]
    return tags


def has_many_scans(data: bytes) -> bool:
    """Return whether a JPEG file is, or may be, more than one scan over all its colours."""
    place, colours = 2, 0
    while place + 10 <= len(data) and data[place] == 0xFF:
        marker, length = data[place + 1], struct.unpack_from(">H", data, place + 2)[0]
        if marker in (0xC0, 0xC1):  # sequential
            colours = data[place + 9]
        elif marker == 0xDA:
            return data[place + 4] != colours
        place += 2 + length
    return True


class _Budget:
    """Memory that several threads share."""

    def __init__(self, size: int) -> None:
        self._free = size
        self._changed = Condition()

    @contextmanager
    def spend(self, amount: int) -> Iterator[None]:
        """Wait until this much is free, and take it."""
        with self._changed:
            self._changed.wait_for(lambda: amount <= self._free)
            self._free -= amount
        try:
            yield
        finally:
            with self._changed:
                self._free += amount
                self._changed.notify_all()


_budget = _Budget(DECODING_BYTES)
_large_file = Lock()
"""Taken before the budget, never after it."""


def return_memory() -> None:
    """Return freed memory to the system; our commands and their threads would keep it for the next batch."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None) if sys.platform == "linux" else None
    if trim is not None:
        trim(0)
