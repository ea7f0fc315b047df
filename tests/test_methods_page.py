"""docs/methods.md: every method has a row in its tables, and the cells are true."""

from __future__ import annotations

import inspect
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from equipoise.core.directory import Directory
from equipoise.methods.registry import registry
from equipoise.study.compare import compare, plan
from equipoise.study.report.groups import read_comparison

HOME = Path(__file__).parent.parent
DOCS = HOME / "docs" / "methods.md"
sys.path.insert(0, str(HOME / "results"))

import glyphs  # noqa: E402


def rows_of_the_page() -> dict[str, list[str]]:
    """Return the cells of each method: file, paper, authors' code, equal, different."""
    lines = [line for line in DOCS.read_text(encoding="utf-8").splitlines() if line.startswith("| `")]
    cells = [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines]
    found = [(name, row[1:]) for row in cells if len(row) == 6 for name in re.findall(r"`([^`]+)`", row[0])]
    assert len(found) == len(dict(found))
    return dict(found)


def test_every_method_is_compared_with_its_authors() -> None:
    assert set(rows_of_the_page()) == set(registry())


@pytest.mark.parametrize("name", sorted(registry()))
def test_a_row_names_file_and_paper_and_says_what_is_equal_and_different(name: str) -> None:
    cls, (file, paper, code, equal, different) = registry()[name][0], rows_of_the_page()[name]
    (link,) = re.findall(r"^\[\w+\.py\]\((\S+)\)$", file)
    assert (DOCS.parent / link).resolve() == Path(inspect.getfile(cls)).resolve()
    assert paper == (cls.paper or "–")
    assert re.match(r"–$|none released$|[\w.-]+/[\w.-]+( \(.+\))?$", code), code
    assert min(len(equal), len(different)) > 20


def test_the_table_with_a_tiny_budget_has_every_method_that_trains(tmp_path: Path) -> None:
    """Written by results/glyphs.py from a comparison: here of two methods, on digits."""
    page = DOCS.read_text(encoding="utf-8")
    mine = page[page.index(glyphs.BEGIN) : page.index(glyphs.END)]
    assert re.findall(r"^\| `(.+)` \| [\d.]+ \| [\d.]* \| [\d.]+ \|$", mine, re.MULTILINE) == list(glyphs.METHODS)
    untrained = {"ncm", "slda", "ridge", "ranpac", "fecam"}
    assert set(glyphs.METHODS) == set(registry()) - untrained
    brief: dict[str, dict[str, Any]] = {"train": {"epochs": 1}, "stream": {"steps": 2}, "runtime": {"threads": 1}}
    compare(plan("digits", ["ce", "wa"], [0], (), overrides=brief), tmp_path)
    results = {group.label: group.runs[0].steps for group in read_comparison(Directory(tmp_path)).groups}
    table = glyphs.table(tmp_path)
    for name, (_, last) in results.items():
        before = f"{last.accuracy_uncorrected:.1f}" if name == "wa" else ""
        assert f"| `{name}` | {last.accuracy:.1f} | {before} | {last.accuracy:.1f} |" in table
    written = glyphs.written(page, tmp_path)
    assert written.replace(table, mine.removeprefix(glyphs.BEGIN).strip("\n")) == page
