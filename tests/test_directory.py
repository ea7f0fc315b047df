"""Directories from strangers: nothing outside is read, changed or deleted, nothing hangs, and no write is half done."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import re
import signal
import socket
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, BinaryIO

import pytest

from equipoise.core import json_files, open_dir
from equipoise.core.directory import LOCK, MAX_FILE_BYTES, TEMPORARY, Directory
from equipoise.core.json_files import MAX_JSON_BYTES
from equipoise.core.open_dir import MAX_DEPTH, Entry, OpenDir, open_root, printable, split_name
from equipoise.errors import RunError, UsageError


@pytest.fixture(params=["dir_fd", "paths"], autouse=True)
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Run every test also as on a system without dir_fd and O_NOFOLLOW."""
    monkeypatch.setattr(os, "fsync", lambda fd: None)  # which would take most of the time
    if request.param == "paths":
        monkeypatch.setattr(open_dir, "USE_DIR_FD", False)
        monkeypatch.setattr(open_dir, "NO_FOLLOW", 0)
    return str(request.param)


@pytest.fixture
def only_dir_fd(way: str) -> None:
    """Skip where a race can be won by the attacker, which the module's docstring admits."""
    if way == "paths":
        pytest.skip("needs dir_fd and O_NOFOLLOW")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    path = tmp_path / "model"
    path.mkdir()
    return path


@pytest.fixture
def place(root: Path) -> Directory:
    return Directory(root)


def names_in(path: Path) -> list[str]:
    return sorted(entry.name for entry in path.iterdir())


def handles() -> int:
    """Count the open files of this process, where the system tells."""
    return len(names_in(Path("/proc/self/fd"))) if sys.platform == "linux" else 0


def snapshot(path: Path) -> dict[str, Any]:
    """Everything below ``path``: type, permissions, links, times and content."""
    found: dict[str, Any] = {}
    for file in [path, *sorted(path.rglob("*"))]:
        state = file.lstat()
        content = file.read_bytes() if stat.S_ISREG(state.st_mode) else None
        found[str(file)] = (state.st_mode, state.st_nlink, state.st_mtime_ns, state.st_size, content)
    return found


@pytest.fixture(autouse=True)
def outside(tmp_path: Path) -> Iterator[Path]:
    """Files beside the directory. After each test they are as they were, and no file is left open."""
    path = tmp_path / "outside"
    (path / "sub").mkdir(parents=True)
    (path / "secret").write_text('"secret"')
    (path / "sub" / "secret").write_text('"deep secret"')
    before, opened = snapshot(path), handles()

    def give_up(*_: object) -> None:
        pytest.fail("blocked for 20 seconds")

    previous = signal.signal(signal.SIGALRM, give_up)
    signal.alarm(20)
    yield path
    signal.alarm(0)
    signal.signal(signal.SIGALRM, previous)
    assert snapshot(path) == before
    assert handles() == opened


# ---- odd things in the place of a file or directory of ours


def make_socket(path: Path) -> None:
    before = Path.cwd()
    os.chdir(path.parent)  # the path of a socket may only be short
    try:
        with socket.socket(socket.AF_UNIX) as server:
            server.bind(path.name)
    finally:
        os.chdir(before)


def make_device(path: Path) -> None:
    try:
        os.mknod(path, stat.S_IFCHR | 0o666, os.makedev(1, 5))
    except PermissionError:
        pytest.skip("only root may make devices")


def beside(path: Path) -> Path:
    """Find the directory that must not be touched."""
    return next(parent / "outside" for parent in path.parents if (parent / "outside").exists())


def make_loop(path: Path) -> None:
    path.symlink_to(path)


LINKS: dict[str, Callable[[Path], None]] = {
    "link to a file": lambda path: path.symlink_to(beside(path) / "secret"),
    "link to a directory": lambda path: path.symlink_to(beside(path)),
    "broken link": lambda path: path.symlink_to(beside(path) / "new"),
    "link to itself": make_loop,
    "link to an endless device": lambda path: path.symlink_to("/dev/zero"),
}
OTHERS: dict[str, Callable[[Path], None]] = {
    "named pipe": os.mkfifo,
    "socket": make_socket,
    "device": make_device,
}
ODD = {**LINKS, **OTHERS}
SEEN = {**dict.fromkeys(LINKS, "a symbolic link"), **{name: f"a {name}" for name in OTHERS}}


def held(place: Directory) -> None:
    with place.lock():
        pass


FILE_OPERATIONS: dict[str, Callable[[Directory, str], object]] = {
    "read_bytes": lambda place, name: place.read_bytes(name),
    "read_text": lambda place, name: place.read_text(name),
    "read_json": lambda place, name: place.read_json(name),
    "read_json_lines": lambda place, name: place.read_json_lines(name),
    "size": lambda place, name: place.size(name),
    "write_bytes": lambda place, name: place.write_bytes(name, b"new"),
    "write_text": lambda place, name: place.write_text(name, "new"),
    "write_json": lambda place, name: place.write_json(name, "new"),
    "replace_with": lambda place, name: place.replace_with(name, lambda file: file.write(b"new")),
    "link from": lambda place, name: place.link(name, "linked"),
    "link to": lambda place, name: place.link("real", name),
    "check_owned": lambda place, name: place.check_owned({"real": "file", name: "file"}),
}
DIR_OPERATIONS: dict[str, Callable[[Directory, str], object]] = {
    "entries": lambda place, name: place.entries(name),
    "walk": lambda place, name: list(place.walk(name)),
    "make_dir": lambda place, name: place.make_dir(name),
    "make_dir below": lambda place, name: place.make_dir(f"{name}/new"),
    "remove_tree": lambda place, name: place.remove_tree(name),
    "remove_tree with a pattern": lambda place, name: place.remove_tree(name, re.compile(".*")),
    "remove_dir": lambda place, name: place.remove_dir(name),
    "remove_temporary": lambda place, name: place.remove_temporary(name),
    "check_owned": lambda place, name: place.check_owned({name: "dir"}),
}
REMOVE: dict[str, Callable[[Directory, str], object]] = {"remove": lambda place, name: place.remove(name)}


