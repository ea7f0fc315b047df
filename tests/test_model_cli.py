"""The commands for models: learn, history, inspect, card, evaluate, undo, forget."""

from __future__ import annotations

import io
import json
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from equipoise.app.inspection import inspect_model
from equipoise.app.model_dir import ModelDir
from equipoise.app.predict import MAX_LINE, expand_paths
from tests.conftest import Ran, interruptible
from tests.folders import glyph_folder

FIRST = ("--image-size", 24, "--backbone", "tiny", "--set", "augment.flip=false", "--memory", 60)
QUICK = ("--epochs", 40, "--holdout", 0.25, "--threads", 1, "--set", "train.batch_size=16")
Cli = Callable[..., Ran]


@pytest.fixture(autouse=True)
def _wide(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "120")


# ---- learn


def test_learn_shows_the_plan_and_the_result(cli: Cli, glyph_steps: list[Path], tmp_path: Path) -> None:
    place = tmp_path / "m"
    planned = cli("learn", place, glyph_steps[0], "--dry-run", *FIRST, *QUICK)
    assert planned.code == 0
    assert not place.exists()
    first = cli("learn", place, glyph_steps[0], *FIRST, *QUICK)
    assert first.code == 0, first.err
    for text in (
        "step 1: A, B, C",
        "learning from 36 images, 12 held out",
        "wa, tiny, 24 × 24 pixels, 40 epochs: about",
    ):
        assert text in planned.out
        assert text in first.out
    assert "% on 12 held-out images" in first.out
    second = cli("learn", place, glyph_steps[1], *QUICK)
    for text in ("step 2: D, E, F", "and 36 exemplars of 3 old classes", "before the correction", "old classes",
                 "γ", "predicted as new classes"):  # fmt: skip
        assert text in second.out, text
    rejected = cli("learn", place, glyph_steps[0], *QUICK)
    assert rejected.code == 2
    assert "class 'A' is already known (learned in step 1): pass --extend" in rejected.err


def test_learn_prints_one_json_object(cli: Cli, glyph_steps: list[Path], tmp_path: Path) -> None:
    shutil.copytree(glyph_steps[0], tmp_path / "pictures")
    (tmp_path / "pictures" / "A" / "notes.txt").touch()
    result = json.loads(cli("learn", tmp_path / "m", tmp_path / "pictures", "--json", *FIRST, *QUICK).out)
    assert result["classes"] == ["A", "B", "C"]
    reason = "not an image (.jpg, .jpeg, .png, .webp, .bmp, .gif, .tif, .tiff)"
    assert result["skipped"] == [{"path": "A/notes.txt", "reason": reason}]
    assert result["skipped_files"] == 1
    plan = json.loads(cli("learn", tmp_path / "m", glyph_steps[1], "--json", "--dry-run", *QUICK).out)
    assert (plan["classes"], plan["images"], plan["exemplars"]) == (["D", "E", "F"], 36, 36)
    assert plan["skipped"] == []


def test_ctrl_c_prints_how_to_continue(glyph_steps: list[Path], tmp_path: Path) -> None:
    command = [sys.executable, "-m", "equipoise", "learn", tmp_path / "m", glyph_steps[0], *FIRST, "--epochs", 10**6]
    pipe = subprocess.PIPE
    words = [str(word) for word in command]
    process = subprocess.Popen(words, stdout=pipe, stderr=pipe, text=True, preexec_fn=interruptible)
    deadline = time.monotonic() + 60
    while not (tmp_path / "m" / ".step" / "stages.json").exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=30)
    assert process.returncode == 130
    assert "the model is as it was before, run the same command to continue" in err
    assert "Traceback" not in err
    assert not ModelDir(tmp_path / "m").exists


