"""Picture files: photos, uploads, and the images that a model keeps."""

from __future__ import annotations

import io
import struct
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import torch
from PIL import Image, ImageDraw, features

from equipoise.app.stored_images import decode_stored, encode, fetch, identify
from equipoise.core.directory import Directory
from equipoise.data.decoding import decode, short_side
from equipoise.data.index import ENDINGS
from equipoise.serve.uploads import decode_upload
from tests.fuzz.loop import Case, Make, RefusedError
from tests.fuzz.mutate import LARGE, mutate, repair_png

ORIENTATION = 0x0112


def picture(mode: str = "RGB", width: int = 40, height: int = 28) -> Image.Image:
    """Return a small picture with areas and edges."""
    plain = Image.linear_gradient("L").resize((width, height)).convert("RGB")
    ImageDraw.Draw(plain).ellipse((4, 4, width // 2, height - 4), fill=(200, 30, 90), outline="white")
    if mode == "I;16":
        return Image.fromarray(np.asarray(plain.convert("L")).astype(np.uint16) * 257)
    if mode in ("LA", "RGBA", "PA"):
        plain.putalpha(Image.linear_gradient("L").rotate(90).resize((width, height)))
    return plain.quantize(32) if mode == "P" else plain.convert(mode)


def saved(mode: str, kind: str, **options: Any) -> bytes:
    """Return a small picture as a file."""
    file = io.BytesIO()
    picture(mode).save(file, kind, **options)
    return file.getvalue()


def exif(orientation: int) -> Image.Exif:
    found = Image.Exif()
    found[ORIENTATION] = orientation
    found[0x010F] = "a camera"
    return found


def promised() -> list[bytes]:
    """Return a file of each format and mode that is decoded."""
    more = [picture().rotate(angle) for angle in (90, 180)]
    return [
        *(saved(mode, "JPEG") for mode in ("RGB", "L", "CMYK", "YCbCr")),
        *(saved("RGB", "JPEG", progressive=True, subsampling=subsampling) for subsampling in (0, 2)),
        *(saved("RGB", "JPEG", exif=exif(orientation)) for orientation in (3, 6, 7)),
        *(saved("RGB", "JPEG", restart_marker_rows=1), saved("RGB", "JPEG", icc_profile=bytes(300), comment=b"x")),
        *(saved(mode, "PNG") for mode in ("1", "L", "LA", "P", "RGB", "RGBA", "I;16")),
        *(saved("P", "PNG", transparency=0), saved("RGB", "PNG", transparency=(0, 0, 0)), saved("L", "PNG", bits=4)),
        *(saved("RGB", "PNG", exif=exif(8)), saved("P", "PNG", bits=4, transparency=bytes(range(16)))),
        saved("RGBA", "PNG", save_all=True, append_images=[one.convert("RGBA") for one in more]),
        *(interlaced(colour) for colour in (0, 2, 6)),
        *(saved("RGB", "WEBP"), saved("RGBA", "WEBP", lossless=True), saved("RGB", "WEBP", exif=exif(5))),
        saved("RGBA", "WEBP", save_all=True, append_images=more),
        *(saved(mode, "BMP") for mode in ("1", "L", "P", "RGB", "RGBA")),
        *(saved("P", "GIF"), saved("P", "GIF", transparency=1, interlace=1), saved("L", "GIF", comment=b"x")),
        saved("P", "GIF", save_all=True, append_images=more, disposal=2, loop=0),
        *(saved(mode, "TIFF") for mode in ("1", "L", "LA", "P", "RGB", "RGBA", "CMYK", "I;16", "LAB", "F")),
        *(saved("RGB", "TIFF", compression=kind) for kind in ("packbits", "tiff_lzw", "tiff_adobe_deflate", "jpeg")),
        *(saved("1", "TIFF", compression=kind) for kind in ("group3", "group4")),
        *(saved("RGB", "TIFF", exif=exif(6)), saved("RGB", "TIFF", save_all=True, append_images=more)),
        saved("RGB", "TIFF", compression="tiff_lzw", tiffinfo={317: 2, 278: 4}),
    ]


def interlaced(colour: int, side: int = 9) -> bytes:
    """Return an interlaced PNG, which Pillow cannot write."""
    import zlib

    channels = {0: 1, 2: 3, 6: 4}[colour]
    rows = b""
    for left, top, across, down in ((0, 0, 8, 8), (4, 0, 8, 8), (0, 4, 4, 8), (2, 0, 4, 4), (0, 2, 2, 4), (1, 0, 2, 2)):
        rows += (b"\0" + bytes(range(len(range(left, side, across)) * channels))) * len(range(top, side, down))
    rows += (b"\0" + bytes(range(side * channels))) * len(range(1, side, 2))
    header = struct.pack(">IIBBBBB", side, side, 8, colour, 0, 0, 1)
    chunks = ((b"IHDR", header), (b"IDAT", zlib.compress(rows)), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data)) for kind, data in chunks
    )


