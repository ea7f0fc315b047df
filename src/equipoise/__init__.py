"""equipoise: class-incremental learning for research and for your own photos.

The names below import their module when they are first used, so that ``import equipoise`` is instant.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from equipoise.version import __version__

if TYPE_CHECKING:
    from equipoise.app.classifier import IncrementalClassifier as IncrementalClassifier
    from equipoise.app.classifier import load as load
    from equipoise.data.herding import herd as herd
    from equipoise.learn.align import align_head as align_head
    from equipoise.learn.align import head_norms as head_norms
    from equipoise.study.report import report as report
    from equipoise.study.run import run as run

_MODULES = {
    "IncrementalClassifier": "equipoise.app.classifier",
    "load": "equipoise.app.classifier",
    "align_head": "equipoise.learn.align",
    "head_norms": "equipoise.learn.align",
    "herd": "equipoise.data.herding",
    "report": "equipoise.study.report",
    "run": "equipoise.study.run",
}
__all__ = ["IncrementalClassifier", "__version__", "align_head", "head_norms", "herd", "load", "report", "run"]


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return getattr(importlib.import_module(_MODULES[name]), name)
    raise AttributeError(f"module 'equipoise' has no attribute '{name}'")
