"""The packages of equipoise and their modules, drawn from the source code for docs/design.md.

Only the syntax tree is read: nothing is imported, so every import counts, also one inside a function.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

SOURCE = Path(__file__).parent.parent / "src" / "equipoise"
LEAVES = ("errors", "version")
"""Modules that import nothing and that everything may import; the diagram would be full of arrows to them."""
STARTS = ("__init__", "__main__")
"""They only forward to other modules."""


def draw_packages() -> str:
    """Return a Mermaid diagram of the packages, and a table of everything they import."""
    imports = package_imports()
    arrows = [f"    {package} --> {other}" for package in imports for other in sorted(direct(package, imports))]
    rows = [
        f"| `{package}` | {', '.join(f'`{other}`' for other in sorted(others)) or 'no other package'} |"
        for package, others in imports.items()
    ]
    diagram = ["```mermaid", "graph TD", *arrows, "```"]
    return "\n".join([*diagram, "", "| package | imports |", "|---|---|", *rows])


def package_imports() -> dict[str, set[str]]:
    """Return the packages that each package imports, without those of its own and ``LEAVES``; importers come first."""
    found: dict[str, set[str]] = {}
    for file in sorted(SOURCE.rglob("*.py")):
        package = file.relative_to(SOURCE).parts[0].removesuffix(".py")
        if package not in (*LEAVES, *STARTS):
            found.setdefault(package, set()).update(_imported(file) - {package, *LEAVES, *STARTS})
    return dict(sorted(found.items(), key=lambda item: (-len(_reachable(item[0], found)), item[0])))


def direct(package: str, imports: dict[str, set[str]]) -> set[str]:
    """Return the imports of a package that do not follow from its other imports."""
    mine = imports[package]
    return {other for other in mine if not any(other in _reachable(third, imports) for third in mine - {other})}


def _reachable(package: str, imports: dict[str, set[str]]) -> set[str]:
    found: set[str] = set()
    waiting = [package]
    while waiting:
        new = imports[waiting.pop()] - found
        found |= new
        waiting += new
    return found


def _imported(file: Path) -> set[str]:
    """Return the packages of equipoise that a module imports."""
    return {name.split(".")[1] for name in _names(ast.parse(file.read_text(encoding="utf-8"))) if "." in name}


def _names(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name.startswith("equipoise."))
        elif isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("equipoise."):
            yield node.module
        elif isinstance(node, ast.ImportFrom) and node.module == "equipoise":
            yield from (f"equipoise.{alias.name}" for alias in node.names)


def list_modules() -> str:
    """Return a list of all modules by package, each with the first sentence of its docstring."""
    lines = []
    for package in package_imports():
        folder = SOURCE / package
        files = [SOURCE / f"{package}.py"] if not folder.is_dir() else sorted(folder.rglob("*.py"))
        lines += ["", f"**`{package}`**", ""]
        for file in files:
            name = file.relative_to(SOURCE).as_posix()
            text = first_sentence(file)
            if text and not name.endswith("__init__.py"):
                lines.append(f"* `{name}`: {text}")
    return "\n".join(lines[1:])


def first_sentence(file: Path) -> str:
    """Return the first sentence of a module's docstring."""
    paragraph = (ast.get_docstring(ast.parse(file.read_text(encoding="utf-8"))) or "").split("\n\n")[0]
    return re.split(r"\.\s+(?=[A-Z])", " ".join(paragraph.split()))[0].rstrip(".")
