"""Models that people keep: their directory, their steps, and what can go wrong."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import equipoise as eq
from equipoise.app.photo_folder import read, survey
from equipoise.app.forget import forget
from equipoise.app.learn import Onlooker, LearnOptions, learn_folder
from equipoise.app.model import Label, Model
from equipoise.app.model_dir import ModelDir
from equipoise.app.stored_images import folder_name
from equipoise.app.predict import predict, sources
from equipoise.app.step_plan import auto_budget, set_aside, unfairness
from equipoise.data.images import Images
from equipoise.errors import DataError, RunError, UsageError
from tests.folders import glyph_folder, messy_folder, name, tree, unseen

QUICK: dict[str, dict[str, Any]] = {
    "net": {"backbone": "tiny"},
    "train": {"batch_size": 16},
    "augment": {"flip": False},
    "runtime": {"threads": 1},
}


def wishes(**options: Any) -> LearnOptions:
    first = {"image_size": 24, "overrides": QUICK} if options.pop("first", False) else {}
    return LearnOptions(**{"epochs": 60, "holdout": 0.25, "memory": 60, **first, **options})


def teach(place: Path, folder: Path, onlooker: Onlooker | None = None, **options: Any) -> dict[str, Any]:
    model = ModelDir(place)
    record = learn_folder(model, folder, wishes(first=not model.exists, **options), onlooker)
    assert record is not None
    return record


@pytest.fixture(scope="session")
def folders(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Three steps of three glyphs each."""
    root = tmp_path_factory.mktemp("glyphs")
    return [glyph_folder(root / str(step), range(3 * step, 3 * step + 3)) for step in range(3)]


