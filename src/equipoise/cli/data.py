"""Commands that look after data sets."""

from __future__ import annotations

import json as json_module
from pathlib import Path

from cyclopts import App

from equipoise.cli.base import STUDIES, Flag, app

data = App(name="data", help="Look after data sets.", help_format="plaintext", group=STUDIES)
app.command(data)


@data.command
def check(dataset: str, *, data_root: Path | None = None, deep: Flag = False, json: Flag = False) -> None:
    """Tell whether the files of a data set are all there, and what is missing; exit code 1 if anything is.

    Parameters
    ----------
    dataset
        imagenet1000, imagenet100, imagenet100-lucir, folder, cifar100, …: see `equipoise datasets`.
    data_root
        Where the data lies.
    deep
        Decode every image, and tell which are empty or damaged.
    json
        What was found, as one JSON object.
    """
    from equipoise.data.check import check as look

    found = look(dataset, data_root, deep)
    if json:
        print(json_module.dumps(found.plain()))
    else:
        parts = ", ".join(f"{count:,} in {part}" for part, count in found.images.items()) or "none"
        facts = f"{found.classes:,} classes, images: {parts}"
        for fault in found.faults:
            print(f"- {fault.sentence()}")
        if found.complete:
            print(f"complete: {dataset}, {facts}")
        else:
            print(f"{dataset} is not complete ({facts}): mend what is listed above, and check again")
    if not found.complete:
        raise SystemExit(1)