@pytest.mark.parametrize("odd", ODD)
@pytest.mark.parametrize("operation", FILE_OPERATIONS)
def test_only_regular_files_are_read_and_replaced(root: Path, place: Directory, operation: str, odd: str) -> None:
    (root / "real").write_text("real")
    ODD[odd](root / "name")
    before = snapshot(root) if "pipe" not in odd else None
    with pytest.raises(RunError) as raised:
        FILE_OPERATIONS[operation](place, "name")
    message = str(raised.value)
    assert message.startswith(f"{root / 'name'} is {SEEN[odd]}")
    assert "\n" not in message
    assert ("replace it with the real file" if odd in LINKS else "move it away") in message
    assert names_in(root) == ["name", "real"]
    assert before is None or before == snapshot(root)
    assert not place.is_file("name")
    assert not place.is_dir("name")
    assert place.exists("name")
    assert place.modified_ns("name") is None


@pytest.mark.parametrize("odd", [*ODD, "file"])
@pytest.mark.parametrize("operation", DIR_OPERATIONS)
def test_only_directories_are_entered(root: Path, place: Directory, operation: str, odd: str) -> None:
    {**ODD, "file": Path.touch}[odd](root / "name")
    with pytest.raises(RunError) as raised:
        DIR_OPERATIONS[operation](place, "name")
    assert str(raised.value).startswith(f"{root / 'name'} is {SEEN.get(odd, 'a regular file')}")
    assert ("replace it with the real directory" if odd in LINKS else "move it away") in str(raised.value)
    assert names_in(root) == ["name"]


@pytest.mark.parametrize("operation", [*FILE_OPERATIONS, *DIR_OPERATIONS, *REMOVE])
def test_no_link_on_the_way_is_followed(root: Path, place: Directory, operation: str) -> None:
    (root / "real").write_text("real")
    (root / "below").mkdir()
    (root / "below" / "way").symlink_to("../../outside")
    call = {**FILE_OPERATIONS, **DIR_OPERATIONS, **REMOVE}[operation]
    for name in ("secret", "sub", "sub/secret", "new"):
        with pytest.raises(RunError, match="way is a symbolic link, and equipoise follows no links"):
            call(place, f"below/way/{name}")
        assert not place.exists(f"below/way/{name}")
        assert place.modified_ns(f"below/way/{name}") is None


@pytest.mark.parametrize("operation", [*FILE_OPERATIONS, *DIR_OPERATIONS, *REMOVE])
def test_a_file_on_the_way_is_an_error(root: Path, place: Directory, operation: str) -> None:
    (root / "real").write_text("real")
    call = {**FILE_OPERATIONS, **DIR_OPERATIONS, **REMOVE}[operation]
    with pytest.raises(RunError, match="real is a regular file where a directory is expected"):
        call(place, "real/name")
    assert not place.exists("real/name")


BAD_NAMES = ["/", "/etc/passwd", ".", "..", "../outside/secret", "a/../../outside/secret", "./a", "a//b", "a/", "a/."]
BAD_NAMES += ["a\0b", "\0", "\ud800", "/".join("a" * (MAX_DEPTH + 1))]


@pytest.mark.parametrize("operation", [*FILE_OPERATIONS, *DIR_OPERATIONS, *REMOVE])
def test_names_stay_in_the_directory(root: Path, place: Directory, operation: str) -> None:
    (root / "real").write_text("real")
    (root / "a").mkdir()
    for name in BAD_NAMES:
        with pytest.raises(RunError, match=r"not a valid name|more than 32 levels") as raised:
            {**FILE_OPERATIONS, **DIR_OPERATIONS, **REMOVE}[operation](place, name)
        str(raised.value).encode()
        assert not place.exists(name)
        assert not place.is_file(name)
        assert not place.is_dir(name)
        assert place.modified_ns(name) is None
    assert names_in(root) == ["a", "real"]
    assert names_in(root / "a") == []


@pytest.mark.parametrize("operation", [*FILE_OPERATIONS, *REMOVE, "remove_tree", "remove_dir"])
def test_the_directory_itself_is_no_file(root: Path, place: Directory, operation: str) -> None:
    (root / "real").write_text("real")
    with pytest.raises(RunError, match="the directory itself"):
        {**FILE_OPERATIONS, **DIR_OPERATIONS, **REMOVE}[operation](place, "")
    assert names_in(root) == ["real"]


def test_names_that_windows_would_resolve_elsewhere_are_invalid_there(monkeypatch: pytest.MonkeyPatch) -> None:
    names = ["..\\x", "C:", "a:stream", ".. ", "...", "nul.", "a?", "a*", 'a"', "a|b"]
    for name in names:
        assert split_name(name) == [name]
    with monkeypatch.context() as patch:
        patch.setattr(os, "name", "nt")
        refused = []
        for name in [*names, "fine", ".step", "a.b", "..", ""]:
            try:
                split_name(name)
            except RunError:
                refused.append(name)
    assert refused == [*names, ".."]


def test_a_windows_junction_counts_as_a_link() -> None:
    state: Any = SimpleNamespace(st_mode=stat.S_IFDIR | 0o777, st_reparse_tag=0xA0000003)
    assert open_dir._classify(state) == ("link", "a symbolic link")
    state.st_reparse_tag = 0
    assert open_dir._classify(state) == ("dir", "a directory")


# ---- the root


def test_the_root_may_be_reached_through_links(tmp_path: Path, root: Path) -> None:
    (tmp_path / "link").symlink_to(root)
    (tmp_path / "to link").symlink_to("link")
    place = Directory(tmp_path / "to link")
    place.make_dir("versions")
    place.write_text("versions/a", "text")
    held(place)
    assert place.read_text("versions/a") == "text"
    assert place.is_dir()
    assert place.exists("")
    assert place.entries() == [Entry(".lock", "file"), Entry("versions", "dir")]
    assert place.remove_tree("versions")


