"""What is watched while a command runs in a test."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from tests.guard import guard_processes, guarded, is_ours

ELSEWHERE = ("192.0.2.1", 9)
"""An address for documentation, where nobody is."""


def udp() -> socket.socket:
    return socket.socket(socket.AF_INET, socket.SOCK_DGRAM)


def connect() -> None:
    with suppress(OSError), udp() as probe:
        probe.connect(ELSEWHERE)  # sends nothing


def send() -> None:
    with suppress(OSError), udp() as probe:
        probe.settimeout(0.1)
        probe.sendto(b"", ELSEWHERE)


def listen() -> None:
    with udp() as probe:
        probe.bind(("", 0))


def look_up() -> None:
    with suppress(OSError):
        socket.getaddrinfo(ELSEWHERE[0], 9, flags=socket.AI_NUMERICHOST)


@pytest.mark.parametrize(
    ("act", "found"),
    [
        (connect, r"connects to 192\.0\.2\.1"),
        (send, r"sends to 192\.0\.2\.1"),
        (listen, r"listens on 0\.0\.0\.0"),
        (look_up, r"looks up 192\.0\.2\.1"),
    ],
)
def test_the_network_is_noticed(act: Callable[[], None], found: str) -> None:
    act()  # nothing is watched here
    with pytest.raises(AssertionError, match=found), guarded():
        act()


def test_this_machine_and_an_address_that_is_named_are_not() -> None:
    with (
        guarded("serve", "--host", "0.0.0.0"),
        socket.create_server(("localhost", 0)) as server,
        socket.create_connection(server.getsockname()),
        udp() as probe,
    ):
        probe.bind(("0.0.0.0", 0))


# ---- programs


def spawn() -> None:
    os.waitpid(os.posix_spawn("/bin/true", ["true"], {}), 0)


@pytest.mark.parametrize(
    ("act", "found"),
    [
        (lambda: subprocess.run(["true"], check=True), "starts true"),
        (lambda: subprocess.run("true", shell=True, check=True), "starts .*sh -c true"),
        (lambda: os.system("true"), "starts a shell"),
        (spawn, "starts true"),
    ],
)
def test_programs_are_noticed(act: Callable[[], object], found: str) -> None:
    with pytest.raises(AssertionError, match=found), guarded():
        act()


@pytest.mark.parametrize(
    ("command", "ours"),
    [
        ("git --no-optional-locks -C /a status --porcelain .", True),
        ("git rev-parse HEAD", True),
        ("git -C status push", False),
        ("git --version", False),
        ("uname -p", True),
        ("uname -a; true", False),
        ("/usr/bin/python3 -m equipoise.serve.worker a b", True),
        ("/usr/bin/python3 -W ignore -m equipoise run", True),
        ("/usr/bin/python3 -m equipoise2", False),
        ("/usr/bin/python3 -c print() -m equipoise", False),
        ("pythonic -m http.server", False),
        ("gs -m equipoise", False),
    ],
)
def test_git_may_read_and_python_may_run_us(command: str, ours: bool) -> None:
    assert is_ours(command.split()) == ours


# ---- files


@contextmanager
def opened(folder: Path) -> Iterator[int]:
    fd = os.open(folder, os.O_RDONLY)
    try:
        yield fd
    finally:
        os.close(fd)


def write_relative(folder: Path) -> None:
    with opened(folder) as fd:
        os.close(os.open("new", os.O_WRONLY | os.O_CREAT, dir_fd=fd))


def rename_relative(folder: Path) -> None:
    with opened(folder) as fd:
        os.rename("file", "other", src_dir_fd=fd, dst_dir_fd=fd)


def write_through_link(folder: Path) -> None:
    link = folder.parent / "named" / "link"
    link.symlink_to(folder / "file")
    link.write_text("")


def write_below_link(folder: Path) -> None:
    link = folder.parent / "named" / "link"
    link.symlink_to(folder)
    (link / "new").write_text("")


def change_mode_of_open_file(folder: Path) -> None:
    with opened(folder / "file") as fd:
        os.chmod(fd, 0o600)  # noqa: PTH101 - not a path


CHANGES: dict[str, Callable[[Path], object]] = {
    "open: new": lambda folder: (folder / "new").write_text(""),
    "open relative: new": write_relative,
    "open through a link: file": write_through_link,
    "open below a link: new": write_below_link,
    "rename: file": lambda folder: (folder / "file").rename(folder / "other"),
    "rename relative: file": rename_relative,
    "mkdir: new": lambda folder: (folder / "new").mkdir(),
    "remove: file": lambda folder: (folder / "file").unlink(),
    "rmdir: empty": lambda folder: (folder / "empty").rmdir(),
    "link: new": lambda folder: (folder / "new").hardlink_to(folder / "file"),
    "symlink: new": lambda folder: (folder / "new").symlink_to("file"),
    "truncate: file": lambda folder: os.truncate(folder / "file", 0),
    "chmod: file": lambda folder: (folder / "file").chmod(0o600),
    "chmod of an open file: file": change_mode_of_open_file,
    "chown: file": lambda folder: os.chown(folder / "file", -1, -1),
    "utime: file": lambda folder: os.utime(folder / "file"),
    "mkfifo: new": lambda folder: os.mkfifo(folder / "new"),
    "mknod: new": lambda folder: os.mknod(folder / "new"),
}


@pytest.mark.parametrize("change", CHANGES)
def test_changes_elsewhere_are_noticed(change: str, tmp_path: Path) -> None:
    folder = tmp_path / "named but not quite"  # begins as the directory that is named
    for name in ("named", folder.name, f"{folder.name}/empty"):
        (tmp_path / name).mkdir()
    (folder / "file").write_text("")
    event, name = change.split()[0].rstrip(":"), change.split()[-1]
    found = rf"changes a file by (os\.)?{event}: {folder / name}"
    with pytest.raises(AssertionError, match=found), guarded("learn", tmp_path / "named"):
        CHANGES[change](folder)


def test_the_current_and_the_temporary_directory_are_not_free(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(AssertionError, match=f"open: {tmp_path / 'new'}"), guarded("learn", "named"):
        Path("new").write_text("")
    with pytest.raises(AssertionError, match="open: /proc/equipoise"), guarded(tmp_path), suppress(OSError):
        Path("/proc/equipoise").write_text("")


def test_what_is_named_may_be_changed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with guarded("learn", "a/model", f"--csv={tmp_path / 'table'}", "--out", "b"):
        write_relative(made(tmp_path / "a" / "model"))
        (tmp_path / ".table.tmp").write_text("")
        (tmp_path / ".table.tmp").rename(tmp_path / "table")
        made(Path("b"))
        made(Path("runs"))
        with tempfile.TemporaryDirectory() as folder:
            (Path(folder) / "new").write_text("")
        Path(os.devnull).write_text("")
        subprocess.run(["git", "rev-parse"], capture_output=True)


def made(folder: Path) -> Path:
    folder.mkdir(parents=True)
    return folder


# ---- processes

VIOLATION = "import os; os.mkdir('elsewhere')"


@pytest.mark.parametrize(
    ("module", "code", "said"), [("equipoise", 70, "changes a file by os.mkdir"), ("other", 0, "")]
)
def test_a_command_in_a_process_is_ended(module: str, code: int, said: str, tmp_path: Path) -> None:
    (tmp_path / module).mkdir()
    (tmp_path / module / "__init__.py").write_text("")
    (tmp_path / module / "__main__.py").write_text(VIOLATION)
    path = guard_processes(made(tmp_path / "guard"))
    command = [sys.executable, "-m", module, "learn", "model"]
    done = subprocess.run(command, cwd=tmp_path, env=os.environ | {"PYTHONPATH": path}, capture_output=True, text=True)
    assert done.returncode == code, done.stderr
    assert said in done.stderr
    assert (tmp_path / "elsewhere").exists() == (not code)
