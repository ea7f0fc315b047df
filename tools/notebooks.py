"""Run the notebooks in docs/notebooks and store their outputs in them: ``python tools/notebooks.py``.

This is the part of Jupyter that they need, which is not installed: code cells share one namespace, the last expression
of a cell is shown, and a line that starts with ``!`` is a command. ``render`` makes a page of the site.
"""

from __future__ import annotations

import ast
import base64
import contextlib
import hashlib
import io
import json
import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from PIL import Image

FOLDER = Path(__file__).parent.parent / "docs" / "notebooks"
NAMES = ("forgetting", "photos")
COMMAND = re.compile(r"^!(.*)$", re.MULTILINE)
Cell = dict[str, Any]
Output = dict[str, Any]
Shell = Callable[[str], None]


def path_of(name: str) -> Path:
    return FOLDER / f"{name}.ipynb"


def read(name: str) -> dict[str, Any]:
    notebook: dict[str, Any] = json.loads(path_of(name).read_text(encoding="utf-8"))
    return notebook


def code_cells(notebook: Mapping[str, Any]) -> list[Cell]:
    return [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]


def source(cell: Cell) -> str:
    return "".join(cell["source"])


def code_hash(notebook: Mapping[str, Any]) -> str:
    """Return a hash of the code, which is stored beside the outputs to see whether they belong to it."""
    return hashlib.sha256("\n\n".join(map(source, code_cells(notebook))).encode()).hexdigest()


# ---- running


def execute(
    notebook: Mapping[str, Any], shell: Shell, parameters: Mapping[str, Any] | None = None
) -> tuple[list[list[Output]], dict[str, Any]]:
    """Run the code cells in order.

    Parameters
    ----------
    notebook
        The content of the file.
    shell
        Runs a command and prints its output.
    parameters
        Variables to set after the cell that is tagged ``parameters``.

    Returns
    -------
    tuple
        The outputs of each code cell, and all variables.
    """
    variables: dict[str, Any] = {"__name__": "__main__", "_shell": shell}
    outputs = []
    for number, cell in enumerate(code_cells(notebook), 1):
        outputs.append(run_cell(source(cell), variables, number))
        if "parameters" in cell["metadata"].get("tags", []):
            variables |= parameters or {}
    return outputs, variables


def run_cell(code: str, variables: dict[str, Any], number: int) -> list[Output]:
    """Run one cell and return what it printed and what its last expression shows.

    >>> run_cell("x = 2\\nprint(x)\\nx + 1", {}, 1)[1]["data"]
    {'text/plain': ['3']}
    """
    tree = ast.parse(COMMAND.sub(lambda found: f"_shell({found[1]!r})", code))
    if tree.body and isinstance(tree.body[-1], ast.Expr):
        tree.body[-1] = ast.Assign([ast.Name("_", ast.Store())], tree.body[-1].value)
    variables["_"] = None
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(ast.fix_missing_locations(tree), f"cell {number}", "exec"), variables)  # noqa: S102 - our own code
    outputs: list[Output] = []
    value = variables["_"]
    if printed.getvalue():
        text = printed.getvalue().splitlines(keepends=True)
        outputs.append({"output_type": "stream", "name": "stdout", "text": text})
    if value is not None:
        data, metadata = show(value)
        result = {"output_type": "execute_result", "execution_count": number, "data": data, "metadata": metadata}
        outputs.append(result)
    return outputs


def show(value: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return how a value is shown: as a picture if it can be, with the title of a chart as alternative text."""
    if hasattr(value, "_repr_mimebundle_"):  # a chart
        data, metadata = value._repr_mimebundle_()
        return {"image/png": small_png(data["image/png"])}, {"image/png": {**metadata["image/png"], "alt": value.title}}
    if hasattr(value, "_repr_png_"):
        return {"image/png": small_png(value._repr_png_())}, {}
    return {"text/plain": repr(value).splitlines(keepends=True)}, {}


def small_png(picture: bytes) -> str:
    """Return a PNG of 64 colours in base64, which takes an eighth of the space."""
    buffer = io.BytesIO()
    Image.open(io.BytesIO(picture)).convert("RGB").quantize(64).save(buffer, "PNG", optimize=True)
    return base64.b64encode(buffer.getvalue()).decode()


def run_command(line: str) -> None:
    """Run a command of ours with this Python, and print its output."""
    program, *words = shlex.split(line)
    if program != "equipoise":
        raise ValueError(f"only equipoise can be called: {line}")
    done = subprocess.run([sys.executable, "-m", program, *words], check=True, stdout=subprocess.PIPE, text=True)
    print(done.stdout, end="")


def store(name: str) -> None:
    """Run a notebook and write it with its outputs, as Jupyter would."""
    notebook = read(name)
    outputs, _ = execute(notebook, run_command)
    for number, (cell, made) in enumerate(zip(code_cells(notebook), outputs, strict=True), 1):
        cell |= {"execution_count": number, "outputs": made}
    notebook["metadata"]["equipoise"] = {"code": code_hash(notebook)}
    text = json.dumps(notebook, indent=1, ensure_ascii=False, sort_keys=True)
    path_of(name).write_text(f"{text}\n", encoding="utf-8")


# ---- pages of the site


def render(name: str) -> tuple[str, dict[str, bytes]]:
    """Return a notebook as a page of the site, and its pictures by the names of their files."""
    parts: list[str] = []
    pictures: dict[str, bytes] = {}
    for cell in read(name)["cells"]:
        if cell["cell_type"] == "markdown":
            parts.append(source(cell))
            continue
        parts.append(f"```python\n{source(cell)}\n```")
        for output in cell["outputs"]:
            data = output.get("data", {})
            if "image/png" in data:
                file = f"{name}-{len(pictures) + 1}.png"
                pictures[file] = base64.b64decode(data["image/png"])
                facts = output["metadata"].get("image/png", {})
                text = facts.get("alt") or cell["metadata"]["alt"]  # charts have a title, other pictures need a text
                width = f" width={facts['width']:.0f}" if facts else ""
                parts.append(f"![{text}]({file}){{ .eq-output{width} }}")
            else:
                parts.append(f"```text\n{''.join(output.get('text') or data['text/plain']).rstrip()}\n```")
    title, *rest = parts
    download = f'<a href="{name}.ipynb" download>Download this notebook</a>'
    return "\n\n".join([title, download, *rest]) + "\n", pictures


def page(name: str) -> str:
    return render(name)[0]


if __name__ == "__main__":
    for chosen in sys.argv[1:] or NAMES:
        store(chosen)
        print(f"ran {chosen}.ipynb: {path_of(chosen).stat().st_size / 1000:.0f} KB")
