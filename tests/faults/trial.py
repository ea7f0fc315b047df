"""One interrupted command: start it, interrupt it, look at what is left, go on, and compare with an undisturbed one."""

from __future__ import annotations

import importlib
import json
import os
import shutil
import signal
import sys
import traceback
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

import torch

from equipoise.app.model_dir import ModelDir
from equipoise.errors import EquipoiseError
from tests.faults.inject import Injector
from tests.faults.scenarios import Scenario

VOLATILE = {"seconds", "seconds_by_part", "images_per_second", "memory_peak_mb", "finished", "commit", "command"}
"""Keys of JSON objects that differ each time."""
UNCOMPARED = (".lock", "README.md", "report.html", "compare.json", "compare.csv", "compare.tex", "model.onnx")
"""Files that hold times or paths: only whether they exist is compared."""


class FaultError(AssertionError):
    """An interruption that did harm."""


@dataclass(frozen=True)
class Reference:
    """What a scenario does when nothing interrupts it."""

    changes: list[str]
    """What it does to the file system, in order."""
    before: str | None
    """The version that it starts from."""
    done: str | None
    """The version after the command."""
    tree: dict[str, str]
    """Files after the command that follows, with digests of their content."""


def in_child(action: Callable[[], int], output: Path) -> int:
    """Run in a process of its own; return its exit code, or minus the signal that ended it."""
    child = os.fork()
    if not child:
        code = 99
        try:
            with output.open("wb", buffering=0) as file:
                os.dup2(file.fileno(), 1)
                os.dup2(file.fileno(), 2)
            torch.set_num_threads(1)  # makes torch's thread pool anew after fork; two threads that do it fail at times
            code = action()
        except BaseException:  # the child must not go on as the parent does
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def run_command(*words: object) -> int:
    """Run a command of equipoise in this process."""
    from equipoise.cli import main

    if words[0] == "job":
        return run_job(str(words[1]), *(Path(str(word)) for word in words[2:]))
    try:
        main([str(word) for word in words])
    except SystemExit as ended:
        return int(ended.code or 0)
    return 0


def run_job(kind: str, model: Path, photos: Path | None = None) -> int:
    """Do what a job of `equipoise serve` does; a class of photos is learned."""
    from equipoise.serve.tasks import run_task

    task: dict[str, Any] = {"kind": kind}
    if photos is not None:
        task |= {"classes": {photos.name: sorted(map(str, photos.iterdir()))}, "extend": False}
    try:
        run_task(ModelDir(model), task, model.parent, lambda message: None)
    except (EquipoiseError, OSError) as error:  # as the worker does
        print(error)
        return 2
    return 0


