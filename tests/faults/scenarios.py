"""Commands that are interrupted, and the directories that they start from."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tests.folders import glyph_folder


@dataclass(frozen=True)
class Scenario:
    """A command, the directory it starts from, and a command that comes after it.

    Parameters
    ----------
    base
        Name of the directory to start from, see ``make_bases``.
    command
        Its words; ``@`` is the directory of the trial. ``job`` is what a job of `equipoise serve` does: its kind, the
        model, and photos to learn.
    after
        A command that follows, and cleans up what an interrupted one left behind.
    """

    base: str
    command: tuple[str, ...]
    after: tuple[str, ...] = ("rename", "@/model", "A", "renamed")

    @property
    def is_model(self) -> bool:
        return self.base != "empty" or self.command[0] == "learn"


_TRAINED = ("--method", "wa", "--backbone", "tiny", "--image-size", "24", "--epochs", "2", "--threads", "1")
_DIGITS = ("--steps", "2", "--epochs", "1", "--threads", "1", "--backbone", "tiny", "--memory", "20", "--quiet")

SCENARIOS = {
    "create": Scenario("empty", ("learn", "@/model", "@/one", "--keep", "thumbnails")),
    "learn": Scenario("pretrained", ("learn", "@/model", "@/three")),
    "extend": Scenario("pretrained", ("learn", "@/model", "@/more", "--extend")),
    "train first": Scenario("empty", ("learn", "@/model", "@/one", *_TRAINED)),
    "train": Scenario("trained", ("learn", "@/model", "@/two", "--epochs", "2", "--threads", "1")),
    "undo": Scenario("pretrained", ("undo", "@/model")),
    "forget": Scenario("pretrained", ("forget", "@/model", "B")),
    "forget trained": Scenario("trained", ("forget", "@/model", "B")),
    "rename": Scenario("pretrained", ("rename", "@/model", "B", "other")),
    "merge": Scenario("pretrained", ("merge", "@/model", "B", "C")),
    "merge trained": Scenario("trained", ("merge", "@/model", "B", "C")),
    "move": Scenario("pretrained", ("move", "@/model", "@/one/B/000.png", "C")),
    "copy": Scenario("trained", ("export", "@/model", "@/copy"), ("rename", "@/copy", "A", "renamed")),
    "onnx": Scenario("trained", ("export", "@/model", "@/model.onnx")),
    "job": Scenario("pretrained", ("job", "learn", "@/model", "@/three/F")),
    "start again": Scenario("pretrained", ("job", "start_again", "@/model"), ("learn", "@/model", "@/three")),
    "start again trained": Scenario("trained", ("job", "start_again", "@/model"), ("learn", "@/model", "@/three")),
    "run": Scenario("empty", ("run", "digits", "--method", "wa", *_DIGITS, "--out", "@/run"), ()),
    "compare": Scenario("empty", ("compare", "digits", "--methods", "ce,wa", *_DIGITS, "--out", "@/runs"), ()),
}


def make_bases(root: Path, run: Callable[..., int]) -> None:
    """Make the directories that scenarios start from."""
    photos = root / "photos"
    for name, classes in {"one": range(3), "two": range(3, 5), "three": range(5, 6)}.items():
        glyph_folder(photos / name, classes, 6)
    glyph_folder(photos / "more", range(1), 4, start=6)
    for base in ("empty", "pretrained", "trained"):
        shutil.copytree(photos, root / base)
    made = [
        run("learn", root / "pretrained/model", photos / "one"),
        run("learn", root / "pretrained/model", photos / "two"),
        run("learn", root / "trained/model", photos / "one", *_TRAINED),
    ]
    if any(made):
        raise RuntimeError("cannot make the models to start from")
