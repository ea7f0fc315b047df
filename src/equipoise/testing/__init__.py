"""The contract that every method passes. Run it on yours:

    from equipoise.testing import check_method
    check_method("my-method")

It trains on a few handwritten digits many times; a method on a small network takes about ten seconds.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from equipoise.learn.method import Method
from equipoise.methods.registry import lookup, register
from equipoise.testing.checks import CHECKS, check_fields
from equipoise.testing.distributed import check_distributed
from equipoise.testing.trial import Trial

__all__ = ["CHECKS", "Trial", "check_distributed", "check_fields", "check_method"]


def check_method(method: str | type[Method], fields: Mapping[str, Any] | None = None, distribute: bool = True) -> None:
    """Raise an ``AssertionError`` that says which rule a method breaks.

    Parameters
    ----------
    method
        The name of a method, or a class that is not installed yet.
    fields
        Hyper-parameters that differ from the defaults.
    distribute
        Also train in two processes, which takes a while to start; ``check_distributed`` checks many methods in one go.
    """
    name = register(method) if isinstance(method, type) else method
    cls = lookup(name)[0]
    check_fields(name)
    trial = Trial(name, fields or {}, cls=cls)
    for check in CHECKS:
        check(trial)
    if distribute:
        check_distributed([trial])
