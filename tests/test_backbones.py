"""All backbones, pretrained weights from a file, and networks of timm."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from equipoise.app.learn import LearnOptions, learn_folder
from equipoise.app.model_dir import ModelDir
from equipoise.core.directory import Directory
from equipoise.core.tensors import write_tensors
from equipoise.errors import UsageError
from equipoise.learn.backbones import BACKBONES, Architecture
from equipoise.learn.backbones.timm_net import TimmNet
from equipoise.learn.backbones.weights import load_weights
from tests.folders import glyph_folder

OVERRIDES: dict[str, dict[str, Any]] = {"net": {"backbone": "tiny"}, "runtime": {"threads": 1}}
SHIM = """
import torch
try:
    import torchvision
except RuntimeError:  # next to a CPU-only torch it lacks its own operators
    library = torch.library.Library("torchvision", "DEF")
    library.define("nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    library.define("qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
torch.set_num_threads(1)
"""


@pytest.mark.parametrize("name", [name for name in BACKBONES if name != "identity"])
def test_every_backbone_returns_its_width_and_maps(name: str) -> None:
    shape = (12, 1, 1) if name == "mlp" else (3, 32, 32)
    net = Architecture(name, shape)().eval()
    x = torch.randn(2, *shape)
    maps = net.maps(x)
    assert net(x).shape == (2, net.width)
    assert [m.shape[1] for m in maps] == net.map_widths
    assert (net(x) >= 0).all()
    signed = Architecture(name, shape)(final_relu=False).eval()
    for norm in (part for part in signed.modules() if isinstance(part, nn.BatchNorm2d)):
        nn.init.ones_(norm.weight)  # resnet18-cifar has blocks that start as identities
    assert (signed(x) < 0).any()
    big = [p for p in net.parameters() if p.dim() == 4 and p.shape[1] > 1 and p.shape[2] > 1]
    assert all(p.is_contiguous(memory_format=torch.channels_last) for p in big)


def test_a_model_can_start_from_the_weights_of_another(tmp_path: Path) -> None:
    photos = glyph_folder(tmp_path / "photos", range(2))
    first = LearnOptions(image_size=24, epochs=1, overrides=OVERRIDES)
    learn_folder(ModelDir(tmp_path / "one"), photos, first)
    file = tmp_path / "one" / "model.safetensors"
    known = ModelDir(tmp_path / "one").load().method.backbone.state_dict()
    backbone = Architecture("tiny", (3, 24, 24))()
    load_weights(backbone, file)
    assert all(torch.equal(value, known[name]) for name, value in backbone.state_dict().items())
    slow = LearnOptions(image_size=24, epochs=1, weights=file, overrides={**OVERRIDES, "train": {"lr": 1e-9}})
    learn_folder(ModelDir(tmp_path / "two"), glyph_folder(tmp_path / "others", range(2, 4)), slow)
    after = ModelDir(tmp_path / "two").load().method.backbone.state_dict()
    torch.testing.assert_close(after["convs.1.weight"], known["convs.1.weight"])


def test_pretrained_weights_of_a_model_are_read_once(tmp_path: Path) -> None:
    """Afterwards the model has its own weights, so the file may be deleted."""
    file = tmp_path / "w.safetensors"
    write_tensors(Directory(tmp_path), file.name, Architecture("tiny", (3, 24, 24))().state_dict())
    options = LearnOptions(image_size=24, epochs=1, weights=file, overrides=OVERRIDES)
    learn_folder(ModelDir(tmp_path / "m"), glyph_folder(tmp_path / "first", range(2)), options)
    file.unlink()
    result = learn_folder(
        ModelDir(tmp_path / "m"), glyph_folder(tmp_path / "second", range(2, 4)), LearnOptions(epochs=1)
    )
    assert result is not None
    assert result.step == 2
    again = LearnOptions(weights=file, epochs=1)
    with pytest.raises(UsageError, match="--weights applies only when a model is created"):
        learn_folder(ModelDir(tmp_path / "m"), glyph_folder(tmp_path / "third", range(4, 6)), again)


@pytest.mark.parametrize(
    ("tensors", "message"),
    [
        ({"unknown.weight": torch.zeros(1)}, "do not fit this backbone: convs.0.weight is missing"),
        (None, "do not exist or are not a regular file: pass a local safetensors file"),
        (b"rubbish", "are not a safetensors file"),
    ],
)
def test_weights_that_do_not_fit_are_rejected(tensors: Any, message: str, tmp_path: Path) -> None:
    directory, file = Directory(tmp_path), tmp_path / "w.safetensors"
    if isinstance(tensors, bytes):
        file.write_bytes(tensors)
    elif tensors is not None:
        write_tensors(directory, file.name, tensors)
    backbone = Architecture("tiny", (3, 24, 24))()
    before = {name: value.clone() for name, value in backbone.state_dict().items()}
    with pytest.raises(UsageError, match=message):
        load_weights(backbone, file)
    grey = Architecture("tiny", (1, 24, 24))()
    write_tensors(directory, file.name, {f"backbone.{k}": v for k, v in grey.state_dict().items()})
    with pytest.raises(UsageError, match=r"convs.0.weight has shape \(8, 1, 3, 3\), expected \(8, 3, 3, 3\)"):
        load_weights(backbone, file)
    assert all(torch.equal(value, before[name]) for name, value in backbone.state_dict().items())


def test_timm_networks_are_backbones(tmp_path: Path) -> None:
    """Train from a file of weights, export and predict, in a new process, because timm imports torchvision."""
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
from equipoise.data.images import Images
root = Path(sys.argv[1])
save_file(timm.create_model("mobilenetv3_small_050", num_classes=7).state_dict(), root / "w.safetensors")
for step in ("first", "second"):
    options = dict(backbone="timm:mobilenetv3_small_050", weights=root / "w.safetensors", image_size=32, method="wa")
    learn_folder(ModelDir(root / "m"), root / step, LearnOptions(epochs=1, **(options if step == "first" else {})))
model = ModelDir(root / "m").load()
assert model.settings.fields["clip"] is False
pixels = torch.randint(0, 256, (5, 3, 32, 32), dtype=torch.uint8)
expected = model.probabilities(Images.of(pixels, torch.zeros(5))).numpy()
assert expected.shape == (5, 4)
export_onnx(model, root / "m.onnx")
import onnxruntime
session = onnxruntime.InferenceSession(root / "m.onnx")
for image, row in zip(pixels.permute(0, 2, 3, 1).numpy(), expected):
    assert abs(session.run(["probabilities"], {"image": image})[0] - row).max() < 1e-4
print(True)
"""
    )
    glyph_folder(tmp_path / "first", range(2))
    glyph_folder(tmp_path / "second", range(2, 4))
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True)
    if "No module named" in done.stderr and "timm" in done.stderr:
        pytest.skip("timm is not installed")
    assert done.stdout.strip().endswith("True"), done.stderr[-2000:]