@pytest.fixture(scope="session")
def two_steps(folders: list[Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of six classes; copy it before changing it."""
    place = tmp_path_factory.mktemp("models") / "two"
    teach(place, folders[0])
    teach(place, folders[1])
    return place


@pytest.fixture
def model(two_steps: Path, tmp_path: Path) -> Path:
    shutil.copytree(two_steps, tmp_path / "model")
    return tmp_path / "model"


def answers(place: Path, classes: range = range(6)) -> torch.Tensor:
    return ModelDir(place).load().probabilities(unseen(list(classes)))


# ---- learning


def test_each_call_is_a_step_and_says_how_good_it_is(two_steps: Path) -> None:
    steps = json.loads((two_steps / "steps.json").read_text())
    assert [record["classes"] for record in steps] == [["A", "B", "C"], ["D", "E", "F"]]
    assert [record["held_out"] for record in steps] == [12, 12]
    assert [record["images"] for record in steps] == [36, 36]
    first, second = steps
    assert first["accuracy"] == first["accuracy_new"] > 60
    assert first["accuracy_old"] is None
    assert 0 < second["gamma"] <= 1
    assert (second["tests_old"], second["tests_new"]) == (12, 12)
    right = sum(entry["right"] for entry in second["per_class"])
    assert second["accuracy"] == pytest.approx(100 * right / 24)
    wrong = second["e_n"] + second["e_o"]
    assert (wrong, second["e_o"]) == (24 - right, second["e_on"] + second["e_oo"])
    assert second["accuracy"] > 40  # chance is 17


def test_the_record_is_what_the_model_says_of_its_held_out_images(two_steps: Path) -> None:
    """From the files alone: the pictures in holdout/ and the weights."""
    model, right, of = ModelDir(two_steps).load(), 0, 0
    for place, called in enumerate(model.classes):
        files = sorted((two_steps / "holdout" / str(called)).iterdir())
        pixels = torch.stack([torch.from_numpy(np.array(Image.open(file))).permute(2, 0, 1) for file in files])
        right += int((model.probabilities(pixels).argmax(1) == place).sum())
        of += len(files)
    assert of == 24
    assert model.steps[-1]["accuracy"] == pytest.approx(100 * right / of)


def test_held_out_images_are_never_exemplars(two_steps: Path) -> None:
    held = {file.stem for file in (two_steps / "holdout").rglob("*.png")}
    kept = {file.stem for file in (two_steps / "memory").rglob("*.png")}
    assert len(held) == 24
    assert held.isdisjoint(kept)


def test_a_known_class_is_refused_or_extended(model: Path, tmp_path: Path) -> None:
    again = glyph_folder(tmp_path / "again", [0, 6], test=True)
    before = tree(model)
    with pytest.raises(UsageError, match=r"class 'A' is known already \(learned in step 1\): pass --extend"):
        teach(model, again)
    assert tree(model) == before
    exemplars = len(ModelDir(model).images()["memory"][0])
    record = teach(model, again, extend=True)
    assert (record["classes"], record["extended"]) == (["G"], ["A"])
    assert record["images"] == 6 + 8 + exemplars  # new ones of both, and those it had of A
    assert ModelDir(model).load().classes == ["B", "C", "D", "E", "F", "G", "A"]
    assert len(list((model / "holdout" / "A").iterdir())) == 4  # what comes may have been trained on before
    assert record["accuracy"] > 50


def test_all_classes_can_be_extended_at_once(model: Path, tmp_path: Path) -> None:
    backbone = ModelDir(model).load().method.backbone.state_dict()
    more = glyph_folder(tmp_path / "more", range(6), test=True)
    record = teach(model, more, extend=True, epochs=1, overrides={"train": {"lr": 1e-8}})
    assert record["extended"] == list("ABCDEF")
    after = ModelDir(model).load().method.backbone.state_dict()
    torch.testing.assert_close(after["convs.0.weight"], backbone["convs.0.weight"], atol=1e-4, rtol=0)


def test_images_that_are_known_are_not_learned_twice(model: Path, folders: list[Path], tmp_path: Path) -> None:
    """Else a held-out image could be trained on, and an image have two names."""
    mixed = glyph_folder(tmp_path / "mixed", [6])
    shutil.copytree(folders[0] / "A", mixed / "A")
    shutil.copy(next((folders[0] / "B").iterdir()), mixed / "G" / "stray.png")
    with pytest.raises(DataError, match=r"the model has this image already"):
        teach(model, mixed, extend=True, strict=True)
    images = ModelDir(model).images()
    kept = len(images["memory"][0]) + len(images["holdout"][0])
    record = teach(model, mixed, extend=True)
    assert record["files_left_out"] == kept + 1
    assert record["classes"] == ["G"]


class StopAfter(Onlooker):
    def __init__(self, epochs: int) -> None:
        self.left = epochs

    def epoch(self, epoch: int, loss: float, lr: float) -> None:
        self.left -= 1
        if self.left == 0:
            raise KeyboardInterrupt


@pytest.mark.parametrize("step", [1, 2])
def test_a_stopped_step_leaves_the_model_as_it_was_and_goes_on(step: int, folders: list[Path], tmp_path: Path) -> None:
    whole, stopped = tmp_path / "whole", tmp_path / "stopped"
    for place in (whole, stopped):
        for earlier in range(step - 1):
            teach(place, folders[earlier], epochs=2)
    before = tree(stopped)
    with pytest.raises(KeyboardInterrupt):
        teach(stopped, folders[step - 1], StopAfter(3), epochs=5)
    after = tree(stopped)
    assert {file: data for file, data in after.items() if not file.startswith(".step")} == before
    assert any(file.startswith(".step") for file in after)

    class Count(StopAfter):
        pass

    count = Count(10**6)
    teach(stopped, folders[step - 1], count, epochs=5)
    assert 10**6 - count.left == 2  # three of five epochs were there already
    teach(whole, folders[step - 1], epochs=5)
    assert (stopped / "model.safetensors").read_bytes() == (whole / "model.safetensors").read_bytes()
    assert not (stopped / ".step").exists()


def test_another_step_than_the_stopped_one_starts_from_nothing(folders: list[Path], tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        teach(tmp_path / "m", folders[0], StopAfter(3), epochs=5)
    count = StopAfter(10**6)
    teach(tmp_path / "m", folders[1], count, epochs=5)
    assert 10**6 - count.left == 5


class PlugPulled(BaseException):
    pass


@pytest.mark.parametrize("change", ["learn", "undo", "forget"])
def test_the_plug_pulled_at_every_write_of_a_change(
    change: str, model: Path, folders: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before and after each file gets its name the model loads, as it was or as it will be; then the change goes on."""

    def apply(place: Path) -> None:
        if change == "learn":
            teach(place, folders[2], epochs=1)
        elif change == "forget":
            forget(ModelDir(place), ["B"])
        else:
            with ModelDir(place).writing():
                ModelDir(place).undo()

    done = tmp_path / "done"
    shutil.copytree(model, done)
    apply(done)
    states = [ModelDir(place).load().method.state_dict() for place in (model, done)]
    rename, writes = Path.replace, 0
    while True:
        place, left, before = tmp_path / f"pulled-{writes}", writes, bool(writes % 2)
        shutil.copytree(model, place)

        def pull(self: Path, target: Path, before: bool = before) -> Path:
            nonlocal left
            left -= 1
            if left == -1 and before:
                raise PlugPulled
            moved = rename(self, target)
            if left == -1:
                raise PlugPulled
            return moved

        with monkeypatch.context() as patch:
            patch.setattr(Path, "replace", pull)
            try:
                apply(place)
            except PlugPulled:
                pass
            else:
                break
        state = ModelDir(place).load().method.state_dict()
        which = [same(state, known) for known in states]
        assert any(which)
        if which[0]:  # not yet done: the same command does it
            apply(place)
        with ModelDir(place).writing():
            pass  # puts in order what is left
        assert same(ModelDir(place).load().method.state_dict(), states[1])
        assert (place / "model.safetensors").read_bytes() == (done / "model.safetensors").read_bytes()
        assert {f.name for f in (place / "versions").iterdir()} == {f.name for f in (done / "versions").iterdir()}
        writes += 1
    assert writes >= (1 if change == "undo" else 5)


def same(left: dict[str, torch.Tensor], right: dict[str, torch.Tensor]) -> bool:
    return left.keys() == right.keys() and all(torch.equal(left[key], right[key]) for key in left)


def test_sigkill_loses_nothing(folders: list[Path], tmp_path: Path) -> None:
    """A real process, killed while it learns, and again."""
    command = [sys.executable, "-m", "equipoise", "learn", str(tmp_path / "m"), str(folders[0]), "--epochs", "30"]
    command += ["--image-size", "24", "--backbone", "tiny", "--threads", "1", "--set", "augment.flip=false"]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 60
    while not (tmp_path / "m" / ".step" / "stages.json").exists() and time.monotonic() < deadline:
        time.sleep(0.02)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    assert not ModelDir(tmp_path / "m").exists
    with pytest.raises(UsageError, match="only a first step that was stopped"):
        ModelDir(tmp_path / "m").load()
    again = subprocess.run(command, capture_output=True, text=True)
    assert again.returncode == 0, again.stderr
    assert "going on from there" in again.stdout
    assert ModelDir(tmp_path / "m").load().classes == ["A", "B", "C"]


# ---- folders as people have them


def test_a_messy_folder_is_learned_from_what_is_good(tmp_path: Path) -> None:
    expected = messy_folder(tmp_path / "pictures")
    seen: list[Any] = []

    class Note(Onlooker):
        def plan(self, teaching: Any, found: Any, seconds: float, epochs_done: int) -> None:
            seen.extend(found.left_out)

    record = learn_folder(
        ModelDir(tmp_path / "m"),
        tmp_path / "pictures",
        LearnOptions(epochs=3, image_size=32, overrides=QUICK, holdout=0.2),
        Note(),
    )
    assert record is not None
    assert record["classes"] == ["Blüte 花", "linked class", "old temple"]
    why = {entry.path: entry.why for entry in seen}
    assert why.keys() == expected.keys()
    for path, reason in expected.items():
        assert reason in why[path], path
    assert record["images"] + record["held_out"] == 14 + 4 + 14 + 8 + 1 - 2
    model = ModelDir(tmp_path / "m").load()
    asked = list(sources([str(tmp_path / "pictures" / "old temple")]))
    assert len([one for one in predict(model, asked) if one.guesses]) == len(asked) == 23


def test_strict_refuses_a_messy_folder(tmp_path: Path) -> None:
    messy_folder(tmp_path / "pictures")
    with pytest.raises(DataError, match=r"and \d+ more\); nothing was learned, because --strict"):
        learn_folder(ModelDir(tmp_path / "m"), tmp_path / "pictures", LearnOptions(strict=True, overrides=QUICK))
    assert not ModelDir(tmp_path / "m").exists


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda root: None, "is not a directory"),
        (lambda root: root.mkdir(), "has no folders with images"),
        (lambda root: (root / "a").mkdir(parents=True), "has no folders with images"),
        (lambda root: glyph_folder(root / "train", [0, 1]), "holds train and the like, not classes: .*/train$"),
        (lambda root: [glyph_folder(root / part, [0]) for part in ("train/x", "test/x")], "name the folder .*/train$"),
    ],
)
def test_folders_without_classes_are_refused(make: Any, message: str, tmp_path: Path) -> None:
    make(tmp_path / "pictures")
    with pytest.raises(DataError, match=message):
        learn_folder(ModelDir(tmp_path / "m"), tmp_path / "pictures", LearnOptions())
    assert not (tmp_path / "m").exists()


