"""Corrections of a model: rename, merge, move, suspects, and any sequence of them beside a simple model."""

from __future__ import annotations

import json
import shutil
import tempfile
import unicodedata
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

import equipoise as eq
from equipoise import IncrementalClassifier
from equipoise.app.card import describe_step
from equipoise.app.corrections import merge, move, rename
from equipoise.app.forget import forget
from equipoise.app.model_dir import ModelDir
from equipoise.app.stored_features import ids_of
from equipoise.app.stored_images import identify
from equipoise.app.suspects import find_suspects
from equipoise.errors import UsageError
from tests.conftest import Ran

Cli = Callable[..., Ran]
WIDTH = 64


def rows(seed: int, count: int = 5, centre: int | None = None) -> np.ndarray:
    """Return rows around a centre of their own."""
    draws = np.random.default_rng(seed)
    middle = np.random.default_rng(1000 + (seed if centre is None else centre)).random(WIDTH)
    return (middle + 0.3 * draws.random((count, WIDTH))).astype(np.float32)


def learn(path: Path, classes: dict[str, np.ndarray]) -> None:
    """Teach rows to the model in a directory."""
    x = np.concatenate(list(classes.values()))
    y = np.repeat(list(classes), [len(mine) for mine in classes.values()])
    model = eq.load(path) if ModelDir(path).exists else IncrementalClassifier(method="ridge")
    model.partial_fit(x, y).save(path)


def kept(path: Path) -> dict[str, list[str]]:
    """Return the names of the images of each class."""
    model = ModelDir(path).load(images=True)
    return {str(name): sorted(ids_of(part[0])) for name, part in model.images_by_class().items()}


def answers(path: Path) -> dict[str, list[float]]:
    """Return the probabilities of each class for a few rows."""
    model = eq.load(path)
    found = model.predict_proba(rows(99, 6))
    return {str(name): found[:, column].tolist() for column, name in enumerate(model.classes_)}


@pytest.fixture
def three(tmp_path: Path) -> Path:
    learn(tmp_path / "model", {"a": rows(1), "b": rows(2)})
    learn(tmp_path / "model", {"c": rows(3)})
    return tmp_path / "model"


def test_rename_changes_the_name_only(three: Path) -> None:
    before = answers(three)
    result = rename(ModelDir(three), "a", "apple")
    assert result.changed == ["a", "apple"]
    after = answers(three)
    assert list(after) == ["apple", "b", "c"]
    np.testing.assert_allclose(after["apple"], before["a"], rtol=1e-6)
    steps = ModelDir(three).steps()
    assert [step.classes for step in steps] == [["apple", "b"], ["c"], []]
    assert {entry.name for entry in steps[-1].per_class} == {"apple", "b", "c"}
    ModelDir(three).undo()
    assert answers(three) == before


def test_merge_is_as_if_the_classes_had_been_one(three: Path, tmp_path: Path) -> None:
    merge(ModelDir(three), "a", ["c"])
    learn(tmp_path / "fresh", {"a": np.concatenate([rows(1), rows(3)]), "b": rows(2)})
    assert answers(three) == answers(tmp_path / "fresh")
    assert ModelDir(three).steps()[-1].kind == "merge"


def test_move_is_as_if_the_image_had_been_there(three: Path, tmp_path: Path) -> None:
    (first, *_) = kept(three)["a"]
    model = ModelDir(three).load(images=True)
    index = ids_of(model.images_by_class()["a"][0]).index(first)
    result = move(ModelDir(three), [first[:10]], "b")
    assert (result.images, result.changed) == (1, ["b"])
    moved = rows(1)[[index]]
    learn(tmp_path / "fresh", {"a": np.delete(rows(1), index, 0), "b": np.concatenate([rows(2), moved]), "c": rows(3)})
    assert answers(three) == answers(tmp_path / "fresh")
    assert first in kept(three)["b"]


def test_move_may_create_a_class(three: Path) -> None:
    two = kept(three)["a"][:2]
    with pytest.raises(UsageError, match="unknown class 'd'"):
        move(ModelDir(three), two, "d")
    move(ModelDir(three), two, "d", create=True)
    assert kept(three)["d"] == sorted(two)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda place: rename(place, "a", "b"), "there is already a class 'b': merge the two"),
        (lambda place: rename(place, "x", "y"), "unknown class 'x'"),
        (lambda place: rename(place, "a", " \n"), "cannot be the name of a class"),
        (lambda place: rename(place, "a", "two\nlines"), "cannot be the name of a class"),
        (lambda place: rename(place, "a", "unknown-3"), "choose another name"),
        (lambda place: merge(place, "a", ["a"]), "at least one other class"),
        (lambda place: move(place, ["00000000"], "a"), "no image begins with '00000000'"),
        (lambda place: move(place, kept(place.path)["a"], "b"), "class 'a' would have no images left"),
        (lambda place: move(place, kept(place.path)["a"][:1], "a"), "these images are already in class 'a'"),
    ],
)
def test_impossible_corrections_change_nothing(three: Path, change: Callable[[ModelDir], Any], message: str) -> None:
    before = (three / "config.json").read_bytes()
    with pytest.raises(UsageError, match=message):
        change(ModelDir(three))
    assert (three / "config.json").read_bytes() == before


