"""Watch what a command does: connections, programs that it starts, and files that it changes.

``guarded`` watches a command in this process. ``guard_processes`` makes every process ``python -m equipoise …`` that a
test starts watch itself; a violation ends it at once. Only the standard library is imported, because it does so first.
"""

from __future__ import annotations

import ipaddress
import os
import re
import socket
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

ADDRESSES = {"socket.connect": "connects to", "socket.bind": "listens on"}
ADDRESSES |= dict.fromkeys(("socket.sendto", "socket.sendmsg"), "sends to")
LOOKUPS = ("socket.getaddrinfo", "socket.gethostbyname", "socket.gethostbyaddr")
STARTS = {"subprocess.Popen": 1, "os.exec": 1, "os.posix_spawn": 1, "os.spawn": 2}
"""Audit events of programs that are started, with the position of their arguments."""
GIT_READS = {"rev-parse", "status"}
FLAGS = r"(-[BEIOPSsuv]+ |-[WX] ?\S+ )*"
OURSELVES = re.compile(rf"{FLAGS}(-m equipoise(\.[\w.]+)?( |$)|-c from multiprocessing\.)")
GUARDED = re.compile(rf"{FLAGS}-m equipoise(\.serve\.worker)?( |$)")
"""Arguments of Python that make it one of our commands."""
CHANGES: dict[str, tuple[tuple[int, int | None], ...]] = {
    "os.rename": ((0, 2), (1, 3)),
    "os.link": ((0, 2), (1, 3)),
    "os.symlink": ((1, 2),),
    "os.mkdir": ((0, 2),),
    "os.remove": ((0, 1),),
    "os.rmdir": ((0, 1),),
    "os.mkfifo": ((0, 1),),
    "os.mknod": ((0, 1),),
    "os.truncate": ((0, None),),
    "os.chmod": ((0, 2),),
    "os.chown": ((0, 3),),
    "os.utime": ((0, 3),),
    "os.setxattr": ((0, None),),
    "os.removexattr": ((0, None),),
}
"""Audit events of changes, with the positions of each path and of the directory that it is relative to."""
FOLLOWS = {"open", "os.truncate", "os.chmod", "os.chown", "os.utime", "os.setxattr", "os.removexattr"}
"""Changes of what a link leads to, and not of the link."""
WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC
NO_FOLLOW = getattr(os, "O_NOFOLLOW", 0)
TEMPORARY = re.compile(r"\..+\.tmp", re.DOTALL)
"""What a file is called until it is complete; it is in the same directory."""
SCRATCH = re.compile(r"tmp[a-z0-9_]{8}|equipoise-.*|pymp-.*|torchinductor_\w+|pytorch-errorfile-.*", re.DOTALL)
"""Temporary files and directories of a command's own, and torch's."""
SITE = """\
import importlib.util, sys
spec = importlib.util.spec_from_file_location("equipoise_guard", {file!r})
guard = importlib.util.module_from_spec(spec)
spec.loader.exec_module(guard)
guard.guard_this_process(sys.orig_argv[1:])
"""
OPENING = threading.local()
"""The directory that ``os.open`` is relative to: its audit event does not name it."""