@pytest.mark.parametrize("odd", ["named pipe", "broken link", "link to an endless device", "file", "missing"])
def test_a_root_that_is_no_directory(tmp_path: Path, odd: str) -> None:
    if odd != "missing":
        {**ODD, "file": Path.touch}[odd](tmp_path / "root")
    place = Directory(tmp_path / "root")
    assert not place.is_dir()
    assert not place.exists("")
    assert not place.exists("a")
    for call in (
        place.entries,
        lambda: place.read_bytes("a"),
        lambda: place.write_bytes("a", b""),
        lambda: held(place),
    ):
        with pytest.raises(RunError, match=r"^cannot (list|read|write|write to) .*root(/a)? \(N.*\): "):
            call()
    if odd in ("missing", "broken link"):
        place.remove("a")
        assert place.remove_tree("a")
        place.check_owned({"a": "file"})
    else:
        for call in (lambda: place.remove("a"), lambda: place.check_owned({"a": "file"}), place.make_dir):
            with pytest.raises(RunError, match=r"\(Not a directory\): choose another place"):
                call()
    assert os.path.lexists(tmp_path / "root") == (odd != "missing")


@pytest.mark.parametrize("path", ["a\0b", "\ud800"])
def test_a_root_that_no_system_can_name(path: str) -> None:
    place = Directory(Path(path))
    assert not place.is_dir()
    assert not place.exists("a")
    for call in (place.entries, place.make_dir, lambda: place.write_bytes("a", b"")):
        with pytest.raises(UsageError, match="is not a valid path") as raised:
            call()
        str(raised.value).encode()


def test_a_directory_in_a_directory(root: Path, place: Directory) -> None:
    inner = place.sub("checkpoint").sub("step/1")
    assert inner.path == root / "checkpoint/step/1"
    assert not inner.is_dir()
    assert inner.remove_tree("a")
    inner.make_dir("a")
    inner.write_text("a/b", "text")
    assert place.read_text("checkpoint/step/1/a/b") == inner.read_text("a/b") == "text"
    assert list(inner.walk()) == [Entry("a", "dir"), Entry("a/b", "file")]
    assert inner.is_dir()
    with pytest.raises(RunError, match=f"^cannot read {root / 'checkpoint/step/1/c'} "):
        inner.read_text("c")
    with pytest.raises(RunError, match="not a valid name"):
        place.sub("../outside")


@pytest.mark.parametrize("operation", [*FILE_OPERATIONS, *DIR_OPERATIONS, *REMOVE])
def test_a_directory_in_a_directory_is_no_link(root: Path, place: Directory, operation: str) -> None:
    ODD["link to a directory"](root / "inner")
    inner = place.sub("inner")
    for name in ("sub", "new"):
        with pytest.raises(RunError, match="inner is a symbolic link"):
            {**FILE_OPERATIONS, **DIR_OPERATIONS, **REMOVE}[operation](inner, name)
    for call in (inner.entries, inner.make_dir, lambda: held(inner)):
        with pytest.raises(RunError, match="inner is a symbolic link"):
            call()
    assert not inner.is_dir()


# ---- reading


def test_what_is_written_is_read(root: Path, place: Directory) -> None:
    place.write_bytes("bytes", bytes(range(256)))
    assert place.read_bytes("bytes") == bytes(range(256))
    assert place.size("bytes") == 256
    assert place.modified_ns("bytes") == (root / "bytes").stat().st_mtime_ns
    place.write_text("text", "naïve\r\n\n")
    assert place.read_text("text") == "naïve\r\n\n"
    value = {"classes": ["Füchse", 1, 0.1, None], "huge": 10**40}
    place.write_json("value.json", value)
    assert place.read_json("value.json") == value
    assert (root / "value.json").read_text() == json.dumps(value, indent=2, ensure_ascii=False) + "\n"
    place.write_text("lines", '{"step": 1}\n\n"\u2028"\n')
    assert place.read_json_lines("lines") == [{"step": 1}, "\u2028"]
    place.write_bytes("empty", b"")
    assert place.read_bytes("empty") == b""
    place.replace_with("streamed", lambda file: [file.write(b"ab"), file.seek(1), file.write(b"c")])
    assert place.read_bytes("streamed") == b"ac"


def test_new_files_have_the_usual_permissions(root: Path, place: Directory) -> None:
    before = os.umask(0o027)
    try:
        place.write_bytes("a", b"")
        held(place)
    finally:
        os.umask(before)
    assert stat.S_IMODE((root / "a").stat().st_mode) == stat.S_IMODE((root / LOCK).stat().st_mode) == 0o640


def test_a_name_that_is_not_utf8(root: Path, place: Directory) -> None:
    name = os.fsdecode(b"caf\xe9")
    place.make_dir(f"Füchse/{name}")
    place.write_json(f"Füchse/{name}/日本", [name])
    assert place.read_json(f"Füchse/{name}/日本") == ["caf\\udce9"]
    assert [entry.name for entry in place.walk()] == ["Füchse", f"Füchse/{name}", f"Füchse/{name}/日本"]
    with pytest.raises(RunError) as raised:
        place.read_bytes(f"Füchse/{name}/\x1b[2J\nx")
    assert str(raised.value).endswith(
        "Füchse/caf\\udce9/\\x1b[2J\\nx (No such file or directory): restore it from a copy"
    )
    assert place.remove_tree("Füchse")


def test_limits(root: Path, place: Directory) -> None:
    place.write_bytes("a", b"12345", limit=5)
    assert place.read_bytes("a", limit=5) == b"12345"
    with pytest.raises(RunError, match=r"cannot write .*a \(6 bytes, more than the limit of 5\): store less"):
        place.write_bytes("a", b"123456", limit=5)
    with pytest.raises(RunError, match=r"b \(No such file or directory\)$"):
        place.sub("", remedy="").read_bytes("b")
    with pytest.raises(RunError, match="a has 5 bytes, more than the limit of 4: restore it"):
        place.read_bytes("a", limit=4)
    reads = [(read, MAX_FILE_BYTES) for read in (place.read_bytes, place.read_text)]
    for read, limit in [*reads, (place.read_json, MAX_JSON_BYTES), (place.read_json_lines, MAX_JSON_BYTES)]:
        os.truncate(root / "a", limit + 1)
        with pytest.raises(RunError, match=f"a has {limit + 1} bytes, more than the limit of {limit}"):
            read("a")


