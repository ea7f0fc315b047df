"""Build equipoise, install it into environments of its own, and test it there: ``make matrix``.

package   builds sdist and wheel, and checks what they contain
core      installs the wheel without extras into an empty environment and tries the command line
3.11 ...  runs the fast tests with each Python that is found (PATH, pyenv, or the variable PYTHONS)
lowest    runs them with the lowest versions that pyproject.toml promises

Name some of them to run only these: ``make matrix ONLY="core 3.12"``. An environment may take several GB, because
most builds of PyTorch bring CUDA. They are kept in ~/.cache/equipoise-matrix and made again when requirements change.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
import tomllib
import zipfile
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CONSTRAINTS = ROOT / "constraints.txt"
CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "equipoise-matrix"
PYTHONS = ("3.11", "3.12", "3.13", "3.14")
LOWEST_PYTHON = "3.11"

IN_SDIST = ("LICENSE", "NOTICE", "CITATION.cff", "constraints.txt", "tests/conftest.py", "tests/test_packaging.py")
IN_WHEEL = (
    "equipoise/py.typed",
    "equipoise/recipes/glyphs.toml",
    "equipoise/pages/vendor/vega.min.js",
    "equipoise/serve/page/main.js",
)

IMPORTS = "import equipoise, equipoise.methods, equipoise.testing; [getattr(equipoise, n) for n in equipoise.__all__]"
PHOTOS = """
from pathlib import Path
from PIL import Image
for name, colour in {"blue": (20, 20, 200), "red": (200, 20, 20)}.items():
    Path("photos", name).mkdir(parents=True)
    for shade in range(12):
        Image.new("RGB", (16, 16), tuple(c + shade for c in colour)).save(f"photos/{name}/{shade}.png")
