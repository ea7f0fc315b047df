"""Run directories from strangers: run, compare and report change nothing outside, never hang, and say what is wrong."""

from __future__ import annotations

import json
import os
import shutil
import signal
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
import torch

from equipoise.core.directory import Directory
from equipoise.core.tensors import write_tensors
from equipoise.study.compare import CompareListener, compare, plan
from equipoise.study.launch import Job, remote
from tests.conftest import Ran

SETTINGS: dict[str, dict[str, Any]] = {
    "train": {"epochs": 2},
    "stream": {"steps": "5,5"},
    "memory": {"size": 20},
    "net": {"backbone": "tiny"},
    "runtime": {"threads": 1},
}
OPTIONS = ("--epochs", 2, "--steps", "5,5", "--memory", 20, "--backbone", "tiny", "--threads", 1)
FIRST, SECOND = Path("wa/steps-5_5/seed-0"), Path("wa/steps-5_5/seed-1")
"""The runs of the comparison; the first is the hostile one."""

FILES = ("config.json", "metrics.jsonl", "summary.json", "report.html", ".lock", "checkpoint/manifest.json")
DIRECTORIES = ("predictions", "gallery", "tracking", "checkpoint", "checkpoint/step")
"""Names that every command checks before it does anything else."""
INNER = (
    "predictions/step-2.safetensors",
    "gallery/gallery.json",
    "gallery/exemplars.webp",
    "checkpoint/step-2.safetensors",
    "checkpoint/step-1.safetensors",
    "checkpoint/step/stages.json",
    "checkpoint/step/stage-0-epoch-1.safetensors",
)
"""Names that a command may or may not use."""


class StopInSecondStep(CompareListener):
    """Interrupts a comparison when one epoch of the second step is saved."""

    epochs = 0

    def epoch(self, epoch: int, loss: float, lr: float) -> None:
        self.epochs += 1

    def batch(self, images: int) -> None:
        if self.epochs == 3:
            raise KeyboardInterrupt


