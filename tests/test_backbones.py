"""Backbones from elsewhere: timm, and weights in a file."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from equipoise.app.learn import LearnOptions, learn_folder
from equipoise.app.model_dir import ModelDir
from equipoise.learn.weights import load_weights
from equipoise.errors import UsageError
from equipoise.core.files import write_tensors
from equipoise.learn.backbones.base import BACKBONES, Architecture
from equipoise.methods import make
from tests.folders import glyph_folder

OVERRIDES: dict[str, dict[str, Any]] = {"net": {"backbone": "tiny"}, "runtime": {"threads": 1}}
SHIM = """
import torch
library = torch.library.Library("torchvision", "DEF")  # torchvision beside a CPU torch lacks its own operators
library.define("nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
library.define("qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
torch.set_num_threads(1)
"""


@pytest.mark.parametrize("name", BACKBONES)
def test_every_backbone_gives_its_width_and_maps(name: str) -> None:
    shape = (12, 1, 1) if name == "mlp" else (3, 32, 32)
    net = Architecture(name, shape)().eval()
    x = torch.randn(2, *shape)
    maps = net.maps(x)
    assert net(x).shape == (2, net.width)
    assert [m.shape[1] for m in maps] == net.map_widths
    assert (net(x) >= 0).all()
    assert (Architecture(name, shape)(final_relu=False).eval()(x) < 0).any()
    big = [p for p in net.parameters() if p.dim() == 4 and p.shape[1] > 1 and p.shape[2] > 1]
    assert all(p.is_contiguous(memory_format=torch.channels_last) for p in big)


def test_weights_of_another_model_are_a_start(tmp_path: Path) -> None:
    pictures = glyph_folder(tmp_path / "pictures", range(2))
    first = LearnOptions(image_size=24, epochs=1, overrides=OVERRIDES)
    learn_folder(ModelDir(tmp_path / "one"), pictures, first)
    file = tmp_path / "one" / "model.safetensors"
    method = make("wa")
    method.build(Architecture("tiny", (3, 24, 24)))
    assert load_weights(method, file) > 5
    known = ModelDir(tmp_path / "one").load().method.backbone.state_dict()
    assert all(torch.equal(value, known[name]) for name, value in method.backbone.state_dict().items())
    slow = LearnOptions(image_size=24, epochs=1, weights=file, overrides={**OVERRIDES, "train": {"lr": 1e-9}})
    learn_folder(ModelDir(tmp_path / "two"), glyph_folder(tmp_path / "others", range(2, 4)), slow)
    after = ModelDir(tmp_path / "two").load().method.backbone.state_dict()
    torch.testing.assert_close(after["convs.1.weight"], known["convs.1.weight"])


@pytest.mark.parametrize(
    ("tensors", "message"),
    [
        ({"nothing.of.ours": torch.zeros(1)}, "they lack convs.0.weight"),
        (None, "do not exist"),
        (b"rubbish", "are not safetensors"),
    ],
)
def test_weights_that_do_not_fit_are_refused(tensors: Any, message: str, tmp_path: Path) -> None:
    file = tmp_path / "w.safetensors"
    if isinstance(tensors, bytes):
        file.write_bytes(tensors)
    elif tensors is not None:
        write_tensors(file, tensors)
    method = make("wa")
    method.build(Architecture("tiny", (3, 24, 24)))
    with pytest.raises(UsageError, match=message):
        load_weights(method, file)
    other = make("wa")
    other.build(Architecture("tiny", (1, 24, 24)))
    write_tensors(file, {f"backbone.{k}": v for k, v in other.backbone.state_dict().items()})
    with pytest.raises(UsageError, match="are for another shape"):
        load_weights(method, file)


def test_timm_networks_are_backbones(tmp_path: Path) -> None:
    """Learned, started from a file, exported and asked, in a process of its own (timm imports torchvision)."""
    pytest.importorskip("onnxruntime")
    code = (
        SHIM
        + """
import sys
from pathlib import Path
import timm
from safetensors.torch import save_file
from equipoise.app.learn import LearnOptions, learn_folder
from equipoise.app.model_dir import ModelDir
from equipoise.app.export import export_onnx
root = Path(sys.argv[1])
save_file(timm.create_model("mobilenetv3_small_050", num_classes=7).state_dict(), root / "w.safetensors")
for step in ("first", "second"):
    options = dict(backbone="timm:mobilenetv3_small_050", weights=root / "w.safetensors", image_size=32)
    record = learn_folder(ModelDir(root / "m"), root / step, LearnOptions(epochs=1, **(options if step == "first" else {})))
model = ModelDir(root / "m").load()
assert model.settings.fields["clip"] is False
pixels = torch.randint(0, 256, (5, 3, 32, 32), dtype=torch.uint8)
assert model.probabilities(pixels).shape == (5, 4)
export_onnx(model, root / "m.onnx")
import onnxruntime
said = onnxruntime.InferenceSession(root / "m.onnx").run(None, {"images": pixels.permute(0, 2, 3, 1).numpy()})[0]
print(abs(said - model.probabilities(pixels).numpy()).max() < 1e-4)
"""
    )
    glyph_folder(tmp_path / "first", range(2))
    glyph_folder(tmp_path / "second", range(2, 4))
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True)
    if "No module named" in done.stderr and "timm" in done.stderr:
        pytest.skip("timm is not installed")
    assert done.stdout.strip().endswith("True"), done.stderr[-2000:]


def test_unknown_backbones_are_named(tmp_path: Path) -> None:
    pictures = glyph_folder(tmp_path / "pictures", range(2))
    with pytest.raises(UsageError, match="there is no backbone 'resnet33': did you mean 'resnet32'"):
        learn_folder(ModelDir(tmp_path / "m"), pictures, LearnOptions(backbone="resnet33"))
    assert not ModelDir(tmp_path / "m").exists
