"""The schema of a step's result: one for metrics.jsonl, steps.json and --json, also for files of older versions."""

from __future__ import annotations

import csv
import dataclasses
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from equipoise.core.directory import Directory
from equipoise.engine.metrics import summarise
from equipoise.engine.results import RENAMED, ClassResult, ErrorCounts, StepResult, read_results, write_lines
from equipoise.errors import RunError
from equipoise.study.compare import compare, plan
from equipoise.study.report.runs import read_run
from equipoise.study.run import run
from tests.conftest import Quick, Ran
from tests.runs import Stop
from tests.test_data import make_tree

FORMATS = Path(__file__).parent.parent / "docs" / "formats.md"
SAVED = Path(__file__).parent / "saved" / "0.1.0"
SCHEMA = (StepResult, ErrorCounts, ClassResult)

RUN_ROW: dict[str, Any] = {
    "step": 2,
    "seen": 4,
    "new": 2,
    "top1": 60.0,
    "top5": 100.0,
    "top1_uncorrected": 50.0,
    "top5_uncorrected": 90.0,
    "gamma": None,
    "alpha": 0.9,
    "beta": -0.1,
    "e_n": 1,
    "e_o": 3,
    "e_on": 2,
    "e_oo": 1,
    "e_n_uncorrected": 0,
    "e_o_uncorrected": 5,
    "e_on_uncorrected": 4,
    "e_oo_uncorrected": 1,
    "per_step": [40.0, 80.0],
    "per_class": [20.0, 60.0, 80.0, None],
    "norms_old": 1.0,
    "norms_new": 1.5,
    "exemplars": 20,
    "seconds": 0.5,
    "images_per_second": 100.0,
    "seconds_by_part": {"train": 0.4, "other": 0.1},
    "memory_peak_mb": 400.0,
}
"""A line of metrics.jsonl in format 1, of the method bic."""
MODEL_ROW: dict[str, Any] = {
    "step": 1,
    "kind": "learn",
    "when": "2026-11-17T22:30:53+00:00",
    "classes": ["cat"],
    "extended": ["dog"],
    "images": 8,
    "held_out": 4,
    "exemplars": 8,
    "epochs": 60,
    "seconds": 0.2,
    "gamma": 0.7,
    "accuracy": 75.0,
    "accuracy_old": None,
    "accuracy_new": 75.0,
    "tests_old": 0,
    "tests_new": 4,
    "e_n": 1,
    "e_o": 0,
    "e_on": 0,
    "e_oo": 0,
    "e_no": 0,
    "per_class": [{"class": "dog", "right": 3, "of": 4}, {"class": "cat", "right": 0, "of": 0}],
    "accuracy_uncorrected": 50.0,
    "equipoise": "0.1.0",
    "warning": None,
    "files_left_out": 2,
}
"""An entry of steps.json in format 1."""


def result(step: int = 1, **changes: Any) -> StepResult:
    made: dict[str, Any] = {
        "step": step,
        "classes": ["a", 7, 1.5, True],
        "seen": 4,
        "new": 4,
        "accuracy": 62.5,
        "accuracy_old": None,
        "errors": ErrorCounts(e_n=3, e_no=1),
        "per_step": [62.5, None],
        "per_class": [ClassResult("a", 50.0, 1, 2), ClassResult(7, None, 0, 0), ClassResult(True, 100.0)],
        "gamma": 0.5,
        "figures": {"alpha": 1.0},
        "seconds_by_part": {"train": 1.0},
        "warning": "the model favours new classes",
    }
    return StepResult(**made | changes)


# ---- reading and writing


def test_round_trip() -> None:
    results = [result(), result(2, kind="forget", forgotten=1)]
    rows = [json.loads(line) for line in write_lines(results).split("\n") if line]
    assert read_results(rows, "metrics.jsonl") == results
    assert [row.keys() for row in rows] == [{field.name for field in dataclasses.fields(StepResult)}] * 2


def test_round_trip_of_class_names_with_line_separators(tmp_path: Path) -> None:
    results = [result(classes=["a\u2028b\x85c\n", "\udcff", "γ 日本"])]
    directory = Directory(tmp_path)
    directory.write_json_text("metrics.jsonl", write_lines(results))
    (read,) = read_results(directory.read_json_lines("metrics.jsonl"), "metrics.jsonl")
    assert read.classes == ["a\u2028b\x85c\n", "\\udcff", "γ 日本"]  # a byte that is not UTF-8 becomes text