class Guard:
    """Records what no command may do. An audit hook cannot be removed, so there is one for the whole process."""

    def __init__(self) -> None:
        self.places: tuple[str, ...] = ()
        self.named: tuple[str, ...] = ()
        self.temporary: Path | None = None
        self.found: list[str] = []

    def __call__(self, event: str, arguments: tuple[Any, ...]) -> None:
        if not self.places:
            return
        if event in ADDRESSES:
            self._address(ADDRESSES[event], arguments[1])
        elif event in LOOKUPS:
            self._host("looks up", arguments[0])
        elif event in STARTS:
            self._start(arguments[STARTS[event]])
        elif event == "os.system":
            self._violation(f"starts a shell: {arguments[0]!r}")
        elif event == "open":
            self._open(*arguments)
        elif event in CHANGES:
            for path, base in CHANGES[event]:
                self._change(event, arguments[path], None if base is None else arguments[base], event in FOLLOWS)

    def _violation(self, what: str) -> None:
        self.found.append(what)

    # ---- the network

    def _address(self, what: str, address: Any) -> None:
        if isinstance(address, tuple) and isinstance(address[0], str | bytes):
            self._host(what, address[0] or "0.0.0.0")
        elif what == "listens on" and isinstance(address, str | bytes) and os.fsencode(address).strip(b"\0"):
            self._change("bind", address, None, False)

    def _host(self, what: str, host: Any) -> None:
        text = os.fsdecode(host or "localhost")
        if not is_local(text) and text not in (*self.named, socket.gethostname()):
            self._violation(f"{what} {text}")

    # ---- programs

    def _start(self, command: Any) -> None:
        given = [command] if isinstance(command, str | bytes) else command
        words = [os.fsdecode(word) for word in given]
        if not is_ours(words):
            self._violation(f"starts {' '.join(words)}")

    # ---- files

    def _open(self, path: Any, mode: Any, flags: Any) -> None:
        if isinstance(flags, int) and flags & WRITING and not isinstance(path, int):
            self._change("open", path, getattr(OPENING, "base", None), not flags & NO_FOLLOW)

    def _change(self, event: str, path: Any, base: Any, follow: bool) -> None:
        if not isinstance(path, int | str | bytes | os.PathLike):
            return
        with suppress(OSError, ValueError, RuntimeError):  # no such path, so nothing is changed
            place = locate(path, base, follow)
            if not self._may_change(place, event):
                self._violation(f"changes a file by {event}: {place}")

    def _may_change(self, place: Path, event: str) -> bool:
        text = str(place)
        if text == os.devnull or not text.startswith(os.sep):  # a pipe has no path
            return True
        if "__pycache__" in place.parts[-2:] or place.name.startswith(".coverage"):
            return True
        if event == "open" and place.is_dir():  # a temporary file without a name
            return True
        if event == "os.mkdir" and any(is_below(allowed, text) for allowed in self.places):
            return True
        if self.temporary is not None and is_scratch(place, self.temporary):
            return True
        return any(is_below(text, allowed) or is_beside(place, Path(allowed)) for allowed in self.places)


class StrictGuard(Guard):
    """Ends the process; an exception could be caught by whatever it passes."""

    def _violation(self, what: str) -> None:
        os.write(2, f"guard: this command {what}\n".encode(errors="backslashreplace"))
        os._exit(70)


def is_local(host: str) -> bool:
    """Return whether this is the loopback interface."""
    try:
        return ipaddress.ip_address(host.partition("%")[0]).is_loopback
    except ValueError:
        return host == "localhost"


def is_ours(words: Sequence[str]) -> bool:
    """Return whether a command may start this: git to read, ourselves, and what libraries ask about the machine."""
    program, rest = Path(words[0]), list(words[1:])
    if program.name == "git":
        while rest and rest[0].startswith("-"):
            del rest[: 2 if rest[0] == "-C" else 1]
        return bool(rest) and rest[0] in GIT_READS
    if program.name in ("uname", "lscpu"):
        return rest in (["-p"], ["--parse=core"])
    return program.name.startswith("python") and OURSELVES.match(" ".join(rest)) is not None


def is_below(path: str, place: str) -> bool:
    """Return whether a path is a place, or inside."""
    place = place.rstrip(os.sep)
    return path == place or path.startswith(place + os.sep)


def is_beside(path: Path, place: Path) -> bool:
    """Return whether this is the temporary name of a file that is named, or the report of a model."""
    names = path.name == f"{place.name}-report.html" or TEMPORARY.fullmatch(path.name)
    return bool(names) and path.parent == place.parent


def is_scratch(path: Path, temporary: Path) -> bool:
    """Return whether this is, or is inside, a temporary directory that only one command uses."""
    below = path.parts[len(temporary.parts) :]
    return path.is_relative_to(temporary) and bool(below) and SCRATCH.fullmatch(below[0]) is not None