class Trials:
    """Trials of one scenario."""

    def __init__(self, scenario: Scenario, bases: Path, room: Path) -> None:
        self.scenario, self.base, self.room = scenario, bases / scenario.base, room
        self.output = room / "output.txt"
        self.reference = self._undisturbed()

    def _undisturbed(self) -> Reference:
        place = self._fresh()
        before = version_of(place)
        self._check_code(in_child(lambda: self._command(place, 0, "kill", self.room / "changes.json"), self.output))
        import_all(json.loads((self.room / "changes.json").read_text())["modules"])
        place = self._fresh()  # again: importing may write files, and trials do not import
        self._check_code(in_child(lambda: self._command(place, 0, "kill", self.room / "changes.json"), self.output))
        changes = json.loads((self.room / "changes.json").read_text())["changes"]
        done = version_of(place)
        self._check_code(in_child(lambda: self._recover(place, None, True), self.output))
        return Reference(changes, before, done, tree_of(place))

    def interrupt(self, at: int, fault: str) -> str:
        """Interrupt the command at its n-th change, and check that nothing is lost; return what was seen."""
        place = self._fresh()
        code = in_child(lambda: self._command(place, at, fault), self.output)
        text = self.output.read_text(errors="replace")
        if code not in ((-signal.SIGKILL,) if fault == "kill" else (0, 2)) or "Traceback" in text:
            raise FaultError(f"exit code {code}:\n{text}")
        seen = version_of(place) if self.scenario.is_model else None
        if seen not in (self.reference.before, self.reference.done):
            raise FaultError(f"neither the old version nor the new one: {seen}")
        complete = self._complete(place, seen)
        self._check_code(in_child(lambda: self._recover(place, seen, complete), self.output))
        if difference := differing(tree_of(place), self.reference.tree):
            what = f"{len(difference)} other files than without the interruption"
            raise FaultError(f"{what}: {', '.join(difference[:3])}")
        return "new" if complete else "old"

    def _recover(self, place: Path, seen: str | None, complete: bool) -> int:
        """Load the model, repeat the command unless it is complete, and run the next one."""
        if seen is not None:
            ModelDir(place / "model").load(images=True)
        commands = [*([] if complete else [self.scenario.command]), self.scenario.after]
        codes = [run_command(*self._words(place, words)) for words in commands if words]
        return max(codes, default=0)

    def _complete(self, place: Path, seen: str | None) -> bool:
        """Return whether the interrupted command had already done its work."""
        if self.reference.done != self.reference.before:
            return seen == self.reference.done
        made = place / self.scenario.command[-1].removeprefix("@/")
        return self.scenario.command[0] == "export" and (made.is_file() or (made / "config.json").exists())

    def _fresh(self) -> Path:
        place = self.room / "trial"
        shutil.rmtree(place, ignore_errors=True)
        shutil.copytree(self.base, place)
        return place

    def _words(self, place: Path, words: tuple[str, ...]) -> list[str]:
        return [str(place / word[2:]) if word.startswith("@/") else word for word in words]

    def _command(self, place: Path, at: int, fault: str, report: Path | None = None) -> int:
        injector = Injector(at, fault)
        injector.install()
        code = run_command(*self._words(place, self.scenario.command))
        if report is not None:
            done = {"changes": list(injector.events), "modules": list(sys.modules)}
            report.write_text(json.dumps(done))
        return code

    def _check_code(self, code: int) -> None:
        if code:
            raise FaultError(f"exit code {code}:\n{self.output.read_text(errors='replace')}")


def import_all(names: list[str]) -> None:
    """Import what a command needs, so that its trials, which are forked, need not do it each time."""
    for name in names:
        if name not in sys.modules:
            with suppress(Exception):  # some are made at run time
                importlib.import_module(name)


def version_of(place: Path) -> str | None:
    """Return the version of the model in a trial, None if there is none."""
    config = place / "model" / "config.json"
    return str(json.loads(config.read_text())["version"]) if config.exists() else None


def tree_of(place: Path) -> dict[str, str]:
    """Return a digest of each file, without what differs each time."""
    files = sorted(path for path in place.rglob("*") if not path.is_dir())
    return {path.relative_to(place).as_posix(): digest_of(path) for path in files}


def digest_of(path: Path) -> str:
    """Return a digest of what a file says."""
    if path.is_symlink() or path.name in UNCOMPARED:
        return "exists"
    data = path.read_bytes()
    if path.suffix in (".json", ".jsonl"):
        lines = [data] if path.suffix == ".json" else data.splitlines()
        data = json.dumps([steady(json.loads(line)) for line in lines]).encode()
    return sha256(data).hexdigest()[:16]


def steady(value: Any) -> Any:
    """Leave out what differs each time."""
    if isinstance(value, dict):
        return {key: steady(one) for key, one in value.items() if key not in VOLATILE}
    return [steady(one) for one in value] if isinstance(value, list) else value


def differing(found: dict[str, str], expected: dict[str, str]) -> list[str]:
    """Return the files that are missing, too many, or different."""
    return sorted(name for name in found | expected if found.get(name) != expected.get(name))