def test_a_class_may_be_called_train(tmp_path: Path) -> None:
    glyph_folder(tmp_path, [0])
    (tmp_path / "A").rename(tmp_path / "train")
    assert list(survey(tmp_path).classes) == ["train"]


def test_pixels_of_a_file_that_cannot_be_read_are_the_same_every_time(tmp_path: Path) -> None:
    """A stopped step is known again by all pixels, and memory that is not written to holds anything."""
    glyph_folder(tmp_path, [0], count=4)
    (tmp_path / "A" / "001.png").write_bytes(b"rubbish")
    marks = set()
    for value in (7, 8):
        left = torch.full((4, 3, 24, 24), value, dtype=torch.uint8)
        del left  # for the next tensor of this size
        marks.add(read(survey(tmp_path), 24)["A"].fingerprint())
    assert len(marks) == 1


def test_names_that_are_not_utf8_are_shown_and_learned(tmp_path: Path) -> None:
    glyph_folder(tmp_path / "pictures", [0, 1])
    (tmp_path / "pictures" / "A").rename(tmp_path / "pictures" / os.fsdecode(b"caf\xe9"))
    record = learn_folder(
        ModelDir(tmp_path / "m"), tmp_path / "pictures", LearnOptions(epochs=1, image_size=24, overrides=QUICK)
    )
    assert record is not None
    assert record["classes"] == ["B", "caf\\xe9"]


