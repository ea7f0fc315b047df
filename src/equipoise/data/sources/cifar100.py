"""CIFAR-100 (Krizhevsky 2009) from its official Python archive: unpacked, packed or downloaded."""

from __future__ import annotations

import io
import pickle
import tarfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pooch
import torch

from equipoise.data.augment import Augment
from equipoise.data.dataset import Dataset
from equipoise.data.images import Images
from equipoise.data.index import cache_dir
from equipoise.data.tar_archive import MAX_ARCHIVE_BYTES, read_archive
from equipoise.errors import DataError

URL = "https://www.cs.toronto.edu/~kriz/cifar-100-python.tar.gz"
MD5 = "eb9058c3a382ffc7106e4002c42a8d85"
ARCHIVE, FOLDER = "cifar-100-python.tar.gz", "cifar-100-python"
PARTS = ("train", "test", "meta")
MAX_PART_BYTES = 256 << 20
"""The training images have 148 MB."""
MAX_READS = 1_500_000
"""Maximum reads of a part; each may create an object that takes much more memory. Training images need 450,000."""
MAX_FILES = 1000
"""Maximum number of files in the archive, which has four."""
MAX_NAME = 100
MAX_REASON = 200
"""Characters of a reason that an error shows: it may quote a part."""
AGAIN = "download the archive again"
AUGMENT = Augment(mean=(0.5071, 0.4867, 0.4408), std=(0.2675, 0.2565, 0.2761), pad=4, flip=True)


def load(root: Path | None, labels: str = "fine") -> Dataset:
    """Load 50,000 training and 10,000 test images.

    Parameters
    ----------
    root
        Directory of the archive or its files, and where to download it to (default: the user's cache).
    labels
        ``"fine"`` for the 100 classes, ``"coarse"`` for the 20 superclasses.
    """
    if labels not in ("fine", "coarse"):
        raise DataError(f"data.labels must be 'fine' or 'coarse', got '{labels}'")
    parts = _read(root)
    found = _field(parts, "meta", f"{labels}_label_names")
    expected = {"fine": 100, "coarse": 20}[labels]
    if not isinstance(found, list) or len(found) != expected:
        raise DataError(f"CIFAR-100 does not have {expected} names of {labels} classes: {AGAIN}")
    if not all(isinstance(name, bytes | str) and len(name) <= MAX_NAME for name in found):
        raise DataError(f"a class of CIFAR-100 has no name of at most {MAX_NAME} characters: {AGAIN}")
    names = [name.decode(errors="replace") if isinstance(name, bytes) else name for name in found]
    return Dataset(
        "cifar100",
        train=_images(parts, "train", labels, 50_000, len(names)),
        test=_images(parts, "test", labels, 10_000, len(names)),
        classes=tuple(names),
        augment=AUGMENT,
    )


def _read(root: Path | None) -> dict[str, Any]:
    """Return the three parts from the unpacked folder, the archive, or a download, whichever is found first."""
    home = root or cache_dir()
    place = find_files(home) or _download(home)
    if not place.is_dir():
        with _reported(place):
            return _read_archive(place)
    parts = {}
    for part in PARTS:
        with _reported(place / part), (place / part).open("rb") as file:
            parts[part] = _unpickle(file.read)
    return parts


def _read_archive(path: Path) -> dict[str, Any]:
    parts: dict[str, Any] = {}
    for file in read_archive(path, "CIFAR-100", AGAIN, MAX_ARCHIVE_BYTES, MAX_FILES):
        folder, _, part = file.name.partition("/")
        if folder != FOLDER or part not in PARTS:
            continue
        if part in parts:
            raise DataError(f"{path} contains the part '{part}' twice: {AGAIN}")
        parts[part] = _unpickle(file.read)
    for part in PARTS:
        if part not in parts:
            raise tarfile.ReadError(f"it has no {FOLDER}/{part}")
    return parts


def find_files(home: Path) -> Path | None:
    """Return the unpacked folder or the archive in ``home``, if there is one."""
    for folder in (home / FOLDER, home):
        if all((folder / part).is_file() for part in PARTS):
            return folder
    return home / ARCHIVE if (home / ARCHIVE).is_file() else None


