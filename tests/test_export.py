"""Exports: ONNX files and copies."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from equipoise import IncrementalClassifier
from equipoise.app.export import ExportModule, export_onnx
from equipoise.app.model_dir import ModelDir
from equipoise.app.predict import Prediction, expand_paths, predict
from equipoise.data.decoding import decode
from equipoise.errors import RunError, UsageError
from tests.conftest import Ran
from tests.folders import ONNX_EXAMPLE, unseen
from tests.models import unlabelled
from tests.pages import check_width

Cli = Callable[..., Ran]
FORWARD = ExportModule.forward


@pytest.fixture(scope="module")
def exported(two_steps: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("onnxruntime")
    out = tmp_path_factory.mktemp("onnx") / "m.onnx"
    export_onnx(ModelDir(two_steps).load(), out)
    return out


def test_onnx_predicts_what_torch_predicts(exported: Path, two_steps: Path) -> None:
    """Compare images of the model's own size, which are not resized."""
    import onnxruntime

    images = torch.cat([unseen(range(6)), unseen(range(6, 13))])[:100]
    session = onnxruntime.InferenceSession(exported)
    assert session.get_inputs()[0].type == "tensor(uint8)"
    assert session.get_inputs()[0].shape == ["height", "width", 3]
    model = ModelDir(two_steps).load()
    expected, familiarity = model.predictor()(unlabelled(images))
    strange = familiarity < model.least_familiar(0.95)
    assert 5 < strange.sum() < 95
    for number, image in enumerate(images.permute(0, 2, 3, 1).numpy()):
        values, familiar, unknown, names = session.run(None, {"image": image})
        np.testing.assert_allclose(values, expected[number], atol=1e-5)
        assert familiar == pytest.approx(familiarity[number].item(), abs=1e-3)
        assert unknown == strange[number]
        assert names.tolist() == list("ABCDEF")
    metadata = session.get_modelmeta().custom_metadata_map
    assert json.loads(metadata["classes"]) == list("ABCDEF")
    assert float(metadata["threshold"]) == model.least_familiar(0.95)


@pytest.mark.parametrize("edges", [(24, 24), (25, 24), (24, 31), (11, 8), (1, 1), (90, 217)])
def test_the_graph_crops_and_resizes_as_predict_does(edges: tuple[int, int], exported: Path) -> None:
    import onnx
    import onnxruntime

    graph = onnx.load(exported)
    del graph.graph.output[:]
    graph.graph.output.append(onnx.helper.make_tensor_value_info("square", onnx.TensorProto.UINT8, None))
    session = onnxruntime.InferenceSession(graph.SerializeToString())
    pixels = np.random.default_rng(0).integers(0, 256, (*edges, 3), dtype=np.uint8)
    (square,) = session.run(None, {"image": pixels})
    expected = decode(Image.fromarray(pixels), 24, bicubic=True).transpose(2, 0, 1)[None].astype(int)
    assert np.abs(square - expected).max() <= 1
    assert (square != expected).mean() < 0.005


