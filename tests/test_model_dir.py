"""Model directories: undo, copies, several processes at once, crashes and damage."""

from __future__ import annotations

import shutil
import threading
from pathlib import Path

import numpy as np
import pytest
import torch

import equipoise as eq
from equipoise.app.forget import forget
from equipoise.app.learn import LearnOptions, learn_folder
from equipoise.app.model_dir import ModelDir
from equipoise.app.stored_images import folder_name
from equipoise.core.open_dir import OpenDir
from equipoise.errors import RunError, UsageError
from tests.folders import glyph_folder, tree
from tests.models import images_of, learn, probabilities, undo, version_of


def test_folder_names_differ_for_different_classes() -> None:
    names = ["a/b", "a:b", "a_b", "..", ".", "", "x" * 300, "x" * 299, "con", "é", "e\u0301", 1, True, 1.5, "a\nb"]
    folders = [folder_name(name) for name in names]
    assert all("/" not in folder and folder not in ("", ".", "..") and len(folder.encode()) < 120 for folder in folders)
    assert len(set(folders)) == len(folders)
    assert folder_name(folders[0]) != folders[0]  # a class that has the name of another's folder


# ---- undo and copies


def test_undo_restores_every_bit(model_path: Path, glyph_steps: list[Path]) -> None:
    before, predicted = tree(model_path), probabilities(model_path)
    learn(model_path, glyph_steps[2])
    assert not torch.equal(probabilities(model_path)[:, :6], predicted)
    undone = undo(model_path)
    assert undone is not None
    assert undone.classes == ["G", "H", "I"]
    assert torch.equal(probabilities(model_path), predicted)
    assert tree(model_path) == before


def test_undo_goes_back_to_the_first_step_and_no_further(model_path: Path) -> None:
    undo(model_path)
    assert ModelDir(model_path).load().classes == ["A", "B", "C"]
    with pytest.raises(UsageError, match="no earlier version"):
        undo(model_path)