def test_folder_names_differ_for_different_classes() -> None:
    names = ["a/b", "a:b", "a_b", "..", ".", "", "x" * 300, "x" * 299, "con", "é", "e\u0301", 1, True, 1.5, "a\nb"]
    made = [folder_name(called) for called in names]
    assert all("/" not in folder and folder not in ("", ".", "..") and len(folder.encode()) < 120 for folder in made)
    assert len(set(made)) == len(made)
    assert folder_name(made[0]) != made[0]  # a class that is called like another's folder


# ---- undo, forget, copies


def test_undo_brings_every_bit_back(model: Path, folders: list[Path]) -> None:
    before, said = tree(model), answers(model)
    teach(model, folders[2])
    assert not torch.equal(answers(model)[:, :6], said)
    with ModelDir(model).writing():
        undone = ModelDir(model).undo()
    assert undone["classes"] == ["G", "H", "I"]
    assert torch.equal(answers(model), said)
    assert tree(model) == before


def test_undo_goes_back_to_the_first_step_and_no_further(model: Path) -> None:
    place = ModelDir(model)
    with place.writing():
        place.undo()
        assert place.load().classes == ["A", "B", "C"]
        with pytest.raises(UsageError, match="no earlier version"):
            place.undo()


def test_learning_again_after_undo_gives_the_same_bits(model: Path, folders: list[Path]) -> None:
    teach(model, folders[2], epochs=2)
    once = (model / "model.safetensors").read_bytes()
    with ModelDir(model).writing():
        ModelDir(model).undo()
    teach(model, folders[2], epochs=2)
    assert (model / "model.safetensors").read_bytes() == once


def test_forgotten_classes_leave_no_trace(model: Path, folders: list[Path], tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):  # a step under way must go too
        teach(model, folders[2], StopAfter(1))
    gone = [np.array(Image.open(file)) for kind in ("memory", "holdout") for file in (model / kind / "B").iterdir()]
    raw = [file.read_bytes() for kind in ("memory", "holdout") for file in (model / kind / "B").iterdir()]
    scores = ModelDir(model).load().method.predict(torch.zeros(2, 3, 24, 24))
    before = {entry["class"]: entry["right"] for entry in ModelDir(model).steps()[-1]["per_class"]}
    told = forget(ModelDir(model), ["B"])
    assert (told.classes, told.images) == (["B"], len(gone))
    files = tree(model)
    assert told.scanned == len(files) + 1  # and the lock
    # an independent look: no picture, no bytes, no name
    for file, data in files.items():
        assert "B" not in Path(file).parts
        assert all(piece not in data for piece in raw), file
        if file.endswith(".png"):
            pixels = np.array(Image.open(model / file))
            assert not any(np.array_equal(pixels, other) for other in gone), file
        if file.endswith((".json", ".md")):
            assert '"B"' not in data.decode(), file
            assert "| B |" not in data.decode(), file
    after = ModelDir(model).load()
    assert after.classes == list("ACDEF")
    torch.testing.assert_close(after.method.predict(torch.zeros(2, 3, 24, 24)), scores[:, [0, 2, 3, 4, 5]])
    for entry in ModelDir(model).steps()[-1]["per_class"]:
        assert entry["right"] >= before[entry["class"]]  # a rival less
    with pytest.raises(UsageError, match="no earlier version"), ModelDir(model).writing():
        ModelDir(model).undo()
    record = teach(model, folders[2])  # and it goes on to learn
    assert ModelDir(model).load().classes == list("ACDEFGHI")
    assert record["accuracy"] > 40