def test_a_run_can_be_continued_with_any_class_name(tmp_path: Path) -> None:
    make_tree(tmp_path / "data", ["a\u2028b", "c\x85d", "γ 日本"], 6)
    small: dict[str, Any] = {
        "data_root": tmp_path / "data",
        "out": tmp_path / "run",
        "steps": "2,1",
        "overrides": {"train": {"epochs": 1}, "net": {"backbone": "tiny"}, "data": {"size": 8}, "memory": {"size": 4}},
    }
    with pytest.raises(KeyboardInterrupt):
        run("folder", listener=Stop(1), **small)
    finished = run("folder", **small)
    assert run("folder", **small).steps == finished.steps
    assert read_run(tmp_path / "run").steps == finished.steps


def test_numbers_that_are_not_finite_are_not_written() -> None:
    for value in (float("nan"), float("inf")):
        with pytest.raises(RunError, match=r"a metric of step 2 is not finite .*: check whether training diverged"):
            write_lines([result(), result(2, figures={"alpha": value})])


def test_missing_keys_have_defaults_and_unknown_keys_are_ignored() -> None:
    row = {"step": 1, "seen": 2, "new": 2, "errors": {"e_n": 1, "later": 2}, "added later": [1], "top1": 3.0}
    (read,) = read_results([row], "metrics.jsonl")
    assert read == StepResult(step=1, seen=2, new=2, errors=ErrorCounts(e_n=1))
    (again,) = read_results([result().to_dict() | {"added later": {"a": 1}}], "metrics.jsonl")
    assert again == result()


GOOD: dict[str, Any] = {"step": 1, "seen": 2, "new": 2, "errors": {}}


@pytest.mark.parametrize(
    ("rows", "reason"),
    [
        (None, "it is not a list of steps"),
        ({}, "it is not a list of steps"),
        ("text", "it is not a list of steps"),
        ([1], "it is not a list of steps"),
        ([[GOOD]], "it is not a list of steps"),
        ([{}], "'per_class' is missing"),
        ([{"errors": {}}], "missing required field"),
        ([{"top1": 1.0}], "'per_class' is missing"),
        ([{"top1": 1.0, "per_class": 3}], "not iterable"),
        ([{"per_class": [3], "classes": [], "extended": []}], "int"),
        ([{"per_class": [{"class": "a", "right": "1", "of": 1}], "classes": [], "extended": []}], "str"),
        ([{"per_class": [{"class": "a", "right": 10**400, "of": 1}], "classes": [], "extended": []}], "too large"),
        ([{"per_class": [], "classes": 1, "extended": []}], "int"),
        ([GOOD | {"step": 2}], "steps are missing"),
        ([GOOD | {"step": 0}], "steps are missing"),
        ([GOOD, GOOD | {"step": 3}], "steps are missing"),
        ([GOOD, GOOD], "steps are missing"),
        ([GOOD | {"step": 1.5}], r"Expected `int`, got `float` - at `\$\.step`"),
        ([GOOD | {"step": True}], r"Expected `int`, got `bool`"),
        ([GOOD | {"step": "1"}], r"Expected `int`, got `str`"),
        ([GOOD | {"seen": None}], r"\$\.seen"),
        ([GOOD | {"kind": "a\nb"}], "Invalid enum value"),
        ([GOOD | {"accuracy": "high"}], r"\$\.accuracy"),
        ([GOOD | {"accuracy": 10**400}], "out of range"),
        ([GOOD | {"accuracy": []}], r"\$\.accuracy"),
        ([GOOD | {"errors": [1]}], r"\$\.errors"),
        ([GOOD | {"errors": {"e_n": 0.5}}], r"\$\.errors\.e_n"),
        ([GOOD | {"per_step": "100"}], r"\$\.per_step"),
        ([GOOD | {"per_class": [50.0]}], r"\$\.per_class"),
        ([GOOD | {"per_class": [{"accuracy": 50.0}]}], "name"),
        ([GOOD | {"per_class": [{"name": ["a"], "accuracy": 50.0}]}], "name"),
        ([GOOD | {"figures": {"alpha": "x"}}], r"\$\.figures"),
        ([GOOD | {"seconds_by_part": []}], r"\$\.seconds_by_part"),
        ([GOOD | {"warning": 3}], r"\$\.warning"),
        ([GOOD | {"classes": [None]}], r"\$\.classes"),
    ],
)
def test_damaged_results_are_rejected_in_one_line(rows: Any, reason: str) -> None:
    with pytest.raises(RunError, match=rf"^metrics\.jsonl is damaged \(.*{reason}") as caught:
        read_results(rows, "metrics.jsonl")
    assert len(str(caught.value).splitlines()) == 1