def test_ctrl_c_after_the_commit_does_not_say_that_it_stopped(
    cli: Cli, model_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever reads "stopped" runs `undo` again, and loses another step."""
    tidy = ModelDir._tidy

    def interrupted(place: ModelDir) -> None:
        tidy(place)
        if len(place.config().classes) == 3:
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(ModelDir, "_tidy", interrupted)
    ran = cli("undo", model_path)
    assert ran.code == 0
    assert ran.out.startswith("undid step 2")


# ---- the other commands


def test_history_inspect_and_card_agree(cli: Cli, two_steps: Path) -> None:
    rows = json.loads(cli("history", two_steps, "--json").out)
    assert [(row["step"], row["classes"]) for row in rows] == [(1, ["A", "B", "C"]), (2, ["D", "E", "F"])]
    first, second = ModelDir(two_steps).steps()
    assert rows[0]["accuracy_then"] == pytest.approx(first.accuracy_new)
    assert rows[0]["accuracy_now"] == pytest.approx(second.accuracy_old)
    assert rows[1]["accuracy_now"] == pytest.approx(rows[1]["accuracy_then"])
    assert rows[1]["accuracy"] == pytest.approx(second.accuracy)
    shown = cli("history", two_steps).out
    for text in ("then", "now", "γ", "A, B, C", f"{first.accuracy_new:.1f} %", f"{second.gamma:.3f}"):
        assert text in shown
    facts = json.loads(cli("inspect", two_steps, "--json").out)
    assert facts["exemplars"] == sum(entry["exemplars"] for entry in facts["per_class"]) <= 60
    assert [entry["name"] for entry in facts["per_class"]] == list("ABCDEF")
    assert all(entry["norm"] > 0 for entry in facts["per_class"])
    assert sum(entry["correct"] for entry in facts["per_class"]) == round(24 * (second.accuracy or 0) / 100)
    assert facts["bytes"]["total"] > facts["bytes"]["versions"] > 0
    assert "exemplars (at most 60)" in cli("inspect", two_steps).out
    card = cli("card", two_steps).out
    assert "A classifier of 6 classes" in card
    assert f"**{second.accuracy:.1f} %** on 24 held-out images" in card
    assert card.strip() in (two_steps / "README.md").read_text()


def test_history_fits_a_narrow_terminal(cli: Cli, two_steps: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    shown = cli("history", two_steps).out
    assert "A, B, C" in shown
    assert max(map(len, shown.splitlines()[:6])) <= 80


@pytest.mark.usefixtures("switch_often")
def test_inspect_never_mixes_versions(model_path: Path) -> None:
    """Another thread learns and undoes a step meanwhile."""
    place = ModelDir(model_path)
    current = place.load(images=True)
    with place.writing():
        place.undo()
    stop, wrong = threading.Event(), []

    def reader() -> None:
        while not stop.is_set():
            facts = inspect_model(place)
            seen = len(facts["per_class"]), facts["exemplars"]
            if seen not in ((3, 36), (6, 60)):
                wrong.append(seen)

    thread = threading.Thread(target=reader)
    thread.start()
    for _ in range(10):
        with place.writing():
            place.commit(current)
            place.undo()
    stop.set()
    thread.join()
    assert not wrong


def test_evaluate_skips_unknown_classes(cli: Cli, two_steps: Path, tmp_path: Path) -> None:
    tests = glyph_folder(tmp_path / "test", range(6), test=True)
    shutil.copytree(tests / "A", tests / "stranger")
    ran = cli("evaluate", two_steps, tests)
    assert "stranger: the model does not know this class" in ran.out
    assert "% on 48 images" in ran.out
    facts = json.loads(cli("evaluate", two_steps, tests, "--json").out)
    assert [entry["total"] for entry in facts["per_class"]] == [8] * 6
    assert facts["accuracy"] == pytest.approx(100 * facts["correct"] / facts["total"])
    counts = [entry["images"] for entry in facts["confusions"]]  # the ten most frequent
    assert counts == sorted(counts, reverse=True)
    assert 0 < sum(counts) <= facts["total"] - facts["correct"]
    assert facts["skipped"] == [{"path": "stranger", "reason": "the model does not know this class"}]
    only = glyph_folder(tmp_path / "only", [9])
    assert "has no class that the model knows" in cli("evaluate", two_steps, only).err


def test_forget_prints_what_it_removed(cli: Cli, model_path: Path) -> None:
    forgotten = cli("forget", model_path, "B", "E")
    assert "forgot B, E" in forgotten.out
    assert "none of their images or names is left" in forgotten.out
    assert cli("undo", model_path).code == 2
    assert "forgot 2 classes" in cli("history", model_path).out
    assert "unknown class 'B'" in cli("forget", model_path, "B").err
    facts = json.loads(cli("forget", model_path, "C", "--json").out)
    assert facts["classes"] == ["C"]
    assert facts["images"] > 0
    assert facts["result"]["forgotten"] == 1


def test_undo_names_the_step(cli: Cli, model_path: Path) -> None:
    assert "undid step 2 (D, E, F); the model knows 3 classes" in cli("undo", model_path).out


def test_undo_prints_the_step_as_json(cli: Cli, model_path: Path) -> None:
    assert json.loads(cli("undo", model_path, "--json").out)["classes"] == ["D", "E", "F"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("predict", "nowhere", "x.png"), "nowhere does not exist: create a model with `equipoise learn MODEL FOLDER`"),
        (("predict", "nowhere", "x.png", "--json", "--csv"), "--json and --csv exclude each other"),
        (("history", "x" * 300), "does not exist"),
        (("history", "."), "holds no model"),
        (("learn", "m", "nowhere"), "nowhere is not a directory"),
        (("learn", "m", ".", "--epochs", "many"), "--epochs must be a whole number or auto, got 'many'"),
        (("learn", "m", ".", "--method", "wq"), "no class folders with images found"),
        (("export", "nowhere", "x.onnx"), "does not exist"),
        (("undo", "nowhere"), "does not exist"),
        (("forget", "nowhere", "A"), "does not exist"),
        (("predict", "nowhere"), "name at least one image"),
    ],
)
def test_an_error_is_one_sentence_and_exit_code_2(
    arguments: tuple[str, ...], message: str, cli: Cli, tmp_path: Path
) -> None:
    ran = cli(*arguments)
    assert ran.code == 2
    assert message in ran.err
    assert len(ran.err.splitlines()) == 1
    assert not (tmp_path / "nowhere").exists()


def test_a_full_disk_is_one_sentence(two_steps: Path) -> None:
    command = f"{sys.executable} -m equipoise card {two_steps} > /dev/full"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True)
    assert "Traceback" not in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert done.returncode == 1


@pytest.mark.parametrize("allocate", [lambda: torch.empty(2**50), lambda: bytes(2**60)])
def test_too_little_memory_is_one_sentence(
    allocate: Callable[[], Any], cli: Cli, two_steps: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ModelDir, "load", lambda *_, **__: allocate())
    ran = cli("predict", two_steps, "photo.png")
    assert ran.code == 2
    assert ran.err.startswith("equipoise: not enough memory: use smaller images")
    assert ran.err.count("\n") == 1


def test_a_path_in_the_standard_input_has_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"x" * (3 * MAX_LINE))))
    sources = list(expand_paths(["-"]))
    assert [len(name) for _, name in sources] == [16 + MAX_LINE, MAX_LINE, MAX_LINE - 16]
