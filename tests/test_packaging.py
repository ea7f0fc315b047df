"""The package's metadata: license, version, and that everything it imports is declared and pinned."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import equipoise
from equipoise.core.extras import PROJECTS

ROOT = Path(__file__).parent.parent
PACKAGE = Path(equipoise.__file__).parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
EXTRAS: dict[str, list[str]] = PROJECT["optional-dependencies"]
TOOLS = ("all", "test", "docs", "dev")
ON_REQUEST = ("openvino",)
"""Extras that are not part of all."""

sys.path.insert(0, str(ROOT / "tools"))

from matrix import LOWEST_PYTHON, lowest_versions  # noqa: E402

NAMES = {**PROJECTS, "PIL": "pillow", "sklearn": "scikit-learn"}
"""What ``pip`` calls a package, where that is not the name to import."""


def expand(lines: list[str]) -> Iterator[Requirement]:
    """Yield requirements, those of our own extras among them."""
    for requirement in map(Requirement, lines):
        if requirement.name == "equipoise":
            for extra in requirement.extras:
                yield from expand(EXTRAS[extra])
        else:
            yield requirement


def names(lines: list[str]) -> set[str]:
    return {canonicalize_name(requirement.name) for requirement in expand(lines)}


CORE = names(PROJECT["dependencies"])


def trees() -> Iterator[tuple[str, ast.Module]]:
    for file in sorted(PACKAGE.rglob("*.py")):
        yield str(file.relative_to(PACKAGE)), ast.parse(file.read_text(encoding="utf-8"))


def imported(tree: ast.AST) -> Iterator[str]:
    """Yield the projects of all third-party packages that a module imports."""
    for node in ast.walk(tree):
        found = []
        if isinstance(node, ast.Import):
            found = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and not node.level and node.module:
            found = [node.module]
        for name in (name.partition(".")[0] for name in found):
            if name not in sys.stdlib_module_names and name != "equipoise":
                yield canonicalize_name(NAMES.get(name, name))


def required(tree: ast.AST) -> Iterator[tuple[str, str]]:
    """Yield the project and the extra of every ``require("package", "extra", …)``."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and getattr(node.func, "id", getattr(node.func, "attr", "")) == "require":
            match node.args:
                case [ast.Constant(value=str(package)), ast.Constant(value=str(extra)), *_]:
                    package = package.partition(".")[0]
                    yield canonicalize_name(PROJECTS.get(package, package)), extra