def test_json_that_could_not_be_read_again_is_not_written(place: Directory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json_files, "MAX_JSON_VALUES", 10)
    place.write_json("a", list(range(10)))
    with pytest.raises(RunError, match=r"cannot write .*a \(it has 11 values, more than the limit of 10\): store less"):
        place.write_json("a", list(range(11)))
    assert place.read_json("a") == list(range(10))


def test_too_many_lines_of_json(root: Path, place: Directory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json_files, "MAX_JSON_VALUES", 10)
    (root / "a").write_text("1\n" * 10)
    assert place.read_json_lines("a") == [1] * 10
    (root / "a").write_text("1\n" * 11)
    with pytest.raises(RunError, match=r"a is not valid JSON \(it has 11 lines"):
        place.read_json_lines("a")


@pytest.mark.parametrize("change", [-1, 1])
def test_a_file_that_changes_while_it_is_read(place: Directory, monkeypatch: pytest.MonkeyPatch, change: int) -> None:
    place.write_bytes("a", b"12345")

    def fstat(fd: int) -> Any:
        state = real(fd)
        return SimpleNamespace(st_size=5 - change, **{f: getattr(state, f) for f in ("st_mode", "st_dev", "st_ino")})

    real = os.fstat
    with monkeypatch.context() as patch:
        patch.setattr(os, "fstat", fstat)
        with pytest.raises(RunError, match="a changed while it was read"):
            place.read_bytes("a")


