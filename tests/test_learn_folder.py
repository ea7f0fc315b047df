"""Learning folders of images: steps, known classes, interruptions, and settings that cannot be changed."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import equipoise as eq
from equipoise.app.learn import LearnListener, LearnOptions, learn_folder
from equipoise.app.model_dir import ModelDir
from equipoise.app.step_plan import auto_budget, split_holdout
from equipoise.data.images import Images
from equipoise.engine.results import ErrorCounts, Label, StepResult
from equipoise.engine.step import unfairness
from equipoise.errors import DataError, RunError, UsageError
from tests.folders import glyph_folder, tree
from tests.models import QUICK, StopAfter, images_of, learn, probabilities, unlabelled

# ---- steps


def test_each_call_is_a_step_with_its_accuracy(two_steps: Path) -> None:
    first, second = ModelDir(two_steps).steps()
    assert [first.classes, second.classes] == [["A", "B", "C"], ["D", "E", "F"]]
    assert (first.held_out, second.held_out) == (12, 12)
    assert (first.images, second.images) == (36, 36)
    assert first.accuracy == first.accuracy_new
    assert first.accuracy is not None
    assert first.accuracy > 60
    assert first.accuracy_old is None
    assert second.gamma is not None
    assert 0 < second.gamma <= 1
    assert (second.total_old, second.total_new) == (12, 12)
    correct = sum(result.correct or 0 for result in second.per_class)
    assert second.accuracy == pytest.approx(100 * correct / 24)
    errors = second.errors
    assert (errors.e_n + errors.e_o, errors.e_o) == (24 - correct, errors.e_on + errors.e_oo)
    assert second.accuracy is not None
    assert second.accuracy > 40  # chance is 17


def test_the_accuracy_is_that_of_the_stored_weights_on_the_stored_images(two_steps: Path) -> None:
    """Compute it from the files alone: the pictures in holdout/ and the weights."""
    model, correct, total = ModelDir(two_steps).load(), 0, 0
    for index, name in enumerate(model.classes):
        files = sorted((two_steps / "holdout" / str(name)).iterdir())
        pixels = torch.stack([torch.from_numpy(np.array(Image.open(file))).permute(2, 0, 1) for file in files])
        correct += int((model.probabilities(unlabelled(pixels)).argmax(1) == index).sum())
        total += len(files)
    assert total == 24
    assert model.steps[-1].accuracy == pytest.approx(100 * correct / total)


def test_held_out_images_are_never_exemplars(two_steps: Path) -> None:
    held_out = {file.stem for file in (two_steps / "holdout").rglob("*.png")}
    exemplars = {file.stem for file in (two_steps / "memory").rglob("*.png")}
    assert len(held_out) == 24
    assert held_out.isdisjoint(exemplars)


def test_a_known_class_is_rejected_unless_it_is_extended(model_path: Path, tmp_path: Path) -> None:
    again = glyph_folder(tmp_path / "again", [0, 6], test=True)
    before = tree(model_path)
    with pytest.raises(UsageError, match=r"class 'A' is already known \(learned in step 1\): pass --extend"):
        learn(model_path, again)
    assert tree(model_path) == before
    exemplars = len(images_of(model_path).memory[0])
    result = learn(model_path, again, extend=True)
    assert (result.classes, result.extended) == (["G"], ["A"])
    assert result.images == 6 + 8 + exemplars  # new images of both, and the exemplars of A
    assert ModelDir(model_path).load().classes == ["B", "C", "D", "E", "F", "G", "A"]
    assert len(list((model_path / "holdout" / "A").iterdir())) == 4  # new images may have been trained on before
    assert result.accuracy is not None
    assert result.accuracy > 50


def test_all_classes_can_be_extended_at_once(model_path: Path, tmp_path: Path) -> None:
    before = ModelDir(model_path).load().method.backbone.state_dict()
    more = glyph_folder(tmp_path / "more", range(6), test=True)
    result = learn(model_path, more, extend=True, epochs=1, overrides={"train": {"lr": 1e-8}})
    assert result.extended == list("ABCDEF")
    after = ModelDir(model_path).load().method.backbone.state_dict()
    torch.testing.assert_close(after["convs.0.weight"], before["convs.0.weight"], atol=1e-4, rtol=0)


def test_known_images_are_not_learned_twice(model_path: Path, glyph_steps: list[Path], tmp_path: Path) -> None:
    """Otherwise a held-out image could be trained on, or an image could get two labels."""
    mixed = glyph_folder(tmp_path / "mixed", [6])
    shutil.copytree(glyph_steps[0] / "A", mixed / "A")
    shutil.copy(next((glyph_steps[0] / "B").iterdir()), mixed / "G" / "stray.png")
    with pytest.raises(DataError, match="the model already has this image"):
        learn(model_path, mixed, extend=True, strict=True)
    images = images_of(model_path)
    known = len(images.memory[0]) + len(images.holdout[0])
    result = learn(model_path, mixed, extend=True, epochs=1)
    assert result.skipped_files == known + 1
    assert result.classes == ["G"]


def test_numeric_labels_stay_numeric(tmp_path: Path, glyph_steps: list[Path]) -> None:
    files = sorted(glyph_steps[0].rglob("*.png"))
    clf = eq.IncrementalClassifier(epochs=1, image_size=24, settings={"net": {"backbone": "tiny"}})
    clf.fit(files, [1] * 24 + [2] * 24).save(tmp_path / "m")
    with pytest.raises(UsageError, match="this model has labels such as 1, but the folder is called 'D'"):
        learn_folder(ModelDir(tmp_path / "m"), glyph_steps[1], LearnOptions(epochs=1))
    shutil.copytree(glyph_steps[1] / "D", tmp_path / "numbers" / "7")
    learn_folder(ModelDir(tmp_path / "m"), tmp_path / "numbers", LearnOptions(epochs=1))
    again = eq.load(tmp_path / "m")
    assert again.classes_.tolist() == [1, 2, 7]
    assert again.predict(files[:2]).dtype.kind == "i"


# ---- interruptions


@pytest.mark.parametrize("step", [1, 2])
def test_an_interrupted_step_changes_nothing_and_continues(step: int, glyph_steps: list[Path], tmp_path: Path) -> None:
    whole, interrupted = tmp_path / "whole", tmp_path / "interrupted"
    for place in (whole, interrupted):
        for earlier in range(step - 1):
            learn(place, glyph_steps[earlier], epochs=2)
    before = tree(interrupted)
    with pytest.raises(KeyboardInterrupt):
        learn(interrupted, glyph_steps[step - 1], StopAfter(3), epochs=5)
    after = tree(interrupted)
    assert {file: data for file, data in after.items() if not file.startswith(".step")} == before
    assert any(file.startswith(".step") for file in after)
    count = StopAfter()
    learn(interrupted, glyph_steps[step - 1], count, epochs=5)
    assert count.done == 2  # three of five epochs were saved
    learn(whole, glyph_steps[step - 1], epochs=5)
    assert (interrupted / "model.safetensors").read_bytes() == (whole / "model.safetensors").read_bytes()
    assert not (interrupted / ".step").exists()


def test_another_step_than_the_interrupted_one_starts_from_scratch(glyph_steps: list[Path], tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        learn(tmp_path / "m", glyph_steps[0], StopAfter(3), epochs=5)
    count = StopAfter()
    learn(tmp_path / "m", glyph_steps[1], count, epochs=5)
    assert count.done == 5


def test_dropping_an_interrupted_step_is_reported(model_path: Path, glyph_steps: list[Path], tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        learn(model_path, glyph_steps[2], StopAfter(1), epochs=3)
    notes = []

    class Notes(LearnListener):
        def note(self, text: str) -> None:
            notes.append(text)

    learn(model_path, glyph_folder(tmp_path / "other", [9]), Notes(), epochs=1)
    assert notes == ["the checkpoint of another interrupted step was deleted"]


def test_what_a_killed_first_commit_leaves_behind_is_no_obstacle(glyph_steps: list[Path], tmp_path: Path) -> None:
    place = tmp_path / "m"
    with pytest.raises(KeyboardInterrupt):
        learn(place, glyph_steps[0], StopAfter(2), epochs=2)
    (place / "versions" / "0001-00000000").mkdir(parents=True)
    (place / ".config.json.123.tmp").touch()
    count = StopAfter()
    learn(place, glyph_steps[0], count, epochs=2)
    assert count.done == 0  # both epochs were saved
    assert not list(place.rglob("*.tmp"))
    assert len(list((place / "versions").iterdir())) == 1


def test_sigkill_loses_nothing(glyph_steps: list[Path], tmp_path: Path) -> None:
    """Kill a real process while it learns, then run the same command again."""
    command = [sys.executable, "-m", "equipoise", "learn", str(tmp_path / "m"), str(glyph_steps[0]), "--epochs", "30"]
    command += ["--image-size", "24", "--backbone", "tiny", "--threads", "1", "--set", "augment.flip=false"]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 60
    while not (tmp_path / "m" / ".step" / "stages.json").exists() and time.monotonic() < deadline:
        time.sleep(0.02)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    assert not ModelDir(tmp_path / "m").exists
    with pytest.raises(UsageError, match="holds no model yet, only an interrupted first step"):
        ModelDir(tmp_path / "m").load()
    again = subprocess.run(command, capture_output=True, text=True)
    assert again.returncode == 0, again.stderr
    assert "of an interrupted step" in again.stdout
    assert ModelDir(tmp_path / "m").load().classes == ["A", "B", "C"]


# ---- what is rejected


def test_a_damaged_exemplar_is_named(model_path: Path, glyph_steps: list[Path]) -> None:
    victim = next((model_path / "memory" / "A").iterdir())
    Image.new("RGB", (24, 24)).save(victim)
    with pytest.raises(RunError, match=r"the stored image .*\.png is damaged"):
        learn(model_path, glyph_steps[2])


def test_a_directory_with_something_else_is_rejected(tmp_path: Path, glyph_steps: list[Path]) -> None:
    (tmp_path / "thesis.doc").touch()
    with pytest.raises(UsageError, match=r"holds thesis\.doc but no model"):
        learn(tmp_path, glyph_steps[0])
    with pytest.raises(UsageError, match="is not a directory"):
        learn(tmp_path / "thesis.doc", glyph_steps[0])
    (tmp_path / "thesis" / "versions" / "draft-3").mkdir(parents=True)
    with pytest.raises(UsageError, match="thesis holds versions but no model"):
        learn(tmp_path / "thesis", glyph_steps[0])
    with pytest.raises(UsageError, match="does not exist: create a model with `equipoise learn"):
        ModelDir(tmp_path / "none").load()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"method": "bic"}, r"--method bic conflicts with this model \(wa\)"),
        ({"backbone": "resnet18"}, r"--backbone resnet18 conflicts with this model \(tiny\)"),
        ({"image_size": 32}, r"--image-size 32 conflicts with this model \(24\)"),
        ({"weights": Path("x")}, "--weights applies only when a model is created"),
        ({"overrides": {"fields": {"norm": 1}}}, "method.norm is fixed when a model is created"),
        ({"overrides": {"runtime": {"precision": "bf16"}}}, r"runtime.precision=bf16 conflicts with this model \(32\)"),
        ({"memory": 5}, "a memory of 5 exemplars is too small for 9 classes"),
        ({"holdout": 1.0}, "holdout must be a fraction from 0 to below 1, got 1.0"),
    ],
)
def test_settings_that_a_model_cannot_change_are_rejected(
    options: Any, message: str, model_path: Path, glyph_steps: list[Path]
) -> None:
    before = tree(model_path)
    with pytest.raises(UsageError, match=message):
        learn(model_path, glyph_steps[2], **options)
    assert tree(model_path) == before


@pytest.mark.parametrize(
    ("section", "name", "value", "message"),
    [
        ("data", "size", "128px", "data.size must be a whole number, got '128px'"),
        ("data", "siez", 128, "siez"),
        ("data", "test_fraction", 0.5, "data.test_fraction is only for experiments and has no effect on a model"),
        ("net", "backbone", 5, "net.backbone must be a string, got 5"),
        ("stream", "steps", 5, "stream.steps is only for experiments"),
        ("runtime", "devices", 4, "runtime.devices is only for experiments"),
    ],
)
def test_settings_without_effect_are_rejected(
    section: str, name: str, value: Any, message: str, glyph_steps: list[Path], tmp_path: Path
) -> None:
    overrides = QUICK | {section: QUICK.get(section, {}) | {name: value}}
    with pytest.raises(UsageError, match=message):
        learn_folder(ModelDir(tmp_path / "m"), glyph_steps[0], LearnOptions(epochs=1, overrides=overrides))


def test_methods_that_need_more_images_than_a_model_keeps_are_rejected(glyph_steps: list[Path], tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="joint trains on all images"):
        learn(tmp_path / "m", glyph_steps[0], method="joint")
    with pytest.raises(UsageError, match="icarl classifies with its exemplars, but the memory size is 0"):
        learn(tmp_path / "m", glyph_steps[0], method="icarl", memory=0)


# ---- parts of a step


def test_a_fraction_of_each_class_is_held_out_but_nothing_of_the_smallest() -> None:
    images = Images.of(torch.zeros(30, 1, 8, 8, dtype=torch.uint8), torch.zeros(30, dtype=torch.long))
    new: dict[Label, Images] = {n: images.select(torch.arange(n)) for n in (1, 3, 4, 10, 30)}
    train, held_out = split_holdout(new, 0.1, seed=0)
    assert {n: len(images) for n, images in held_out.items()} == {1: 0, 3: 0, 4: 1, 10: 1, 30: 3}
    for n, all_ in new.items():
        assert sorted([*train[n].rows.tolist(), *held_out[n].rows.tolist()]) == all_.rows.tolist()
    assert all(len(images) == 0 for images in split_holdout(new, 0.0, seed=0)[1].values())


def test_epochs_follow_from_the_number_of_images() -> None:
    epochs = [auto_budget(images, features=False)["epochs"] for images in (1, 100, 1000, 10_000, 10**6)]
    assert epochs == sorted(epochs, reverse=True)
    assert (epochs[0], epochs[-1]) == (120, 20)


@pytest.mark.parametrize(
    ("e_on", "e_no", "total_old", "total_new", "favoured"),
    [
        (0, 0, 50, 50, None),
        (30, 2, 50, 50, "new"),
        (2, 30, 50, 50, "old"),
        (12, 10, 50, 50, None),
        (4, 0, 1000, 1000, None),  # too few of so many
        (3, 0, 5, 5, None),  # could be chance
        (30, 2, 0, 50, None),  # there are no old classes yet
    ],
)
def test_a_warning_needs_more_than_chance(
    e_on: int, e_no: int, total_old: int, total_new: int, favoured: str | None
) -> None:
    errors = ErrorCounts(e_on=e_on, e_no=e_no)
    warning = unfairness(StepResult(step=2, seen=2, new=1, total_old=total_old, total_new=total_new, errors=errors))
    assert warning is None if favoured is None else warning is not None and f"favours {favoured} classes" in warning
    if favoured == "new":
        assert "for 78 % of the evaluated images, but only 50 % belong to them (30 old images" in str(warning)


def test_dropping_classes_keeps_exemplars_and_held_out_images_together(model_path: Path) -> None:
    model = ModelDir(model_path).load(images=True)

    def rows() -> dict[Label, tuple[list[int], list[int]]]:
        parts = model.images_by_class().items()
        return {name: (kept.rows.tolist(), held_out.rows.tolist()) for name, (kept, held_out) in parts}

    before = rows()
    model.drop(["A", "D"])
    assert model.classes == list("BCEF")
    assert rows() == {name: before[name] for name in "BCEF"}
    assert model.method.steps == [2, 2]


def test_a_copy_can_change_without_the_original(model_path: Path) -> None:
    model = ModelDir(model_path).load(images=True)
    before = probabilities(model)
    model.copy().drop(["A"])
    assert model.classes == list("ABCDEF")
    assert torch.equal(probabilities(model), before)
    assert "A" in model.images_by_class()