def test_accents_may_be_composed_or_not(tmp_path: Path) -> None:
    learn(tmp_path / "model", {"café": rows(1), "b": rows(2)})
    rename(ModelDir(tmp_path / "model"), unicodedata.normalize("NFD", "café"), "thé")
    assert set(kept(tmp_path / "model")) == {"thé", "b"}


def test_forgetting_a_class_removes_its_former_names(three: Path) -> None:
    rename(ModelDir(three), "a", "secret")
    rename(ModelDir(three), "secret", "public")
    forget(ModelDir(three), ["public"])
    for file in three.rglob("*"):
        if file.is_file():
            assert b"secret" not in file.read_bytes()


def test_advice_does_not_keep_a_name(tmp_path: Path) -> None:
    """Advice names classes, so it goes with the step, the name or the class that it was about."""
    draws = np.random.default_rng(0)
    middle = draws.normal(size=(2, WIDTH))
    near = middle[1] + 0.25 * draws.normal(size=WIDTH)

    def around(centre: np.ndarray, count: int) -> np.ndarray:
        return (centre + draws.normal(size=(count, WIDTH))).astype(np.float32)

    classes = {"apple": around(middle[0], 40), "bowl": around(middle[1], 40), "secret": around(near, 6)}
    for change in (rename, forget, learn):
        path = tmp_path / change.__name__
        learn(path, classes)
        assert "secret: 6 images" in str(ModelDir(path).steps()[0].advice)
        if change is rename:
            rename(ModelDir(path), "secret", "public")
            forget(ModelDir(path), ["public"])
        elif change is forget:
            forget(ModelDir(path), ["secret"])
        else:
            learn(path, {"more": rows(3)})
            assert ModelDir(path).steps()[0].advice is None
            continue
        assert not any(b"secret" in file.read_bytes() for file in path.rglob("*") if file.is_file())


def test_forgetting_a_class_removes_the_names_of_merged_ones(three: Path) -> None:
    rename(ModelDir(three), "c", "hidden")
    merge(ModelDir(three), "a", ["hidden"])
    rename(ModelDir(three), "a", "both")
    shown = [describe_step(step) for step in ModelDir(three).steps()[2:]]
    assert shown == ["renamed c to hidden", "merged hidden into a", "renamed a to both"]
    forget(ModelDir(three), ["both"])
    for file in three.rglob("*"):
        if file.is_file():
            assert b"hidden" not in file.read_bytes()
            assert b"both" not in file.read_bytes()


def test_the_commands_say_what_they_did(cli: Cli, three: Path) -> None:
    assert cli("rename", three, "a", "apple").out == "renamed a to apple\n"
    assert cli("merge", three, "b", "c").out.startswith("merged c into b\naccuracy ")
    image = kept(three)["apple"][0]
    assert cli("move", three, image, "b").out.startswith("moved 1 image to b\n")
    assert "name at least one image" in cli("move", three, "b").err
    result = json.loads(cli("rename", three, "b", "berry", "--json").out)
    assert (result["kind"], result["changed"]) == ("rename", ["b", "berry"])
    shown = cli("history", three).out
    assert "renamed a to apple" in shown
    assert "merged c into b" in shown
    assert cli("undo", three).out.startswith("undid step 6 (renamed b to berry)")


def test_trained_methods_learn_corrections_from_exemplars(cli: Cli, model_path: Path, tmp_path: Path) -> None:
    """Letters, learned with wa: after a merge, images of both classes are recognised as one."""
    ran = cli("merge", model_path, "A", "D", "--json")
    assert json.loads(ran.out)["changed"] == ["A", "D"], ran.err
    model = ModelDir(model_path).load(images=True)
    assert sorted(map(str, model.classes)) == ["A", "B", "C", "E", "F"]
    image = ids_of(model.images_by_class()["B"][0])[0]
    assert cli("move", model_path, image, "C").code == 0
    cli("undo", model_path)
    cli("undo", model_path)
    assert "D" in ModelDir(model_path).config().classes


# ---- suspects


def test_images_in_a_wrong_class_are_suspect(cli: Cli, tmp_path: Path) -> None:
    wrong = rows(50, 1, centre=2)
    learn(tmp_path / "model", {"a": np.concatenate([rows(1, 12), wrong]), "b": rows(2, 12), "c": rows(3, 12)})
    (found,) = find_suspects(ModelDir(tmp_path / "model"))
    assert (found.label, found.looks_like) == ("a", "b")
    text = cli("suspects", tmp_path / "model").out
    assert f"{found.image[:12]}  is in a, looks like b" in text
    move(ModelDir(tmp_path / "model"), [found.image], "b")
    assert find_suspects(ModelDir(tmp_path / "model")) == []
    assert "no image seems to be in the wrong class" in cli("suspects", tmp_path / "model").out


