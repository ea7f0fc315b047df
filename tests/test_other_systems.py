"""Windows and macOS, as far as Linux can play them: what is missing there is hidden, and file systems are imitated.

What cannot be imitated here: real locks of Windows, antivirus programs that hold files open, and paths with drives.
"""

from __future__ import annotations

import os
import subprocess
import sys
import unicodedata
from collections.abc import Callable
from pathlib import Path

import pytest

from equipoise.app.model_dir import ModelDir
from equipoise.core import directory
from equipoise.core.directory import Directory
from equipoise.core.open_dir import OpenDir
from equipoise.errors import RunError
from tests.conftest import Ran
from tests.folders import glyph_folder
from tests.models import learn

ROOT = Path(__file__).parent.parent
Cli = Callable[..., Ran]

PLAY = """
import importlib, os, pkgutil, platform, shutil, signal, sys, tempfile, types

import torch._dynamo
import equipoise

MODULES = sorted(found.name for found in pkgutil.walk_packages(equipoise.__path__, "equipoise."))
MODULES.remove("equipoise.__main__")


def import_all():
    failed = set()
    for name in MODULES:
        try:
            importlib.import_module(name)
        except ImportError as error:
            failed.add(f"{name}: {error}")
    return failed


before = import_all()  # other packages know what system they are on; only our own modules are imported again
platform.platform()
for name in [name for name in sys.modules if name.partition(".")[0] == "equipoise"]:
    del sys.modules[name]

HIDDEN_SIGNALS = "pthread_sigmask SIGKILL SIGHUP SIGUSR1 SIGUSR2 SIGCHLD SIGALRM alarm setitimer".split()
HIDDEN = (
    "O_NOFOLLOW O_DIRECTORY O_NONBLOCK O_CLOEXEC fork forkpty sched_getaffinity getuid geteuid getgid killpg setsid "
    "statvfs sysconf uname mkfifo mknod getpgid fchmod chown posix_spawn"
).split()


def play_windows():
    import fcntl

    def locking(fd, mode, count):
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise PermissionError(13, "Permission denied") from error

    def link(source, target, *, src_dir_fd=None, dst_dir_fd=None, follow_symlinks=True):
        raise NotImplementedError("link: follow_symlinks unavailable on this platform")

    sys.modules["msvcrt"] = types.SimpleNamespace(locking=locking, LK_NBLCK=2)
    for name in ("fcntl", "resource", "pwd", "grp", "termios", "tty", "pty", "readline", "syslog"):
        sys.modules[name] = None
    for module, names in ((os, HIDDEN), (signal, HIDDEN_SIGNALS)):
        for name in names:
            if hasattr(module, name):
                delattr(module, name)
    os.link = link
    os.supports_dir_fd, os.supports_fd = set(), {os.stat}
    sys.platform = "win32"


def play_macos():
    for name in ("sched_getaffinity", "posix_fadvise", "copy_file_range", "sendfile", "memfd_create", "O_PATH"):
        if hasattr(os, name):
            delattr(os, name)
    sys.platform = "darwin"


{"windows": play_windows, "macos": play_macos}[sys.argv[1]]()
assert import_all() == before, import_all() - before

from equipoise.cli import main
from equipoise.core import directory, open_dir
from equipoise.errors import LockedError

directory._WINDOWS = sys.argv[1] == "windows"  # os.name stays what it is, because pathlib asks for it
assert open_dir.USE_DIR_FD == (sys.argv[1] == "macos")


def call(*words, code=0):
    try:
        main(list(words))
    except SystemExit as end:
        assert end.code == code, (words, end.code)


from tests.folders import glyph_folder
from tests.models import learn
from pathlib import Path

place = directory.Directory(Path("locked"))
place.make_dir()
with place.lock():
    try:
        with directory.Directory(Path("locked")).lock():
            raise AssertionError("locked twice")
    except LockedError:
        pass
with place.lock():
    pass

glyph_folder(Path("one"), range(2))
glyph_folder(Path("two"), range(2, 4))
Path("two/C").rename("two/aux")
learn(Path("model"), Path("one"))
learn(Path("model"), Path("two"))
assert Path("model/memory", "aux~" if directory._WINDOWS else "aux").is_dir()
call("predict", "model", "two/aux")
call("evaluate", "model", "two")
call("forget", "model", "aux")
assert not Path("model/memory/aux~").exists() and not Path("model/memory/aux").exists()
call("history", "model")
call("inspect", "model")
call("run", "digits", "--epochs", "1", "--threads", "1", "--out", "run", "--quiet")
call("run", "digits", "--epochs", "1", "--threads", "1", "--out", "run", "--quiet")
call("doctor")
print("played")
"""


