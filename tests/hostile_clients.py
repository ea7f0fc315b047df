"""Helpers for tests of `equipoise serve` with clients that mean no good: crafted files, and raw connections."""

from __future__ import annotations

import io
import json
import os
import re
import shutil
import socket
import struct
import subprocess
import sys
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.client import HTTPResponse
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from PIL import Image

from tests.serving import Server

BOUNDARY = "boundary"
FORM = f"multipart/form-data; boundary={BOUNDARY}"
SCRIPT = b"<script>alert('hello')</script>"


class Reply(NamedTuple):
    """The answer to a raw request."""

    status: int
    headers: dict[str, str]
    text: str

    @property
    def detail(self) -> str:
        """The sentence of an error."""
        body: dict[str, str] = json.loads(self.text)
        assert list(body) == ["detail"]
        return body["detail"]


@contextmanager
def connected(server: Server, seconds: float = 20) -> Iterator[socket.socket]:
    """Open a connection."""
    host, _, port = server.url.partition("://")[2].rstrip("/").partition(":")
    with socket.create_connection((host, int(port)), seconds) as connection:
        yield connection


def request(line: str, *headers: str, body: bytes = b"", host: str = "localhost") -> bytes:
    """Return a request; without a length unless it is one of the headers."""
    return "\r\n".join((f"{line} HTTP/1.1", f"Host: {host}", *headers, "", "")).encode("latin-1") + body


def reply(connection: socket.socket) -> Reply:
    """Read one answer."""
    with HTTPResponse(connection) as response:
        response.begin()
        return Reply(response.status, {k.lower(): v for k, v in response.getheaders()}, response.read().decode())


def exchange(server: Server, data: bytes) -> Reply:
    """Send bytes and read the answer, which may come before all is sent."""
    with connected(server) as connection:
        with suppress(OSError):
            connection.sendall(data)
        return reply(connection)


def open_stream(connection: socket.socket, *headers: str) -> int:
    """Follow the events of a server without reading any; return the status."""
    connection.sendall(request("GET /api/events", *headers))
    return int(connection.recv(12).removeprefix(b"HTTP/1.1 "))


def post_form(server: Server, body: bytes, content_type: str = FORM, path: str = "/api/pictures") -> Reply:
    """Post a form as it is."""
    length = f"Content-Length: {len(body)}"
    return exchange(server, request(f"POST {path}", f"Content-Type: {content_type}", length, body=body))


def form(*parts: tuple[bytes, bytes], end: bool = True) -> bytes:
    """Return a form of parts: each has a header and a content."""
    content = b"".join(b"--%b\r\n%b\r\n\r\n%b\r\n" % (BOUNDARY.encode(), *part) for part in parts)
    return content + (b"--%b--\r\n" % BOUNDARY.encode() if end else b"")


def file_part(content: bytes, name: bytes = b"x.jpg", field: bytes = b"files") -> tuple[bytes, bytes]:
    """Return a file as a part of a form."""
    return b'Content-Disposition: form-data; name="%b"; filename="%b"' % (field, name), content


def is_closed(connection: socket.socket, seconds: float) -> bool:
    """Return whether the server ends a connection within some time; what it sends before does not matter."""
    connection.settimeout(seconds)
    try:
        while connection.recv(65536):
            pass
    except ConnectionError:
        return True
    except TimeoutError:
        return False
    return True


def use_tiny_disk(folder: Path, patch: pytest.MonkeyPatch) -> bool:
    """Give servers a temporary folder of 800 kB, which only their own processes see; return whether that works."""
    disk, script = folder / "disk", folder / "python"
    disk.mkdir()
    unshare = f"{shutil.which('unshare')} --mount --map-root-user sh -c"
    mount = f"mount -t tmpfs -o size=800k none '{disk}'"
    if subprocess.run([*unshare.split(), mount], capture_output=True).returncode:
        return False
    script.write_text(f'#!/bin/sh\nexec {unshare} "{mount} && exec {sys.executable} \\"\\$@\\"" sh "$@"\n')
    script.chmod(0o755)
    patch.setenv("TMPDIR", str(disk))
    patch.setattr(sys, "executable", str(script))
    return True


def listing(folder: Path) -> set[str]:
    """Name everything below a folder."""
    return {str(path.relative_to(folder)) for path in folder.rglob("*")}


