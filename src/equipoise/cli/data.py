"""Commands for data sets."""

from __future__ import annotations

from pathlib import Path

from cyclopts import App

from equipoise.cli.app import STUDIES, Flag, app, command
from equipoise.cli.exit_codes import ExitCode
from equipoise.core.output import print_json, say

data = App(
    name="data",
    help="Check data sets.",
    help_epilogue="Examples:\n  equipoise data check cifar100 --data-root ~/data",
    help_format="plaintext",
    group=STUDIES,
    sort_key=100,
)
app.command(data)


@command(STUDIES, "data check cifar100 --data-root ~/data", "data check folder --data-root photos/ --deep", parent=data)
def check(dataset: str, *, data_root: Path | None = None, deep: Flag = False, json: Flag = False) -> None:
    """Check whether a data set is complete, and list what is missing. The exit code is 1 if anything is.

    Parameters
    ----------
    dataset
        Name of a data set: see `equipoise datasets`.
    data_root
        Directory of the data (default: the environment variable EQUIPOISE_DATA).
    deep
        Decode every image and list those that are empty or damaged.
    json
        Print the result as one JSON object.
    """
    from equipoise.data.check import check as look

    found = look(dataset, data_root, deep)
    if json:
        print_json(found.to_dict())
    else:
        parts = ", ".join(f"{count:,} in {part}" for part, count in found.images.items()) or "none"
        facts = f"{found.classes:,} classes, images: {parts}"
        for problem in found.problems:
            say(f"- {problem.describe()}")
        if found.complete:
            say(f"complete: {dataset}, {facts}")
        else:
            say(f"{dataset} is not complete ({facts}): fix the problems above and check again")
    if not found.complete:
        raise SystemExit(ExitCode.PROBLEM)
