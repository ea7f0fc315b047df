"""The example of the documentation, as a package that a user has installed."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).parent.parent / "examples" / "plugin"


PROGRAM = """
import sys
from equipoise.cli import main
from equipoise.testing import check_method
for command in (
    ["methods", "shrink"],
    ["run", "digits", "--method", "shrink", "--epochs", "1", "--set", "method.factor=0.5", "--out", sys.argv[1]],
):
    try:
        main(command)
    except SystemExit as end:
        assert not end.code, command
check_method("shrink", distribute=False)
print("all checks passed")
"""


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """Use the plug-in in a process in which it is installed; return the directory of a run, and what was printed."""
    tmp_path = tmp_path_factory.mktemp("installed")
    project = tomllib.loads((EXAMPLE / "pyproject.toml").read_text())["project"]
    info = tmp_path / f"equipoise_shrink-{project['version']}.dist-info"  # what an installer would write
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n")
    lines = [
        f"[{group}]\n" + "\n".join(f"{name} = {target}" for name, target in entries.items())
        for group, entries in project["entry-points"].items()
    ]
    (info / "entry_points.txt").write_text("\n".join(lines) + "\n")
    path = [str(tmp_path), str(EXAMPLE), *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, path))}
    command = [sys.executable, "-c", PROGRAM, str(tmp_path / "run")]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    return tmp_path / "run", done.stdout


def test_a_plugin_is_found_through_its_entry_point(installed: tuple[Path, str]) -> None:
    run, printed = installed
    assert "method.factor = 0.8" in printed
    assert json.loads((run / "config.json").read_text())["settings"]["fields"]["factor"] == 0.5
    assert (run / "summary.json").is_file()


def test_a_plugin_passes_the_checks_of_a_method(installed: tuple[Path, str]) -> None:
    assert installed[1].endswith("all checks passed\n")


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