"""
WORKING = (  # without any extra; in this order, because later commands use what earlier ones made
    "--version",
    "--help",
    "run digits --epochs 1 --out run",
    "compare digits --methods ce,wa --epochs 1 --launcher processes --out compared",
    "learn model photos --backbone resnet32 --epochs 1",
    "predict model photos/red/1.png",
    "export model copy",
)
MISSING = (  # command, package, extra: the command fails with the one sentence that names both
    ("report run", "altair", "report"),
    ("serve model", "fastapi", "serve"),
    ("run digits --epochs 1 --out tracked --track wandb", "wandb", "track"),
    ("run digits --epochs 1 --out tracked --track mlflow", "mlflow-skinny", "track"),
    ("run digits --epochs 1 --out tracked --track tensorboard", "tensorboardX", "track"),
    ("run digits --epochs 1 --out spread --devices 2", "lightning-fabric", "distributed"),
    ("compare digits --epochs 1 --out compared-ray --launcher ray", "ray", "ray"),
    ("compare digits --epochs 1 --out compared-slurm --launcher slurm", "submitit", "slurm"),
    ("export model model.onnx", "onnx", "onnx"),
    ("learn other photos --epochs 1 --backbone timm:resnet18", "timm", "timm"),
)
NOT_INSTALLED = "learn other photos"  # the default backbone, whose weights are an extra
BROKEN = {  # a torchvision for another torch, and a package that imports it
    "timm": "import torchvision",
    "torchvision": "raise RuntimeError('operator torchvision::nms does not exist')",
}


class RedError(Exception):
    """A part of the matrix did not pass."""


def main(names: Sequence[str]) -> int:
    """Run the named parts, or all, print one line for each, and return the exit code."""
    parts = ("core", *PYTHONS, "lowest")
    if unknown := set(names) - {"package", *parts}:
        sys.exit(f"unknown: {', '.join(sorted(unknown))} (known: package, {', '.join(parts)})")
    CACHE.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="equipoise-matrix-") as folder:
        work = Path(folder)
        if not passes("package", partial(build, work)):
            return 1  # there is nothing to install
        green = True
        for name in parts:
            if names and name not in names:
                continue
            version = name if name in PYTHONS else LOWEST_PYTHON
            python = find_python(version)
            if python is None:
                print(f"skipped  {name:8} python{version} not found", flush=True)
            else:
                part = check_core if name == "core" else run_tests
                green &= passes(name, partial(part, work, name, python))
        return 0 if green else 1


def passes(name: str, part: Callable[[Path], str]) -> bool:
    """Run one part and print its line."""
    log = CACHE / f"{name}.log"
    log.write_text("")
    began = time.monotonic()
    try:
        colour, words = "green", part(log)
    except RedError as error:
        colour, words = "red", f"{error}; see {log}"
    print(f"{colour:8} {name:8} {words} [{time.monotonic() - began:.0f} s]", flush=True)
    return colour == "green"


def find_python(version: str) -> Path | None:
    """Find a working interpreter of a version such as ``"3.12"``."""
    name = f"python{version}"
    candidates = [Path(python) for python in os.environ.get("PYTHONS", "").split()]
    candidates += [Path(folder) / name for folder in os.get_exec_path()]
    pyenv = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv")
    candidates += sorted(pyenv.glob(f"versions/{version}.*/bin/{name}"), reverse=True)
    # A shim of pyenv may lead nowhere, and Debian ships pythons that cannot make environments.
    probe = f"import ensurepip, sys; sys.exit('%d.%d' % sys.version_info[:2] != '{version}')"
    for python in candidates:
        if python.is_file() and subprocess.run([python, "-c", probe], capture_output=True).returncode == 0:
            return python
    return None


def build(work: Path, log: Path) -> str:
    """Build the sdist, and the wheel from it; unpack the sdist, whose tests the other parts run."""
    call([sys.executable, "-m", "build", "--outdir", work, ROOT], log, work, PIP_CONSTRAINT=str(CONSTRAINTS))
    sdist, wheel = next(work.glob("*.tar.gz")), find_wheel(work)
    with tarfile.open(sdist) as archive:
        archive.extractall(work, filter="data")
    source = work / sdist.name.removesuffix(".tar.gz")
    source.rename(work / "source")
    with zipfile.ZipFile(wheel) as archive_:
        inside = archive_.namelist()
    absent = [file for file in IN_SDIST if not (work / "source" / file).is_file()]
    absent += [file for file in IN_WHEEL if file not in inside]
    absent += [file for file in ("LICENSE", "NOTICE") if not any(name.endswith(f"licenses/{file}") for name in inside)]
    if absent:
        raise RedError(f"not packaged: {', '.join(absent)}")
    return f"{sdist.name} ({size(sdist)}), {wheel.name} ({size(wheel)})"


def check_core(work: Path, name: str, python: Path, log: Path) -> str:
    """Install the wheel alone, use it, and check what is said of every extra that is missing."""
    shutil.rmtree(CACHE / name, ignore_errors=True)
    python = make_environment(work, name, python, log, extras="", constraints=CONSTRAINTS)
    here = work / "core"
    here.mkdir()
    call([python, "-c", IMPORTS], log, here)
    call([python, "-c", PHOTOS], log, here)
    for command in WORKING:
        call([python.with_name("equipoise"), *command.split()], log, here)
    for package, source in BROKEN.items():
        (here / "broken" / package).mkdir(parents=True)
        (here / "broken" / package / "__init__.py").write_text(source)
    wrong = []
    for command, package, extra in MISSING:
        said = refuse(python, command, log, here)
        if f"needs the package {package}: pip install 'equipoise[{extra}]'" not in said:
            wrong.append(command)
    said = refuse(python, MISSING[-1][0], log, here, PYTHONPATH=str(here / "broken"))
    if "torchvision does not work with torch" not in said or "pip install" in said:
        wrong.append(f"{MISSING[-1][0]} (with a broken torchvision)")
    if "pip install 'equipoise[pretrained]'" not in refuse(python, NOT_INSTALLED, log, here):
        wrong.append(NOT_INSTALLED)
    if wrong:
        raise RedError(f"{len(wrong)} commands do not say which package is missing or broken: " + "; ".join(wrong))
    return f"{len(WORKING)} commands work, {len(MISSING) + 2} say what is missing or broken"


def refuse(python: Path, command: str, log: Path, here: Path, **variables: str) -> str:
    """Run a command that should end with a usage error, and return that, or nothing if it ended otherwise."""
    done = call([python.with_name("equipoise"), *command.split()], log, here, check=False, **variables)
    return " ".join(done.stdout.split()) if done.returncode == 2 and "Traceback" not in done.stdout else ""


def run_tests(work: Path, name: str, python: Path, log: Path) -> str:
    """Install the wheel with all extras and run the fast tests of the sdist against it."""
    constraints, options = CONSTRAINTS, ["-c", "pyproject.toml", "--rootdir", ".", "-n", "2", "--dist", "worksteal"]
    if name == "lowest":
        constraints = work / "lowest.txt"
        constraints.write_text(lowest_versions())
        options += ["-W", "default"]  # old packages warn of newer ones, which is not ours to fix
    python = make_environment(work, name, python, log, extras="[all,test]", constraints=constraints)
    # --pyargs: the doctests of the installed package, not of src
    tests = ["-m", "not slow and not realdata", "tests", "README.md", "--pyargs", "equipoise"]
    command: list[str | Path] = [python, "-m", "pytest", *options, *tests]
    done = call(command, log, work / "source", check=False, OMP_NUM_THREADS="1")
    if done.returncode:
        raise RedError(f"{last_line(done.stdout)} (exit code {done.returncode})")
    return last_line(done.stdout)


def make_environment(work: Path, name: str, python: Path, log: Path, extras: str, constraints: Path) -> Path:
    """Install the wheel into a cached environment, which is made again when the requirements changed."""
    home, wheel = CACHE / name, find_wheel(work)
    inside, stamp = home / "bin" / "python", home / "requirements.sha256"
    pip: list[str | Path] = [inside, "-m", "pip", "--disable-pip-version-check", "install"]
    recipe = "".join(line for line in metadata(wheel).splitlines() if line.startswith("Requires-Dist"))
    recipe = hashlib.sha256(f"{python}{extras}{recipe}{constraints.read_text()}".encode()).hexdigest()
    if stamp.is_file() and stamp.read_text() == recipe:
        call([*pip, "--force-reinstall", "--no-deps", wheel], log, work)
    else:
        call([python, "-m", "venv", "--clear", home], log, work)
        call([*pip, "-c", constraints, f"{wheel}{extras}"], log, work)
        stamp.write_text(recipe)
    call([inside, "-m", "pip", "check"], log, work)
    return inside


def lowest_versions() -> str:
    """Write constraints that pin what users install to the lowest promised version, and our test tools as always."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]
    tools = {requirement.partition(">=")[0] for requirement in extras.pop("test")}
    extras.pop("dev")
    promised = [*project["dependencies"], *(line for extra in extras.values() for line in extra if ">=" in line)]
    pins = [line for line in CONSTRAINTS.read_text().splitlines() if line.partition("==")[0] in tools]
    return "\n".join([line.replace(">=", "==") for line in promised] + pins) + "\n"


def call(
    command: Sequence[str | Path], log: Path, cwd: Path, check: bool = True, **variables: str
) -> subprocess.CompletedProcess[str]:
    """Run a command, with what it prints in the log; with ``check``, it is red if the command fails."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | variables
    words = " ".join(str(word) for word in command)
    with log.open("a+", encoding="utf-8", errors="replace") as file:
        print("$", words, file=file, flush=True)
        start = file.tell()
        code = subprocess.run(command, cwd=cwd, env=environment, stdout=file, stderr=subprocess.STDOUT).returncode
        file.seek(start)
        output = file.read()
        print(f"[exit code {code}]\n", file=file)
    if check and code:
        raise RedError(f"`{words}` failed: {last_line(output)}")
    return subprocess.CompletedProcess(command, code, output)


def last_line(text: str) -> str:
    return (text.strip().splitlines() or ["no output"])[-1].strip(" =")


def find_wheel(work: Path) -> Path:
    return next(work.glob("*.whl"))


def metadata(wheel: Path) -> str:
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        return archive.read(name).decode()


def size(file: Path) -> str:
    return f"{file.stat().st_size / 2**20:.1f} MB"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
