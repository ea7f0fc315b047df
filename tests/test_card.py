"""The model card: README.md in a model directory."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from equipoise.app import card
from equipoise.app.model_dir import ModelDir
from equipoise.core.directory import Directory
from equipoise.errors import RunError
from tests.conftest import Ran
from tests.folders import glyph_folder
from tests.models import learn

Cli = Callable[..., Ran]


def test_text_that_the_user_added_stays(model_path: Path, glyph_steps: list[Path]) -> None:
    file = model_path / "README.md"
    text = file.read_text()
    assert text.startswith("---\nlibrary_name: equipoise\npipeline_tag: image-classification\n")
    file.write_text("---\nlicense: mit\n---\nMine.\n" + text[text.index("<!--") :] + "\nMine too.\n")
    learn(model_path, glyph_steps[2], epochs=1)
    after = file.read_text()
    assert after.startswith("---\nlicense: mit\n---\nMine.\n<!-- equipoise")
    assert after.endswith("\nMine too.\n")
    assert "A classifier of 9 classes" in after
    assert after.count("A classifier of") == 1


def test_text_that_is_not_utf8_stays_too(model_path: Path, glyph_steps: list[Path]) -> None:
    file = model_path / "README.md"
    text = "Größe und Herkunft: Café\n".encode("cp1252")
    file.write_bytes(text + file.read_bytes())
    learn(model_path, glyph_steps[2], epochs=1)
    assert file.read_bytes().startswith(text)
    assert b"A classifier of 9 classes" in file.read_bytes()


def test_a_class_name_cannot_break_the_card(tmp_path: Path) -> None:
    pictures = glyph_folder(tmp_path / "pictures", [0, 1])
    (pictures / "A").rename(pictures / "a | <script>`x`")
    learn(tmp_path / "m", pictures, epochs=1)
    card = (tmp_path / "m" / "README.md").read_text()
    assert "| a \\| &lt;script&gt;\\`x\\` |" in card


def test_a_method_cannot_break_the_card(model_path: Path, cli: Cli) -> None:
    """Its name is checked when it is read, and escaped when it is written."""
    config = ModelDir(model_path).config()
    evil = replace(config, settings=config.settings | {"method": "wa]\nlicense: [mit] <b>"})
    text = card.render("", evil, ModelDir(model_path).steps(), ModelDir(model_path).images_of(config))
    assert "continual-learning, wa--license---mit---b-]\n---\n" in text
    assert "wa\\] license: \\[mit\\] &lt;b&gt;" in text
    before = (model_path / "README.md").read_bytes()
    (model_path / "config.json").unlink()
    (model_path / "config.json").write_text(json.dumps(asdict(evil)))
    ran = cli("undo", model_path)
    assert ran.code == 2
    assert "settings.method is not the name of a method" in ran.err
    assert (model_path / "README.md").read_bytes() == before


def test_a_card_that_cannot_be_written_does_not_undo_a_step(
    model_path: Path, glyph_steps: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    write = Directory.write_bytes

    def fail(self: Directory, name: str, data: bytes, *limit: int) -> None:
        if name == "README.md":
            raise RunError("the disk is full")
        write(self, name, data, *limit)

    monkeypatch.setattr(Directory, "write_bytes", fail)
    assert learn(model_path, glyph_steps[2], epochs=1).classes == ["G", "H", "I"]
    assert len(ModelDir(model_path).load().classes) == 9