def test_forgetting_refuses_what_it_does_not_know(model: Path) -> None:
    before = tree(model)
    with pytest.raises(UsageError, match="there is no class 'Z'"):
        forget(ModelDir(model), ["A", "Z"])
    with pytest.raises(UsageError, match="those are all classes"):
        forget(ModelDir(model), list("ABCDEF"))
    assert tree(model) == before


def test_a_copy_without_memory_predicts_and_does_not_learn(model: Path, folders: list[Path], tmp_path: Path) -> None:
    ModelDir(model).copy_to(tmp_path / "light", memory=False)
    assert torch.equal(answers(tmp_path / "light"), answers(model))
    assert not list((tmp_path / "light").rglob("*.png"))
    with pytest.raises(UsageError, match="there are no exemplars of 'A' here"):
        teach(tmp_path / "light", folders[2])
    ModelDir(model).copy_to(tmp_path / "whole")
    assert teach(tmp_path / "whole", folders[2], epochs=1)["classes"] == ["G", "H", "I"]


def test_the_top_files_alone_are_a_model(model: Path, tmp_path: Path) -> None:
    """As somebody would download it from a hub: no versions, no images."""
    (tmp_path / "hub").mkdir()
    for file in ("config.json", "model.safetensors", "steps.json", "images.json", "README.md"):
        shutil.copy(model / file, tmp_path / "hub" / file)
    assert torch.equal(answers(tmp_path / "hub"), answers(model))


# ---- several at once, and years later


def test_one_writer_at_a_time_and_readers_all_the_time(model: Path, folders: list[Path]) -> None:
    with ModelDir(model).writing():
        with pytest.raises(RunError, match="another process is writing"):
            teach(model, folders[2])
        assert answers(model).shape == (48, 6)


def test_readers_never_see_half_a_change(model: Path, folders: list[Path]) -> None:
    teach(model, folders[2], epochs=1)
    place = ModelDir(model)
    current = place.load(images=True)
    with place.writing():
        place.undo()
    allowed = {6: answers(model, range(6)), 9: current.probabilities(unseen(range(6)))}
    stop, wrong, read = threading.Event(), [], []

    def reader() -> None:
        while not stop.is_set():
            try:
                said = answers(model)
                read.append(said.shape[1])
                if not torch.equal(said, allowed[said.shape[1]]):
                    wrong.append("other answers")
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


@pytest.mark.parametrize(
    ("file", "damage", "message"),
    [
        ("config.json", b"{", "is not JSON"),
        ("config.json", b"[]", "is not a model's"),
        ("config.json", b'{"format": 99}', "newer equipoise"),
        ("config.json", b'{"format": 1, "version": "x"}', "'previous' is missing or wrong|'weights' is missing"),
        ("steps.json", b"[]", "is damaged"),
        ("model.safetensors", b"rubbish", "is damaged"),
        ("model.safetensors", None, "cannot be read"),
        ("steps.json", b"", "is not JSON"),
    ],
)
def test_damage_is_named_never_believed(file: str, damage: bytes | None, message: str, model: Path) -> None:
    version = ModelDir(model).version(ModelDir(model).config())
    target = model / file if file == "config.json" else version / file
    target.unlink()
    if damage is not None:
        target.write_bytes(damage)
    with pytest.raises(RunError, match=message):
        ModelDir(model).load()


def test_undo_rescues_from_a_damaged_version(model: Path) -> None:
    place = ModelDir(model)
    for file in ("model.safetensors", "images.json", "steps.json"):
        (place.version(place.config()) / file).write_bytes(b"rubbish")
    with place.writing():
        place.undo()
    assert place.load(images=True).classes == ["A", "B", "C"]
    assert len(place.images()["memory"][0]) == 12


@pytest.mark.parametrize(
    ("file", "damage", "message"),
    [
        ("model.safetensors", b"rubbish", r"model\.safetensors is damaged"),
        ("images.json", b"{}", r"images\.json is damaged"),
        ("config.json", None, r"config\.json cannot be read"),
        ("config.json", b"", r"config\.json is not JSON .*: restore it from a copy"),
        ("config.json", b"{}", r"config\.json is not a model's: restore it from a copy"),
    ],
)
def test_nothing_is_lost_for_a_version_that_cannot_be_gone_back_to(
    file: str, damage: bytes | None, message: str, model: Path, folders: list[Path]
) -> None:
    place = ModelDir(model)
    before = next((model / "versions").glob("0001-*"))
    (before / file).unlink()
    if damage is not None:
        (before / file).write_bytes(damage)
    with place.writing(), pytest.raises(RunError, match=message):
        place.undo()
    assert place.load(images=True).classes == ["A", "B", "C", "D", "E", "F"]
    teach(model, folders[2], epochs=1)  # which is no reason to stop learning
    assert len(place.load(images=True).classes) == 9
    assert len(list((model / "versions").iterdir())) == 3
    assert (model / "model.safetensors").samefile(place.version(place.config()) / "model.safetensors")
    assert "A classifier of 9 classes" in (model / "README.md").read_text()


