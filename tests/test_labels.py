"""Labels in Python and names of class folders: each is kept exactly, or rejected in one sentence."""

from __future__ import annotations

import unicodedata
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.datasets import load_iris

import equipoise as eq
from equipoise.app.arrays import label_array, sorted_labels, unique_labels
from equipoise.app.labels import plain_label
from equipoise.app.learn import as_label
from equipoise.app.photo_folder import scan_folder
from equipoise.data.check import check
from equipoise.data.sources import load
from equipoise.data.sources.folder import by_class, class_folders, open_images
from equipoise.errors import UsageError
from tests.folders import glyphs, save_folder

NFC, NFD = "café", unicodedata.normalize("NFD", "café")
X, Y = load_iris(return_X_y=True)


def fitted(labels: Any, **options: Any) -> eq.IncrementalClassifier:
    """Return a classifier that has learned iris with two names for its three classes."""
    return eq.IncrementalClassifier(method="ncm", backbone="identity", **options).fit(X, labels)


def named(first: Any, second: Any) -> list[Any]:
    return [second if label else first for label in Y]


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        (named("a\0", "b"), "without null characters"),
        (named("a\0b", "b"), "without null characters"),
        (np.array(named("a\0", "b"), dtype=object), "without null characters"),
        (named("\ud800", "b"), "labels must be valid Unicode"),
        (named("a" * 1001, "b"), "labels must have at most 1000 characters, got 1,001"),
        (named("a", 1), "labels 'a' and 1 have different types|labels 1 and 'a' have different types"),
        (np.array(named("a", 1), dtype=object), "have different types"),
        (named(True, 2), "have different types"),
        (named(1, 2.0), "have different types"),
        (named(None, "a"), "labels must be strings, numbers or booleans, got None"),
        (named(float("nan"), 1.0), "labels must not be NaN or infinite, got nan"),
        (np.array(named(float("nan"), 1.0)), "labels must not be NaN or infinite, got nan"),
        (named(float("inf"), 1.0), "labels must not be NaN or infinite, got inf"),
        (np.array(named(2**63, 1), dtype=np.uint64), "labels must be 64-bit signed integers, got 9223372036854775808"),
        (named(2**63, -1), "labels must be 64-bit signed integers"),
        (named(10**5000, -1), "labels must be 64-bit signed integers"),
        (named(1j, 2j), "labels must be strings, numbers or booleans"),
        (named(b"a", b"b"), "labels must be strings, numbers or booleans"),
        (np.array(named(b"a", b"b")), "labels must be strings, numbers or booleans"),
        (np.array(named("2020-01-01", "2021-01-01"), dtype="datetime64[D]"), "labels must be strings, numbers"),
    ],
    ids=lambda value: value if isinstance(value, str) else type(value).__name__,
)
def test_a_label_that_cannot_be_kept_exactly_is_rejected(labels: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        fitted(labels)


@pytest.mark.parametrize(
    ("first", "second", "kind"),
    [
        (np.uint64(2**62 + 1), np.uint64(3), "i"),
        (-(2**63), 2**63 - 1, "i"),
        (np.uint8(255), np.uint8(3), "i"),
        (False, True, "b"),
        (2.0, 5.0, "f"),
        ("a", "b" * 1000, "U"),
        ("", " ", "U"),
        ("👩‍🚀", "\x1b[31m", "U"),
    ],
)
def test_a_label_that_is_accepted_is_predicted_exactly(first: Any, second: Any, kind: str, tmp_path: Path) -> None:
    clf = fitted(named(first, second))
    assert clf.classes_.dtype.kind == kind
    assert sorted({*clf.predict(X).tolist()}) == sorted([first, second])
    clf.save(tmp_path / "m")
    again = eq.load(tmp_path / "m")
    assert again.predict(X).tolist() == clf.predict(X).tolist()
    assert again.classes_.dtype.kind == kind


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ([0, 1], [True, False]),
        ([True, False], [2, 3]),
        ([0, 1], [2.0, 3.0]),
        ([0, 1], ["2", "3"]),
        (["0", "1"], [2, 3]),
    ],
)
def test_a_step_with_labels_of_another_type_is_rejected(first: list[Any], second: list[Any]) -> None:
    clf = fitted(named(*first))
    with pytest.raises(UsageError, match="have different types: use one"):
        clf.partial_fit(X, named(*second))
    assert clf.classes_.tolist() == sorted(first)


def test_large_integers_of_two_types_are_not_rounded() -> None:
    clf = fitted(np.array(named(2**62 + 1, 3), dtype=np.uint64)).partial_fit(X[:50], np.full(50, -1))
    assert clf.classes_.tolist() == [-1, 3, 2**62 + 1]
    assert clf.classes_.dtype == np.int64