def test_a_timm_network_that_cannot_compute_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """As one that shrinks images to nothing."""
    monkeypatch.setattr(TimmNet, "_create", lambda self: nn.Conv2d(3, 4, 9))
    assert TimmNet("some", 3, 9).width == 4
    with pytest.raises(UsageError, match="timm cannot create 'some' for 8-pixel images"):
        TimmNet("some", 3, 8)


def test_published_timm_weights_are_converted_and_downloaded_on_request(tmp_path: Path) -> None:
    """Weights for another image size fit, and so do those in the cache of the Hugging Face hub; no network is used."""
    code = (
        SHIM
        + """
import os
import sys
from pathlib import Path
root = Path(sys.argv[1])
os.environ |= {"HF_HOME": str(root / "hf"), "HF_HUB_OFFLINE": "1"}
import timm
from safetensors.torch import save_file
from equipoise.app.learn import LearnOptions, learn_folder
from equipoise.app.model_dir import ModelDir
from equipoise.errors import UsageError
NAME = "vit_tiny_patch16_224.augreg_in21k_ft_in1k"
published = timm.create_model(NAME, img_size=64)
snapshot = root / "hf/hub/models--timm--vit_tiny_patch16_224.augreg_in21k_ft_in1k/snapshots/1234"
snapshot.mkdir(parents=True)
(snapshot.parent.parent / "refs").mkdir()
(snapshot.parent.parent / "refs/main").write_text("1234")
for file in (root / "w.safetensors", snapshot / "model.safetensors"):
    save_file(published.state_dict(), file)
for name, weights in (("file", root / "w.safetensors"), ("hub", "hub")):
    options = LearnOptions(backbone=f"timm:{NAME}", weights=weights, image_size=32)
    learn_folder(ModelDir(root / name), root / "photos", options)
    model = ModelDir(root / name).load()
    assert model.settings.method == "ridge" and model.extractor.augment.mean == (0.5, 0.5, 0.5)
    small = model.extractor.net.net
    expected = timm.layers.resample_abs_pos_embed(published.pos_embed, [2, 2])
    torch.testing.assert_close(small.pos_embed, expected)
    torch.testing.assert_close(small.blocks[3].attn.qkv.weight, published.blocks[3].attn.qkv.weight)
try:
    learn_folder(ModelDir(root / "no"), root / "photos", LearnOptions(backbone="timm:resnet18.a1_in1k", weights="hub"))
except UsageError as error:
    print(error)
"""
    )
    glyph_folder(tmp_path / "photos", range(2))
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True)
    if "No module named" in done.stderr and "timm" in done.stderr:
        pytest.skip("timm is not installed")
    assert "from https://huggingface.co/timm/resnet18.a1_in1k failed" in done.stdout, done.stderr[-2000:]
    assert "pass it as --weights FILE" in done.stdout


def test_names_by_which_timm_would_download_are_rejected() -> None:
    with pytest.raises(UsageError, match="'timm:hf-hub:some/net' is not the name of a timm network"):
        Architecture("timm:hf-hub:some/net", (3, 32, 32))()


def test_an_unknown_backbone_is_an_error_with_a_suggestion(tmp_path: Path) -> None:
    photos = glyph_folder(tmp_path / "photos", range(2))
    with pytest.raises(UsageError, match="unknown backbone 'resnet33': did you mean 'resnet32'"):
        learn_folder(ModelDir(tmp_path / "m"), photos, LearnOptions(backbone="resnet33"))
    assert not ModelDir(tmp_path / "m").exists