def test_what_others_put_beside_the_pictures_is_no_obstacle(model: Path, folders: list[Path]) -> None:
    (model / "memory" / "A" / "@eaDir").mkdir()
    (model / "memory" / "A" / "Thumbs.db").touch()
    teach(model, folders[2], epochs=1)
    with ModelDir(model).writing():
        ModelDir(model).undo()
    assert (model / "memory" / "A" / "@eaDir").is_dir()


def test_a_card_that_cannot_be_written_does_not_undo_a_step(model: Path, folders: list[Path]) -> None:
    (model / "README.md").unlink()
    (model / "README.md").mkdir()
    assert teach(model, folders[2], epochs=1)["classes"] == ["G", "H", "I"]
    assert len(ModelDir(model).load().classes) == 9


def test_what_a_killed_first_commit_leaves_behind_is_no_obstacle(folders: list[Path], tmp_path: Path) -> None:
    place = tmp_path / "m"
    with pytest.raises(KeyboardInterrupt):
        teach(place, folders[0], StopAfter(2), epochs=2)
    (place / "versions" / "0001-00000000").mkdir(parents=True)
    (place / ".config.json.123.tmp").touch()
    count = StopAfter(10**6)
    teach(place, folders[0], count, epochs=2)
    assert count.left == 10**6  # both epochs were there
    assert not list(place.rglob("*.tmp"))
    assert len(list((place / "versions").iterdir())) == 1


