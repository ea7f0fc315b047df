"""Commands for data sets."""

from __future__ import annotations

import json as json_module
from pathlib import Path

from cyclopts import App

from equipoise.cli.app import STUDIES, Flag, app

data = App(name="data", help="Check data sets.", help_format="plaintext", group=STUDIES, sort_key=100)
app.command(data)


@data.command
def check(dataset: str, *, data_root: Path | None = None, deep: Flag = False, json: Flag = False) -> None:
    """Check whether a data set is complete and list what is missing; the exit code is 1 if something is.

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
        print(json_module.dumps(found.to_dict()))
    else:
        parts = ", ".join(f"{count:,} in {part}" for part, count in found.images.items()) or "none"
        facts = f"{found.classes:,} classes, images: {parts}"
        for problem in found.problems:
            print(f"- {problem.describe()}")
        if found.complete:
            print(f"complete: {dataset}, {facts}")
        else:
            print(f"{dataset} is not complete ({facts}): fix the problems above and check again")
    if not found.complete:
        raise SystemExit(1)
