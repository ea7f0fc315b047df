"""``make mutants``: which changes it makes, and that it tells killed mutants from those that survive."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tools"))

import mutants  # noqa: E402

EXAMPLE = '''
LIMIT: Annotated[int, Range(0, 9)] = 5
"""A docstring, 1 < 2."""


@torch.no_grad()
def f(x: Tensor, size: int = 3, flag: bool = True) -> Tensor:
    """Return 7 + 7."""
    assert size > 0
    if flag and not size:
        raise UsageError(f"no size {size + 1}")
    x -= x[:size].sqrt()
    x = x.clamp(min=0)
    with one_thread():
        return min(0 < size <= 8, x.sum())
'''
CHANGES = """
deleted: raise UsageError(f'no size {size + 1}')
deleted: x = x.clamp(min=0)
deleted: x -= x[:size].sqrt()
LIMIT: Annotated[int, Range(0, 9)] = 5 → LIMIT: Annotated[int, Range(0, 9)] = 4
LIMIT: Annotated[int, Range(0, 9)] = 5 → LIMIT: Annotated[int, Range(0, 9)] = 6
size: int=3 → size: int=2
size: int=3 → size: int=4
flag: bool=True → flag: bool=False
flag and (not size) → flag or not size
flag and (not size) → not (flag and (not size))
not size → size
x -= x[:size].sqrt() → x += x[:size].sqrt()
x[:size].sqrt() → x[:size]
x[:size] → x[size:]
x.clamp(min=0) → x
x.clamp(min=0) → x.clamp(max=0)
min=0 → min=-1
min=0 → min=1
with one_thread(): return min(0 < size <= 8, x.sum()) → if True: return min(0 < size <= 8, x.sum())
return min(0 < size <= 8, x.sum()) → return None
min(0 < size <= 8, x.sum()) → max(0 < size <= 8, x.sum())
0 < size <= 8 → 0 <= size <= 8
0 < size <= 8 → 0 >= size <= 8
0 < size <= 8 → 0 < size < 8
0 < size <= 8 → 0 < size > 8
0 < size <= 8 → 1 < size <= 8
0 < size <= 8 → -1 < size <= 8
0 < size <= 8 → 0 < size <= 7
0 < size <= 8 → 0 < size <= 9
x.sum() → x.mean()
"""


def test_everything_but_annotations_docstrings_assertions_and_messages_is_changed() -> None:
    tree = ast.parse(EXAMPLE)
    found = [mutant.change for mutant, _ in mutants.find_mutants("f.py", tree)]
    whole = [change for change in found if "@" in change]  # without the decorator
    assert len(whole) == 1
    assert sorted(set(found) - set(whole)) == sorted(CHANGES.strip().splitlines())
    assert len(found) == len(set(found))
    assert ast.unparse(tree) == ast.unparse(ast.parse(EXAMPLE)), "the tree is as it was"


TINY = """
import torch
from equipoise.engine.metrics import accuracy, confusion

def test_accuracy():
    assert accuracy(torch.tensor([True, False, True, True])) == 75
    assert accuracy(torch.tensor([])) is None
"""
MORE = """
def test_confusion():
    assert confusion(torch.tensor([1, 1, 0]), torch.tensor([0, 1, 1]), 2).tolist() == [[0, 1], [1, 1]]
"""
CODE = "import sys, mutants; mutants.TESTS = {sys.argv[1]: (sys.argv[2],)}; mutants.main(sys.argv[3:])"


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="mutants run in forks")
def test_mutants_are_killed_by_a_test_that_fails(tmp_path: Path) -> None:
    """Every third mutant of a real module, with a test of one of its functions, and then of two."""
    module, tests, results = "engine/metrics.py", tmp_path / "test_tiny.py", tmp_path / "results.json"
    functions = {
        node.name: range(node.lineno, (node.end_lineno or 0) + 1)
        for node in ast.parse((mutants.SOURCE / module).read_text()).body
        if isinstance(node, ast.FunctionDef)
    }
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "tools")}
    words: list[str | Path] = []
    rounds: list[tuple[str, list[str], list[str | Path]]] = [
        (TINY, ["accuracy"], []),
        (TINY + MORE, ["accuracy", "confusion"], ["--again", results]),
    ]
    for text, tested, again in rounds:
        tests.write_text(text)
        words = [sys.executable, "-c", CODE, module, tests, "--every", "3", "--json", results, *again]
        done = subprocess.run(words, capture_output=True, text=True, env=environment)
        assert done.returncode == 0, done.stderr
        found = [mutants.Mutant(**entry) for entry in json.loads(results.read_text())]
        killed = [mutant for mutant in found if mutant.status == "killed"]
        lines = {line for name in tested for line in functions[name]}
        assert {mutant.line for mutant in killed} <= lines
        assert [mutant.change for mutant in found if mutant.line in lines and mutant.status != "killed"] == []
        assert all("test_tiny.py::test_" in mutant.by for mutant in killed)
        assert len(killed) > len(tested)
        assert f"{len(found):9}{len(killed):9}" in done.stdout
    assert f"{len(found) - 2} mutants tried" in done.stdout  # two are killed already
    tests.write_text("def test_it(): assert False")
    failed = subprocess.run(words, capture_output=True, text=True, env=environment)
    assert "tests fail without any change" in failed.stderr


def test_mutants_that_are_explained_are_still_possible() -> None:
    for module, reasons in tomllib.loads(mutants.EXPLAINED.read_text()).items():
        found = {
            mutant.change
            for mutant, _ in mutants.find_mutants(module, ast.parse((mutants.SOURCE / module).read_text()))
        }
        explained = [change for changes in reasons.values() for change in changes]
        assert set(explained) <= found, (
            f"remove what {mutants.EXPLAINED.name} explains of {module} and is no longer there"
        )
        assert len(explained) == len(set(explained))