def test_old_versions_are_deleted(
    model_path: Path, glyph_steps: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("equipoise.app.model_dir.KEPT_VERSIONS", 1)
    learn(model_path, glyph_steps[2], epochs=1)
    assert len(list((model_path / "versions").iterdir())) == 2
    undo(model_path)
    assert len(ModelDir(model_path).load(images=True).classes) == 6
    with pytest.raises(UsageError, match="no earlier version"):
        undo(model_path)


def test_earlier_steps_list_only_their_own_classes(model_path: Path) -> None:
    first, second = ModelDir(model_path).steps()
    assert [entry.name for entry in first.per_class] == ["A", "B", "C"]
    assert [entry.name for entry in second.per_class] == ["A", "B", "C", "D", "E", "F"]
    assert first.per_step == [] != second.per_step


def test_learning_again_after_undo_gives_the_same_bits(model_path: Path, glyph_steps: list[Path]) -> None:
    learn(model_path, glyph_steps[2], epochs=2)
    once = (model_path / "model.safetensors").read_bytes()
    undo(model_path)
    learn(model_path, glyph_steps[2], epochs=2)
    assert (model_path / "model.safetensors").read_bytes() == once


def test_a_copy_without_memory_predicts_but_does_not_learn(
    model_path: Path, glyph_steps: list[Path], tmp_path: Path
) -> None:
    ModelDir(model_path).copy_to(tmp_path / "light", memory=False)
    assert torch.equal(probabilities(tmp_path / "light"), probabilities(model_path))
    assert not list((tmp_path / "light").rglob("*.png"))
    with pytest.raises(UsageError, match="there are no exemplars of 'A'"):
        learn(tmp_path / "light", glyph_steps[2])
    ModelDir(model_path).copy_to(tmp_path / "whole")
    assert learn(tmp_path / "whole", glyph_steps[2], epochs=1).classes == ["G", "H", "I"]


def test_the_top_files_alone_are_a_model(model_path: Path, tmp_path: Path) -> None:
    """Such a copy, without versions and images, is what people download."""
    (tmp_path / "hub").mkdir()
    for file in ("config.json", "model.safetensors", "steps.json", "images.json", "README.md"):
        shutil.copy(model_path / file, tmp_path / "hub" / file)
    assert torch.equal(probabilities(tmp_path / "hub"), probabilities(model_path))


def test_saving_the_same_model_twice_changes_nothing(tmp_path: Path) -> None:
    clf = eq.IncrementalClassifier(epochs=1).fit(np.eye(6), [0, 1] * 3)
    clf.save(tmp_path / "m")
    before = tree(tmp_path / "m")
    clf.save(tmp_path / "m")
    assert tree(tmp_path / "m") == before
    assert ModelDir(tmp_path / "m").config().previous is None
    with pytest.raises(UsageError, match="this model was trained on rows of 6 features, not on image files"):
        learn_folder(ModelDir(tmp_path / "m"), glyph_folder(tmp_path / "g", [0]), LearnOptions())


# ---- several processes at once


def test_one_writer_at_a_time_and_readers_at_any_time(model_path: Path, glyph_steps: list[Path]) -> None:
    with ModelDir(model_path).writing():
        with pytest.raises(RunError, match="another process is writing"):
            learn(model_path, glyph_steps[2])
        assert probabilities(model_path).shape == (48, 6)


def test_readers_never_see_half_a_change(model_path: Path, glyph_steps: list[Path]) -> None:
    learn(model_path, glyph_steps[2], epochs=1)
    place = ModelDir(model_path)
    current = place.load(images=True)
    undo(model_path)
    allowed = {6: probabilities(model_path), 9: probabilities(current)}
    stop, wrong, read = threading.Event(), [], []

    def reader() -> None:
        while not stop.is_set():
            try:
                predicted = probabilities(model_path)
                read.append(predicted.shape[1])
                if not torch.equal(predicted, allowed[predicted.shape[1]]):
                    wrong.append("other probabilities")
            except Exception as error:
                wrong.append(repr(error))

    threads = [threading.Thread(target=reader) for _ in range(2)]
    for thread in threads:
        thread.start()
    for _ in range(15):
        with place.writing():
            place.commit(current)
            place.undo()
    stop.set()
    for thread in threads:
        thread.join()
    assert not wrong
    assert {6, 9} >= set(read)
    assert len(read) > 5


# ---- crashes


class PowerFailure(BaseException):
    pass


@pytest.mark.parametrize("change", ["learn", "undo", "forget"])
def test_a_power_failure_at_any_write_loses_nothing(
    change: str, model_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before and after each rename the model loads, in its old or its new state; the same command then completes it."""

    few = glyph_folder(tmp_path / "few", [6], count=4)  # every image is one more write

    def apply(place: Path) -> None:
        if change == "learn":
            learn(place, few, epochs=1)
        elif change == "forget":
            forget(ModelDir(place), ["B"])
        else:
            undo(place)

    done = shutil.copytree(model_path, tmp_path / "done")
    apply(done)
    states = [ModelDir(place).load().method.state_dict() for place in (model_path, done)]
    rename, writes = OpenDir.rename, 0
    while True:
        place, left, before = tmp_path / f"failed-{writes}", writes, bool(writes % 2)
        shutil.copytree(model_path, place)

        def fail(self: OpenDir, source: str, target: str, before: bool = before) -> None:
            nonlocal left
            left -= 1
            if left == -1 and before:
                raise PowerFailure
            rename(self, source, target)
            if left == -1:
                raise PowerFailure

        with monkeypatch.context() as patch:
            patch.setattr(OpenDir, "rename", fail)
            try:
                apply(place)
            except PowerFailure:
                pass
            else:
                break
        state = ModelDir(place).load().method.state_dict()
        matches = [same(state, known) for known in states]
        assert any(matches)
        if matches[0]:  # not done yet: the same command does it
            apply(place)
        with ModelDir(place).writing():
            pass  # cleans up
        assert same(ModelDir(place).load().method.state_dict(), states[1])
        assert (place / "model.safetensors").read_bytes() == (done / "model.safetensors").read_bytes()
        assert {f.name for f in (place / "versions").iterdir()} == {f.name for f in (done / "versions").iterdir()}
        writes += 1
    assert writes >= (1 if change == "undo" else 5)


def same(left: dict[str, torch.Tensor], right: dict[str, torch.Tensor]) -> bool:
    return left.keys() == right.keys() and all(torch.equal(left[key], right[key]) for key in left)


# ---- damage


@pytest.mark.parametrize(
    ("file", "damage", "message"),
    [
        ("config.json", b"{", "is not valid JSON"),
        ("config.json", b"[]", "is damaged"),
        ("config.json", b'{"format": 99}', "newer equipoise"),
        ("config.json", b'{"format": 1, "version": "x"}', "is damaged .*missing required field"),
        ("steps.json", b"[]", "is damaged"),
        ("model.safetensors", b"rubbish", "is damaged"),
        ("model.safetensors", None, "cannot read"),
        ("steps.json", b"", "is not valid JSON"),
    ],
)
def test_damage_is_named(file: str, damage: bytes | None, message: str, model_path: Path) -> None:
    target = model_path / file if file == "config.json" else version_of(model_path) / file
    target.unlink()
    if damage is not None:
        target.write_bytes(damage)
    with pytest.raises(RunError, match=message):
        ModelDir(model_path).load()


def test_undo_rescues_from_a_damaged_version(model_path: Path) -> None:
    for file in ("model.safetensors", "images.json", "steps.json"):
        (version_of(model_path) / file).write_bytes(b"rubbish")
    assert undo(model_path) is None  # its result cannot be read
    assert ModelDir(model_path).load(images=True).classes == ["A", "B", "C"]
    assert len(images_of(model_path).memory[0]) == 12


@pytest.mark.parametrize(
    ("file", "damage", "message"),
    [
        ("model.safetensors", b"rubbish", r"model\.safetensors as safetensors: it is damaged"),
        ("images.json", b"{}", r"images\.json is damaged"),
        ("config.json", None, r"cannot read .*config\.json"),
        ("config.json", b"", r"config\.json is not valid JSON .*: restore it from a copy"),
        ("config.json", b"{}", r"config\.json is damaged .*: restore it from a copy"),
    ],
)
def test_nothing_is_lost_if_the_version_before_is_damaged(
    file: str, damage: bytes | None, message: str, model_path: Path, glyph_steps: list[Path]
) -> None:
    before = next((model_path / "versions").glob("0001-*"))
    (before / file).unlink()
    if damage is not None:
        (before / file).write_bytes(damage)
    with pytest.raises(RunError, match=message):
        undo(model_path)
    assert ModelDir(model_path).load(images=True).classes == ["A", "B", "C", "D", "E", "F"]
    learn(model_path, glyph_steps[2], epochs=1)  # it can still learn
    assert len(ModelDir(model_path).load(images=True).classes) == 9
    assert len(list((model_path / "versions").iterdir())) == 3
    assert (model_path / "model.safetensors").samefile(version_of(model_path) / "model.safetensors")
    assert "A classifier of 9 classes" in (model_path / "README.md").read_text()


def test_files_of_other_programs_are_no_obstacle(model_path: Path, glyph_steps: list[Path]) -> None:
    (model_path / "memory" / "A" / "@eaDir").mkdir()
    (model_path / "memory" / "A" / "Thumbs.db").touch()
    learn(model_path, glyph_steps[2], epochs=1)
    undo(model_path)
    assert (model_path / "memory" / "A" / "@eaDir").is_dir()
