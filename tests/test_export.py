"""Exports: ONNX files and copies."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from equipoise.app.export import export_onnx
from equipoise.app.model_dir import ModelDir
from equipoise.app.predict import expand_paths, predict
from equipoise.errors import UsageError
from tests.conftest import Ran
from tests.folders import crops, unseen
from tests.models import unlabelled

Cli = Callable[..., Ran]


@pytest.fixture(scope="module")
def exported(two_steps: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("onnxruntime")
    out = tmp_path_factory.mktemp("onnx") / "m.onnx"
    export_onnx(ModelDir(two_steps).load(), out)
    return out


def test_onnx_predicts_what_torch_predicts(exported: Path, two_steps: Path) -> None:
    import onnxruntime

    images = torch.cat([unseen(range(6)), unseen(range(6, 13))])[:100]
    session = onnxruntime.InferenceSession(exported)
    assert session.get_inputs()[0].type == "tensor(uint8)"
    assert session.get_inputs()[0].shape[1:] == [24, 24, 3]
    expected = ModelDir(two_steps).load().probabilities(unlabelled(images)).numpy()
    for count in (1, 7, 100):  # any number at a time
        (found,) = session.run(None, {"images": images[:count].permute(0, 2, 3, 1).contiguous().numpy()})
        np.testing.assert_allclose(found, expected[:count], atol=1e-4)
    metadata = session.get_modelmeta().custom_metadata_map
    assert json.loads(metadata["classes"]) == list("ABCDEF")


def test_the_example_needs_neither_torch_nor_equipoise(exported: Path, two_steps: Path, tmp_path: Path) -> None:
    """Predict photographs of odd sizes with the example, while torch and equipoise cannot be imported."""
    files = []
    for number, picture in enumerate(crops("china.jpg", 8, seed=4)):
        files.append(str(tmp_path / f"{number}.png"))
        if number == 0:
            picture.putalpha(90)  # transparent parts become white
        picture.save(files[-1])
    example = Path(__file__).parent.parent / "examples" / "onnx_predict.py"
    block = "import sys, runpy\nsys.modules['torch'] = sys.modules['equipoise'] = None\nsys.argv = sys.argv[1:]\n"
    run = [sys.executable, "-c", block + "runpy.run_path(sys.argv[0])", str(example), str(exported), *files]
    done = subprocess.run(run, capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    assert done.returncode == 0, done.stderr
    ours = []
    for one in predict(ModelDir(two_steps).load(), expand_paths(files)):
        ((name, probability),) = one.classes
        ours.append(f"{one.path}  {name} {probability:.1%}")
    assert done.stdout.splitlines() == ours


def test_export_without_onnx_says_how_to_install_it(
    two_steps: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "onnx", None)
    with pytest.raises(UsageError, match=r"pip install 'equipoise\[onnx\]'"):
        export_onnx(ModelDir(two_steps).load(), tmp_path / "x.onnx")


def test_export_copies_with_and_without_images(cli: Cli, two_steps: Path, tmp_path: Path) -> None:
    assert "without exemplars" in cli("export", two_steps, tmp_path / "light", "--no-memory").out
    assert not list((tmp_path / "light").rglob("*.png"))
    assert cli("export", two_steps, tmp_path / "whole").code == 0
    assert len(list((tmp_path / "whole").rglob("*.png"))) == 60 + 24
    assert "already holds a model" in cli("export", two_steps, tmp_path / "whole").err
