"""Deleting a model, and nothing else, so that its directory is as before the first step."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from equipoise.app.model_dir import ModelDir
from equipoise.app.start_again import start_again
from equipoise.errors import LockedError, RunError, UsageError
from tests.folders import tree
from tests.models import StopAfter, learn, undo


def names(model: Path) -> list[str]:
    """Name everything in a directory."""
    return sorted(path.relative_to(model).as_posix() for path in model.rglob("*"))


def test_nothing_of_a_model_is_left_and_another_can_be_learned(model_path: Path, glyph_steps: list[Path]) -> None:
    with pytest.raises(KeyboardInterrupt):  # an interrupted step must go too
        learn(model_path, glyph_steps[2], StopAfter(1))
    (model_path / "memory" / ".0123.tmp").write_text("of a killed writer")
    (model_path / ".DS_Store").write_text("of a file manager")
    changes = []
    start_again(ModelDir(model_path, on_commit=lambda: changes.append(ModelDir(model_path).exists)))
    assert changes == [False]
    assert names(model_path) == [".DS_Store", ".lock"]
    with pytest.raises(UsageError, match="holds no model"):
        start_again(ModelDir(model_path))
    assert learn(model_path, glyph_steps[1], epochs=2).classes == list("DEF")
    with pytest.raises(UsageError, match="no earlier version"):
        undo(model_path)


def test_what_the_owner_wrote_into_the_card_stays(model_path: Path) -> None:
    card = model_path / "README.md"
    card.write_text("Ours since 2020.\n" + card.read_text() + "\nAsk Ada.\n")
    start_again(ModelDir(model_path))
    assert names(model_path) == [".lock", "README.md"]
    assert card.read_text().split() == ["Ours", "since", "2020.", "Ask", "Ada."]
    ModelDir(model_path).check_free()


@pytest.mark.parametrize("other", ["notes.txt", "photos/me.jpg"])
def test_a_directory_that_holds_more_than_a_model_is_left_alone(model_path: Path, other: str) -> None:
    (model_path / other).parent.mkdir(exist_ok=True)
    (model_path / other).write_text("mine")
    before = tree(model_path)
    with pytest.raises(UsageError, match=f"also holds {other.partition('/')[0]}.*: move it elsewhere first"):
        start_again(ModelDir(model_path))
    assert tree(model_path) == before


def test_a_model_of_another_program_is_left_alone(tmp_path: Path) -> None:
    """Transformers writes files of the same names."""
    for name in ("config.json", "model.safetensors", "README.md"):
        (tmp_path / name).write_text("{}")
    with pytest.raises(UsageError, match="does not look like an equipoise model"):
        start_again(ModelDir(tmp_path))
    assert names(tmp_path) == ["README.md", "config.json", "model.safetensors"]


def test_files_of_others_inside_stay(model_path: Path) -> None:
    mine = ["memory/A/notes.txt", "versions/notes.txt", "holdout/me.jpg"]
    for name in mine:
        (model_path / name).write_text("mine")
    start_again(ModelDir(model_path))
    assert [name for name in names(model_path) if (model_path / name).is_file()] == sorted([".lock", *mine])


@pytest.mark.skipif(os.name == "nt", reason="needs links")
def test_links_are_not_followed(model_path: Path, tmp_path: Path) -> None:
    outside = shutil.copytree(model_path / "memory", tmp_path / "outside")
    before = tree(outside)
    (model_path / "memory" / "Z").symlink_to(outside / "A")
    (model_path / "versions" / "0009-00000000").symlink_to(outside)
    start_again(ModelDir(model_path))
    assert tree(outside) == before


@pytest.mark.skipif(os.name == "nt", reason="needs links")
def test_a_folder_that_is_a_link_stops_it_before_anything_is_deleted(model_path: Path, tmp_path: Path) -> None:
    (model_path / "memory").rename(tmp_path / "outside")
    (model_path / "memory").symlink_to(tmp_path / "outside")
    before = tree(tmp_path / "outside")
    with pytest.raises(RunError, match="is a symbolic link"):
        start_again(ModelDir(model_path))
    assert ModelDir(model_path).exists
    assert tree(tmp_path / "outside") == before


def test_a_damaged_model_can_be_deleted(model_path: Path) -> None:
    (model_path / "config.json").write_text("{}")
    for weights in model_path.rglob("model.safetensors"):
        weights.write_bytes(b"")
    start_again(ModelDir(model_path))
    assert names(model_path) == [".lock"]


def test_another_writer_is_not_disturbed(model_path: Path) -> None:
    before = tree(model_path)
    with ModelDir(model_path).writing(), pytest.raises(LockedError):
        start_again(ModelDir(model_path))
    assert tree(model_path) == before


@pytest.mark.skipif(not hasattr(os, "geteuid"), reason="needs permissions")
def test_images_that_cannot_be_deleted_are_named(model_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = model_path / "memory" / "A"
    unlink = os.unlink

    def refuse(path: str, *, dir_fd: int | None = None) -> None:  # root may delete from a read-only folder
        if dir_fd is not None and os.path.samestat(os.fstat(dir_fd), folder.stat()):
            raise PermissionError(13, "Permission denied")
        unlink(path, dir_fd=dir_fd)

    monkeypatch.setattr(os, "unlink", refuse)
    with pytest.raises(RunError, match=r"the model is deleted, but .*memory/A/.* is still there: delete it yourself"):
        start_again(ModelDir(model_path))
    assert not ModelDir(model_path).exists