def foreign() -> list[bytes]:
    """Return files of formats that are not decoded, some of which Pillow would read."""
    kinds = ("ICO", "PCX", "PPM", "TGA", "DDS", "ICNS", "SGI", "IM", "PDF", "EPS", "MSP", "XBM", "JPEG2000", "AVIF")
    found = []
    for kind in kinds:
        if (kind == "JPEG2000" and not features.check("jpg_2000")) or (kind == "AVIF" and not features.check("avif")):
            continue
        found.append(saved("1" if kind in ("MSP", "XBM") else "RGB", kind))
    return [
        *found,
        saved("RGB", "MPO", save_all=True, append_images=[picture()]),
        b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n%%EndComments\n(/etc/passwd) run\nshowpage\n",
        b"8BPS\0\1" + bytes(6) + struct.pack(">HIIHH", 3, 9, 9, 8, 3) + bytes(300),
        b'<svg xmlns="http://www.w3.org/2000/svg" width="9" height="9"><image href="file:///etc/passwd"/></svg>',
        *(b"<!doctype html><title>x</title><script>1</script>", b"#!/bin/sh\necho x\n"),
        *(b"PK\3\4" + bytes(60), b"\x7fELF"),
        *(b"", b"\0", b"\xff\xd8", b"\xff\xd8\xff\xe0", b"RIFF\0\0\0\0WEBP", b"GIF89a", b"BM", b"II*\0", b"MM\0*"),
        *(b"\0\0\0\x20ftypheic" + bytes(20), b"\0\0\0\x20ftypavif" + bytes(20), b"\x89PNG\r\n\x1a\n", b"SIMPLE  ="),
    ]


def claim(data: bytes, random: Random) -> bytes:
    """Write another width and height into the header of a picture."""
    width, height = (random.choice((*LARGE, 9000, 10_000, 12_000, 30_000)) for _ in range(2))
    changed = bytearray(data)
    small, large = (width & 0xFFFF, height & 0xFFFF), (width & 0xFFFFFFFF, height & 0xFFFFFFFF)
    if data.startswith(b"\x89PNG") and len(data) > 24:
        struct.pack_into(">II", changed, 16, *large)
        return repair_png(bytes(changed))
    if data.startswith(b"GIF8") and len(data) > 10:
        struct.pack_into("<HH", changed, 6, *small)
        image = data.find(b",", 13)  # its first frame
        if 0 < image < len(data) - 9 and random.random() < 0.7:
            struct.pack_into("<HH", changed, image + 5, *small)
    elif data.startswith(b"BM") and len(data) > 26:
        struct.pack_into("<II", changed, 18, *large)
    elif data.startswith(b"\xff\xd8"):
        for place in range(2, len(data) - 9):
            if data[place] == 0xFF and data[place + 1] in (0xC0, 0xC2):
                struct.pack_into(">HH", changed, place + 5, *small)
    elif data.startswith(b"RIFF") and len(data) > 30:
        place = data.find(b"\x9d\x01\x2a")
        if place > 0:
            struct.pack_into("<HH", changed, place + 3, *small)
        if data[12:16] == b"VP8X":
            changed[24:30] = (width & 0xFFFFFF).to_bytes(3, "little") + (height & 0xFFFFFF).to_bytes(3, "little")
    elif data[:4] in (b"II*\0", b"MM\0*") and len(data) > 8:
        order = "<" if data[:2] == b"II" else ">"
        (start,) = struct.unpack_from(f"{order}I", data, 4)
        for place in range(start + 2, min(start + 2 + 12 * 40, len(data) - 12), 12):
            if struct.unpack_from(f"{order}H", data, place)[0] in (256, 257, 258, 277, 278, 322, 323):
                struct.pack_into(f"{order}HII", changed, place + 2, 4, 1, random.choice(LARGE) & 0xFFFFFFFF)
    return bytes(changed)