def test_nearly_equal_images_in_two_classes_are_suspect(tmp_path: Path) -> None:
    learn(tmp_path / "model", {"a": rows(1, 12), "b": np.concatenate([rows(2, 12), rows(1, 12)[:1] + 1e-3])})
    found = [one for one in find_suspects(ModelDir(tmp_path / "model")) if one.same_as]
    assert [(one.label, one.looks_like) for one in found] == [("a", "b")]


def test_suspects_need_all_images(cli: Cli, two_steps: Path) -> None:
    assert "keeps only some or none" in cli("suspects", two_steps).err


# ---- any sequence of changes

NAMES = ["ant", "bee", "cat", "dog", "elk", "fox"]


class Corrections(RuleBasedStateMachine):
    """A directory beside a list of versions, each a mapping from classes to rows."""

    @initialize()
    def start(self) -> None:
        self.folder = Path(tempfile.mkdtemp())
        self.path = self.folder / "model"
        self.versions: list[dict[str, list[int]]] = [{}]
        self.bits: list[bytes] = []
        self.seed = 0
        self.teach("ant", 3)
        self.teach("bee", 3)

    def teardown(self) -> None:
        shutil.rmtree(self.folder)

    @property
    def now(self) -> dict[str, list[int]]:
        return self.versions[-1]

    def commit(self, changed: dict[str, list[int]]) -> None:
        self.versions.append(changed)
        self.bits.append((self.path / "model.safetensors").read_bytes())

    def teach(self, name: str, count: int) -> None:
        new = list(range(self.seed, self.seed + count))
        self.seed += count
        learn(self.path, {name: np.concatenate([row(number) for number in new])})
        changed = {key: list(mine) for key, mine in self.now.items() if key != name}
        self.commit(changed | {name: self.now.get(name, []) + new})

    @rule(name=st.sampled_from(NAMES), count=st.integers(1, 4))
    def learn(self, name: str, count: int) -> None:
        self.teach(name, count)

    @rule(data=st.data(), new=st.sampled_from(NAMES))
    def rename(self, data: st.DataObject, new: str) -> None:
        old = data.draw(st.sampled_from(sorted(self.now)))
        if new in self.now:
            return
        rename(ModelDir(self.path), old, new)
        self.commit({new if key == old else key: mine for key, mine in self.now.items()})

    @precondition(lambda self: len(self.now) > 1)
    @rule(data=st.data())
    def merge(self, data: st.DataObject) -> None:
        into, other = data.draw(st.permutations(sorted(self.now)))[:2]
        merge(ModelDir(self.path), into, [other])
        changed = {key: mine for key, mine in self.now.items() if key not in (into, other)}
        self.commit(changed | {into: self.now[into] + self.now[other]})

    @precondition(lambda self: len(self.now) > 1)
    @rule(data=st.data())
    def move(self, data: st.DataObject) -> None:
        source, target = data.draw(st.permutations(sorted(self.now)))[:2]
        if len(self.now[source]) < 2:
            return
        number = data.draw(st.sampled_from(self.now[source]))
        move(ModelDir(self.path), [identity(number)], target)
        changed = {key: [one for one in mine if one != number] for key, mine in self.now.items()}
        changed[target] = [*changed[target], number]
        self.commit(changed)

    @precondition(lambda self: len(self.now) > 1)
    @rule(data=st.data())
    def forget(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.now)))
        forget(ModelDir(self.path), [name])
        left = {key: mine for key, mine in self.now.items() if key != name}
        self.versions, self.bits = [{}], []  # nothing can be undone
        self.commit(left)

    @precondition(lambda self: 2 < len(self.versions) <= 10)
    @rule()
    def undo(self) -> None:
        ModelDir(self.path).undo()
        self.versions.pop()
        self.bits.pop()
        assert (self.path / "model.safetensors").read_bytes() == self.bits[-1]

    @invariant()
    def holds_what_it_should(self) -> None:
        expected = {name: sorted(identity(number) for number in mine) for name, mine in self.now.items()}
        assert kept(self.path) == expected

    @invariant()
    def predicts_as_if_learned_at_once(self) -> None:
        if sum(map(len, self.now.values())) == 1:
            return  # a classifier does not start with a single row
        fresh = self.folder / "fresh"
        shutil.rmtree(fresh, ignore_errors=True)
        learn(fresh, {name: np.concatenate([row(number) for number in mine]) for name, mine in self.now.items()})
        assert answers(self.path) == answers(fresh)


def row(number: int) -> np.ndarray:
    return rows(number, 1, centre=number % 4)


def identity(number: int) -> str:
    """Return the name under which a row is stored."""
    return identify(torch.from_numpy(row(number)).reshape(WIDTH, 1, 1))


TestCorrections = Corrections.TestCase
TestCorrections.settings = settings(
    max_examples=12, stateful_step_count=8, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck)
)