def test_the_example_needs_neither_torch_nor_equipoise(exported: Path, two_steps: Path, variants: list[str]) -> None:
    """Predict photographs with the example, while torch and equipoise cannot be imported."""
    block = "import sys, runpy\nsys.modules['torch'] = sys.modules['equipoise'] = None\nsys.argv = sys.argv[1:]\n"
    block += "runpy.run_path(sys.argv[0], run_name='__main__')"
    run = [sys.executable, "-c", block, str(ONNX_EXAMPLE), str(exported), *variants]
    done = subprocess.run(run, capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    assert done.returncode == 0, done.stderr
    ours = [answer_text(one) for one in predict(ModelDir(two_steps).load(), expand_paths(variants))]
    assert same_answers(done.stdout.splitlines(), ours)


def answer_text(one: Prediction) -> str:
    """Return what ``equipoise predict`` prints."""
    ((name, probability),) = one.classes
    answer = f"{name} {probability:.1%}"
    return f"{one.path}  " + (f"unknown (nearest: {answer})" if one.unknown else answer)


def same_answers(found: list[str], expected: list[str]) -> bool:
    """Return whether two lists of answers have the same classes, and percentages that are nearly the same."""
    number = re.compile(r"([\d.]+)%")
    assert [number.sub("", line) for line in found] == [number.sub("", line) for line in expected]
    first, second = (np.array([float(number.findall(line)[-1]) for line in lines]) for lines in (found, expected))
    return bool(np.abs(first - second).max() <= 0.2)


def check_browser_answer(text: str, one: Prediction) -> None:
    """Allow five points of difference, because a browser decodes and resizes a little differently."""
    found = re.fullmatch(r"(?:unknown \(nearest: )?(\w) ([\d.]+)%\)?", text)
    assert found is not None, text
    percent, ours = float(found[2]), {name: 100 * probability for name, probability in one.classes}
    assert text.startswith("unknown") == one.unknown, one.path
    assert percent == pytest.approx(ours[found[1]], abs=5), one.path
    assert percent >= max(ours.values()) - 5, one.path


def test_a_model_without_images_is_checked_on_generated_ones(cli: Cli, two_steps: Path, tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    ModelDir(two_steps).copy_to(tmp_path / "light", memory=False)
    for place in (two_steps, tmp_path / "light"):
        out = cli("export", place, tmp_path / "m.onnx").out
        assert "takes an RGB picture of any size, returns probabilities; checked on 12 pictures, largest diff" in out


def test_an_old_model_takes_batches_of_its_own_size(two_steps: Path, tmp_path: Path) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    model = replace(ModelDir(two_steps).load(), bicubic=False, temperature=1.7)
    made = export_onnx(model, tmp_path / "m.onnx")
    assert made.takes == "images (uint8, N × 24 × 24 × 3)"
    images = unseen(range(13))[:100]
    expected, familiarity = model.predictor()(unlabelled(images))
    session = onnxruntime.InferenceSession(tmp_path / "m.onnx")
    for count in (1, 7, 100):  # any number at a time
        found = session.run(None, {"images": images[:count].permute(0, 2, 3, 1).contiguous().numpy()})
        np.testing.assert_allclose(found[0], expected[:count], atol=1e-5)
        np.testing.assert_allclose(found[1], familiarity[:count], atol=1e-3)
        np.testing.assert_array_equal(found[2], familiarity[:count] < model.least_familiar(0.95))


def test_a_model_of_features_takes_rows(tmp_path: Path) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    rows = np.random.default_rng(0).normal(size=(40, 5)).astype(np.float32)
    rows[20:] += 2
    classifier = IncrementalClassifier(epochs=2).fit(rows, [0] * 20 + [1] * 20)
    made = export_onnx(replace(classifier.model_, familiarity=None), tmp_path / "m.onnx")
    assert made.takes == "rows of 5 floats"
    found = onnxruntime.InferenceSession(tmp_path / "m.onnx").run(None, {"images": rows})
    np.testing.assert_allclose(found[0], classifier.predict_proba(rows), atol=1e-5)
    assert np.isposinf(found[1]).all()
    assert not found[2].any()


def test_a_file_that_predicts_something_else_is_not_written(
    two_steps: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("onnxruntime")
    model = ModelDir(two_steps).load()
    monkeypatch.setattr(ExportModule, "forward", lambda self, x: FORWARD(self, 255 - x))
    with pytest.raises(RunError, match="the exported file gives different predictions"):
        export_onnx(model, tmp_path / "m.onnx")
    assert not list(tmp_path.iterdir())


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


# ---- in a browser


class QuietHandler(SimpleHTTPRequestHandler):
    def log_message(self, *details: Any) -> None:
        pass


@pytest.fixture(scope="module")
def site(exported: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Serve the example with onnxruntime-web and return its address."""
    folder = tmp_path_factory.mktemp("site")
    shutil.copytree(ONNX_EXAMPLE.parent / "browser", folder, ignore=shutil.ignore_patterns("node*"), dirs_exist_ok=True)
    npm = shutil.which("npm")
    if npm is None:
        pytest.skip("npm is not installed (Debian: apt-get install npm)")
    command = [npm, "install", "--ignore-scripts", "--no-audit", "--no-fund", "--fetch-retries=0"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    if done.returncode:
        pytest.skip("npm cannot install onnxruntime-web: no package registry can be reached")
    shutil.copy(exported, folder / "model.onnx")
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(QuietHandler, directory=str(folder)))
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/"
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (390, "dark")])
def test_the_browser_example_predicts_what_predict_does(
    browser: Any, site: str, two_steps: Path, variants: list[str], tmp_path: Path, width: int, scheme: str
) -> None:
    other = (".tif", ".webp")  # Chromium reads no TIFF files, and no orientation of WebP files
    files = [file for file in variants if not file.endswith(other)]
    ours = list(predict(ModelDir(two_steps).load(), expand_paths(files), top=6))
    page = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme)
    messages: list[str] = []
    requests: list[str] = []
    page.on("console", lambda message: messages.append(message.text))
    page.on("pageerror", lambda error: messages.append(str(error)))
    page.on("request", lambda request: requests.append(request.url))
    page.goto(site)
    page.wait_for_selector("#photo:enabled")
    found = []
    for file in files:
        page.get_by_label("Choose a photo").set_input_files(file)
        page.wait_for_selector("table:visible")
        found.append(page.inner_text("#answer"))
        check_width(page, width)
    assert len(page.query_selector_all("tbody tr")) == 5
    (tmp_path / "text.png").write_text("not a picture")
    page.get_by_label("Choose a photo").set_input_files(tmp_path / "text.png")
    page.get_by_text("Cannot predict text.png").wait_for()
    page.close()
    for text, one in zip(found, ours, strict=True):
        check_browser_answer(text, one)
    assert messages == []
    assert [url for url in requests if not url.startswith((site, "blob:", "data:"))] == []