def damaged(seeds: Sequence[bytes], random: Random) -> bytes:
    """Return one of these pictures, changed."""
    data = random.choice(seeds)
    if random.random() < 0.15:
        data = claim(data, random)
        if random.random() < 0.7:
            return data
    data = mutate(data, random, seeds)
    return repair_png(data) if data.startswith(b"\x89PNG") and random.random() < 0.7 else data


def draws(random: Random) -> list[float] | None:
    """Return numbers for a random crop, or None."""
    return None if random.random() < 0.5 else [random.choice((0.0, 1 - 1e-9, random.random())) for _ in range(4)]


def photos(place: Path) -> Make:
    """Read photos of any content, as ``learn``, ``predict`` and ``run`` decode them."""
    good, others = promised(), foreign()
    for data in good[:-1]:
        for bicubic in (False, True):
            if Image.open(io.BytesIO(data)).mode != "F":
                decode(data, 16, bicubic=bicubic)

    def make(random: Random) -> Case:
        data = damaged(good if random.random() < 0.85 else others, random)
        size, draw = random.choice((1, 8, 16, 33)), draws(random)
        margin, bicubic = random.choice((1.0, 256 / 224)), random.random() < 0.5
        file = place / f"photo{random.choice(ENDINGS)}" if random.random() < 0.15 else None

        def read() -> None:
            if file is not None:
                file.write_bytes(data)
                short_side([str(file)])
                found = decode(str(file), size, draw, margin, bicubic)
            else:
                found = decode(data, size, draw, margin, bicubic)
            if found.shape != (size, size, 3) or found.dtype != np.uint8:
                raise AssertionError(f"it has shape {found.shape} and type {found.dtype}")

        return Case(data, read, f"{file} size={size} draw={draw} margin={margin:.3f} bicubic={bicubic}")

    return make


def uploads(place: Path) -> Make:
    """Read photos in requests to a server."""
    good, others = promised(), foreign()

    def make(random: Random) -> Case:
        data = damaged(good if random.random() < 0.85 else others, random)
        size, bicubic = random.choice((1, 8, 24)), random.random() < 0.7

        def read() -> None:
            found = decode_upload(data, size, bicubic)
            if (found.pixels is None) == (found.problem is None):
                raise AssertionError("it has pixels and a problem, or neither")
            if found.pixels is None:
                raise RefusedError(found.problem)

        return Case(data, read, f"size={size} bicubic={bicubic}")

    return make


def stored(place: Path) -> Make:
    """Read images that a model keeps: PNG and NPY files named by their pixels."""
    shapes = ((3, 12, 12), (1, 8, 8), (4, 6, 6), (64, 1, 1), (2, 5, 5))
    seeds = []
    for shape in shapes:
        pixels = torch.arange(int(np.prod(shape))).reshape(shape) % 251
        kind = torch.float32 if shape[0] == 64 else torch.uint8
        seeds.append((encode(pixels.to(kind)), shape, ".npy" if kind == torch.float32 or shape[0] == 2 else ".png"))
        assert torch.equal(decode_stored(seeds[-1][0], f"a{seeds[-1][2]}", shape), pixels.to(kind))
    thumbs = [saved("RGB", "JPEG"), saved("RGB", "PNG")]
    directory = Directory(place)
    headers = [b"'descr': '|O'", b"'descr': '<f8'", b"'fortran_order': True", b"'shape': (1" + b"0" * 12 + b",)"]
    known = [b"'descr': '<f4'", b"'descr': '|u1'", b"'fortran_order': False", b"'shape': (64, 1, 1)"]

    def change_header(data: bytes, random: Random) -> bytes:
        for one in known:
            if one in data and random.random() < 0.4:
                data = data.replace(one, random.choice(headers).ljust(len(one)))
        return data

    def make(random: Random) -> Case:
        data, shape, ending = random.choice(seeds)
        if random.random() < 0.1:
            data = random.choice(thumbs)
        if ending == ".npy" and random.random() < 0.5:
            data = change_header(data, random)
        data = claim(data, random) if random.random() < 0.1 else mutate(data, random, [seed for seed, _, _ in seeds])
        data = repair_png(data) if ending == ".png" and random.random() < 0.8 else data

        def read() -> None:
            name = "0" * 32
            with suppress(Exception):
                image = decode_stored(data, f"a{ending}", shape)
                name = identify(image)
            directory.write_bytes(f"{name}{ending}", data)
            try:
                fetch(directory, [f"{name}{ending}"], shape)
            finally:
                directory.remove(f"{name}{ending}")

        return Case(data, read, f"{shape} {ending}")

    return make