def test_the_version_is_the_same_everywhere() -> None:
    assert metadata.version("equipoise") == equipoise.__version__, "install it again: pip install -e ."
    assert f"\nversion: {equipoise.__version__}\n" in (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    assert f"\n## {equipoise.__version__}" in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")


def test_the_license_is_there_and_names_the_work_of_others() -> None:
    assert PROJECT["license"] == "Apache-2.0"
    text = (ROOT / "LICENSE").read_text(encoding="utf-8")
    assert "Apache License" in text.splitlines()[1]
    assert "END OF TERMS AND CONDITIONS" in text
    notice = (ROOT / "NOTICE").read_text(encoding="utf-8")
    vendored = [file.name for file in (PACKAGE / "pages" / "vendor").iterdir() if file.suffix != ".md"]
    assert vendored
    assert [name for name in vendored if name not in notice] == []


def test_core_depends_on_what_it_imports_and_on_nothing_else() -> None:
    found = {project for _, tree in trees() for project in imported(tree)}
    assert sorted(CORE - found) == [], "declared in [project.dependencies], and never imported"


def test_every_import_is_declared() -> None:
    optional = {project for extra, lines in EXTRAS.items() if extra not in TOOLS for project in names(lines)}
    undeclared = [
        (file, project) for file, tree in trees() for project in imported(tree) if project not in CORE | optional
    ]
    assert undeclared == []


def test_messages_name_the_extra_that_installs_the_package() -> None:
    wrong = []
    for file, tree in trees():
        wrong += [(file, *pair) for pair in required(tree) if pair[0] not in names(EXTRAS.get(pair[1], []))]
    assert wrong == []
    for path in sorted(PACKAGE.rglob("*.py")):
        for extra in re.findall(r"equipoise\[(\w+)\]", path.read_text(encoding="utf-8")):
            assert extra in EXTRAS, f"{path.name} names the extra '{extra}', which does not exist"


def test_optional_packages_are_not_needed_to_import_equipoise() -> None:
    optional = {project for extra, lines in EXTRAS.items() if extra not in TOOLS for project in names(lines)}
    importable: dict[str, str] = {canonicalize_name(project): name for name, project in PROJECTS.items()}
    blocked = [importable.get(project, project) for project in optional] + ["tensorboardX", "torchvision"]
    blocked = [name for name in blocked if name not in ("jinja2", "markupsafe")]  # torch itself needs these
    program = f"""
import sys
sys.modules.update(dict.fromkeys({blocked!r}))
import equipoise, equipoise.cli, equipoise.methods, equipoise.testing
for name in equipoise.__all__:
    getattr(equipoise, name)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_constraints_pin_everything_that_is_installed_for_development() -> None:
    lines = [line for line in (ROOT / "constraints.txt").read_text().splitlines() if not line.startswith("#")]
    assert [line for line in lines if not re.fullmatch(r"[\w.-]+==[\w.]+", line)] == []
    assert lines[0].startswith("torch=="), "the first pin: an unpinned torch is replaced by gigabytes of CUDA packages"
    pins = {canonicalize_name(name): version for name, version in (line.split("==") for line in lines)}
    assert len(pins) == len(lines), "pinned twice"
    wanted = [*PROJECT["dependencies"], *EXTRAS["dev"], "torchvision", "hatchling"]
    for requirement in expand(wanted):
        name = canonicalize_name(requirement.name)
        assert name in pins, f"{name} is not pinned"
        assert requirement.specifier.contains(pins[name], prereleases=True), f"{name}: the pin is below pyproject's"


def test_the_lock_file_has_the_pinned_versions_with_hashes() -> None:
    text = (ROOT / "requirements.lock").read_text()
    locked = dict(re.findall(r"^([\w.-]+)==([\w.]+)", text, re.MULTILINE))
    pins = dict(re.findall(r"^([\w.-]+)==([\w.]+)", (ROOT / "constraints.txt").read_text(), re.MULTILINE))
    pins = {canonicalize_name(name): version for name, version in pins.items()}
    assert [name for name, version in locked.items() if name in pins and pins[name] != version] == []
    wanted = expand([*PROJECT["dependencies"], *EXTRAS["dev"]])
    missing = {canonicalize_name(requirement.name) for requirement in wanted} - locked.keys()
    assert missing == set(), "run `make lock`"
    blocks = re.split(r"^(?=[\w.-]+==)", text, flags=re.MULTILINE)[1:]
    assert [block.partition(" ")[0] for block in blocks if "--hash=sha256:" not in block] == []


def test_all_has_every_extra_of_the_user() -> None:
    every = {project for extra, lines in EXTRAS.items() if extra not in TOOLS + ON_REQUEST for project in names(lines)}
    assert names(EXTRAS["all"]) == every
    assert names(EXTRAS["dev"]) > every | names(EXTRAS["test"])


def test_every_promise_has_a_lowest_version_that_the_matrix_tests() -> None:
    assert PROJECT["requires-python"] == f">={LOWEST_PYTHON}"
    promised = [*PROJECT["dependencies"], *EXTRAS["all"]]
    pins = {canonicalize_name(line.partition("==")[0]) for line in lowest_versions().splitlines()}
    for requirement in expand(promised):
        assert [clause.operator for clause in requirement.specifier] == [">="], f"{requirement}: write name>=version"
        assert canonicalize_name(requirement.name) in pins
