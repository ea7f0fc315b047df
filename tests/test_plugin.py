"""The example of the documentation, as a package that a user has installed."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).parent.parent / "examples" / "plugin"
FOSTER = EXAMPLE.parent / "foster" / "equipoise_foster.py"


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """Return the environment of a process in which the plug-in is installed."""
    project = tomllib.loads((EXAMPLE / "pyproject.toml").read_text())["project"]
    info = tmp_path / f"equipoise_shrink-{project['version']}.dist-info"  # what an installer would write
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n")
    lines = [
        f"[{group}]\n" + "\n".join(f"{name} = {target}" for name, target in entries.items())
        for group, entries in project["entry-points"].items()
    ]
    (info / "entry_points.txt").write_text("\n".join(lines) + "\n")
    return {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), str(EXAMPLE)])}


def python(environment: dict[str, str], *arguments: str) -> str:
    command = [sys.executable, *arguments]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_plugin_is_found_through_its_entry_point(environment: dict[str, str], tmp_path: Path) -> None:
    assert "method.factor = 0.8" in python(environment, "-m", "equipoise", "methods", "shrink")
    arguments = ("--method", "shrink", "--epochs", "1", "--set", "method.factor=0.5", "--out", str(tmp_path / "run"))
    python(environment, "-m", "equipoise", "run", "digits", *arguments)
    assert (tmp_path / "run" / "summary.json").is_file()


def test_a_plugin_passes_the_checks_of_a_method(environment: dict[str, str]) -> None:
    code = "from equipoise.testing import check_method; check_method('shrink', distribute=False)"
    python(environment, "-c", code)


def test_the_plugin_needs_only_public_names() -> None:
    imports = [
        node
        for node in ast.walk(ast.parse((EXAMPLE / "equipoise_shrink.py").read_text()))
        if isinstance(node, ast.ImportFrom | ast.Import)
    ]
    ours = [ast.unparse(node) for node in imports if "equipoise" in ast.unparse(node)]
    assert ours == ["from equipoise.methods import Fit, Method, Step"]


def test_the_documentation_shows_the_example() -> None:
    shown = (EXAMPLE.parent.parent / "docs" / "add-a-method.md").read_text()
    for line in (EXAMPLE / "equipoise_shrink.py").read_text().split("@dataclass(eq=False)")[1].splitlines():
        assert line.strip() in shown, line


@pytest.mark.slow
def test_a_method_with_two_networks_and_a_compression_stage_passes_the_checks() -> None:
    """It was written from the documentation alone."""
    environment = {**os.environ, "PYTHONPATH": str(FOSTER.parent)}
    code = "from equipoise_foster import Foster; from equipoise.testing import check_method; check_method(Foster)"
    python(environment, "-c", code)
    text = FOSTER.read_text()
    assert len(text.splitlines()) <= 120
    assert re.findall("^from (equipoise[.a-z]*)", text, re.MULTILINE) == ["equipoise.methods"]