def _download(home: Path) -> Path:
    try:
        return Path(pooch.retrieve(URL, f"md5:{MD5}", fname=ARCHIVE, path=home))
    except Exception as error:  # pooch raises whatever its transport does, or a ValueError for a wrong checksum
        reason = str(error).splitlines()[0][:120] if str(error) else type(error).__name__
        raise DataError(
            f"CIFAR-100 is not in {home} and cannot be downloaded ({reason}): "
            f"put {ARCHIVE} there, or pass its directory with --data-root"
        ) from error


@contextmanager
def _reported(path: Path) -> Iterator[None]:
    """Turn any exception from a file that is not CIFAR-100 into an error that names the file."""
    try:
        yield
    except DataError:
        raise
    except PermissionError as error:
        raise DataError(f"cannot read {path} ({error.strerror}): check its permissions") from error
    except (tarfile.TarError, EOFError, OSError, zlib.error, KeyError) as error:
        reason = str(error)[:MAX_REASON]
        raise DataError(f"{path} is truncated or not the CIFAR-100 archive ({reason}): {AGAIN}") from error
    except Exception as error:  # a damaged pickle may raise anything; no code in it has run
        raise DataError(f"{path} is damaged or not CIFAR-100 ({str(error)[:MAX_REASON]}): {AGAIN}") from error


class _Bytes:
    """Stand-in for a NumPy array of bytes; NumPy's own would trust what a pickle says about its memory."""

    def __init__(self, *arguments: Any) -> None:
        self.array: np.ndarray | None = None

    def __setstate__(self, state: Any) -> None:
        _, shape, kind, fortran, data = state
        if kind.name not in ("u1", b"u1") or fortran or not isinstance(data, bytes):
            raise pickle.UnpicklingError("it contains arrays that CIFAR-100 does not have")
        self.array = np.frombuffer(data, np.uint8).reshape(shape)


class _Kind:
    """Stand-in for a NumPy dtype."""

    def __init__(self, name: Any, *flags: Any) -> None:
        self.name = name

    def __setstate__(self, state: Any) -> None:
        """The byte order does not matter for bytes."""


class _Counted(io.BytesIO):
    """A pickle of which only a limited number of pieces is read."""

    left = MAX_READS

    def read(self, size: int | None = -1) -> bytes:
        self._count()
        return super().read(size)

    def readline(self, size: int | None = -1) -> bytes:
        self._count()
        return super().readline(size)

    def _count(self) -> None:
        self.left -= 1
        if self.left < 0:
            raise pickle.UnpicklingError(f"a part has more than {MAX_READS:,} values")


class _Encode:
    """Converts strings to bytes, limited to the size of a part in total."""

    __slots__ = ("_left",)

    def __init__(self) -> None:
        self._left = MAX_PART_BYTES

    def __call__(self, text: str, encoding: str) -> bytes:
        self._left -= len(text)
        if self._left < 0:
            raise pickle.UnpicklingError(f"a part has more than {MAX_PART_BYTES >> 20} MB of strings")
        return text.encode("latin-1")  # whatever the pickle says: other codecs can be slow


REFUSED = (
    *(pickle.BYTEARRAY8, pickle.NEXT_BUFFER, pickle.READONLY_BUFFER),
    *(pickle.EMPTY_SET, pickle.ADDITEMS, pickle.FROZENSET),
    *(pickle.NEWOBJ, pickle.NEWOBJ_EX, pickle.OBJ, pickle.INST),
)
"""Opcodes that CIFAR-100 does not need; the first allocates as much memory as a pickle announces."""


