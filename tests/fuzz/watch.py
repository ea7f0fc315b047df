"""Notice what a reader may never do: start programs, use the network, run code of an input, or change other files."""

from __future__ import annotations

import ast
import collections
import dataclasses
import os
import signal
import sys
import typing
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import equipoise

CODE = ("<frozen ", sys.prefix, sys.base_prefix, *(str(Path(file).parent) for file in (__file__, equipoise.__file__)))
"""Where modules are."""
TRUSTED = {module.__file__ for module in (ast, collections, dataclasses, typing)}
"""Modules that evaluate annotations of ours, and ``ast``, which parses but does not run a text (as NumPy does)."""
PROGRAMS = {"git", "uname", "lscpu"}
"""What a new run starts to record the commit and the processor; scikit-learn counts cores with lscpu."""
NETWORK = ("socket.__new__", "socket.connect", "socket.bind", "socket.getaddrinfo", "socket.sendto")


PATHS = {"os.rename": 2, "os.link": 2, "os.symlink": 2, "os.truncate": 1, "os.chmod": 1, "os.chown": 1, "os.utime": 1}
PATHS |= dict.fromkeys(("os.mkdir", "os.remove", "os.rmdir", "os.mkfifo", "os.mknod"), 1)
"""Audit events of changes, with the number of paths at the beginning of their arguments."""
WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC


class Watch:
    """Records what a reader may never do. An audit hook cannot be removed, so there is one for the whole process."""

    def __init__(self) -> None:
        self.places: tuple[str, ...] = ()
        self.found: list[str] = []

    def __call__(self, event: str, arguments: tuple[Any, ...]) -> None:
        if not self.places:
            return
        if event in ("os.exec", "os.posix_spawn", "os.fork", "os.forkpty", "os.system"):
            self.found.append(f"starts a program: {arguments!r:.200}")
        elif event == "subprocess.Popen":
            if Path(os.fsdecode(arguments[0])).name not in PROGRAMS:
                self.found.append(f"starts a program: {arguments!r:.200}")
        elif event == "pickle.find_class":
            self.found.append(f"looks for {arguments!r:.200} in a pickle")
        elif event in NETWORK:
            self.found.append(f"uses the network: {event}")
        elif event == "exec":
            self._code(getattr(arguments[0], "co_filename", ""))
        elif event == "compile":
            self._code(arguments[1])
        elif event == "open" and isinstance(arguments[2], int) and arguments[2] & WRITING:
            self._change(event, arguments[0])
        elif event in PATHS:
            for path in arguments[event == "os.symlink" : PATHS[event]]:  # where a link leads to may be anything
                self._change(event, path)

    def _change(self, event: str, path: object) -> None:
        if isinstance(path, str | bytes | os.PathLike):
            text = os.path.abspath(os.fsdecode(path))  # noqa: PTH100 - links are left to the sentinel
            if text != os.devnull and not text.startswith(self.places):
                self.found.append(f"changes a file by {event}: {text}")

    def _code(self, file: object) -> None:
        """Modules may be imported, and types and dataclasses be made; other code can only come from an input."""
        name = os.fsdecode(file) if isinstance(file, str | bytes) else ""
        caller = sys._getframe(2)
        if not name.startswith(CODE) and caller.f_code.co_filename not in TRUSTED:
            self.found.append(f"runs code of {name!r} in {caller.f_code.co_filename}:{caller.f_lineno}")


WATCH = Watch()
sys.addaudithook(WATCH)


@contextmanager
def watched(place: Path) -> Iterator[None]:
    """Record what is done here that may not be; only ``place`` may be changed."""
    WATCH.places, WATCH.found = (f"{place}{os.sep}", str(place)), []
    try:
        yield
    finally:
        WATCH.places = ()


class TimeLimitError(BaseException):
    """Reading took too long."""


@contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """Raise TimeLimitError when the time for one input is over."""

    def stop(number: int, frame: FrameType | None) -> None:
        raise TimeLimitError

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


class Sentinel:
    """Files beside the directory of a reader, at the places that hostile names and links lead to.

    They look like a model, so that whoever follows a link has something to write or delete. The audit hook does not see
    what native code writes, nor where a link leads; this does.
    """

    NAMES = ("config.json", "steps.json", "images.json", "model.safetensors", "x", "memory/0/a.png", "x.toml", "a.jpg")

    def __init__(self, root: Path) -> None:
        self.root, self.folder = root, root / "sentinel"
        for name in self.NAMES:
            (self.folder / name).parent.mkdir(parents=True, exist_ok=True)
            (self.folder / name).write_bytes(b"{}")
        (root / "x").write_bytes(b"{}")
        self._before = self._state()

    def problem(self) -> str | None:
        """Return what was changed since the last call, if anything was."""
        before, self._before = self._before, self._state()
        changed = {name for name, _ in before.items() ^ self._before.items()}
        return f"changes files outside: {sorted(changed)[:5]}" if changed else None

    def _state(self) -> dict[str, tuple[int, ...]]:
        found: dict[str, tuple[int, ...]] = dict.fromkeys(os.listdir(self.root), ())  # noqa: PTH208 - fast
        folders = [str(self.folder)]
        for folder in folders:
            with os.scandir(folder) as entries:
                for entry in entries:
                    state = entry.stat(follow_symlinks=False)
                    found[entry.path] = (state.st_mode, state.st_size, state.st_mtime_ns, state.st_ctime_ns)
                    if entry.is_dir(follow_symlinks=False):
                        folders.append(entry.path)
        state = os.stat(self.root / "x")  # noqa: PTH116
        found["x"] = (state.st_size, state.st_mtime_ns, state.st_ctime_ns)
        return found
