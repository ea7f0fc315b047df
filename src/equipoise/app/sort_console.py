"""Output of `equipoise sort`."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console
from rich.markup import escape

from equipoise.app.card import counted
from equipoise.app.console import class_table
from equipoise.app.contact_sheet import SHEET
from equipoise.app.sorting import SortedPhoto, sort_summary
from equipoise.core.open_dir import printable
from equipoise.core.output import warn


def print_sorted(console: Console, photos: list[SortedPhoto], model: Path, out: Path, dry_run: bool) -> None:
    """Print how many photos went into each folder, and what to do next."""
    for photo in photos:
        if photo.error is not None:
            warn(f"equipoise: {photo.path}: {photo.error}")
    table = class_table("photos")
    for folder, count in sort_summary(photos).items():
        table.add_row(escape(printable(folder)), f"{count:,}")
    console.print(table)
    unknown = len({photo.folder for photo in photos if photo.unknown})
    if dry_run:
        console.print("nothing was changed (--dry-run)")
        return
    console.print(f"look at {escape(str(out / SHEET))}", soft_wrap=True)
    if unknown:
        console.print(
            f"rename {counted(unknown, 'folder')} of unknown photos, check the others, and teach them: "
            f"equipoise learn {escape(str(model))} {escape(str(out))} --extend",
            soft_wrap=True,
        )