class _BytesOnly(pickle._Unpickler):
    """Create only containers, strings, numbers and arrays of bytes, so that a pickle cannot run code.

    This is Python's unpickler in Python: the one in C allocates memory for any number of objects a pickle announces.
    """

    dispatch: ClassVar[dict[int, Any]] = dict(pickle._Unpickler.dispatch)
    """What reads each opcode."""

    stack: list[Any]
    """The values of the innermost container that is being read."""

    def _skip_frame(self) -> None:
        self.read(8)  # type: ignore[attr-defined]  # a frame would be read at once, and its pieces would not be counted

    def _build(self) -> None:
        if not isinstance(self.stack[-2], _Bytes | _Kind):  # it could replace methods, and so switch off a limit
            raise pickle.UnpicklingError("it changes objects that are not arrays")
        self.load_build()  # type: ignore[attr-defined]

    def _set_item(self) -> None:
        _check_keys(self.stack[-2:-1])
        self.load_setitem()  # type: ignore[attr-defined]

    def _set_items(self) -> None:
        _check_keys(self.stack[::2])
        self.load_setitems()  # type: ignore[attr-defined]

    def _dict(self) -> None:
        _check_keys(self.stack[::2])
        self.load_dict()  # type: ignore[attr-defined]

    def _reduce(self) -> None:
        if not isinstance(self.stack[-1], tuple):  # each byte of a string would become an argument
            raise pickle.UnpicklingError("it calls a function without arguments")
        self.load_reduce()  # type: ignore[attr-defined]

    def _refuse(self) -> None:
        raise pickle.UnpicklingError("it contains objects that CIFAR-100 does not have")

    dispatch |= {
        pickle.FRAME[0]: _skip_frame,
        pickle.BUILD[0]: _build,
        pickle.SETITEM[0]: _set_item,
        pickle.SETITEMS[0]: _set_items,
        pickle.DICT[0]: _dict,
        pickle.REDUCE[0]: _reduce,
    } | dict.fromkeys((code[0] for code in REFUSED), _refuse)

    def __init__(self, data: bytes) -> None:
        super().__init__(_Counted(data), encoding="bytes")
        self._encode = _Encode()

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) == ("_codecs", "encode"):  # bytes that Python 3 pickled for Python 2
            return self._encode
        if module in ("numpy", "numpy.core.multiarray", "numpy._core.multiarray") and name in KNOWN:
            return KNOWN[name]
        found = f"{module}.{name}"
        short = found if len(found) <= MAX_NAME else f"{found[: MAX_NAME - 1]}…"
        raise pickle.UnpicklingError(f"it contains {short}, which CIFAR-100 does not")


KNOWN = {"_reconstruct": _Bytes, "ndarray": _Bytes, "dtype": _Kind}


def _check_keys(keys: list[Any]) -> None:
    """Allow only keys of simple types: Python would crash at the hash of a tuple in a tuple, a million levels deep."""
    if not all(isinstance(key, bytes | str | int) for key in keys):
        raise pickle.UnpicklingError("it contains a dict whose keys are not strings")


def _unpickle(read: Callable[[int], bytes]) -> Any:
    """Load a part; ``read`` returns its content, of which it reads at most a number of bytes."""
    data = read(MAX_PART_BYTES + 1)
    if len(data) > MAX_PART_BYTES:
        raise pickle.UnpicklingError(f"a part has more than {MAX_PART_BYTES >> 20} MB")
    return _BytesOnly(data).load()


def _field(parts: dict[str, Any], part: str, name: str) -> Any:
    """Return ``parts[part][name]``; keys are bytes or strings, depending on how the pickle was written."""
    table = parts[part]
    if isinstance(table, dict):
        for key in (name.encode(), name):
            if key in table:
                return table[key]
    raise DataError(f"the part '{part}' of CIFAR-100 has no '{name}': {AGAIN}")


def _images(parts: dict[str, Any], part: str, labels: str, count: int, classes: int) -> Images:
    found = _field(parts, part, "data")
    data = found.array if isinstance(found, _Bytes) else None
    given = _field(parts, part, f"{labels}_labels")
    valid = isinstance(given, list) and all(type(label) is int and 0 <= label < classes for label in given)
    targets = np.array(given if valid else [], np.int64)
    if data is None or data.shape != (count, 3072):
        raise DataError(f"the part '{part}' of CIFAR-100 does not contain {count} images of 32×32: {AGAIN}")
    each = count // classes
    if targets.shape != (count,) or (np.bincount(targets, minlength=classes) != each).any():
        raise DataError(f"the part '{part}' of CIFAR-100 does not have {each} labels per class: {AGAIN}")
    return Images.of(torch.from_numpy(data.reshape(count, 3, 32, 32).copy()), torch.from_numpy(targets))