def test_a_stopped_step_is_not_dropped_without_a_word(model: Path, folders: list[Path], tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        teach(model, folders[2], StopAfter(1), epochs=3)
    notes = []

    class Note(Onlooker):
        def note(self, text: str) -> None:
            notes.append(text)

    teach(model, glyph_folder(tmp_path / "other", [9]), Note(), epochs=1)
    assert notes == ["another step had been stopped here; what was learned of it is dropped"]


def test_links_in_circles_and_pipes_are_left_out(tmp_path: Path) -> None:
    pictures = glyph_folder(tmp_path / "pictures", [0, 1])
    (pictures / "A" / "loop.jpg").symlink_to("loop.jpg")
    (pictures / "round").symlink_to("round")
    os.mkfifo(pictures / "A" / "pipe.jpg")
    found = survey(pictures)
    why = {entry.path: entry.why for entry in found.left_out}
    assert why["A/pipe.jpg"] == "it is not a file"
    assert {"A/loop.jpg", "round"} < why.keys()
    record = teach(tmp_path / "m", pictures, epochs=1)
    assert record["files_left_out"] == 3
    said = list(predict(ModelDir(tmp_path / "m").load(), sources([str(pictures)])))
    assert {Path(one.path).name for one in said if one.error} == {"pipe.jpg", "loop.jpg"}


def test_images_of_two_classes_can_be_forgotten_for_one(tmp_path: Path) -> None:
    """From Python nobody hinders the same image from having two labels."""
    pixels = np.random.default_rng(0).integers(0, 255, (12, 8, 8, 3), dtype=np.uint8)
    pixels[6:9] = pixels[:3]
    clf = eq.IncrementalClassifier(epochs=1, settings={"net": {"backbone": "tiny"}})
    clf.fit(pixels, ["a"] * 6 + ["b"] * 6).save(tmp_path / "m")
    assert forget(ModelDir(tmp_path / "m"), ["a"]).classes == ["a"]
    assert not list((tmp_path / "m").rglob("a/*.png"))
    assert len(list((tmp_path / "m").rglob("b/*.png"))) == 6


def test_a_model_begun_with_numbers_goes_on_with_numbers(tmp_path: Path, folders: list[Path]) -> None:
    files = sorted(folders[0].rglob("*.png"))
    clf = eq.IncrementalClassifier(epochs=1, image_size=24, settings={"net": {"backbone": "tiny"}})
    clf.fit(files, [1] * 24 + [2] * 24).save(tmp_path / "m")
    with pytest.raises(UsageError, match="labels of this model are like 1, so no class can be called 'D'"):
        learn_folder(ModelDir(tmp_path / "m"), folders[1], LearnOptions(epochs=1))
    shutil.copytree(folders[1] / "D", tmp_path / "numbers" / "7")
    learn_folder(ModelDir(tmp_path / "m"), tmp_path / "numbers", LearnOptions(epochs=1))
    again = eq.load(tmp_path / "m")
    assert again.classes_.tolist() == [1, 2, 7]
    assert again.predict(files[:2]).dtype.kind == "i"


def test_saving_the_same_twice_changes_nothing(tmp_path: Path) -> None:
    clf = eq.IncrementalClassifier(epochs=1).fit(np.eye(6), [0, 1] * 3)
    clf.save(tmp_path / "m")
    before = tree(tmp_path / "m")
    clf.save(tmp_path / "m")
    assert tree(tmp_path / "m") == before
    assert ModelDir(tmp_path / "m").config()["previous"] is None
    with pytest.raises(UsageError, match="taught with rows of 6 features"):
        learn_folder(ModelDir(tmp_path / "m"), glyph_folder(tmp_path / "g", [0]), LearnOptions())


def test_a_damaged_exemplar_is_named(model: Path, folders: list[Path]) -> None:
    victim = next((model / "memory" / "A").iterdir())
    Image.new("RGB", (24, 24)).save(victim)
    with pytest.raises(RunError, match=r"\.png is damaged"):
        teach(model, folders[2])


def test_a_place_of_something_else_is_refused(tmp_path: Path, folders: list[Path]) -> None:
    (tmp_path / "thesis.doc").touch()
    with pytest.raises(UsageError, match=r"holds thesis\.doc, but no model"):
        teach(tmp_path, folders[0])
    with pytest.raises(UsageError, match="is a file"):
        teach(tmp_path / "thesis.doc", folders[0])
    (tmp_path / "thesis" / "versions" / "draft-3").mkdir(parents=True)
    with pytest.raises(UsageError, match="thesis holds versions, but no model"):
        teach(tmp_path / "thesis", folders[0])
    with pytest.raises(UsageError, match="does not exist: make a model with `equipoise learn"):
        ModelDir(tmp_path / "none").load()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"method": "bic"}, "--method is bic, but this model was begun with wa"),
        ({"backbone": "resnet18"}, "--backbone is resnet18"),
        ({"image_size": 32}, "--image-size is 32, but this model was begun with 24"),
        ({"weights": Path("x")}, "--weights is for the first step"),
        ({"overrides": {"fields": {"norm": 1}}}, "for the first step of a model"),
        ({"overrides": {"runtime": {"precision": "bf16"}}}, "precision is bf16, but this model was begun with 32"),
        ({"memory": 5}, "a memory of 5 images is smaller than the 9 classes"),
        ({"holdout": 1.0}, "holdout is 1.0"),
    ],
)
def test_what_a_model_cannot_change_is_refused(options: Any, message: str, model: Path, folders: list[Path]) -> None:
    before = tree(model)
    with pytest.raises(UsageError, match=message):
        teach(model, folders[2], **options)
    assert tree(model) == before


@pytest.mark.parametrize(
    ("section", "name", "value", "message"),
    [
        ("data", "size", "128px", "data.size is '128px', but it takes a whole number"),
        ("data", "siez", 128, "siez"),
        ("data", "test_share", 0.5, "data.test_share is for experiments, and does nothing"),
        ("net", "backbone", 5, "backbone"),
        ("stream", "steps", 5, "stream.steps is for experiments"),
        ("runtime", "devices", 4, "runtime.devices is for experiments"),
    ],
)
def test_settings_that_would_do_nothing_are_refused(
    section: str, name: str, value: Any, message: str, folders: list[Path], tmp_path: Path
) -> None:
    overrides = QUICK | {section: QUICK.get(section, {}) | {name: value}}
    with pytest.raises(UsageError, match=message):
        learn_folder(ModelDir(tmp_path / "m"), folders[0], LearnOptions(epochs=1, overrides=overrides))


def test_methods_that_need_all_images_are_refused(folders: list[Path], tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="joint trains on every image"):
        teach(tmp_path / "m", folders[0], method="joint")
    with pytest.raises(UsageError, match="needs exemplars"):
        teach(tmp_path / "m", folders[0], method="icarl", memory=0)


# ---- small print