def test_a_file_that_does_not_fit_into_memory(root: Path, place: Directory) -> None:
    place.write_bytes("a", b"")
    os.truncate(root / "a", 8 << 30)
    code = (
        "import resource; resource.setrlimit(resource.RLIMIT_AS, (1 << 30, 1 << 30)); from pathlib import Path;"
        f"from equipoise.core.directory import *; Directory(Path({str(root)!r})).read_bytes('a', 16 << 30)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert "RunError" in done.stderr
    assert "more than fit into memory" in done.stderr


BAD_JSON = {
    "not valid JSON ('utf-8' codec": b'"\xff"',
    "not valid JSON (Input data was truncated": b"",
    "not valid JSON (Input data was trunc": b"{",
    "not valid JSON (JSON is malformed: invalid character (byte 6": b'{"a": NaN}',
    "not valid JSON (JSON is malformed: invalid character (byte 2": b"[-Infinity]",
    "not valid JSON (Number out of range": b"[1e999]",
    "not valid JSON (": b"[" * 200_000,  # each version of Python has its own words for this
    "not valid JSON (Integer value out of range": b"1" * 5000,
    "not valid JSON (JSON is malformed: trailing characters": b"1 2",
    "not valid JSON (Input data was tr": b'["\\ud800 "]',
    "not valid JSON (JSON is malformed: inv": b'{"\\udfff": 1}',
    "not valid JSON (it has 5000001 values": b"[" + b"{}," * 2_500_000 + b"]",
    "not valid JSON (it has 5000001 val": b"[" + b"0," * 5_000_000 + b"0]",
}


@pytest.mark.parametrize("message", BAD_JSON)
def test_bad_json(root: Path, place: Directory, message: str) -> None:
    (root / "a").write_bytes(BAD_JSON[message])
    with pytest.raises(RunError, match=re.escape(f"{root / 'a'} is {message}")) as raised:
        place.sub("", remedy="ask for help").read_json("a")
    assert str(raised.value).endswith("): ask for help")
    assert "\n" not in str(raised.value)
    (root / "a").write_bytes(b"1\n" + BAD_JSON[message])
    if BAD_JSON[message]:
        with pytest.raises(RunError):
            place.read_json_lines("a")


def test_json_that_no_reader_would_take_is_not_written(root: Path, place: Directory) -> None:
    place.write_json("a", 1)
    for value in (float("nan"), [float("inf")]):
        with pytest.raises(RunError, match=r"cannot write .*a .*: check whether training diverged"):
            place.write_json("a", value)
    assert place.read_json("a") == 1
    assert names_in(root) == ["a"]


def test_listing(root: Path, place: Directory, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, kind in {"c": "named pipe", "a": "link to a directory", "d": "broken link", ".h.tmp": "socket"}.items():
        ODD[kind](root / name)
    (root / "b" / "x").mkdir(parents=True)
    (root / "b" / "x" / "file").touch()
    here = [Entry(".h.tmp", "other"), Entry("a", "link"), Entry("b", "dir"), Entry("c", "other"), Entry("d", "link")]
    assert place.entries() == here
    assert list(place.walk()) == [*here[:3], Entry("b/x", "dir"), Entry("b/x/file", "file"), *here[3:]]
    assert list(place.walk("b")) == [Entry("b/x", "dir"), Entry("b/x/file", "file")]
    monkeypatch.setattr(open_dir, "MAX_ENTRIES", 5)
    assert place.entries() == here
    monkeypatch.setattr(open_dir, "MAX_ENTRIES", 4)
    with pytest.raises(RunError, match="has more than 4 entries"):
        place.entries()


def test_an_entry_that_is_deleted_while_listing(root: Path, place: Directory, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in "ab":
        (root / name).touch()
    with monkeypatch.context() as patch:
        before(patch, OpenDir, "kind", lambda: (root / "a").unlink(missing_ok=True))
        assert place.entries() == [Entry("b", "file")]


def test_a_tree_that_is_too_deep(root: Path, place: Directory) -> None:
    path = root
    for _ in range(MAX_DEPTH + 1):
        path = path / "d"
        path.mkdir()
    with pytest.raises(RunError, match="more than 32 levels"):
        list(place.walk())
    with pytest.raises(RunError, match="nested deeper than 32 levels"):
        place.remove_tree("d")
    assert path.exists()
    path.rmdir()
    assert len(list(place.walk())) == MAX_DEPTH
    assert place.remove_tree("d")
    assert place.entries() == []


def test_check_owned(root: Path, place: Directory) -> None:
    (root / "versions").mkdir()
    (root / "config.json").touch()
    owned: dict[str, Any] = {"versions": "dir", "config.json": "file", "memory": "dir", "checkpoint/step": "dir"}
    place.check_owned(owned)
    with pytest.raises(RunError, match="versions is a directory where a file is expected: move it away"):
        place.check_owned({**owned, "versions": "file"})
    (root / "checkpoint").symlink_to("../outside")
    with pytest.raises(RunError, match=r"checkpoint is a symbolic link, .*: replace it with the real directory"):
        place.check_owned(owned)


# ---- writing


def before(
    monkeypatch: pytest.MonkeyPatch,
    module: Any,
    name: str,
    act: Callable[[], object],
    when: Callable[[Any], bool] = lambda _: True,
) -> None:
    """Let ``act`` run before each call of a function for which ``when`` holds."""
    real = getattr(module, name)

    def replaced(*args: Any, **options: Any) -> Any:
        if when(args):
            act()
        return real(*args, **options)

    monkeypatch.setattr(module, name, replaced)


WRITE_CALLS = ["open", "write", "fsync", "replace", "fsync of the directory"]


@pytest.mark.parametrize("error", [OSError(errno.ENOSPC, "No space left on device"), KeyboardInterrupt()])
@pytest.mark.parametrize("killed", [False, True])
@pytest.mark.parametrize("old", [b"old", None])
@pytest.mark.parametrize("call", WRITE_CALLS)
def test_an_interrupted_write(
    root: Path,
    place: Directory,
    monkeypatch: pytest.MonkeyPatch,
    way: str,
    call: str,
    old: bytes | None,
    killed: bool,
    error: BaseException,
) -> None:
    if old is not None:
        place.write_bytes("a", old)
    reached = []

    def fail() -> None:
        reached.append(call)
        raise error

    def write(file: BinaryIO) -> None:
        file.write(b"n")
        if call == "write":
            fail()
        file.write(b"ew")

    def regular(fd: int) -> bool:
        return stat.S_ISREG(os.fstat(fd).st_mode)

    if call == "fsync of the directory" and way == "paths":
        pytest.skip("a directory that is not open cannot be synced")
    with monkeypatch.context() as patch:
        if call == "open":
            before(patch, os, "open", fail, when=lambda args: bool(args[1] & os.O_CREAT))
        elif call.startswith("fsync"):
            before(patch, os, "fsync", fail, when=lambda args: regular(args[0]) == (call == "fsync"))
        elif call == "replace":
            before(patch, os, "replace", fail)
        if killed:  # nobody is there to clean up
            patch.setattr(os, "unlink", lambda *_, **__: None)
        with pytest.raises(RunError if isinstance(error, OSError) else KeyboardInterrupt) as raised:
            place.replace_with("a", write)
    assert reached
    if isinstance(error, OSError):
        assert str(raised.value) == f"cannot write {root / 'a'} (No space left on device): free some space"
    expected = b"new" if call == "fsync of the directory" else old
    assert (place.read_bytes("a") if place.exists("a") else None) == expected
    left = [name for name in names_in(root) if name != "a"]
    assert all(TEMPORARY.fullmatch(name) for name in left)
    assert bool(left) == (killed and call in ("write", "fsync", "replace"))
    place.remove_temporary()
    assert names_in(root) == ["a"] * (expected is not None)


def test_a_write_is_synced_before_and_after_the_rename(
    root: Path, place: Directory, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    calls = []

    def fsync(fd: int) -> None:
        state = os.fstat(fd)
        calls.append("directory" if stat.S_ISDIR(state.st_mode) else f"file of {state.st_size}")

    monkeypatch.setattr(os, "fsync", fsync)
    before(monkeypatch, os, "replace", lambda: calls.append("rename"))
    before(monkeypatch, os, "mkdir", lambda: calls.append("mkdir"))
    before(monkeypatch, os, "rmdir", lambda: calls.append("rmdir"))
    place.write_bytes("a", b"12345")
    place.link("a", "b")
    place.make_dir("c/d")
    Directory(root / "e" / "f").make_dir()
    place.remove_tree("c")
    expected = ["file of 5", "rename", "directory", "rename", "directory", *["mkdir", "directory"] * 4]
    expected += ["rmdir", "rmdir", "directory"]
    assert calls == [call for call in expected if call != "directory" or way == "dir_fd"]


def test_an_error_in_the_writer_is_passed_on(root: Path, place: Directory) -> None:
    def write(file: BinaryIO) -> None:
        raise ValueError("mine")

    with pytest.raises(ValueError, match="mine"):
        place.replace_with("a", write)
    assert names_in(root) == []


def test_a_write_does_not_change_other_names_of_the_file(root: Path, place: Directory, tmp_path: Path) -> None:
    (tmp_path / "other").write_text("secret")
    os.link(tmp_path / "other", root / "a")
    os.link(tmp_path / "other", root / "b")
    place.write_text("a", "new")
    assert (tmp_path / "other").read_text() == "secret"
    place.remove("b")
    assert (tmp_path / "other").read_text() == "secret"


@pytest.mark.usefixtures("only_dir_fd")
def test_a_link_that_appears_during_a_write_is_replaced(root: Path, place: Directory) -> None:
    place.replace_with("a", lambda file: [file.write(b"new"), ODD["link to a file"](root / "a")])
    assert place.read_bytes("a") == b"new"


def test_a_directory_in_the_way_of_a_write(root: Path, place: Directory) -> None:
    (root / "a").mkdir()
    with pytest.raises(RunError, match="a is a directory where a file is expected"):
        place.write_bytes("a", b"")
    with pytest.raises(RunError, match=r"cannot write .*b/c \(No such file or directory\)"):
        place.write_bytes("b/c", b"")
    assert names_in(root) == ["a"]


def test_making_directories(tmp_path: Path) -> None:
    place = Directory(tmp_path / "new" / "root")
    place.make_dir("a/b")
    place.make_dir("a/b")
    place.make_dir()
    assert list(place.walk()) == [Entry("a", "dir"), Entry("a/b", "dir")]
    (tmp_path / "file").touch()
    for path in (tmp_path / "file", tmp_path / "file" / "inside"):
        with pytest.raises(RunError, match=rf"cannot write to {path} \(Not a directory\): choose another place"):
            Directory(path).make_dir()


def test_hard_links(root: Path, place: Directory) -> None:
    place.make_dir("versions/1")
    place.make_dir("versions/2")
    place.write_bytes("versions/1/a", b"one")
    place.write_bytes("versions/2/a", b"two")
    place.link("versions/1/a", "a")
    assert (root / "a").samefile(root / "versions/1/a")
    place.link("versions/1/a", "a")
    place.link("versions/2/a", "a")
    assert (root / "a").samefile(root / "versions/2/a")
    assert place.read_bytes("versions/1/a") == b"one"
    assert names_in(root / "versions/1") == ["a"]
    assert names_in(root) == ["a", "versions"]
    with pytest.raises(RunError, match="No such file"):
        place.link("versions/3/a", "a")
    assert place.read_bytes("a") == b"two"


def test_a_file_that_is_linked_already_is_left_alone(
    root: Path, place: Directory, monkeypatch: pytest.MonkeyPatch
) -> None:
    place.write_bytes("a", b"one")
    place.link("a", "b")
    monkeypatch.setattr(os, "replace", lambda *_, **__: pytest.fail("replaced"))
    place.link("a", "b")
    assert names_in(root) == ["a", "b"]


@pytest.mark.parametrize("error", [OSError(errno.EPERM, "not permitted"), NotImplementedError()])
def test_a_copy_where_hard_links_are_not_possible(
    root: Path, place: Directory, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def link(*_: object, **__: object) -> None:
        raise error

    place.write_bytes("a", b"one")
    monkeypatch.setattr(os, "link", link)
    place.link("a", "b")
    assert place.read_bytes("b") == b"one"
    assert not (root / "a").samefile(root / "b")
    assert names_in(root) == ["a", "b"]


def test_no_hard_link_to_what_replaced_the_source(
    root: Path, place: Directory, monkeypatch: pytest.MonkeyPatch
) -> None:
    place.write_bytes("a", b"one")
    before(monkeypatch, os, "link", lambda: swap(root / "a", "link to a file"))
    with pytest.raises(RunError, match="is a symbolic link"):
        place.link("a", "b")
    assert names_in(root) == ["a"]


# ---- races


def swap(path: Path, odd: str) -> None:
    """Replace a file or directory by something odd."""
    if path.is_dir() and not path.is_symlink():
        path.rename(path.parent.parent / "moved away")
    else:
        path.unlink()
    ODD[odd](path)


def after(monkeypatch: pytest.MonkeyPatch, name: str, target: str, act: Callable[[], object]) -> list[str]:
    """Let ``act`` run once, after a method of OpenDir was called for ``target``."""
    real = getattr(OpenDir, name)
    acted: list[str] = []

    def replaced(here: OpenDir, *args: Any) -> Any:
        result = real(here, *args)
        if not acted and target in (here.path.name, *args):
            acted.append(target)
            act()
        return result

    monkeypatch.setattr(OpenDir, name, replaced)
    return acted


@pytest.mark.parametrize("odd", ["link to a file", "link to an endless device", "broken link", "named pipe", "device"])
@pytest.mark.parametrize("operation", ["read", "lock"])
def test_a_file_that_is_swapped_before_it_is_opened(
    root: Path, place: Directory, monkeypatch: pytest.MonkeyPatch, operation: str, odd: str
) -> None:
    place.write_text(LOCK, "mine")
    acted = after(monkeypatch, "expect", LOCK, lambda: swap(root / LOCK, odd))
    with pytest.raises(RunError, match=r"symbolic link|No such file|named pipe|a device"):
        place.read_bytes(LOCK) if operation == "read" else held(place)
    assert acted


def test_a_file_that_a_writer_replaces_before_it_is_opened(
    root: Path, place: Directory, monkeypatch: pytest.MonkeyPatch
) -> None:
    place.write_text("a", "old")
    (root / "b").write_text("new")
    assert after(monkeypatch, "expect", "a", lambda: (root / "b").replace(root / "a")) == []
    assert place.read_text("a") == "new"


def test_a_file_that_is_replaced_all_the_time(
    root: Path, place: Directory, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    count = 0

    def change() -> None:
        nonlocal count
        count += 1
        (root / "b").write_text(f"{count:03d}")
        (root / "b").rename(root / "a")

    change()
    before(monkeypatch, os, "open", change, when=lambda args: str(args[0]).endswith("a"))
    if way == "dir_fd":
        assert place.read_text("a") == "002"
    else:
        with pytest.raises(RunError, match="replaced faster than it can be opened"):
            place.read_text("a")


def test_a_directory_that_becomes_a_link_between_listing_and_deleting(
    root: Path, place: Directory, monkeypatch: pytest.MonkeyPatch
) -> None:
    place.make_dir("tree/sub/secret")
    acted = after(monkeypatch, "entries", "tree", lambda: swap(root / "tree/sub", "link to a directory"))
    with pytest.raises(RunError, match="sub is a symbolic link"):
        place.remove_tree("tree")
    assert acted
    assert (root / "tree/sub").is_symlink()


@pytest.mark.usefixtures("only_dir_fd")
@pytest.mark.parametrize("operation", ["remove_tree", "entries", "make_dir", "check_owned", "write"])
def test_a_directory_that_becomes_a_link_after_it_was_checked(
    root: Path, place: Directory, monkeypatch: pytest.MonkeyPatch, operation: str
) -> None:
    calls: dict[str, Callable[[], object]] = {
        "remove_tree": lambda: place.remove_tree("tree"),
        "entries": lambda: place.entries("tree"),
        "make_dir": lambda: place.make_dir("tree/new"),
        "check_owned": lambda: place.check_owned({"tree/secret": "file"}),
        "write": lambda: place.write_bytes("tree/new", b""),
    }
    place.make_dir("tree")
    acted = after(monkeypatch, "expect", "tree", lambda: swap(root / "tree", "link to a directory"))
    with pytest.raises(RunError, match=r"\(Not a directory\)|\(Too many levels"):
        calls[operation]()
    assert acted


@pytest.mark.usefixtures("only_dir_fd")
def test_a_directory_that_is_swapped_while_it_is_emptied(
    root: Path, place: Directory, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    place.make_dir("tree/sub")
    for name in ("tree/secret", "tree/sub/secret"):
        place.write_text(name, "mine")
    acted = after(monkeypatch, "entries", "tree", lambda: swap(root / "tree", "link to a directory"))
    with pytest.raises(RunError, match=r"cannot delete .*tree \(Not a directory\)"):
        place.remove_tree("tree")
    assert acted
    assert (root / "tree").is_symlink()
    assert names_in(tmp_path / "moved away") == []  # what was opened is what was emptied


def test_a_file_that_becomes_a_directory_before_it_is_deleted(
    root: Path, place: Directory, monkeypatch: pytest.MonkeyPatch
) -> None:
    place.make_dir("tree")
    (root / "tree/a").touch()

    def become() -> None:
        (root / "tree/a").unlink()
        (root / "tree/a").mkdir()

    after(monkeypatch, "entries", "tree", become)
    with pytest.raises(RunError, match="cannot delete"):
        place.remove_tree("tree")
    assert (root / "tree/a").is_dir()


def test_what_somebody_else_deletes_meanwhile_is_gone(
    root: Path, place: Directory, monkeypatch: pytest.MonkeyPatch
) -> None:
    place.make_dir("tree/empty")
    (root / "tree/a").touch()
    (root / "tree/z").touch()

    def delete() -> None:
        (root / "tree/a").unlink()
        (root / "tree/empty").rmdir()

    after(monkeypatch, "entries", "tree", delete)
    assert place.remove_tree("tree")
    assert names_in(root) == []


# ---- deleting


@pytest.mark.parametrize("odd", [*ODD, "file", "missing"])
def test_removing_a_name_removes_nothing_else(root: Path, place: Directory, odd: str) -> None:
    if odd != "missing":
        {**ODD, "file": Path.touch}[odd](root / "name")
    (root / "other").touch()
    place.remove("name")
    assert names_in(root) == ["other"]


def test_directories_are_not_removed_as_files(root: Path, place: Directory) -> None:
    place.make_dir("a")
    with pytest.raises(RunError, match="a is a directory where a file is expected"):
        place.remove("a")
    place.remove("missing/name")
    assert names_in(root) == ["a"]


def test_removing_a_tree_follows_no_links(root: Path, place: Directory) -> None:
    place.make_dir("tree/a/b")
    for number, make in enumerate(ODD.values()):
        with suppress(pytest.skip.Exception):
            make(root / f"tree/{number}")
    (root / "tree/a/b/up").symlink_to("../../../../outside")
    (root / "tree/a/b/.hidden").write_text("x")
    (root / "tree/a/b/.hidden").chmod(0)
    (root / "keep").touch()
    assert place.remove_tree("tree")
    assert names_in(root) == ["keep"]
    assert place.remove_tree("tree")
    assert place.remove_tree("missing/tree")


def test_only_names_of_the_pattern_are_removed(root: Path, place: Directory) -> None:
    for name in ("tree/1/config.json", "tree/1/notes.txt", "tree/2/config.json", "tree/mine/config.json"):
        place.make_dir(name.rpartition("/")[0])
        place.write_text(name, "{}")
    pattern = re.compile(r"\d|config\.json")
    assert not place.remove_tree("tree", pattern)
    left = ["tree", "tree/1", "tree/1/notes.txt", "tree/mine", "tree/mine/config.json"]
    assert [entry.name for entry in place.walk()] == left
    assert not place.remove_tree("tree", re.compile("1"))
    assert [entry.name for entry in place.walk()] == left
    assert place.remove_tree("tree/mine")
    assert not place.remove_tree("tree", pattern)
    assert [entry.name for entry in place.walk()] == left[:3]
    place.remove("tree/1/notes.txt")
    place.write_text("tree/1/config.json.bak", "{}")
    assert not place.remove_tree("tree", pattern)
    place.remove("tree/1/config.json.bak")
    assert place.remove_tree("tree", pattern)


def test_only_empty_directories_are_removed_as_such(root: Path, place: Directory) -> None:
    place.make_dir("a/b")
    assert not place.remove_dir("a")
    assert place.remove_dir("a/b")
    assert place.remove_dir("a")
    assert place.remove_dir("a")
    assert names_in(root) == []


def test_another_file_system_is_left_alone(root: Path, place: Directory, monkeypatch: pytest.MonkeyPatch) -> None:
    place.make_dir("tree/mounted/sub")
    real = OpenDir.enter

    @contextmanager
    def enter(here: OpenDir, name: str) -> Iterator[OpenDir]:
        with real(here, name) as opened:
            yield replace(opened, device=-1) if name == "mounted" else opened

    monkeypatch.setattr(OpenDir, "enter", enter)
    with pytest.raises(RunError, match="mounted is another file system: unmount it"):
        place.remove_tree("tree")
    assert (root / "tree/mounted/sub").is_dir()


@pytest.mark.skipif(sys.platform != "linux", reason="/proc is not everywhere")
def test_another_file_system_is_recognized(root: Path, place: Directory) -> None:
    place.make_dir("tree")
    with open_root(Path("/")) as here, here.enter("proc") as inside:
        assert inside.device != here.device
    with open_root(root) as here, here.enter("tree") as inside:
        assert inside.device == here.device == root.stat().st_dev


def test_what_killed_writers_left_is_removed(root: Path, place: Directory) -> None:
    place.make_dir("a/b")
    place.make_dir("a/.dir.tmp")
    for name in (".config.json.123.tmp", "a/b/.0123.tmp", "a/b/.two\nlines.tmp", "kept.tmp", "a/.tmp", "a/.x.tmp.json"):
        (root / name).touch()
    (root / "a" / ".link.tmp").symlink_to("../../outside/secret")
    (root / "b").symlink_to("../outside")
    place.remove_temporary()
    assert [entry.name for entry in place.walk()] == [
        *("a", "a/.dir.tmp", "a/.tmp", "a/.x.tmp.json", "a/b", "b", "kept.tmp"),
    ]


# ---- locking


def test_one_writer_at_a_time(root: Path, place: Directory) -> None:
    (root / LOCK).write_text("content")
    os.utime(root / LOCK, ns=(1, 1))
    with place.lock():
        taken = place.modified_ns(LOCK)
        assert taken is not None
        assert taken > 1
        os.utime(root / LOCK, ns=(1, 1))
        with pytest.raises(RunError, match=f"another process is writing to {root}: wait, or choose another place"):
            held(place)
        assert place.modified_ns(LOCK) == 1
    held(place)
    assert (root / LOCK).read_text() == "content"


def test_an_error_while_the_lock_is_held_is_passed_on(place: Directory) -> None:
    with pytest.raises(FileNotFoundError, match="mine"), place.lock():
        raise FileNotFoundError("mine")
    held(place)


@pytest.mark.parametrize("odd", [*ODD, "directory"])
def test_a_lock_that_is_no_file(root: Path, place: Directory, odd: str) -> None:
    {**ODD, "directory": Path.mkdir}[odd](root / LOCK)
    with pytest.raises(RunError, match=rf"\.lock is {SEEN.get(odd, 'a directory')}"):
        held(place)


def test_a_lock_that_is_another_file(root: Path, place: Directory, tmp_path: Path) -> None:
    (tmp_path / "another").write_text("mine")
    os.utime(tmp_path / "another", ns=(1, 1))
    os.link(tmp_path / "another", root / LOCK)
    with pytest.raises(RunError, match=r"\.lock is a hard link to another file, which .*: delete it while no other"):
        held(place)
    assert (tmp_path / "another").stat().st_mtime_ns == 1
    (root / LOCK).unlink()
    held(place)


def test_a_file_system_that_does_not_count_links(place: Directory, monkeypatch: pytest.MonkeyPatch) -> None:
    held(place)

    def fstat(fd: int) -> Any:
        state = real(fd)
        return SimpleNamespace(st_nlink=0, **{f: getattr(state, f) for f in ("st_mode", "st_dev", "st_ino")})

    real = os.fstat
    with monkeypatch.context() as patch:
        patch.setattr(os, "fstat", fstat)
        held(place)


def test_a_file_system_without_locks(root: Path, place: Directory, monkeypatch: pytest.MonkeyPatch) -> None:
    def flock(*_: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", flock)
    with pytest.raises(
        RunError, match=rf"{root} cannot be locked \(No locks available\): choose a place on a file sys"
    ):
        held(place)


# ---- errors of the system


REMEDIES = {
    errno.EACCES: "check its permissions",
    errno.EPERM: "check its permissions",
    errno.ENOSPC: "free some space",
    errno.EDQUOT: "free some space",
    errno.EROFS: "choose a place that is writable",
    errno.EIO: "check the disk",
    errno.EMFILE: "check the directory",
}


@pytest.mark.parametrize("operation", [*FILE_OPERATIONS, *DIR_OPERATIONS, *REMOVE, "lock"])
def test_errors_of_the_system_have_a_remedy(
    root: Path, place: Directory, monkeypatch: pytest.MonkeyPatch, operation: str
) -> None:
    def fail() -> None:
        raise OSError(number, os.strerror(number))

    lock: dict[str, Callable[[Directory, str], object]] = {"lock": lambda place, _: held(place)}
    for name in ("a", "real"):
        place.write_text(name, "1")
    for number, remedy in REMEDIES.items():
        with monkeypatch.context() as patch:
            for name in ("open", "stat"):
                before(patch, os, name, fail)
            before(patch, Path, "stat", fail)
            with pytest.raises(RunError, match=rf"^cannot .* {root}.* \({os.strerror(number)}\): {remedy}$"):
                {**FILE_OPERATIONS, **DIR_OPERATIONS, **REMOVE, **lock}[operation](place, "a")
            assert not place.exists("a")


@pytest.mark.skipif(sys.platform == "win32" or os.geteuid() == 0, reason="root may write everywhere")
def test_a_directory_that_cannot_be_written(root: Path, place: Directory) -> None:
    place.make_dir("tree/sub")
    place.write_text("tree/a", "old")
    (root / "tree").chmod(0o555)
    root.chmod(0o555)
    calls: list[Callable[[], object]] = [
        lambda: place.write_text("tree/a", "new"),
        lambda: place.remove("tree/a"),
        lambda: place.remove_tree("tree"),
        lambda: place.make_dir("tree/new"),
        lambda: place.link("tree/a", "tree/b"),
        lambda: held(place),
    ]
    try:
        for call in calls:
            with pytest.raises(RunError, match=r"\(Permission denied\): check its permissions"):
                call()
        assert place.read_text("tree/a") == "old"
    finally:
        root.chmod(0o755)
        (root / "tree").chmod(0o755)


@pytest.mark.skipif(sys.platform == "win32" or os.geteuid() == 0, reason="root may read everything")
def test_a_file_that_cannot_be_read(root: Path, place: Directory) -> None:
    place.write_text("a", "x")
    (root / "a").chmod(0)
    with pytest.raises(RunError, match=r"cannot read .*a \(Permission denied\): check its permissions"):
        place.read_bytes("a")
    assert place.is_file("a")


def test_messages_are_one_printable_line() -> None:
    assert printable("a\nb\x1b[31m\udcff\u2028ü 日") == "a\\nb\\x1b[31m\\udcff\\u2028ü 日"


def test_the_module_is_cheap_to_import() -> None:
    code = "import sys, equipoise.core.directory; sys.exit('torch' in sys.modules or 'numpy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
