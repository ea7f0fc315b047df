"""Sort photos: folders by class, groups of unknown photos, and a contact sheet."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from equipoise.app.contact_sheet import SHEET
from equipoise.app.model_dir import ModelDir
from equipoise.app.photo_folder import scan_folder
from equipoise.app.sorting import sort_photos
from equipoise.learn.clusters import cluster
from tests.conftest import Ran
from tests.test_pretrained import learn, photo_folder, pytestmark  # noqa: F401 - skips without weights

Cli = Callable[..., Ran]
STRICT = ("--accept", "0.7")
"""Parts of one photograph differ so much that stripes are not stranger than the strangest of them."""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two classes: parts of two photographs, each in one colour."""
    root = tmp_path_factory.mktemp("sort")
    return learn(root / "model", photo_folder(root / "photos", ["a", "b"], count=12)).path


@pytest.fixture
def heap(tmp_path: Path) -> Path:
    """Photos of known classes in nested folders, with names that occur twice, and stripes, which are unknown."""
    photo_folder(tmp_path / "heap" / "inner", ["a", "b"], count=5)
    draws = np.random.default_rng(0)
    for number in range(6):
        stripes = np.zeros((90, 120, 3), np.uint8)
        stripes[:, :: 2 + number % 2] = draws.integers(200, 256, 3)
        Image.fromarray(stripes).save(tmp_path / "heap" / f"stripes {number}.png")
    return tmp_path / "heap"


def files(root: Path) -> dict[str, bytes]:
    return {str(file.relative_to(root)): file.read_bytes() for file in root.rglob("*") if file.is_file()}


def test_photos_go_into_folders(cli: Cli, model: Path, heap: Path, tmp_path: Path) -> None:
    before = files(heap)
    rows = [json.loads(line) for line in cli("sort", model, heap, tmp_path / "out", "--json", *STRICT).out.splitlines()]
    assert files(heap) == before
    assert len(rows) == 16
    for row in rows:
        copy = Path(row["to"])
        assert copy.read_bytes() == Path(row["path"]).read_bytes()
        assert copy.parent.name == row["folder"]
        assert row["folder"].startswith("unknown-") if row["unknown"] else row["folder"] == row["class"]
    known = [row for row in rows if "stripes" not in row["path"]]
    assert sum(row["class"] == Path(row["path"]).parent.name for row in known) >= 8
    assert all(row["unknown"] for row in rows if "stripes" in row["path"])
    assert len({row["to"] for row in rows}) == 16
    page = (tmp_path / "out" / SHEET).read_text()
    assert page.count("<img ") == 16
    assert "Content-Security-Policy" in page


@pytest.mark.parametrize("how", ["link", "move"])
def test_photos_may_be_linked_or_moved(model: Path, heap: Path, tmp_path: Path, how: str) -> None:
    before = files(heap)
    photos = sort_photos(ModelDir(model).load(images=True), heap, tmp_path / "out", how)  # type: ignore[arg-type]
    for photo in photos:
        assert Path(str(photo.to)).read_bytes() == before[str(Path(photo.source).relative_to(heap))]
        assert Path(str(photo.to)).is_symlink() == (how == "link")
    assert files(heap) == (before if how == "link" else {})


def test_a_dry_run_changes_nothing(cli: Cli, model: Path, heap: Path, tmp_path: Path) -> None:
    ran = cli("sort", model, heap, tmp_path / "out", "--dry-run", *STRICT)
    assert "nothing was changed" in ran.out
    assert "unknown-1" in ran.out
    assert not (tmp_path / "out").exists()


def test_impossible_places_are_refused(cli: Cli, model: Path, heap: Path, tmp_path: Path) -> None:
    assert "is inside" in cli("sort", model, heap, heap / "out").err
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine.txt").write_text("mine")
    assert "already exists" in cli("sort", model, heap, tmp_path / "full").err
    assert "is not a directory" in cli("sort", model, tmp_path / "none", tmp_path / "out").err


def test_files_that_cannot_be_read_stay(cli: Cli, model: Path, heap: Path, tmp_path: Path) -> None:
    (heap / "bad.jpg").write_bytes(b"no")
    ran = cli("sort", model, heap, tmp_path / "out", "--how", "move")
    assert ran.code == 2
    assert "1 of 17 photos could not be sorted; they were left where they are" in ran.err
    assert files(heap) == {"bad.jpg": b"no"}


def test_models_and_linked_folders_are_left_alone(cli: Cli, model: Path, heap: Path, tmp_path: Path) -> None:
    shutil.copytree(model, heap / "model")
    Image.new("RGB", (64, 64)).save(heap / "model" / "stored.png")
    elsewhere = photo_folder(tmp_path / "elsewhere", ["a"], count=2)
    (heap / "linked").symlink_to(elsewhere, target_is_directory=True)
    cli("sort", model, heap, tmp_path / "out", "--how", "move")
    assert (heap / "model" / "stored.png").exists()
    assert len(files(elsewhere)) == 2
    assert "choose another place" in cli("sort", model, heap, model / "memory" / "sorted").err


