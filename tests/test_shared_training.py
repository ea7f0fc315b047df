"""What several runs of a comparison train alike is trained once, and nothing else changes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from equipoise.core.directory import Directory
from equipoise.engine import shared_training
from equipoise.engine.shared_training import SharedTraining
from equipoise.errors import RunError
from equipoise.learn.stage import StageState
from equipoise.study.ablate import plan_ablation
from equipoise.study.compare import Cell, CompareListener, compare, plan
from equipoise.study.console import RunStart

WA_FAMILY = ("ce", "ce+wa", "ce+kd", "ce+kd+wnl", "ce+kd+unit", "wa")
TINY: dict[str, dict[str, Any]] = {"train": {"epochs": 2}, "stream": {"steps": 5}, "runtime": {"threads": 1}}
TEXT_RULE = {"fields": {"reinit_head": False}}
"""The recipe of the published runs keeps the old rows of the head, so aligned rows are trained further."""
OF_THE_CLOCK = {"seconds", "images_per_second", "seconds_by_part", "memory_peak_mb", "finished"}


class Counter(CompareListener):
    """Counts the steps that were trained, and those that were found."""

    def __init__(self) -> None:
        self.trained: dict[str, int] = {}
        self.found: dict[str, int] = {}

    def run(self, start: RunStart) -> None:
        self.label = start.directory.parts[-3]

    def stage(self, name: str, epochs: int, images: int, done: int) -> None:
        counts = self.found if done == epochs else self.trained
        counts[self.label] = counts.get(self.label, 0) + 1


def cells_of(methods: tuple[str, ...], seeds: tuple[int, ...] = (0,), overrides: Any = None) -> list[Cell]:
    return plan("digits", methods, seeds, overrides={**TINY, **(overrides or {})})


def count(cells: list[Cell], out: Path, **options: Any) -> Counter:
    counter = Counter()
    compare(cells, out, listener=counter, **options)
    return counter


def outcome(run: Path) -> list[Any]:
    """Return everything that a run has found and learned, without what the clock says."""
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    figures = [{name: value for name, value in line.items() if name not in OF_THE_CLOCK} for line in lines]
    files = sorted([*run.glob("predictions/*"), *run.glob("checkpoint/*.safetensors")])
    tensors = {f"{file.name} {name}": value for file in files for name, value in load_file(file).items()}
    return [figures, {name: (value.dtype, value.shape, value.tolist()) for name, value in tensors.items()}]


def assert_same(cells: list[Cell], one: Path, other: Path) -> None:
    for cell in cells:
        assert outcome(one / cell.directory) == outcome(other / cell.directory), cell.label


def test_the_family_finds_what_it_has_in_common_to_the_bit(tmp_path: Path) -> None:
    cells = cells_of(WA_FAMILY, overrides=TEXT_RULE)
    shared, apart = count(cells, tmp_path / "shared"), count(cells, tmp_path / "apart", share=False)
    assert_same(cells, tmp_path / "shared", tmp_path / "apart")
    assert apart.found == {}
    # the first step, and the second until a correction has changed the weights that the third starts from
    assert shared.found == {"ce+wa": 2, "ce+kd": 1, "ce+kd+unit": 2, "wa": 2}
    assert shared.trained == {"ce": 5, "ce+wa": 3, "ce+kd": 4, "ce+kd+wnl": 5, "ce+kd+unit": 3, "wa": 3}


def test_a_correction_of_a_head_that_is_drawn_anew_changes_no_training_without_a_teacher(tmp_path: Path) -> None:
    cells = cells_of(("ce", "ce+wa"))
    assert count(cells, tmp_path / "shared").found == {"ce+wa": 5}
    count(cells, tmp_path / "apart", share=False)
    assert_same(cells, tmp_path / "shared", tmp_path / "apart")


def test_an_ablation_trains_alike_until_its_choice_matters(tmp_path: Path) -> None:
    cells, panels = plan_ablation("digits", "wa", [0], overrides={**TINY, **TEXT_RULE})
    counter = Counter()
    compare(cells, tmp_path / "shared", panels=panels, listener=counter)
    compare(cells, tmp_path / "apart", panels=panels, share=False)
    assert_same(cells, tmp_path / "shared", tmp_path / "apart")
    assert counter.found == {"wa-norm-1": 2, "wa-selection-random": 1}


def test_other_seeds_and_settings_share_nothing(tmp_path: Path) -> None:
    changed = plan("digits", ["ce+wa"], [0], overrides={**TINY, "train": {"epochs": 2, "lr": 0.01}})
    cells = [*cells_of(("ce",), (0, 1)), *changed]
    assert len({cell.group for cell in cells}) == 3
    assert count(cells, tmp_path).found == {}


def test_an_interrupted_comparison_finds_what_it_shared_before(tmp_path: Path) -> None:
    class Interrupt(Counter):
        def run(self, start: RunStart) -> None:
            super().run(start)
            if self.label == "ce+wa":
                raise KeyboardInterrupt

    cells = cells_of(("ce", "ce+wa"))
    with pytest.raises(KeyboardInterrupt):
        compare(cells, tmp_path, listener=Interrupt())
    assert list((tmp_path / "shared").rglob("*.safetensors"))
    assert count(cells, tmp_path).found == {"ce+wa": 5}
    assert not (tmp_path / "shared").exists()


def test_a_damaged_file_is_trained_again(tmp_path: Path) -> None:
    class Damage(Counter):
        def run(self, start: RunStart) -> None:
            super().run(start)
            for file in (tmp_path / "one/shared").rglob("*.safetensors"):
                file.write_bytes(file.read_bytes()[:-1])

    cells, counter = cells_of(("ce", "ce+wa")), Damage()
    compare(cells, tmp_path / "one", listener=counter)
    assert counter.found == {}
    count(cells, tmp_path / "other", share=False)
    assert_same(cells, tmp_path / "one", tmp_path / "other")


def test_a_link_in_place_of_the_folder_is_refused(tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.mkdir()
    (precious / "letter.txt").write_text("keep")
    (tmp_path / "out").mkdir()
    (tmp_path / "out/shared").symlink_to(precious)
    with pytest.raises(RunError, match="shared"):
        compare(cells_of(("ce", "ce+wa")), tmp_path / "out")
    assert [file.name for file in precious.iterdir()] == ["letter.txt"]


def test_files_of_others_stay(tmp_path: Path) -> None:
    (tmp_path / "shared").mkdir()
    (tmp_path / "shared/notes.txt").write_text("mine")
    count(cells_of(("ce", "ce+wa")), tmp_path)
    assert [file.name for file in (tmp_path / "shared").rglob("*")] == ["notes.txt"]


def test_no_more_is_kept_than_the_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_training, "LIMIT", 5000)
    pool = SharedTraining(tmp_path, "0" * 32)
    for number in range(4):
        tensors = {"method.weight": torch.full((500,), float(number)), "optimizer.0.momentum": torch.zeros(500)}
        pool.add(f"{number:032x}", StageState(2, 1.5, tensors))
    assert [pool.find(f"{number:032x}") is not None for number in range(4)] == [True, True, False, False]
    found = pool.find(f"{1:032x}")
    assert found is not None
    assert (found.epochs, found.seconds, set(found.tensors)) == (2, 1.5, {"method.weight"})
    pool.clear()
    assert not Directory(tmp_path).exists("shared")
