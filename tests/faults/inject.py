"""Interrupt a process at its n-th change of the file system."""

from __future__ import annotations

import errno
import os
import signal
import sys
from typing import IO, Any

ERRORS = {name: getattr(errno, name) for name in ("ENOSPC", "EIO", "EROFS", "EDQUOT")}
LASTING = ("ENOSPC", "EROFS")
FAULTS = ("kill", *ERRORS)
CHANGES = {"os.rename", "os.mkdir", "os.remove", "os.rmdir", "os.link", "os.symlink", "os.truncate", "shutil.rmtree"}
"""Audit events of changes, besides opening a file for writing."""
WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC


class Injector:
    """Counts what changes files, and interrupts the ``at``-th change.

    Opening for writing, renaming, deleting and creating directories are Python's audit events. Python raises none for
    writing and ``fsync``, so both are wrapped; a write is interrupted when half of its data is in the file.

    Parameters
    ----------
    at
        Number of the change, from 1; 0 counts only.
    fault
        ``kill``, or the name of an error that is raised instead of the change. A disk stays full or read-only, so all
        later changes fail, too; on a full one, deleting works.
    """

    def __init__(self, at: int = 0, fault: str = "kill") -> None:
        self.at, self.fault = at, fault
        self.events: list[str] = []

    def install(self) -> None:
        """Watch this process from now on; an audit hook cannot be removed."""
        real_fsync, real_fdopen = os.fsync, os.fdopen

        def fsync(fd: int) -> None:
            self.change("fsync")
            real_fsync(fd)

        def fdopen(fd: int, mode: str = "r", *arguments: Any, **options: Any) -> Any:
            opened = real_fdopen(fd, mode, *arguments, **options)
            return Writer(opened, self) if mode == "wb" else opened

        os.fsync, os.fdopen = fsync, fdopen  # type: ignore[assignment]
        sys.addaudithook(self._audit)

    def _audit(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event == "open" and isinstance(arguments[0], int | None):
            return  # an open descriptor
        if event == "open" and os.fspath(arguments[0]) in (os.devnull, os.fsencode(os.devnull)):
            return
        if event in CHANGES or (event == "open" and isinstance(arguments[2], int) and arguments[2] & WRITING):
            self.change(event)

    def change(self, event: str) -> None:
        """Count a change, or interrupt it."""
        self.events.append(event)
        count = len(self.events)
        if count == self.at or (self.at and count > self.at and self.fault in LASTING):
            self.interrupt(event)

    def interrupt(self, event: str) -> None:
        """Do what was asked for instead of a change."""
        if self.fault == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if self.fault in ("ENOSPC", "EDQUOT") and event in ("os.remove", "os.rmdir"):
            return
        raise OSError(ERRORS[self.fault], os.strerror(ERRORS[self.fault]))


class Writer:
    """A file whose first write can be interrupted in the middle."""

    def __init__(self, file: IO[bytes], injector: Injector) -> None:
        self.file, self.injector, self.first = file, injector, True

    def write(self, data: Any) -> int:
        if self.first:
            self.first = False
            self.file.write(memoryview(data)[: len(data) // 2])
            self.file.flush()
            self.injector.change("write")
            self.file.seek(0)
        return self.file.write(data)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.file, name)

    def __enter__(self) -> Writer:
        return self

    def __exit__(self, *args: object) -> None:
        self.file.close()
