"""The example of the documentation, as a package that somebody else has installed."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from pathlib import Path

EXAMPLE = Path(__file__).parent.parent / "examples" / "plugin"


def test_a_plugin_is_found_through_its_entry_point_and_keeps_the_contract(tmp_path: Path) -> None:
    project = tomllib.loads((EXAMPLE / "pyproject.toml").read_text())["project"]
    info = tmp_path / f"equipoise_shrink-{project['version']}.dist-info"  # what an installer would write
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n")
    lines = [
        f"[{group}]\n" + "\n".join(f"{name} = {target}" for name, target in entries.items())
        for group, entries in project["entry-points"].items()
    ]
    (info / "entry_points.txt").write_text("\n".join(lines) + "\n")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), str(EXAMPLE)])}
    code = "from equipoise.testing import check_method; check_method('shrink', together=False)"
    for command in (["-c", code], ["-m", "equipoise", "methods", "shrink"]):
        done = subprocess.run([sys.executable, *command], env=environment, capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stderr
    assert "method.factor = 0.8" in done.stdout


def test_the_documentation_shows_the_example_as_it_is() -> None:
    shown = (EXAMPLE.parent.parent / "docs" / "add-a-method.md").read_text()
    for line in (EXAMPLE / "equipoise_shrink.py").read_text().split("@dataclass(eq=False)")[1].splitlines():
        assert line.strip() in shown, line