def test_long_names_and_links_are_moved(model: Path, tmp_path: Path) -> None:
    heap = tmp_path / "heap"
    photo_folder(heap, ["a"], count=3)
    long = "x" * 251 + ".png"
    (heap / "a" / "0.png").rename(heap / long)
    (heap / "a" / "1.png").rename(heap / "a" / long)
    (heap / "linked.png").symlink_to(heap / "a" / "2.png")
    photos = sort_photos(ModelDir(model).load(images=True), heap, tmp_path / "out", "move", accept=1.0)
    assert [photo.error for photo in photos] == [None] * 4
    assert len({photo.to for photo in photos}) == 4
    assert files(heap) == {}


def test_classes_whose_names_are_no_folders_are_learned_again_as_themselves(
    cli: Cli, model: Path, heap: Path, tmp_path: Path
) -> None:
    own = shutil.copytree(model, tmp_path / "own")
    cli("rename", own, "a", "a/b")
    cli("sort", own, heap / "inner", tmp_path / "out", "--accept", "1")
    assert cli("learn", own, tmp_path / "out", "--extend").code == 2, "all photos are known"
    photo_folder(tmp_path / "more", ["b"], count=14)
    shutil.rmtree(tmp_path / "out")
    cli("sort", own, tmp_path / "more", tmp_path / "out", "--accept", "1")
    assert cli("learn", own, tmp_path / "out", "--extend").code == 0
    assert sorted(map(str, ModelDir(own).config().classes)) == ["a/b", "b"]


def test_the_loop_closes(cli: Cli, model: Path, heap: Path, tmp_path: Path) -> None:
    """Unknown photos are named and learned, and known afterwards. Folders without a name are left out."""
    own = shutil.copytree(model, tmp_path / "own")
    cli("sort", own, heap, tmp_path / "out", *STRICT)
    unknown = sorted((tmp_path / "out").glob("unknown-*"))
    assert [entry.reason for entry in scan_folder(tmp_path / "out").skipped if "unknown" in entry.path] == [
        "it has no name yet: rename the folders that `equipoise sort` created"
    ] * len(unknown)
    stripes = tmp_path / "new" / "stripes"
    stripes.mkdir(parents=True)
    for folder in unknown:
        for file in folder.iterdir():
            if "stripes" in file.name:
                file.rename(stripes / file.name)
    assert cli("learn", own, tmp_path / "new").code == 0
    rows = [json.loads(line) for line in cli("predict", own, stripes, "--json").out.splitlines()]
    assert all(row["predictions"][0]["class"] == "stripes" for row in rows)


def test_names_of_classes_cannot_break_the_sheet(tmp_path: Path) -> None:
    name = "<b onclick='x'>&\""
    photos = photo_folder(tmp_path / "photos", ["a", "b"], count=6)
    (photos / "a").rename(photos / name)
    model = learn(tmp_path / "model", photos).load(images=True)
    sort_photos(model, photos, tmp_path / "out")
    page = (tmp_path / "out" / SHEET).read_text()
    assert "<b " not in page
    assert "onclick='" not in page


# ---- groups


def blobs(sizes: list[int], apart: float, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    draws = torch.Generator().manual_seed(seed)
    centres = apart * torch.randn(len(sizes), 40, generator=draws)
    labels = torch.arange(len(sizes)).repeat_interleave(torch.tensor(sizes))
    return centres[labels] + torch.randn(len(labels), 40, generator=draws), labels


def test_separate_groups_are_found_largest_first() -> None:
    rows, labels = blobs([5, 20, 11], apart=3)
    known, theirs = blobs([20, 20], apart=3, seed=1)
    groups = cluster(rows, known, theirs)
    assert groups.bincount().tolist() == [20, 11, 5]
    assert [groups[labels == label].unique().tolist() for label in range(3)] == [[2], [0], [1]]


def test_images_as_close_as_a_known_class_are_one_group() -> None:
    known, theirs = blobs([20, 20, 20], apart=3, seed=1)
    rows = blobs([15], apart=3)[0] * 0.5 + 6  # closer together than any known class
    assert cluster(rows, known, theirs).tolist() == [0] * 15


@pytest.mark.parametrize("count", [1, 2, 3])
def test_few_images_are_grouped(count: int) -> None:
    groups = cluster(blobs([count], apart=3)[0], torch.zeros(0, 40), torch.zeros(0, dtype=torch.long))
    assert len(groups) == count


def test_many_images_join_the_nearest_group(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("equipoise.learn.clusters.MOST", 30)
    rows, labels = blobs([60, 30, 20], apart=4)
    groups = cluster(rows, *blobs([20, 20], apart=3, seed=1))
    assert torch.equal(groups, labels)