def peak_memory(server: Server) -> int:
    """Return the most memory that the server has used, in MB."""
    found = re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{server.process.pid}/status").read_text())
    assert found is not None
    return int(found[1]) // 1024


def waiting_pictures(server: Server) -> int:
    """Return how many pictures the server keeps."""
    found = re.search(r"^equipoise_pictures_waiting (\d+)", server.client.get("/metrics").text, re.MULTILINE)
    assert found is not None
    return int(found[1])


def log_of(server: Server) -> str:
    """Return what the server has printed since the last call."""
    found = b""
    for stream in (server.process.stdout, server.process.stderr):
        assert stream is not None
        os.set_blocking(stream.fileno(), False)
        try:
            while part := os.read(stream.fileno(), 65536):
                found += part
        except BlockingIOError:
            pass
    return found.decode()


def saved(picture: Image.Image, kind: str, **options: Any) -> bytes:
    """Return a picture as a file."""
    file = io.BytesIO()
    picture.save(file, kind, **options)
    return file.getvalue()


def png(width: int, height: int) -> bytes:
    """Return a black-and-white PNG file of any size; a huge one has only its first rows."""
    rows = bytes(min(height, 20_000_000 // width) * (width // 8 + 2))
    chunks = [(b"IHDR", struct.pack(">IIBBBBB", width, height, 1, 0, 0, 0, 0)), (b"IDAT", zlib.compress(rows))]
    encoded = (
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        for kind, data in [*chunks, (b"IEND", b"")]
    )
    return b"\x89PNG\r\n\x1a\n" + b"".join(encoded)


def gif(width: int, height: int) -> bytes:
    """Return a GIF file of which only the header is true."""
    frame = b"," + struct.pack("<HHHHB", 0, 0, width, height, 0)
    return b"GIF89a" + struct.pack("<HHBBB", width, height, 0x80, 0, 0) + bytes(6) + frame + b"\x02\x01\x00\x00;"


def bmp(width: int, height: int) -> bytes:
    """Return a BMP file without pixels."""
    return (
        b"BM" + struct.pack("<IHHIIiiHHIIiiII", 100, 0, 0, 54, 40, width, height, 1, 24, 0, 0, 0, 0, 0, 0) + bytes(50)
    )


def tiff(width: int, height: int) -> bytes:
    """Return a TIFF file of which all pixels are the same few bytes."""
    entries = ((256, width), (257, height), (258, 8), (259, 1), (262, 1), (273, 8), (277, 1), (278, height), (279, 9))
    tags = b"".join(struct.pack("<HHII", tag, 4, 1, value) for tag, value in entries)
    return b"II*\x00" + struct.pack("<IH", 8, len(entries)) + tags + bytes(4)


def webp(width: int, height: int) -> bytes:
    """Return a WebP file with a small picture on a huge canvas."""
    picture = saved(Image.new("RGB", (16, 16)), "WEBP", lossless=True)[12:]
    size = struct.pack("<I", width - 1)[:3] + struct.pack("<I", height - 1)[:3]
    content = b"WEBPVP8X" + struct.pack("<II", 10, 0) + size + picture
    return b"RIFF" + struct.pack("<I", len(content)) + content


def progressive_jpeg(edge: int, repeat: int = 0) -> bytes:
    """Return a progressive JPEG file with the last scan repeated."""
    data = saved(Image.new("RGB", (edge, edge)), "JPEG", progressive=True, subsampling=0)
    last, end = data.rfind(b"\xff\xda"), data.rfind(b"\xff\xd9")
    return data[:end] + data[last:end] * repeat + data[end:]


def jpeg_of_size(edge: int) -> bytes:
    """Return a small progressive JPEG file that claims to be large."""
    data = progressive_jpeg(64)
    place = data.index(b"\xff\xc2") + 5
    return data[:place] + struct.pack(">HH", edge, edge) + data[place + 4 :]


def polyglot() -> bytes:
    """Return a JPEG file that is also HTML and a ZIP archive."""
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w") as file:
        file.writestr("page.html", SCRIPT)
    return saved(Image.new("RGB", (64, 64), "red"), "JPEG", comment=SCRIPT, exif=_exif()) + SCRIPT + archive.getvalue()


def _exif() -> Image.Exif:
    exif = Image.Exif()
    exif[0x010E] = SCRIPT.decode()  # the description
    return exif
