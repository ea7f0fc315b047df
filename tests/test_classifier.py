"""IncrementalClassifier: compatible with scikit-learn, for every kind of input."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from sklearn.base import clone
from sklearn.datasets import load_digits, load_iris
from sklearn.model_selection import cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

import equipoise as eq
from equipoise.errors import DataError, UsageError
from tests.folders import glyphs

SKIPPED = {
    "check_array_api_input": "needs SCIPY_ARRAY_API and other array libraries",
    "check_classifier_data_not_an_array": "needs pandas",
}
"""Checks that scikit-learn itself skips here; all others must pass."""


@parametrize_with_checks([eq.IncrementalClassifier()])  # type: ignore[untyped-decorator]
def test_all_checks_of_scikit_learn_pass(estimator: Any, check: Any) -> None:
    try:
        check(estimator)
    except pytest.skip.Exception:
        assert check.func.__name__ in SKIPPED
        raise


def small(**options: Any) -> eq.IncrementalClassifier:
    settings = {"net": {"backbone": "tiny"}, "augment": {"flip": False}, "runtime": {"threads": 1}}
    return eq.IncrementalClassifier(**{"epochs": 30, "settings": settings, **options})


@pytest.fixture(scope="module")
def pictures() -> tuple[np.ndarray, np.ndarray]:
    """Return images of four glyphs, uint8, N × 24 × 24 × 3, and their labels."""
    images = glyphs().train
    few = images.select(images.labels < 4)
    pixels = few.read(torch.arange(len(few))).permute(0, 2, 3, 1).numpy()
    return pixels, np.array(["d", "b", "c", "a"])[few.labels.numpy()]


def test_each_partial_fit_is_a_step_and_columns_are_sorted_by_class() -> None:
    X, y = load_digits(return_X_y=True)
    clf = eq.IncrementalClassifier(seed=0, holdout=0.2)
    for low, high in ((5, 10), (0, 3), (3, 5)):
        mine = (y >= low) & (y < high)
        assert clf.partial_fit(X[mine], y[mine]) is clf
    assert clf.classes_.tolist() == list(range(10))
    assert clf.model_.classes == [5, 6, 7, 8, 9, 0, 1, 2, 3, 4]
    probabilities = clf.predict_proba(X)
    assert probabilities.shape == (len(X), 10)
    np.testing.assert_allclose(probabilities.sum(1), 1, rtol=1e-6)
    assert (clf.predict(X) == clf.classes_[probabilities.argmax(1)]).all()
    assert clf.score(X, y) > 0.85
    assert [step.classes for step in clf.steps_] == [[5, 6, 7, 8, 9], [0, 1, 2], [3, 4]]
    accuracy = clf.steps_[-1].accuracy
    assert accuracy is not None
    assert accuracy > 80


def test_old_classes_are_remembered_only_with_a_memory() -> None:
    X, y = load_digits(return_X_y=True)
    accuracies = []
    for clf in (eq.IncrementalClassifier(), eq.IncrementalClassifier(method="ce", memory=0)):
        clf.partial_fit(X[y < 5], y[y < 5]).partial_fit(X[y >= 5], y[y >= 5])
        accuracies.append(clf.score(X[y < 5], y[y < 5]))
    assert accuracies[0] > 0.85
    assert accuracies[1] < 0.5


@pytest.mark.parametrize(
    "labels",
    [np.array([3, -7]), np.array(["β", "a b"]), np.array([True, False]), np.array([5.0, 2.0]), ["x", "y"]],
    ids=["int", "string", "bool", "float", "list"],
)
def test_labels_keep_their_type(labels: Any, tmp_path: Path) -> None:
    X, y = load_iris(return_X_y=True)
    named = [labels[0] if label == 0 else labels[1] for label in y]
    clf = eq.IncrementalClassifier(epochs=5).fit(X, named)
    assert clf.score(X, named) > 0.9
    assert clf.classes_.tolist() == sorted(set(np.asarray(labels).tolist()))
    clf.save(tmp_path / "m")
    again = eq.load(tmp_path / "m")
    assert again.classes_.dtype.kind == clf.classes_.dtype.kind
    assert again.predict(X).tolist() == clf.predict(X).tolist()


def test_strings_may_be_objects_as_in_pandas() -> None:
    X, y = load_iris(return_X_y=True)
    names = np.array(["cat", "dog", "fox"], dtype=object)[y]
    clf = eq.IncrementalClassifier(epochs=2).partial_fit(X[y < 2], names[y < 2]).partial_fit(X[y == 2], names[y == 2])
    assert clf.classes_.tolist() == ["cat", "dog", "fox"]


def test_labels_of_different_types_are_rejected() -> None:
    X, y = load_iris(return_X_y=True)
    clf = eq.IncrementalClassifier(epochs=1).fit(X, y)
    with pytest.raises(UsageError, match="have different types"):
        clf.partial_fit(X, ["a" if label else "b" for label in y])
    assert clf.classes_.tolist() == [0, 1, 2]  # nothing changed


def test_a_label_that_is_not_valid_unicode_is_rejected() -> None:
    X, y = load_iris(return_X_y=True)
    with pytest.raises(UsageError, match="labels must be valid Unicode"):
        eq.IncrementalClassifier(epochs=1).fit(X, ["\ud800" if label else "a" for label in y])


def test_a_large_memory_only_costs_what_it_holds() -> None:
    X, y = load_iris(return_X_y=True)
    clf = eq.IncrementalClassifier("wa", epochs=1, memory=10**12)
    clf.partial_fit(X[y < 2], y[y < 2]).partial_fit(X[y == 2], y[y == 2])
    assert clf.steps_[-1].exemplars == len(X)


def test_paths_arrays_tensors_and_pil_images_are_equivalent(pictures: Any, tmp_path: Path) -> None:
    pixels, y = pictures
    paths = []
    for number, picture in enumerate(pixels):
        paths.append(tmp_path / f"{number}.png")
        Image.fromarray(picture).save(paths[-1])
    opened = [Image.fromarray(picture) for picture in pixels]
    clf = small(image_size=24).fit(paths, y)
    assert clf.score(paths, y) > 0.8
    expected = clf.predict_proba(pixels)
    for same in (paths, [str(path) for path in paths], opened, torch.from_numpy(pixels).permute(0, 3, 1, 2)):
        np.testing.assert_array_equal(clf.predict_proba(same), expected)
    again = small(image_size=24).fit(pixels, y)
    np.testing.assert_array_equal(again.predict_proba(pixels), expected)


def test_greyscale_images_need_no_channel_axis() -> None:
    X, y = load_digits(return_X_y=True)
    pixels = (X.reshape(-1, 8, 8) * 15).astype(np.uint8)
    clf = small(epochs=4).fit(pixels[:400], y[:400])
    assert clf.model_.shape == (1, 8, 8)
    assert clf.score(pixels[:400], y[:400]) > 0.7


@pytest.mark.parametrize(
    ("X", "message"),
    [
        (np.zeros((6, 8, 8, 3), np.float32), "images must be uint8"),
        ([Image.new("RGB", (9, 9))] * 5, "got 5 images but 6 labels"),
        (["/nowhere.png"] * 6, "cannot read /nowhere.png as an image"),
        ([Image.new("RGB", (9, 9))] * 5 + [3], "expected a path or a PIL image, got 3"),
    ],
)
def test_invalid_images_are_named(X: Any, message: str) -> None:
    with pytest.raises((DataError, UsageError), match=message):
        small(image_size=16).fit(X, [0, 1, 0, 1, 0, 1])


def test_features_after_images_and_other_shapes_are_rejected(pictures: Any) -> None:
    pixels, y = pictures
    clf = small(epochs=1).fit(pixels, y)
    with pytest.raises(UsageError, match="X has rows of features, but this IncrementalClassifier was fitted on images"):
        clf.predict(np.zeros((2, 5)))
    with pytest.raises(UsageError, match="X has images of shape"):
        clf.predict(pixels[:, :16])
    rows = eq.IncrementalClassifier(epochs=1).fit(*load_iris(return_X_y=True))
    with pytest.raises(
        UsageError, match="X has images, but this IncrementalClassifier was fitted on rows of 4 features"
    ):
        rows.predict(pixels)


def test_pipeline_cross_validation_and_clone() -> None:
    X, y = load_iris(return_X_y=True)
    clf = eq.IncrementalClassifier(method="bic", memory=50, epochs=10)
    assert cross_val_score(make_pipeline(StandardScaler(), clf), X, y, cv=3).mean() > 0.85
    assert clone(clf).get_params() == clf.get_params()
    assert clone(clf).set_params(method="wa").method == "wa"


def test_features_of_any_scale_are_learned() -> None:
    X, y = load_iris(return_X_y=True)
    scaled = X * np.array([1e-6, 1e6, 1, 0]) + np.array([1e3, -1e6, 0, 7])
    assert eq.IncrementalClassifier().fit(scaled, y).score(scaled, y) > 0.85


def test_a_failed_step_leaves_the_classifier_as_it_was(pictures: Any) -> None:
    pixels, y = pictures
    clf = small(epochs=2).fit(pixels, y)
    before = clf.predict_proba(pixels)
    with pytest.raises(UsageError, match="a memory of 3 exemplars is too small"):
        clf.set_params(memory=3).partial_fit(pixels[:5], ["new"] * 5)
    np.testing.assert_array_equal(clf.predict_proba(pixels), before)
    assert "new" not in clf.classes_


def test_a_loaded_classifier_continues_exactly(pictures: Any, tmp_path: Path) -> None:
    pixels, y = pictures
    early, late = np.isin(y, ["d", "b"]), np.isin(y, ["c", "a"])
    one = small(seed=3).fit(pixels[early], y[early])
    one.save(tmp_path / "m")
    two = eq.load(tmp_path / "m").set_params(epochs=one.epochs, settings=one.settings)
    for clf in (one, two):
        clf.partial_fit(pixels[late], y[late])
    np.testing.assert_array_equal(one.predict_proba(pixels), two.predict_proba(pixels))
    two.save(tmp_path / "m")
    assert eq.load(tmp_path / "m").classes_.tolist() == list("abcd")
    with pytest.raises(UsageError, match="holds another model"):
        small(epochs=1).fit(pixels, y).save(tmp_path / "m")
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(one)).predict_proba(pixels), one.predict_proba(pixels))


def test_features_are_saved_as_rows(tmp_path: Path) -> None:
    X, y = load_iris(return_X_y=True)
    clf = eq.IncrementalClassifier(epochs=5, memory=30, holdout=0.1).fit(X[y < 2], y[y < 2])
    clf.save(tmp_path / "m")
    again = eq.load(tmp_path / "m")
    assert again.n_features_in_ == 4
    again.partial_fit(X[y == 2], y[y == 2])
    assert again.score(X, y) > 0.7
    clf.save(tmp_path / "light", memory=False)
    np.testing.assert_array_equal(eq.load(tmp_path / "light").predict_proba(X), clf.predict_proba(X))
    assert not list((tmp_path / "light").rglob("*.npy"))


def test_the_callers_random_state_does_not_change() -> None:
    X, y = load_iris(return_X_y=True)
    torch.manual_seed(1)
    expected = torch.rand(3)
    torch.manual_seed(1)
    eq.IncrementalClassifier(epochs=1).fit(X, y).partial_fit(X, y)
    assert torch.equal(torch.rand(3), expected)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"epochs": "x"}, "train.epochs must be a whole number, got 'x'"),
        ({"epochs": None}, "train.epochs must be a whole number, got None"),
        ({"holdout": "x"}, "holdout must be a fraction from 0 to below 1, got 'x'"),
        ({"method": "wq"}, "unknown method 'wq'"),
        ({"settings": {"train": {"lr": "high"}}}, "train.lr must be a number, got 'high'"),
    ],
)
def test_invalid_settings_are_named(options: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        eq.IncrementalClassifier(**options).fit(*load_iris(return_X_y=True))


def test_each_kind_of_input_has_its_backbones(pictures: Any) -> None:
    with pytest.raises(UsageError, match="use mlp or identity for rows of features, and any other for images"):
        eq.IncrementalClassifier(backbone="mlp").fit(*pictures)
    with pytest.raises(UsageError, match="use mlp or identity for rows of features, and any other for images"):
        eq.IncrementalClassifier(backbone="resnet32").fit(*load_iris(return_X_y=True))


def test_fixed_settings_cannot_be_changed_without_refitting() -> None:
    X, y = load_iris(return_X_y=True)
    clf = eq.IncrementalClassifier("wa", epochs=1).fit(X, y)
    with pytest.raises(
        UsageError, match=r"method='icarl' conflicts with the fitted model \('wa'\); refit to change it"
    ):
        clf.set_params(method="icarl").partial_fit(X, y)
    clf.fit(X, y)
    assert clf.model_.settings.method == "icarl"
