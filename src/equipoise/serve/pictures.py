"""Uploaded pictures that are waiting to be learned: decoded, cropped, and stored under generated names."""

from __future__ import annotations

import io
import os
import secrets
import shutil
import tempfile
import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from threading import Lock

import numpy as np
from PIL import Image

from equipoise.core.files import digest
from equipoise.core.open_dir import lock_file
from equipoise.errors import RunError, UsageError
from equipoise.serve.limits import PICTURES

PREFIX = "equipoise-serve-"
EXPIRY_SECONDS = 3600
"""Age from which pictures are deleted if there is no room for others."""


class NotFoundError(UsageError):
    """A picture, class or job that does not exist (any more)."""


class FullError(RunError):
    """No room for another picture."""


@dataclass
class Picture:
    """A picture of the model's size."""

    id: str
    file: Path
    size: int
    content: bytes = b""
    """A hash of its pixels."""
    added: float = field(default_factory=time.monotonic)
    in_tray: bool = False
    version: str | None = None
    """The version that predicted it last; the rest is its answer."""
    nearest: str = ""
    probability: float = 0.0


class Pictures:
    """Pictures in a directory that is deleted when the server stops."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._pictures: dict[str, Picture] = {}
        self._lock = Lock()

    def add(self, pixels: np.ndarray) -> Picture:
        """Store a decoded picture (H × W × 3)."""
        with self._lock:
            if len(self._pictures) >= PICTURES:
                self._expire()
            if len(self._pictures) >= PICTURES:
                raise FullError(f"{PICTURES} pictures are waiting to be learned: learn or delete some")
            name = secrets.token_hex(16)
            picture = Picture(name, self.folder / f"{name}.png", len(pixels), digest(pixels.tobytes()))
            self._pictures[name] = picture
        try:
            Image.fromarray(pixels).save(picture.file, "PNG", compress_level=1)
        except OSError as error:
            self.remove([name])
            raise FullError(f"cannot store the picture ({error.strerror or error}): free some space") from error
        return picture

    def add_all(self, pictures: Iterable[np.ndarray]) -> list[Picture]:
        """Store all pictures, or none if there is no room for them."""
        stored: list[Picture] = []
        try:
            for pixels in pictures:
                stored.append(self.add(pixels))  # noqa: PERF401 - those before an error are needed
        except FullError:
            self.remove(picture.id for picture in stored)
            raise
        return stored

    def get(self, name: str) -> Picture:
        """Return a picture by its name."""
        with self._lock:
            if name not in self._pictures:
                raise NotFoundError(f"there is no picture {name[:40]!r}: upload it again")
            return self._pictures[name]

    def read(self, picture: Picture) -> np.ndarray:
        """Return the pixels of a picture."""
        try:
            with Image.open(picture.file, formats=["PNG"]) as file:
                return np.array(file)
        except OSError as error:
            self.remove([picture.id])
            raise NotFoundError(f"the picture cannot be read any more ({error}): upload it again") from error

    def preview(self, name: str) -> bytes:
        """Return a JPEG of a picture."""
        file = io.BytesIO()
        Image.fromarray(self.read(self.get(name))).save(file, "JPEG", quality=85)
        return file.getvalue()

    def remove(self, names: Iterable[str]) -> None:
        """Delete pictures; nothing happens for those that are gone already."""
        for name in names:
            with self._lock:
                picture = self._pictures.pop(name, None)
            if picture is not None:
                with suppress(OSError):
                    picture.file.unlink()

    def _expire(self) -> None:
        """Delete old pictures, such as those left behind by a closed browser window."""
        for picture in list(self._pictures.values()):
            if time.monotonic() - picture.added > EXPIRY_SECONDS:
                del self._pictures[picture.id]
                picture.file.unlink(missing_ok=True)

    def in_tray(self, size: int) -> list[Picture]:
        """Return the pictures of a size in the tray, in the order in which they came."""
        with self._lock:
            return [picture for picture in self._pictures.values() if picture.in_tray and picture.size == size]

    def __len__(self) -> int:
        return len(self._pictures)


class TemporaryFolder:
    """A private folder that is deleted on exit; those of servers that were killed are deleted on entry."""

    def __enter__(self) -> Path:
        for old in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
            with suppress(OSError), (old / "lock").open("r+b") as file:  # fails for those of other users
                lock_file(file.fileno())  # fails while its server or its worker is alive
                if not hasattr(os, "getuid") or old.lstat().st_uid == os.getuid():
                    shutil.rmtree(old, ignore_errors=True)
        self.folder = Path(tempfile.mkdtemp(prefix=PREFIX))  # readable by this user only
        self.file = (self.folder / "lock").open("wb")
        lock_file(self.file.fileno())
        return self.folder

    def __exit__(self, *args: object) -> None:
        self.file.close()
        shutil.rmtree(self.folder, ignore_errors=True)
