"""Read an untrusted .tar.gz archive from its beginning to its end, one file at a time; nothing is written to disk.

Only tarfile's parser of single headers is used: ``TarFile`` reads extended headers and sparse maps of any size, and
in Pythons without the fix of CVE-2025-8194, a negative size makes it read the same header forever.
"""

from __future__ import annotations

import gzip
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from equipoise.errors import DataError

MAX_ARCHIVE_BYTES = 2**29
"""Maximum size of an unpacked archive: CIFAR-100 has 186 MB, Tiny-ImageNet-100 75 MB."""
MAX_EXTENDED_BYTES = 64 << 10
"""Size of an extended header: a long name, times and attributes of a file."""
SHOWN = 200
"""Characters of a name that an error shows."""
_CHUNK = 1 << 20
_LONG_NAME, _PAX = tarfile.GNUTYPE_LONGNAME, tarfile.XHDTYPE
_EXTENDED = (_LONG_NAME, _PAX, tarfile.GNUTYPE_LONGLINK, tarfile.XGLTYPE, tarfile.SOLARIS_XHDTYPE)


@dataclass
class PackedFile:
    """A file in an archive, which can be read once, until the next one is taken."""

    name: str
    size: int
    _stream: _Stream
    _unread: int

    def read(self, limit: int) -> bytes:
        """Return the content, at most ``limit`` bytes of it."""
        count = min(limit, self._unread)
        self._unread -= count
        return self._stream.read(count)


class _Stream:
    """An unpacked archive of which only a limited number of bytes is read."""

    def __init__(self, file: gzip.GzipFile, limit: int, too_large: DataError) -> None:
        self._file, self._left, self._too_large = file, limit, too_large

    def check_left(self, size: int) -> None:
        """Raise an error if ``size`` more bytes exceed the limit."""
        if size > self._left:
            raise self._too_large

    def read(self, size: int) -> bytes:
        self.check_left(size)
        data = self._file.read(size)
        self._left -= len(data)
        if len(data) < size:
            raise tarfile.ReadError("unexpected end of data")
        return data

    def skip(self, size: int) -> None:
        self.check_left(size)
        while size:
            size -= len(self.read(min(size, _CHUNK)))

    def finish(self) -> None:
        """Read what follows the end marker, which also verifies the checksum."""
        while data := self._file.read(_CHUNK):
            self.check_left(len(data))
            self._left -= len(data)


def read_archive(path: Path, title: str, remedy: str, max_bytes: int, max_files: int) -> Iterator[PackedFile]:
    """Yield the files of an archive.

    Raises DataError for entries that a data set does not have, and whatever gzip and tarfile raise if it is damaged.

    Parameters
    ----------
    path
        The archive.
    title
        Name of the data set, for errors.
    remedy
        Advice for the user if the archive cannot be used.
    max_bytes
        Maximum size of the archive, packed and unpacked.
    max_files
        Maximum number of entries: files, folders and extended headers.
    """
    too_large = DataError(f"{path} has more than {max_bytes:,} bytes when unpacked: {remedy}")
    if path.stat().st_size > max_bytes:
        raise DataError(f"{path} has more than {max_bytes:,} bytes: {remedy}")
    with gzip.open(path) as unpacked:
        stream, name = _Stream(unpacked, max_bytes, too_large), None
        for _ in range(max_files):
            block = stream.read(tarfile.BLOCKSIZE)
            if block == bytes(tarfile.BLOCKSIZE):  # the end marker
                stream.finish()
                return
            header = tarfile.TarInfo.frombuf(block, "utf-8", "surrogateescape")
            padding = -header.size % tarfile.BLOCKSIZE
            if header.size < 0:
                raise tarfile.ReadError("a header has a negative size")
            if header.type in _EXTENDED:
                if header.size > MAX_EXTENDED_BYTES:
                    raise tarfile.ReadError(f"an extended header has more than {MAX_EXTENDED_BYTES:,} bytes")
                name = _long_name(header.type, stream.read(header.size)) or name
                stream.skip(padding)
                continue
            name, long_name = None, name
            shown = f"{path}: {(long_name or header.name)[:SHOWN]!r}"
            place = PurePosixPath(long_name or header.name)
            if place.is_absolute() or ".." in place.parts:
                raise DataError(f"{shown} leads out of the archive: {remedy}")
            if header.isdir():
                continue
            if not header.isreg() or header.type == tarfile.GNUTYPE_SPARSE:
                raise DataError(f"{shown} is a link, a device or a sparse file, and {title} has none: {remedy}")
            stream.check_left(header.size)
            packed = PackedFile(str(place), header.size, stream, header.size)
            yield packed
            stream.skip(packed._unread + padding)
    raise DataError(f"{path} exceeds the limit of {max_files:,} files for {title}: {remedy}")


def _long_name(kind: bytes, data: bytes) -> str | None:
    """Return the name that an extended header has for the next file, if any."""
    if kind == _LONG_NAME:
        return data.rstrip(b"\0").decode(errors="surrogateescape")
    return _pax_name(data) if kind == _PAX else None


def _pax_name(data: bytes) -> str | None:
    """Return the path in a pax header; a record is its own length, a space, a key, ``=``, a value and a newline."""
    found, place = None, 0
    while place < len(data):
        space = data.find(b" ", place, place + 20)
        length = int(data[place:space]) if space > 0 else 0
        if not space - place + 1 < length <= len(data) - place:
            raise tarfile.ReadError("a pax header is damaged")
        key, _, value = data[space + 1 : place + length - 1].partition(b"=")
        if key == b"size" or key.startswith(b"GNU.sparse"):
            raise tarfile.ReadError("a pax header describes a sparse file, or one of more than 8 GB")
        if key == b"path":
            found = value.decode(errors="surrogateescape")
        place += length
    return found
