"""Commands to share a model: export, card."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from equipoise.cli.app import MODELS, command
from equipoise.cli.models import ModelPath, model_dir


@command(MODELS)
def export(model: ModelPath, out: Path, *, memory: Annotated[bool, Parameter(negative="--no-memory")] = True) -> None:
    """Export a model as one ONNX file (OUT.onnx), or copy its current version into a new directory.

    Parameters
    ----------
    out
        A file name that ends in .onnx, or a new directory.
    memory
        Copy exemplars and held-out images, too; without them, the copy predicts but cannot learn more.
    """
    from equipoise.app.console import make_console
    from equipoise.app.export import export_onnx

    place = model_dir(model)
    if out.suffix == ".onnx":
        with make_console().status("exporting"):
            made = export_onnx(place.load(), out)
        checked = "not checked, because onnxruntime is not installed"
        if made.pictures:
            what = "rows" if made.takes.startswith("rows") else "pictures"
            checked = f"checked on {made.pictures} {what}, largest difference {made.difference:.0e}"
        print(f"wrote {out}: takes {made.takes}, returns probabilities; {checked}")
    else:
        place.copy_to(out, memory)
        print(f"copied to {out}" + ("" if memory else ", without exemplars and held-out images"))


@command(MODELS)
def card(model: ModelPath) -> None:
    """Print the model card, which is also in the model's README.md."""
    from equipoise.app.card import card_text

    place = model_dir(model)
    print(place.consistently(lambda config: card_text(config, place.steps_of(config), place.images_of(config))))