def locate(path: Any, base: Any, follow: bool) -> Path:
    """Return what a system call would change. Links to its directory are followed, and its last part if asked for."""
    if isinstance(path, int):
        return Path(f"/proc/self/fd/{path}").readlink()
    where = Path(os.fsdecode(path))
    if isinstance(base, int) and base >= 0:
        where = Path(f"/proc/self/fd/{base}").readlink() / where
    return where.resolve() if follow or where.name in ("", "..") else where.parent.resolve() / where.name


def named_places(arguments: Sequence[str]) -> list[str]:
    """Return the paths that a command's arguments may be, without and with links resolved; options may hold some."""
    values = [word.partition("=")[2] if word.startswith("-") else word for word in arguments]
    found = [Path(value) for value in values if value and "\0" not in value and len(value) < 4096]
    places = []
    for path in found:
        with suppress(OSError, ValueError, RuntimeError):
            places += [path.resolve(), path.parent.resolve() / path.name]
    return [str(place) for place in places if place != place.parent]


def own_places() -> list[str]:
    """Return what every command may write to: its cache and default directories, and temporary directories."""
    cache = os.environ.get("EQUIPOISE_CACHE") or Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache", "equipoise")
    return [str(Path(place).expanduser().resolve()) for place in (cache, "runs")]


def watch(guard: Guard, words: Sequence[str]) -> None:
    """Let a guard watch a command with these arguments."""
    guard.temporary = Path(tempfile.gettempdir()).resolve()
    guard.named, guard.places = tuple(words), (*named_places(words), *own_places())


GUARD = Guard()
sys.addaudithook(GUARD)
REAL_OPEN = os.open


def open_noting_base(path: Any, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
    """Open a file as ``os.open`` does, and let the guard know what it is relative to."""
    before = getattr(OPENING, "base", None)
    OPENING.base = dir_fd
    try:
        return REAL_OPEN(path, flags, mode, dir_fd=dir_fd)
    finally:
        OPENING.base = before


def audited(name: str) -> Callable[..., None]:
    """Return a function of ``os`` that has no audit event, with one."""
    real: Callable[..., None] = getattr(os, name)

    def call(path: Any, *arguments: Any, dir_fd: int | None = None, **options: Any) -> None:
        sys.audit(f"os.{name}", path, -1 if dir_fd is None else dir_fd)
        real(path, *arguments, dir_fd=dir_fd, **options)

    return call


WRAPPED: dict[str, Callable[..., Any]] = {
    "open": open_noting_base,
    "mkfifo": audited("mkfifo"),
    "mknod": audited("mknod"),
}
"""Functions of ``os`` that tell the guard what their audit events do not."""
os.supports_dir_fd.update(WRAPPED.values())


@contextmanager
def guarded(*arguments: object) -> Iterator[None]:
    """Fail if what is done here connects elsewhere, starts another program or changes files elsewhere.

    Parameters
    ----------
    arguments
        The command's arguments: what they name may be changed.
    """
    words = [str(argument) for argument in arguments]
    outer, GUARD.found = dict(vars(GUARD)), []
    usual = {name: getattr(os, name) for name in WRAPPED}
    vars(os).update(WRAPPED)
    watch(GUARD, words)
    try:
        yield
    finally:
        vars(GUARD).update(outer | {"found": GUARD.found})
        vars(os).update(usual)
    assert not GUARD.found, GUARD.found[:5]


def guard_processes(folder: Path) -> str:
    """Write a ``sitecustomize.py`` that guards commands; return the PYTHONPATH with which they find it."""
    (folder / "sitecustomize.py").write_text(SITE.format(file=__file__))
    return os.pathsep.join(filter(None, [str(folder), os.environ.get("PYTHONPATH", "")]))


def guard_this_process(words: Sequence[str]) -> None:
    """Guard this process until it ends, if it is a command of equipoise."""
    if not GUARDED.match(" ".join(words)) or {"ray", "slurm"} & set(words):  # these start programs of their own
        return
    strict = StrictGuard()
    vars(os).update(WRAPPED)
    watch(strict, words)
    sys.addaudithook(strict)