@pytest.mark.parametrize(
    "line",
    [
        json.dumps(GOOD | {"accuracy": float("nan")}),
        json.dumps(GOOD | {"accuracy": float("-inf")}),
        json.dumps(GOOD)[:-1] + ', "accuracy": 1e999}',
        json.dumps(GOOD)[:-1] + ', "later": ' + "[" * 100_000 + "}",
        json.dumps(GOOD)[:-1] + ', "step": ' + "1" * 5000 + "}",
        json.dumps(GOOD)[:-1],
        "",
        "null",
        "[]",
    ],
    ids=["NaN", "infinity", "1e999", "nested", "digits", "cut", "empty", "null", "list"],
)
def test_damaged_files_are_rejected_in_one_line(line: str, quick: Quick) -> None:
    finished = quick(steps=1, overrides={"train": {"epochs": 1}})
    (finished.directory / "metrics.jsonl").write_text(line + "\n")
    with pytest.raises(RunError, match=r"metrics\.jsonl (is|does not)") as caught:
        quick(steps=1, overrides={"train": {"epochs": 1}}, out=finished.directory)
    assert str(finished.directory) in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1


# ---- older versions


def test_a_run_of_format_1_is_upgraded() -> None:
    first = RUN_ROW | {"step": 1}
    upgraded = read_results([first, RUN_ROW], "metrics.jsonl", ["a", "b", "c"])[1]
    assert upgraded == StepResult(
        step=2,
        seen=4,
        new=2,
        accuracy=60.0,
        accuracy_top5=100.0,
        accuracy_uncorrected=50.0,
        accuracy_top5_uncorrected=90.0,
        errors=ErrorCounts(e_n=1, e_o=3, e_on=2, e_oo=1, e_no=None),
        errors_uncorrected=ErrorCounts(e_n=0, e_o=5, e_on=4, e_oo=1, e_no=None),
        per_step=[40.0, 80.0],
        per_class=[
            ClassResult("a", 20.0),
            ClassResult("b", 60.0),
            ClassResult("c", 80.0),
            ClassResult("class 3", None),
        ],
        figures={"alpha": 0.9, "beta": -0.1},
        norms_old=1.0,
        norms_new=1.5,
        exemplars=20,
        seconds=0.5,
        images_per_second=100.0,
        seconds_by_part={"train": 0.4, "other": 0.1},
        memory_peak_mb=400.0,
    )


def test_a_model_of_format_1_is_upgraded() -> None:
    (upgraded,) = read_results([MODEL_ROW], "steps.json")
    assert upgraded == StepResult(
        step=1,
        classes=["cat"],
        extended=["dog"],
        seen=2,
        new=2,
        accuracy=75.0,
        accuracy_uncorrected=50.0,
        accuracy_new=75.0,
        total_new=4,
        errors=ErrorCounts(e_n=1),
        per_class=[ClassResult("dog", 75.0, 3, 4), ClassResult("cat", None, 0, 0)],
        gamma=0.7,
        images=8,
        exemplars=8,
        held_out=4,
        skipped_files=2,
        epochs=60,
        seconds=0.2,
        finished="2026-11-17T22:30:53+00:00",
        equipoise="0.1.0",
    )


@pytest.mark.parametrize("row", [RUN_ROW | {"step": 1}, MODEL_ROW], ids=["run", "model"])
def test_an_upgraded_result_stays_the_same_when_it_is_saved_again(row: dict[str, Any]) -> None:
    upgraded = read_results([row], "metrics.jsonl", ["a", "b", "c", "d"])
    rows = [json.loads(line) for line in write_lines(upgraded).split("\n") if line]
    assert read_results(rows, "metrics.jsonl") == upgraded