@pytest.mark.slow
@pytest.mark.parametrize("system", ["windows", "macos"])
def test_everything_is_imported_and_works_without_what_a_system_lacks(system: str, tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", PLAY, system]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=tmp_path, timeout=300)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    assert done.stdout.rstrip().endswith("played")


def names_in(folder: Path) -> list[str]:
    return sorted(entry.name for entry in folder.iterdir())


# ---- Windows


def test_a_file_that_is_open_is_replaced_as_soon_as_it_is_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place, refused = Directory(tmp_path), 3
    rename = OpenDir.rename

    def refuse(here: OpenDir, source: str, target: str) -> None:
        nonlocal refused
        if refused:
            refused -= 1
            raise PermissionError(13, "Permission denied")
        rename(here, source, target)

    monkeypatch.setattr(OpenDir, "rename", refuse)
    with pytest.raises(RunError, match="Permission denied"):  # elsewhere, it means what it says
        place.write_text("file", "old")
    assert refused == 2
    monkeypatch.setattr(directory, "_WINDOWS", True)
    monkeypatch.setattr(directory, "_PAUSES", (0.0, 0.0))
    place.write_text("file", "new")
    assert place.read_text("file") == "new"
    refused = 100
    with pytest.raises(RunError, match="Permission denied"):
        place.write_text("file", "newer")
    assert refused == 97
    assert place.read_text("file") == "new"
    assert names_in(tmp_path) == ["file"], "no temporary file stays"


DEVICES = ["CON", "nul", "aux.txt", "com1", "LPT9.tar.gz", "com¹", "con~", "con~~.x", "Prn~.txt"]
OTHERS = ["console", "com0x", "aux_", "null", "a.con", "com", "~con"]


@pytest.mark.parametrize("name", [*DEVICES, *OTHERS])
def test_names_of_devices_are_escaped(name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert directory._to_disk(name) == name, "on other systems they are ordinary names"
    monkeypatch.setattr(directory, "_WINDOWS", True)
    written = directory._to_disk(name)
    assert (written == name) == (name in OTHERS)
    assert directory._from_disk(written) == name
    assert len({directory._to_disk(other).lower() for other in (*DEVICES, *OTHERS)}) == len(DEVICES + OTHERS)
    place = Directory(tmp_path)
    place.make_dir(f"memory/{name}")
    place.write_text(f"memory/{name}/{name}", "text")
    place.sub(f"memory/{name}").write_text("more", "text")
    assert sorted(entry.name for entry in place.walk()) == sorted(
        ["memory", f"memory/{name}", f"memory/{name}/{name}", f"memory/{name}/more"]
    )
    assert place.read_text(f"memory/{name}/{name}") == "text"
    assert names_in(tmp_path / "memory") == [written]
    place.remove(f"memory/{name}/{name}")
    place.remove_tree(f"memory/{name}")
    assert names_in(tmp_path / "memory") == []


# ---- file systems that ignore case or decompose accents


def ignore_case(part: str) -> str:
    return part.casefold()


def decompose(part: str) -> str:
    return unicodedata.normalize("NFD", part)


def test_two_classes_that_differ_only_in_case(
    tmp_path: Path, glyph_steps: list[Path], monkeypatch: pytest.MonkeyPatch, cli: Cli
) -> None:
    """They share a folder on such a file system, and neither loses an image when the other is forgotten."""
    results = []
    for number, fold in enumerate([str, ignore_case]):
        monkeypatch.setattr(directory, "_to_disk", fold)
        model = tmp_path / f"model-{number}"
        for step, name in enumerate(["Cat", "cat"]):
            glyph_folder(tmp_path / f"photos-{number}-{step}", range(2 * step, 2 * step + 2))
            folder = tmp_path / f"photos-{number}-{step}"
            next(path for path in sorted(folder.iterdir())).rename(folder / name)
            learn(model, folder)
        folders = {path.name for path in (model / "memory").iterdir()}
        assert ({"Cat", "cat"} <= folders) == (number == 0)
        before = _images(model)
        assert cli("undo", model).code == 0
        learn(model, tmp_path / f"photos-{number}-1")
        assert _images(model) == before
        assert cli("forget", model, "Cat").code == 0
        after = _images(model)
        assert after == {name: images for name, images in before.items() if name != "Cat"}
        assert cli("evaluate", model, tmp_path / f"photos-{number}-1").code == 0
        results.append((before, after))
    assert results[0] == results[1]


def test_accents_that_the_file_system_decomposes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cli: Cli) -> None:
    """HFS+ lists é as e and an accent; the images of the class must not count as unused."""
    monkeypatch.setattr(directory, "_to_disk", decompose)
    monkeypatch.setattr(directory, "_MACOS", True)
    photos, model = glyph_folder(tmp_path / "photos", range(2)), tmp_path / "model"
    (photos / "A").rename(photos / "éléphant")
    learn(model, photos)
    assert decompose("éléphant") in names_in(model / "memory")
    before = _images(model)
    assert before["éléphant"]
    learn(model, glyph_folder(tmp_path / "more", range(2, 4)))
    assert _images(model)["éléphant"] == before["éléphant"]
    assert cli("forget", model, "éléphant").code == 0
    assert decompose("éléphant") not in names_in(model / "memory")


def _images(model: Path) -> dict[str, list[str]]:
    """Return the names of the images that a model keeps of each class, after reading all of them."""
    place = ModelDir(model)
    place.load(images=True)
    config = place.config()
    images = place.images_of(config)
    return {
        str(label): sorted(images.memory[number] + images.holdout[number])
        for number, label in enumerate(config.classes)
    }