def test_the_users_own_words_in_the_card_stay(model: Path, folders: list[Path]) -> None:
    file = model / "README.md"
    text = file.read_text()
    assert text.startswith("---\nlibrary_name: equipoise\npipeline_tag: image-classification\n")
    file.write_text("---\nlicense: mit\n---\nMine.\n" + text[text.index("<!--") :] + "\nMine too.\n")
    teach(model, folders[2], epochs=1)
    after = file.read_text()
    assert after.startswith("---\nlicense: mit\n---\nMine.\n<!-- equipoise")
    assert after.endswith("\nMine too.\n")
    assert "A classifier of 9 classes" in after
    assert after.count("A classifier of") == 1


def test_words_in_the_card_that_are_not_utf8_stay_too(model: Path, folders: list[Path]) -> None:
    file = model / "README.md"
    words = "Größe und Herkunft: Café\n".encode("cp1252")
    file.write_bytes(words + file.read_bytes())
    teach(model, folders[2], epochs=1)
    assert file.read_bytes().startswith(words)
    assert b"A classifier of 9 classes" in file.read_bytes()


def test_a_class_name_cannot_break_the_card(tmp_path: Path) -> None:
    pictures = glyph_folder(tmp_path / "pictures", [0, 1])
    (pictures / "A").rename(pictures / "a | <script>`x`")
    learn_folder(ModelDir(tmp_path / "m"), pictures, LearnOptions(epochs=1, image_size=24, overrides=QUICK))
    card = (tmp_path / "m" / "README.md").read_text()
    assert "| a \\| &lt;script>\\`x\\` |" in card


def test_holding_out_is_a_share_of_each_class_and_none_of_the_smallest() -> None:
    images = Images.of(torch.zeros(30, 1, 8, 8, dtype=torch.uint8), torch.zeros(30, dtype=torch.long))
    arrival: dict[Label, Images] = {n: images.select(torch.arange(n)) for n in (1, 3, 4, 10, 30)}
    train, held = set_aside(arrival, 0.1, seed=0)
    assert {n: len(images) for n, images in held.items()} == {1: 0, 3: 0, 4: 1, 10: 1, 30: 3}
    for n, all_ in arrival.items():
        assert sorted([*train[n].rows.tolist(), *held[n].rows.tolist()]) == all_.rows.tolist()
    assert all(len(images) == 0 for images in set_aside(arrival, 0.0, seed=0)[1].values())


def test_a_budget_follows_from_the_number_of_images() -> None:
    epochs = [auto_budget(images, features=False)["epochs"] for images in (1, 100, 1000, 10_000, 10**6)]
    assert epochs == sorted(epochs, reverse=True)
    assert (epochs[0], epochs[-1]) == (120, 20)


@pytest.mark.parametrize(
    ("e_on", "e_no", "tests_old", "tests_new", "favoured"),
    [
        (0, 0, 50, 50, None),
        (30, 2, 50, 50, "new"),
        (2, 30, 50, 50, "old"),
        (12, 10, 50, 50, None),
        (4, 0, 1000, 1000, None),  # too few of so many
        (3, 0, 5, 5, None),  # could be chance
        (30, 2, 0, 50, None),  # nothing is old yet
    ],
)
def test_unfairness_is_told_when_it_is_more_than_chance(
    e_on: int, e_no: int, tests_old: int, tests_new: int, favoured: str | None
) -> None:
    said = unfairness({"e_on": e_on, "e_no": e_no, "tests_old": tests_old, "tests_new": tests_new})
    assert said is None if favoured is None else said is not None and f"favours {favoured} classes" in said
    if favoured == "new":
        assert "for 78% of the held-out images, and 50% are theirs (30 old images taken for new ones, 2" in str(said)


def test_dropping_classes_keeps_memory_and_hold_out_in_step(model: Path) -> None:
    loaded = ModelDir(model).load(images=True)
    rows = {called: (kept.rows.tolist(), held.rows.tolist()) for called, (kept, held) in loaded.known().items()}
    loaded.drop(["A", "D"])
    assert loaded.classes == list("BCEF")
    after = {called: (kept.rows.tolist(), held.rows.tolist()) for called, (kept, held) in loaded.known().items()}
    assert after == {called: rows[called] for called in "BCEF"}
    assert loaded.method.steps == [2, 2]


def test_copies_can_be_taught_without_changing_the_original(model: Path) -> None:
    loaded: Model = ModelDir(model).load(images=True)
    before = loaded.probabilities(unseen(range(6)))
    other = loaded.copy()
    other.drop(["A"])
    assert loaded.classes == list("ABCDEF")
    assert torch.equal(loaded.probabilities(unseen(range(6))), before)
    assert name(0) in loaded.known()