@pytest.mark.parametrize("row", [RUN_ROW | {"step": 1}, MODEL_ROW], ids=["run", "model"])
def test_every_key_of_format_1_is_read(row: dict[str, Any]) -> None:
    """Changing any value of a row changes the result or is an error."""
    names = ["a", "b", "c", "d"]
    (before,) = read_results([row], "metrics.jsonl", names)
    others = {int: 7, float: 0.25, str: "forget", list: [], dict: {}, type(None): 3.0}
    for key, value in row.items():
        changed = "unfair" if key == "warning" else others[type(value)]
        try:
            (after,) = read_results([row | {key: changed}], "metrics.jsonl", names)
        except RunError:
            continue
        assert after != before, key


def test_the_files_of_equipoise_0_1_0_are_read() -> None:
    files = [*SAVED.rglob("metrics.jsonl"), *SAVED.rglob("steps.json")]
    assert len(files) > 3
    for file in files:
        text = file.read_text()
        rows = [json.loads(line) for line in text.splitlines()] if file.suffix == ".jsonl" else json.loads(text)
        for row, step in zip(rows, read_results(rows, str(file)), strict=True):
            assert step.accuracy == row.get("top1", row.get("accuracy"))
            assert (step.errors.e_n, step.errors.e_on) == (row["e_n"], row["e_on"])
            assert len(step.per_class) == step.seen
            assert step.figures.keys() == row.keys() & {"alpha", "beta"}
    assert any("alpha" in file.read_text() for file in files)


# ---- what users see


def documented(text: str, name: str) -> list[str]:
    """Return the keys in the first column of a generated table."""
    table = text.split(f"<!-- generated: {name} -->")[1].split(f"<!-- end of {name} -->")[0]
    return re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE)


@pytest.mark.skipif(not FORMATS.exists(), reason="docs/formats.md is not written yet")
@pytest.mark.parametrize("cls", SCHEMA)
def test_every_key_is_documented(cls: type) -> None:
    fields = [field.name for field in dataclasses.fields(cls)]
    assert documented(FORMATS.read_text(encoding="utf-8"), cls.__name__) == fields


def test_json_output_of_run_has_exactly_the_keys_of_the_schema(cli: Callable[..., Ran]) -> None:
    ran = cli("run", "digits", "--method", "bic", "--steps", 2, "--epochs", 1, "--threads", 1, "--json", "--out", "run")
    assert (ran.code, ran.err) == (0, "")
    *lines, last = map(json.loads, ran.out.splitlines())
    assert [line["step"] for line in lines] == [1, 2]
    for line in lines:
        assert list(line) == [field.name for field in dataclasses.fields(StepResult)]
        for key in ("errors", "errors_uncorrected"):
            assert list(line[key]) == [field.name for field in dataclasses.fields(ErrorCounts)]
        assert [list(entry) for entry in line["per_class"]] == [
            [field.name for field in dataclasses.fields(ClassResult)]
        ] * line["seen"]
    assert set(lines[1]["figures"]) == {"alpha", "beta"}
    assert last.keys() == {"summary", "directory"}
    metrics = [json.loads(line) for line in Path("run/metrics.jsonl").read_text().splitlines()]
    assert metrics == lines
    assert json.loads(Path("run/summary.json").read_text()) == last["summary"]
    assert last["summary"] == summarise(read_results(lines, "metrics.jsonl"))
    assert not RENAMED.keys() & lines[0].keys()  # no key of format 1


def test_columns_of_compare_csv(tmp_path: Path) -> None:
    overrides: dict[str, dict[str, Any]] = {"train": {"epochs": 1}, "stream": {"steps": 2}, "runtime": {"threads": 1}}
    compare(plan("digits", ["wa", "bic"], [0], overrides=overrides), tmp_path)
    with (tmp_path / "compare.csv").open() as file:
        lines = list(csv.DictReader(file))
    errors = [field.name for field in dataclasses.fields(ErrorCounts)]
    plain = StepResult(step=1, seen=1, new=1).to_dict()
    single = [name for name, value in plain.items() if not isinstance(value, list | dict)]
    summary = ["average_without_first", "average_with_first", "last"]
    summary += ["average_top5_without_first", "average_top5_with_first", "last_top5", "forgetting"]
    expected = ["label", "method", "steps", "seed", *single, *errors, *(f"{name}_uncorrected" for name in errors)]
    assert list(lines[0]) == [*expected, *summary, "alpha", "beta"]
    assert [(line["method"], line["step"]) for line in lines] == [("wa", "1"), ("wa", "2"), ("bic", "1"), ("bic", "2")]
    assert [bool(line["alpha"]) for line in lines] == [False, False, False, True]