@pytest.fixture(scope="module")
def originals(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with two comparisons of two runs each: finished, and stopped in the second step of the first."""
    folder = tmp_path_factory.mktemp("originals")
    cells = plan("digits", ["wa"], [0, 1], overrides=SETTINGS)
    compare(cells, folder / "finished")
    with pytest.raises(KeyboardInterrupt):
        compare(cells[:1], folder / "stopped", listener=StopInSecondStep())
    shutil.copytree(folder / "finished" / SECOND, folder / "stopped" / SECOND)
    assert (folder / "stopped" / FIRST / "checkpoint" / "step" / "stages.json").exists()
    assert (folder / "stopped" / FIRST / "checkpoint" / "step-1.safetensors").exists()
    return folder


def snapshot(path: Path) -> dict[str, Any]:
    """Return everything below a directory: type, permissions, time and content."""
    found: dict[str, Any] = {}
    for file in [path, *sorted(path.rglob("*"))]:
        state = file.lstat()
        content = file.read_bytes() if stat.S_ISREG(state.st_mode) else None
        found[str(file)] = (state.st_mode, state.st_nlink, state.st_mtime_ns, state.st_size, content)
    return found


@pytest.fixture
def outside(originals: Path, tmp_path: Path) -> Iterator[Path]:
    """Return a copy of a whole run, which links lead to; it must be unchanged in the end."""
    shutil.copytree(originals / "stopped" / FIRST, tmp_path / "outside")
    for name in ("summary.json", "report.html", "tracking", "gallery", "predictions/step-2.safetensors"):
        source = originals / "finished" / FIRST / name
        if source.is_dir():
            shutil.copytree(source, tmp_path / "outside" / name)
        elif source.exists():
            shutil.copy(source, tmp_path / "outside" / name)
    (tmp_path / "outside" / "tracking").mkdir(exist_ok=True)
    (tmp_path / "outside" / "report.html").write_text("mine")
    shutil.copy(originals / "finished" / FIRST / "checkpoint" / "step-2.safetensors", tmp_path / "outside/checkpoint")
    before = snapshot(tmp_path / "outside")
    yield tmp_path / "outside"
    assert snapshot(tmp_path / "outside") == before


@pytest.fixture(autouse=True)
def _no_hang() -> Iterator[None]:
    """Fail instead of waiting for a pipe for ever."""

    def give_up(number: int, frame: FrameType | None) -> None:
        raise AssertionError("the command hangs")

    before = signal.signal(signal.SIGALRM, give_up)
    signal.alarm(120)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


def remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def make_link(path: Path, target: Path) -> None:
    path.symlink_to(target)


def make_broken_link(path: Path, target: Path) -> None:
    path.symlink_to(target.with_name("nothing"))


def make_pipe(path: Path, target: Path) -> None:
    os.mkfifo(path)


def make_wrong_type(path: Path, target: Path) -> None:
    if target.is_dir():
        path.write_text("not a directory")
    else:
        (path / "deep").mkdir(parents=True)
        (path / "deep" / "precious").write_text("mine")


ODD: dict[str, Callable[[Path, Path], None]] = {
    "link": make_link,
    "broken link": make_broken_link,
    "pipe": make_pipe,
    "wrong type": make_wrong_type,
}


def plant(run: Path, name: str, odd: str, outside: Path) -> None:
    """Replace a part of a run by something that does not belong there."""
    (run / name).parent.mkdir(exist_ok=True)
    remove(run / name)
    ODD[odd](run / name, outside / name)


def fails(ran: Ran) -> str:
    """Assert that a command failed with one sentence, and return it."""
    assert ran.code == 2, (ran.out, ran.err)
    (line,) = ran.err.splitlines()
    assert line.startswith("equipoise: ")
    assert "Traceback" not in line
    return line


def copy_of(originals: Path, state: str, tmp_path: Path) -> Path:
    shutil.copytree(originals / state, tmp_path / "comparison", symlinks=True)
    return tmp_path / "comparison"


def call(cli: Callable[..., Ran], command: str, comparison: Path) -> Ran:
    if command == "run":
        return cli("run", "digits", *OPTIONS, "--quiet", "--out", comparison / FIRST)
    if command == "compare":
        return cli("compare", "digits", "--methods", "wa", "--seeds", "0,1", *OPTIONS, "--quiet", "--out", comparison)
    return cli("report", comparison / FIRST if command == "report of the run" else comparison)


COMMANDS = ("run", "compare", "report of the run", "report")


# ---- links, pipes and wrong types


@pytest.mark.parametrize("odd", ODD)
@pytest.mark.parametrize("name", [*FILES, *DIRECTORIES])
@pytest.mark.parametrize("state", ["finished", "stopped"])
def test_run_and_compare_reject_what_is_not_theirs(
    name: str, odd: str, state: str, originals: Path, outside: Path, tmp_path: Path, cli: Callable[..., Ran]
) -> None:
    comparison = copy_of(originals, state, tmp_path)
    plant(comparison / FIRST, name, odd, outside)
    before = snapshot(comparison / FIRST)
    for command in ("run", "compare"):
        assert str(FIRST / name) in fails(call(cli, command, comparison))
    assert snapshot(comparison / FIRST) == before


@pytest.mark.parametrize("odd", ODD)
@pytest.mark.parametrize("name", INNER)
@pytest.mark.parametrize("state", ["finished", "stopped"])
def test_run_and_compare_use_no_link_inside_their_directories(
    name: str, odd: str, state: str, originals: Path, outside: Path, tmp_path: Path, cli: Callable[..., Ran]
) -> None:
    """Either they do not need the file, or they reject it; what is not theirs is never read, changed or deleted."""
    comparison = copy_of(originals, state, tmp_path)
    plant(comparison / FIRST, name, odd, outside)
    for command in ("run", "compare"):
        ran = call(cli, command, comparison)
        assert ran.code == 0 or fails(ran)


@pytest.mark.parametrize("odd", ODD)
@pytest.mark.parametrize("name", [*FILES, *DIRECTORIES, *INNER])
def test_report_skips_what_is_not_a_run(
    name: str, odd: str, originals: Path, outside: Path, tmp_path: Path, cli: Callable[..., Ran]
) -> None:
    comparison = copy_of(originals, "finished", tmp_path)
    plant(comparison / FIRST, name, odd, outside)
    needed = ("config.json", "metrics.jsonl", "summary.json", "report.html", "predictions")
    alone = call(cli, "report of the run", comparison)
    if name.startswith(needed):
        assert name in fails(alone)
    else:
        assert (alone.code, alone.err) == (0, "")
    whole = call(cli, "report", comparison)
    assert whole.code == 0, whole.err
    assert (comparison / "report.html").is_file()
    assert (comparison / SECOND / "report.html").is_file()
    if name.startswith(needed):
        (line,) = whole.err.splitlines()
        assert line.startswith("equipoise: skipped ")
        assert f"{FIRST}" in line
        assert name in line
    else:
        assert whole.err == ""


@pytest.mark.parametrize("name", ["compare.json", "compare.csv", "compare.tex", "report.html"])
@pytest.mark.parametrize("odd", ODD)
def test_compare_rejects_files_that_are_not_its_own(
    name: str, odd: str, originals: Path, outside: Path, tmp_path: Path, cli: Callable[..., Ran]
) -> None:
    comparison = copy_of(originals, "stopped", tmp_path)
    (outside.parent / "precious").write_text("mine")
    remove(comparison / name)
    ODD[odd](comparison / name, outside.parent / "precious")
    before = snapshot(comparison / FIRST)
    assert name in fails(call(cli, "compare", comparison))
    assert snapshot(comparison / FIRST) == before  # before anything is trained
    assert (outside.parent / "precious").read_text() == "mine"


@pytest.mark.parametrize("level", ["wa", "wa/steps-5_5", "wa/steps-5_5/seed-0"])
@pytest.mark.parametrize("odd", ODD)
def test_compare_follows_no_link_to_a_run(
    level: str, odd: str, originals: Path, outside: Path, tmp_path: Path, cli: Callable[..., Ran]
) -> None:
    comparison = copy_of(originals, "stopped", tmp_path)
    elsewhere = tmp_path / "elsewhere"
    shutil.copytree(comparison / level, elsewhere)
    before = snapshot(elsewhere)
    remove(comparison / level)
    ODD[odd](comparison / level, elsewhere)
    assert level in fails(call(cli, "compare", comparison))
    assert snapshot(elsewhere) == before
    ran = call(cli, "report", comparison)
    assert ran.code == 0 or fails(ran)
    assert snapshot(elsewhere) == before


def test_leftovers_that_are_links_are_removed_and_not_followed(
    originals: Path, outside: Path, tmp_path: Path, cli: Callable[..., Ran]
) -> None:
    comparison = copy_of(originals, "stopped", tmp_path)
    checkpoint = comparison / FIRST / "checkpoint"
    leftovers = [
        checkpoint / ".0123.tmp",
        checkpoint / "step" / ".4567.tmp",
        checkpoint / "step-7.safetensors",
        checkpoint / "step" / "stage-0-epoch-9.safetensors",
    ]
    for leftover in leftovers:
        leftover.symlink_to(outside / "config.json")
    (checkpoint / "tree").symlink_to(outside)
    assert call(cli, "run", comparison).code == 0
    assert not any(os.path.lexists(leftover) for leftover in leftovers)
    assert (checkpoint / "tree").is_symlink()


# ---- contents


NESTED = '{"format": 2, "settings": {"data": ' + '{"a": ' * 400 + "1" + "}" * 400 + "}}"


@pytest.mark.parametrize(
    "content",
    ["", "{", "[]", "null", "3", "NaN", '{"format": 2, "settings": []}', '{"settings": {}}', NESTED, "[" * 100_000],
)
@pytest.mark.parametrize("command", COMMANDS)
def test_config_json_that_is_damaged(
    content: str, command: str, originals: Path, tmp_path: Path, cli: Callable[..., Ran]
) -> None:
    comparison = copy_of(originals, "stopped" if command in ("run", "compare") else "finished", tmp_path)
    (comparison / FIRST / "config.json").write_text(content)
    check_rejected(call(cli, command, comparison), command)


def check_rejected(ran: Ran, command: str) -> str:
    """Assert that a command fails, or that a report of a comparison skips the run; return the sentence."""
    if command != "report":
        return fails(ran)
    assert ran.code == 0, ran.err
    (line,) = ran.err.splitlines()
    assert line.startswith(f"equipoise: skipped {FIRST}: ")
    return line


@pytest.mark.parametrize(
    ("section", "value"),
    [
        (None, {}),
        ("method", ["wa"]),
        ("method", "a\nb\x1b[31m"),
        ("dataset", {"a": 1}),
        ("dataset", "two\nlines\x1b[31m"),
        ("seed", "0"),
        ("fields", "text"),
        ("fields", [1]),
        ("fields", {"norm": "two"}),
        ("fields", {"a\nb": 1}),
        ("memory", 3),
        ("memory", {"size": None}),
        ("stream", [["steps", 5]]),
        ("train", {"epochs": {}}),
        ("train", None),
        ("runtime", ["precision"]),
        ("runtime", {"precision": 7}),
        ("net", {"weights": 3}),
        ("data", {"a\nb": "c\nd"}),
        ("unknown", 1),
    ],
)
@pytest.mark.parametrize("command", ["run", "report"])
def test_settings_of_a_wrong_type(
    section: str | None, value: Any, command: str, originals: Path, tmp_path: Path, cli: Callable[..., Ran]
) -> None:
    """`run` rejects all of them; a report may show those that it does not need."""
    comparison = copy_of(originals, "finished", tmp_path)
    file = comparison / FIRST / "config.json"
    config = json.loads(file.read_text())
    config["settings"] = value if section is None else config["settings"] | {section: value}
    file.write_text(json.dumps(config))
    ran = call(cli, command, comparison)
    if command == "run":
        assert fails(ran).isprintable()
    else:
        assert ran.code == 0, ran.err
        assert all(line.startswith(f"equipoise: skipped {FIRST}: ") for line in ran.err.splitlines())
        assert len(ran.err.splitlines()) <= 1
        assert ran.err.rstrip("\n").isprintable()


@pytest.mark.parametrize("command", COMMANDS)
def test_a_run_of_a_newer_version(command: str, originals: Path, tmp_path: Path, cli: Callable[..., Ran]) -> None:
    comparison = copy_of(originals, "finished", tmp_path)
    file = comparison / FIRST / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"format": 3}))
    before = snapshot(comparison / FIRST)
    sentence = check_rejected(call(cli, command, comparison), command)
    assert "format 3, but this version of equipoise reads up to 2: update equipoise" in sentence
    assert snapshot(comparison / FIRST) == before


@pytest.mark.parametrize(
    "change",
    [
        {"state": "../../x"},
        {"state": "/etc/passwd"},
        {"state": "step"},
        {"state": "step/../../config.json"},
        {"state": ""},
        {"state": 3},
        {"state": None},
        {"state": "step-1.safetensors\n"},
        {"steps": -1},
        {"steps": "1"},
        {"steps": 10**400},
        {"steps": 0},
        {"steps": 3},
        {"format": 3},
        {"format": "two"},
        {"data": 5},
        {"data": "another"},
        {"memory": {"0": [1]}},
        {"memory": [[0, [10**30]]]},
        {"memory": [[0, [10**6]]]},
        {"memory": [[0, [-1]]]},
        {"memory": [[99, [1]]]},
        {"memory": [["a", [1]]]},
    ],
)
def test_a_manifest_that_was_changed(
    change: dict[str, Any], originals: Path, outside: Path, tmp_path: Path, cli: Callable[..., Ran]
) -> None:
    comparison = copy_of(originals, "stopped", tmp_path)
    (comparison / FIRST.parent / "x").write_text("not a state")
    checkpoint = comparison / FIRST / "checkpoint"
    manifest = json.loads((checkpoint / "manifest.json").read_text())
    (checkpoint / "manifest.json").write_text(json.dumps(manifest | change))
    before = snapshot(checkpoint)
    sentence = fails(call(cli, "run", comparison))
    assert sentence.isprintable()
    if change == {"format": 3}:
        assert "update equipoise" in sentence
    assert snapshot(checkpoint) == before  # nothing is deleted because of it


@pytest.mark.parametrize(
    "content",
    [
        "[]",
        '{"stages": 3}',
        '{"of": "step 2", "stages": [{"file": "../../../config.json", "epochs": 1, "seconds": 1}]}',
        '{"of": "step 2", "stages": [{"file": "/etc/passwd", "epochs": 1, "seconds": 1}]}',
        '{"of": "step 2", "stages": [{"file": "stages.json", "epochs": 1, "seconds": 1}]}',
        '{"of": "step 2", "stages": [{"file": "stage-0-epoch-7.safetensors", "epochs": 1, "seconds": 1}]}',
        '{"of": "step 2", "stages": [{"file": "stage-0-epoch-1.safetensors", "epochs": "1", "seconds": 1}]}',
        '{"of": "step 2", "stages": [{"file": "stage-0-epoch-1.safetensors", "epochs": 1, "seconds": NaN}]}',
        '{"of": "step 1", "stages": [{"file": "../x", "epochs": 1, "seconds": 1}]}',
    ],
)
def test_a_list_of_stages_that_was_changed(
    content: str, originals: Path, outside: Path, tmp_path: Path, cli: Callable[..., Ran]
) -> None:
    comparison = copy_of(originals, "stopped", tmp_path)
    step = comparison / FIRST / "checkpoint" / "step"
    (step / "stages.json").write_text(content)
    assert str(step) in fails(call(cli, "run", comparison))
    assert (step / "stages.json").read_text() == content


@pytest.mark.parametrize("tensors", [{}, {"method.head.weight": 3}, {"optimizer.0.momentum_buffer": 3}, {"a.b": 3}])
@pytest.mark.parametrize("file", ["step-1.safetensors", "step/stage-0-epoch-1.safetensors"])
def test_tensors_of_another_network(
    tensors: dict[str, int], file: str, originals: Path, tmp_path: Path, cli: Callable[..., Ran]
) -> None:
    comparison = copy_of(originals, "stopped", tmp_path)
    directory = Directory(comparison / FIRST / "checkpoint")
    write_tensors(directory, file, {name: torch.zeros(size) for name, size in tensors.items()})
    assert "damaged" in fails(call(cli, "run", comparison))


# ---- progress of runs in other processes


@pytest.mark.parametrize("odd", ODD)
@pytest.mark.parametrize("name", [*FILES, *DIRECTORIES, *INNER])
def test_the_monitor_of_other_processes_survives_everything(
    name: str, odd: str, originals: Path, outside: Path, tmp_path: Path
) -> None:
    comparison = copy_of(originals, "stopped", tmp_path)
    plant(comparison / FIRST, name, odd, outside)
    (cell,) = plan("digits", ["wa"], [0], overrides=SETTINGS)
    job = Job(cell.name, cell.settings, comparison / FIRST)
    (status,), _ = remote.RunMonitor([job]).look([job])
    assert 0 <= status.fraction <= 1


@pytest.mark.parametrize("config", ["[]", "{}", '{"sizes": []}', '{"sizes": 3}', '{"sizes": "abc"}', '{"sizes": [5]}'])
def test_the_monitor_survives_any_content(config: str, originals: Path, tmp_path: Path) -> None:
    comparison = copy_of(originals, "stopped", tmp_path)
    (comparison / FIRST / "config.json").write_text(config)
    (comparison / FIRST / "metrics.jsonl").write_text("\n" * 9)
    (cell,) = plan("digits", ["wa"], [0], overrides=SETTINGS)
    job = Job(cell.name, cell.settings, comparison / FIRST)
    (status,), left = remote.RunMonitor([job]).look([job])
    assert 0 <= status.fraction <= 1
    assert left is None or left >= 0


@pytest.mark.parametrize("odd", ODD)
def test_a_lock_that_is_no_file_is_not_waited_for(
    odd: str, originals: Path, outside: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    comparison = copy_of(originals, "stopped", tmp_path)
    plant(comparison / FIRST, ".lock", odd, outside)
    (cell,) = plan("digits", ["wa"], [0], overrides=SETTINGS)
    order = remote.RunOrder(Job(cell.name, cell.settings, comparison / FIRST), None, 1, 0, "")
    monkeypatch.setattr("time.sleep", lambda seconds: pytest.fail("it waits"))
    assert ".lock is " in str(remote.execute_order(order))
