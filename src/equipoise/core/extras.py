"""Import optional packages, or raise an error that says what is wrong and what to do."""

from __future__ import annotations

import importlib
import os
import sys
import traceback
from collections.abc import Iterator
from importlib import metadata
from importlib.util import find_spec
from types import ModuleType

from equipoise.errors import UsageError

PROJECTS = {
    "lightning_fabric": "lightning-fabric",
    "mlflow": "mlflow-skinny",
    "prometheus_client": "prometheus-client",
    "python_multipart": "python-multipart",
    "vl_convert": "vl-convert-python",
}
"""Names for ``pip`` of packages that are imported under another name."""
NO_TELEMETRY = {
    "huggingface_hub": ("HF_HUB_DISABLE_TELEMETRY", "1"),
    "mlflow": ("MLFLOW_DISABLE_TELEMETRY", "true"),
    "onnxruntime": ("ORT_DISABLE_TELEMETRY", "1"),  # otherwise it contacts its makers as soon as it is imported
    "timm": ("HF_HUB_DISABLE_TELEMETRY", "1"),
}
"""Environment variables that keep a package from sending usage data."""


def require(package: str, extra: str, feature: str) -> ModuleType:
    """Import an optional package.

    Parameters
    ----------
    package : str
        The name to import, such as ``"timm"`` or ``"mlflow.entities"``.
    extra : str
        The extra of equipoise that installs it.
    feature : str
        What the user asked for; the error begins with it, as in "a report needs the package altair".

    Raises
    ------
    UsageError
        If the package is not installed, or is installed and cannot be imported.
    """
    name = package.partition(".")[0]
    check_installed(name, extra, feature)
    if name in NO_TELEMETRY:
        os.environ.setdefault(*NO_TELEMETRY[name])
    try:
        return importlib.import_module(package)
    except Exception as error:  # a broken installation fails in any way: RuntimeError, OSError, AttributeError, …
        raise UsageError(_why_broken(name, feature, error)) from error


def check_installed(package: str, extra: str, feature: str) -> None:
    """Raise the error of ``require`` if a package is not installed, without importing it."""
    if not available(package):
        raise UsageError(f"{feature} needs the package {_project(package)}: pip install 'equipoise[{extra}]'")


def available(package: str) -> bool:
    """Return whether a package is installed, without importing it."""
    if package in sys.modules:
        return sys.modules[package] is not None
    spec = find_spec(package)
    # No origin: a mere directory of that name, such as the wandb/ that W&B leaves behind.
    return spec is not None and spec.origin is not None


def _project(name: str) -> str:
    return PROJECTS.get(name, name)


def _why_broken(name: str, feature: str, error: Exception) -> str:
    if name != "torchvision" and any(module == "torchvision" for module in _modules(error)):
        remedy = "install the matching build" + ("" if _needs_torchvision(name) else " or remove torchvision")
        return f"torchvision{_version('torchvision')} does not work with torch{_version('torch')}: {remedy}"
    lines = str(error).strip().splitlines()
    reason = lines[0].rstrip(".") if lines else type(error).__name__
    if sys.flags.optimize >= 2 and isinstance(error, AttributeError | TypeError):
        unset = "start Python without -OO and unset PYTHONOPTIMIZE"
        return f"{feature} cannot import {_project(name)} without docstrings ({reason}): {unset}"
    return f"{feature} cannot import {_project(name)} ({reason}): reinstall it"


def _modules(error: BaseException | None) -> Iterator[str]:
    """Yield the top-level package of every frame that the error, or its cause, passed through."""
    while error is not None:
        for frame, _ in traceback.walk_tb(error.__traceback__):
            yield str(frame.f_globals.get("__name__", "")).partition(".")[0]
        error = error.__cause__ or error.__context__


def _needs_torchvision(name: str) -> bool:
    try:
        return any(line.startswith("torchvision") for line in metadata.requires(_project(name)) or [])
    except metadata.PackageNotFoundError:
        return False


def _version(project: str) -> str:
    try:
        return " " + metadata.version(project)
    except metadata.PackageNotFoundError:
        return ""
