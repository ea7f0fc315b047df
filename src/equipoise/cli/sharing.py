"""Commands to share a model: export, card."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from equipoise.cli.app import MODELS, Flag, command
from equipoise.cli.models import ModelPath, existing_model
from equipoise.core.output import print_json, say

if TYPE_CHECKING:
    from equipoise.app.model_dir import ModelDir


@command(MODELS, "export pets pets.onnx", "export pets shared/ --no-memory")
def export(
    model: ModelPath,
    out: Path,
    *,
    memory: Annotated[bool, Parameter(negative="--no-memory")] = True,
    json: Flag = False,
) -> None:
    """Export a model as one ONNX file (OUT.onnx), or copy its current version into a new directory.

    Parameters
    ----------
    out
        A file name that ends in .onnx, or a new directory.
    memory
        Also copy exemplars and held-out images; without them, the copy predicts but cannot learn more.
    json
        Print what was written as one JSON object.
    """
    place = existing_model(model)
    if out.suffix == ".onnx":
        _export_onnx(place, out, json)
        return
    place.copy_to(out, memory)
    if json:
        print_json({"out": str(out), "memory": memory})
    else:
        say(f"copied to {out}" + ("" if memory else ", without exemplars and held-out images"))


def _export_onnx(place: ModelDir, out: Path, json: bool) -> None:
    from equipoise.app.export import export_onnx
    from equipoise.core.console import make_console

    with nullcontext() if json else make_console().status("exporting"):
        made = export_onnx(place.load(), out)
    if json:
        print_json({"out": str(out), **asdict(made)})
        return
    checked = "not checked, because onnxruntime is not installed"
    if made.pictures:
        what = "rows" if made.takes.startswith("rows") else "pictures"
        checked = f"checked on {made.pictures} {what}, largest difference {made.difference:.0e}"
    say(f"wrote {out}: takes {made.takes}, returns probabilities; {checked}")


@command(MODELS, "card pets", "card pets --json")
def card(model: ModelPath, *, json: Flag = False) -> None:
    """Print the model card, which is also in the model's README.md.

    Parameters
    ----------
    json
        Print the card as one JSON object that contains its Markdown text.
    """
    from equipoise.app.card import card_text

    place = existing_model(model)
    text = place.consistently(lambda config: card_text(config, place.steps_of(config), place.images_of(config)))
    if json:
        print_json({"card": text})
    else:
        say(*text.split("\n"))
