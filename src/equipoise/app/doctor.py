"""Examine an installation: what is there, what is missing or broken, and what to do about it.

Only the standard library is imported at the top: a package that is broken is a finding, not a traceback. Nothing is
downloaded, written or sent.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from equipoise.app.doctor_checks import (
    Finding,
    check_data,
    check_directories,
    check_environment,
    check_extras,
    check_machine,
    check_packages,
    check_versions,
    check_weights,
    describe_error,
)


@dataclass(frozen=True)
class Report:
    """All findings."""

    findings: list[Finding] = field(default_factory=list)

    @property
    def healthy(self) -> bool:
        """Whether everything works that equipoise needs."""
        return not any(finding.needed and finding.state != "ok" for finding in self.findings)

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return {"healthy": self.healthy, "findings": [asdict(finding) for finding in self.findings]}

    def lines(self) -> list[str]:
        """Return the report for people."""
        lines: list[str] = []
        for topic in dict.fromkeys(finding.topic for finding in self.findings):
            lines += ["", topic] if lines else [topic]
            lines += [f"  {finding.line()}" for finding in self.findings if finding.topic == topic]
        broken = sum(finding.needed and finding.state != "ok" for finding in self.findings)
        others = sum(finding.state == "problem" and not finding.needed for finding in self.findings)
        summary = "equipoise can run" if self.healthy else f"equipoise cannot run: fix what is marked above ({broken})"
        return [*lines, "", summary + (f"; other problems: {others}" if others else "")]


def examine(deep: bool = False) -> Report:
    """Examine this installation.

    Parameters
    ----------
    deep
        Also import packages that take long, and verify the pretrained weights.
    """
    parts: list[tuple[str, Callable[[], Iterator[Finding]]]] = [
        ("versions", check_versions),
        ("packages", lambda: check_packages(deep)),
        ("machine", check_machine),
        ("extras", lambda: check_extras(deep)),
        ("pretrained weights", lambda: check_weights(deep)),
        ("data", check_data),
        ("directories", check_directories),
        ("environment", check_environment),
    ]
    return Report([_private(finding) for topic, look in parts for finding in _guarded(topic, look)])


def _guarded(topic: str, look: Callable[[], Iterator[Finding]]) -> Iterator[Finding]:
    """Yield the findings; an exception becomes a finding, too."""
    try:
        yield from look()
    except Exception as error:  # a broken package fails in any way
        yield Finding(
            topic, topic, "problem", f"cannot be examined ({describe_error(error)})", needed=topic == "machine"
        )


# ---- privacy


def _private(finding: Finding) -> Finding:
    """Return a finding without the home directory and the name of the user."""
    return replace(finding, value=hide(finding.value), remedy=hide(finding.remedy))


def hide(text: str) -> str:
    """Replace the home directory by ~, and the name of the user in other paths by USER."""
    home = os.path.expanduser("~")  # noqa: PTH111 - Path.home raises an error if there is none
    for place in sorted({home, os.path.realpath(home)}, key=len, reverse=True):
        if len(place) > 1:
            text = re.sub(rf"{re.escape(place)}(?![\w.-])", "~", text)
    for name in {os.environ.get(variable, "") for variable in ("USER", "LOGNAME", "USERNAME")} - {"", "root"}:
        text = re.sub(rf"(?<=[/\\]){re.escape(name)}(?=[/\\]|$)", "USER", text)
    return text