@pytest.mark.parametrize("labels", [[NFC, NFD], np.array([NFC, NFD]), np.array([NFD, NFC], dtype=object)])
def test_two_spellings_of_a_label_are_one_class(labels: Any) -> None:
    names, positions = unique_labels(label_array(labels))
    assert names == [NFC]
    assert positions.tolist() == [0, 0]


def test_a_known_class_is_found_in_another_spelling() -> None:
    clf = fitted(named(NFC, "tea")).partial_fit(X[:50], [NFD] * 50)
    assert clf.classes_.tolist() == [NFC, "tea"]


@pytest.mark.parametrize("name", [NFC, NFD])
def test_a_model_of_an_older_version_keeps_its_spelling(name: str, tmp_path: Path) -> None:
    clf = fitted(named("other", "tea"))
    clf.model_.classes[clf.model_.classes.index("other")] = NFD
    clf.save(tmp_path / "m")
    again = eq.load(tmp_path / "m")
    assert again.classes_.tolist() == [NFD, "tea"]
    assert set(again.predict(X).tolist()) == {NFD, "tea"}
    again.partial_fit(X[:50], [name] * 50)
    assert again.classes_.tolist() == [NFD, "tea"]
    assert as_label(NFC, again.model_) == NFD


def test_labels_of_a_directory_that_are_of_two_types_are_rejected() -> None:
    with pytest.raises(UsageError, match="have different types"):
        sorted_labels(["1", 1])


def test_numpy_scalars_become_plain_labels() -> None:
    labels = [np.int8(1), np.float32(0.5), np.bool_(True), np.str_(NFD)]
    assert [plain_label(label) for label in labels] == [1, 0.5, True, NFC]
    assert [type(plain_label(label)) for label in labels] == [int, float, bool, str]


def test_columns_and_tensors_of_labels_are_labels() -> None:
    assert label_array(torch.tensor([1, 2])).tolist() == [1, 2]
    assert label_array((3, 4)).tolist() == [3, 4]


# ---- class folders


@pytest.fixture
def two_spellings(tmp_path: Path) -> Path:
    """Make a folder with three classes, one of them in two spellings."""
    save_folder(tmp_path, glyphs().train, {0: "A", 1: NFC, 2: "z"}, 6)
    save_folder(tmp_path, glyphs().train, {1: NFD}, 4, start=6)
    if len(list(tmp_path.iterdir())) < 4:
        pytest.skip("this file system has one spelling of each name")
    return tmp_path


def test_all_commands_see_one_class_in_two_spellings(two_spellings: Path) -> None:
    names = ["A", NFC, "z"]
    data = load("folder", two_spellings, size=24, test_fraction=0.2)
    assert list(data.classes) == names
    assert torch.bincount(torch.cat([data.train.labels, data.test.labels])).tolist() == [6, 10, 6]
    assert {name: len(files) for name, files in scan_folder(two_spellings).classes.items()} == {"A": 6, NFC: 10, "z": 6}
    assert check("folder", two_spellings).classes == 3


def test_images_of_both_spellings_have_the_label_of_their_class(two_spellings: Path) -> None:
    images = open_images(two_spellings, ["z", NFC, "A"], 24)
    paths = images.store.index.paths(images.rows.numpy())  # type: ignore[attr-defined]
    labels = [["z", NFC, "A"].index(unicodedata.normalize("NFC", Path(path).parent.name)) for path in paths]
    assert images.labels.tolist() == labels


def test_train_and_test_may_be_spelled_differently(tmp_path: Path) -> None:
    save_folder(tmp_path / "train", glyphs().train, {0: "A", 1: NFC}, 4)
    save_folder(tmp_path / "test", glyphs().test, {0: "A", 1: NFD}, 2)
    data = load("folder", tmp_path, size=24)
    assert list(data.classes) == ["A", NFC]
    assert torch.bincount(data.test.labels).tolist() == [2, 2]
    assert not check("folder", tmp_path).problems


def test_folders_are_grouped_by_class() -> None:
    assert by_class(["b", NFD, NFC, "a"]) == {"a": ["a"], "b": ["b"], NFC: sorted([NFC, NFD])}


def test_a_class_with_one_image_in_each_spelling_has_two(tmp_path: Path) -> None:
    save_folder(tmp_path, glyphs().train, {0: "A", 1: NFC}, 2)
    save_folder(tmp_path, glyphs().train, {1: NFD}, 1, start=2)
    (tmp_path / NFC / "001.png").unlink()
    assert len(class_folders(tmp_path)) == 3
    assert check("folder", tmp_path).complete
    assert len(load("folder", tmp_path, size=24).test) == 2
