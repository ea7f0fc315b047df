"""What authors of methods build on: public names, hooks, passes over images, saved states and backbones."""

from __future__ import annotations

import ast
import dataclasses
import hashlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import equipoise as eq
import equipoise.methods
from equipoise.app.export import export_onnx
from equipoise.core import distributed
from equipoise.core.directory import Directory
from equipoise.core.tensors import read_tensors, write_tensors
from equipoise.data.images import Images
from equipoise.data.sources import load
from equipoise.engine.evaluate import predict_all
from equipoise.engine.recipes import resolve
from equipoise.engine.settings import Settings
from equipoise.engine.step import begin_step, finish_step, learn_step, train_and_evaluate, train_step
from equipoise.errors import UsageError
from equipoise.learn.backbones import Architecture
from equipoise.learn.backbones.base import Backbone, backbones_of
from equipoise.learn.backbones.weights import load_weights
from equipoise.learn.fit import Fit
from equipoise.learn.inference import InferencePass
from equipoise.learn.inference import same_tensors as same
from equipoise.learn.method import Method
from equipoise.learn.schedule import Schedule
from equipoise.learn.stage import TrainListener
from equipoise.methods.der import DER
from equipoise.methods.icarl import ICaRL
from equipoise.methods.m2kd import M2KD
from equipoise.methods.registry import registry
from equipoise.study.experiment import Experiment
from equipoise.study.launch import DataCache, Job
from equipoise.study.launch.remote import RemoteJob, RunResources
from equipoise.testing.checks import StopAfter
from equipoise.testing.trial import Trial, copy_of, short_stages, state_of
from tests.conftest import Quick

METHODS = sorted(registry())


def fit_of(experiment: Experiment, index: int) -> Fit:
    step = experiment.stream[index]
    return experiment.learner.fit(step, experiment.training_images(step))


def learned(name: str, steps: int = 2, **fields: Any) -> Experiment:
    """Return an experiment after some steps."""
    experiment = Trial(name, fields).experiment()
    for index in range(1, steps + 1):
        learn_step(fit_of(experiment, index))
    experiment.learner.method.eval()
    return experiment


def some_images(experiment: Experiment, count: int = 16) -> Tensor:
    return experiment.learner.augment.plain(experiment.stream.test, torch.arange(count))


# ---- public names


def test_every_public_name_exists() -> None:
    names = equipoise.methods.__all__
    assert sorted(set(names)) == sorted(names)
    assert all(getattr(equipoise.methods, name) is not None for name in names)
    assert {"Fit", "Head", "Images", "Memory", "Method", "Schedule", "Step", "UsageError", "Variant"} <= set(names)


def imported_from(file: Path) -> set[str]:
    """Return the modules of equipoise that a file imports from."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom):
            found.add("." * node.level + (node.module or ""))
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
    return {name for name in found if name.split(".")[0] in ("equipoise", "")}


FILES = [
    file
    for file in sorted(Path(equipoise.methods.__file__).parent.glob("*.py"))
    if file.stem not in ("__init__", "registry")
]


@pytest.mark.parametrize("file", FILES, ids=[file.stem for file in FILES])
def test_our_own_methods_import_only_what_plugins_can_import(file: Path) -> None:
    for module in imported_from(file):
        assert module == "equipoise.methods" or module.startswith("equipoise.methods."), module


# ---- classify


@pytest.mark.parametrize("name", METHODS)
def test_predictions_are_those_of_the_features(name: str) -> None:
    experiment = learned(name)
    method, x = experiment.learner.method, some_images(experiment)
    before = state_of(method)
    with torch.no_grad():
        predicted, classified = method.predict(x), method.classify(method.features(x))
    assert predicted.shape == (16, 4)
    assert torch.equal(predicted, classified)
    assert same(before, state_of(method))


@pytest.mark.parametrize(
    ("name", "passes"), [("ce", 1), ("wa", 1), ("bic", 1), ("icarl", 1), ("il2m", 1), ("podnet", 1), ("eeil", 2)]
)
def test_the_backbone_sees_test_images_again_only_if_the_correction_changes_it(name: str, passes: int) -> None:
    fields: dict[str, dict[str, Any]] = {
        "wa": {"clamp": False},
        "il2m": {"score": "softmax"},
    }  # so that there is a correction
    experiment = learned(name, steps=1, **fields.get(name, {}))
    fit, tests = fit_of(experiment, 2), experiment.stream.tests(experiment.stream[2])
    x = fit.augment.plain(tests, torch.arange(len(tests)))
    calls = 0

    def count(module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        nonlocal calls
        calls += inputs[0].shape == x.shape and torch.equal(inputs[0], x)

    fit.method.backbone.register_forward_hook(count)
    outcome = train_and_evaluate(fit, tests, range(4))
    assert calls == passes
    again = predict_all(InferencePass(fit.method, tests, fit.augment, fit.runtime))
    assert torch.equal(outcome.after.confidence, again.confidence)
    assert torch.equal(outcome.after.top1, again.top1)
    assert torch.equal(outcome.before.confidence, again.confidence) == (name == "ce")


@dataclasses.dataclass(eq=False)
class Scaled(Method):
    """Features times a number that the correction changes."""

    variants: ClassVar = {"scaled": {}}
    corrects = True

    def __post_init__(self) -> None:
        super().__post_init__()
        self.factor: Tensor
        self.register_buffer("factor", torch.ones(()))

    def features(self, x: Tensor) -> Tensor:
        return super().features(x) * self.factor

    def end(self, step: Any, fit: Fit) -> dict[str, float]:
        self.factor = self.factor * 2
        return {}


def test_features_of_a_method_may_depend_on_more_than_its_backbone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(registry(), "scaled", (Scaled, {}))
    experiment = learned("scaled", steps=1)
    fit, tests = fit_of(experiment, 2), experiment.stream.tests(experiment.stream[2])
    outcome = train_and_evaluate(fit, tests, range(4))
    again = predict_all(InferencePass(fit.method, tests, fit.augment, fit.runtime))
    assert torch.equal(outcome.after.confidence, again.confidence)
    assert not torch.equal(outcome.before.confidence, again.confidence)


# ---- Fit.accumulate


def gram(features: Tensor, labels: Tensor) -> Tensor:
    return features.T @ features


def class_sums(features: Tensor, labels: Tensor) -> Tensor:
    return F.one_hot(labels, 10).float().T @ features


def class_sums_as_columns(features: Tensor, labels: Tensor) -> Tensor:
    """A view with another memory layout."""
    return class_sums(features, labels).T


def untrained_fit() -> tuple[Fit, Images]:
    """Return a fit, and images for six batches."""
    fit = fit_of(Trial("wa", {}).experiment(), 1)
    begin_step(fit)
    return fit, load("digits").train


def check_sums(fit: Fit, images: Images, features: Tensor) -> None:
    """Compare sums over batches with sums over all features in NumPy."""
    rows, labels = features.double().numpy(), images.labels.numpy()
    expected = sum(np.outer(row, row) for row in rows)
    np.testing.assert_allclose(fit.accumulate(images, gram).numpy(), expected, rtol=1e-4, atol=1e-3)
    sums = np.zeros((10, rows.shape[1]))
    for row, label in zip(rows, labels, strict=True):
        sums[label] += row
    np.testing.assert_allclose(fit.accumulate(images, class_sums).numpy(), sums, rtol=1e-4, atol=1e-3)
    columns = fit.accumulate(images, class_sums_as_columns)
    np.testing.assert_allclose(columns.numpy(), sums.T, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("count", [1, 2, 256, 257, 1000])
def test_statistics_of_features_are_summed_over_batches(count: int) -> None:
    fit, everything = untrained_fit()
    fit.method.train()
    images = everything.select(torch.arange(count))
    before = state_of(fit.method)
    check_sums(fit, images, fit.features(images))
    assert not fit.method.training
    assert same(before, state_of(fit.method))


def check_sums_in_a_group() -> None:
    """Called in tests/test_processes.py, as the next one. One image is one batch, so the second process has none."""
    fit, everything = untrained_fit()
    assert distributed.world_size() == 2
    for count in (1, 300, 1000):
        images = everything.select(torch.arange(count))
        with distributed.local():
            features = fit.features(images)
        check_sums(fit, images, features)
        assert torch.equal(fit.features(images), features)


def check_frozen_in_a_group(weights: Path) -> None:
    """Two processes that train heads on a frozen backbone have the same weights afterwards."""
    experiment = prepared(weights=str(weights), frozen=True)
    pretrained = {name: value.clone() for name, value in experiment.learner.method.backbone.state_dict().items()}
    for index in (1, 2):
        learn_step(fit_of(experiment, index))
    state = state_of(experiment.learner.method)
    assert same(experiment.learner.method.backbone.state_dict(), pretrained)
    assert same(distributed.broadcast(lambda: state), state)


# ---- saved states


@pytest.mark.parametrize("name", METHODS)
def test_a_new_method_takes_the_shape_of_a_state(name: str) -> None:
    """More classes than a new method has, more networks, and buffers that grow."""
    source = learned(name, steps=3)
    copied = copy_of(Trial(name, {}), source)
    method = copied.learner.method.eval()
    assert same(state_of(source.learner.method), state_of(method))
    assert method.steps == [2, 2, 2]
    x = some_images(source)
    with torch.no_grad():
        assert torch.equal(method.predict(x), source.learner.method.predict(x))


@pytest.mark.parametrize("name", ["der", "m2kd"])
def test_networks_of_earlier_steps_are_added_before_a_state_is_loaded(name: str) -> None:
    source = learned(name, steps=3).learner.method
    method = Trial(name, {}).experiment().learner.method
    before = len(backbones_of(method))
    method.load_state_dict(state_of(source))
    assert len(backbones_of(method)) == len(backbones_of(source)) == 3 > before
    if isinstance(method, M2KD):
        assert not any(weight.requires_grad for weight in method.snapshots.parameters())
        assert all(weight.requires_grad for weight in method.head.parameters())


@pytest.mark.parametrize("name", ["der", "m2kd"])
def test_states_of_version_0_1_0_have_another_name_for_the_auxiliary_head(name: str) -> None:
    experiment = learned(name)
    source, x = experiment.learner.method, some_images(experiment)
    old = {key.replace("aux_head", "aid"): value for key, value in state_of(source).items()}
    assert any("aid." in key for key in old)
    method = Trial(name, {}).experiment().learner.method.eval()
    method.load_state_dict(old)
    assert same(state_of(source), state_of(method))
    assert isinstance(method, DER | M2KD)
    with torch.no_grad():
        assert torch.equal(method.predict(x), source.predict(x))


def test_a_buffer_may_be_none_in_a_method_or_in_a_state() -> None:
    """iCaRL has no means while it trains."""
    experiment = learned("icarl")
    trained = state_of(experiment.learner.method)
    new = Trial("icarl", {}).experiment().learner.method
    assert isinstance(new, ICaRL)
    assert new.means is None
    new.load_state_dict(trained)
    assert new.means is not None
    assert torch.equal(new.means, trained["means"])
    begin_step(fit_of(experiment, 3))
    experiment.learner.method.teacher = None
    in_training = state_of(experiment.learner.method)
    assert "means" not in in_training
    new = Trial("icarl", {}).experiment().learner.method
    new.load_state_dict(in_training)
    assert isinstance(new, ICaRL)
    assert new.means is None
    assert new.steps == [2, 2, 2]


def test_loading_a_state_of_the_same_shape_keeps_the_parameters() -> None:
    """An optimizer that holds them stays valid."""
    method = learned("podnet").learner.method
    before = list(method.parameters())
    method.load_state_dict(state_of(method))
    assert all(one is other for one, other in zip(method.parameters(), before, strict=True))


def test_a_state_with_unknown_names_is_rejected() -> None:
    method = learned("wa").learner.method
    with pytest.raises(ValueError, match="stranger is unknown"):
        method.load_state_dict(state_of(method) | {"stranger": torch.zeros(1)})


# ---- Method.check


def test_icarl_without_a_memory_is_rejected_before_anything_is_trained(quick: Quick, tmp_path: Path) -> None:
    settings = resolve("digits", "icarl", overrides={"memory": {"size": 0}})
    with pytest.raises(UsageError, match="icarl classifies with its exemplars, but the memory size is 0"):
        Experiment.prepare(settings, Trial("icarl", {}).data())
    with pytest.raises(UsageError, match="the memory size is 0"):
        quick(method="icarl", out=tmp_path / "run", overrides={"memory": {"size": 0}})
    assert not (tmp_path / "run").exists()


def test_icarl_cannot_lose_its_memory_between_steps() -> None:
    rows = np.random.default_rng(0).normal(size=(40, 4)).astype(np.float32)
    classifier = eq.IncrementalClassifier("icarl", memory=20, epochs=1).fit(rows, [0, 1] * 20)
    with pytest.raises(UsageError, match="the memory size is 0"):
        classifier.set_params(memory=0).partial_fit(rows, [2, 3] * 20)
    assert classifier.set_params(memory=20).partial_fit(rows, [2, 3] * 20).classes_.tolist() == [0, 1, 2, 3]


# ---- pretrained, frozen and resized backbones


def save_backbone(directory: Path, shape: tuple[int, int, int] = (1, 8, 8), seed: int = 7) -> tuple[Path, Backbone]:
    """Save the weights of a tiny network."""
    torch.manual_seed(seed)
    backbone = Architecture("tiny", shape)()
    for buffer in backbone.buffers():  # batch norms that have seen images
        buffer.copy_(buffer + torch.rand(buffer.shape) if buffer.is_floating_point() else buffer + 3)
    directory.mkdir(exist_ok=True)
    write_tensors(Directory(directory), "w.safetensors", backbone.state_dict())
    return directory / "w.safetensors", backbone


def with_net(name: str = "wa", **net: Any) -> Settings:
    settings = Trial(name, {}).settings()
    return dataclasses.replace(settings, net=dataclasses.replace(settings.net, **net))


def prepared(name: str = "wa", **net: Any) -> Experiment:
    experiment = Experiment.prepare(with_net(name, **net), Trial(name, {}).data())
    experiment.extract()
    return experiment


def test_an_experiment_starts_from_pretrained_weights(tmp_path: Path) -> None:
    file, backbone = save_backbone(tmp_path)
    experiment = prepared(weights=str(file))
    own = experiment.learner.method.backbone
    assert same(own.state_dict(), backbone.state_dict())
    learn_step(fit_of(experiment, 1))
    assert not torch.equal(own.state_dict()["convs.1.weight"], backbone.state_dict()["convs.1.weight"])


def test_weights_may_be_those_of_a_whole_model_or_have_a_head_to_leave_out(tmp_path: Path) -> None:
    _, backbone = save_backbone(tmp_path)
    head = {"weight": torch.zeros(3, 32), "bias": torch.zeros(3)}
    own = {f"backbone.{name}": value for name, value in backbone.state_dict().items()}
    others = {f"{last}.{name}": value.clone() for last in ("head", "fc", "classifier") for name, value in head.items()}
    for number, tensors in enumerate([own | {"head.weight": head["weight"]}, backbone.state_dict() | others]):
        write_tensors(Directory(tmp_path), f"{number}.safetensors", tensors)
        experiment = prepared(weights=str(tmp_path / f"{number}.safetensors"))
        assert same(experiment.learner.method.backbone.state_dict(), backbone.state_dict())


class Wrapped(Backbone):
    """A network with another library's names inside, as ``TimmNet`` is."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4))


def test_weights_of_another_library_are_loaded_without_its_head(tmp_path: Path) -> None:
    theirs, backbone = Wrapped(), Wrapped()
    tensors = {**theirs.net.state_dict(), "head.fc.weight": torch.zeros(7, 4), "classifier.bias": torch.zeros(7)}
    write_tensors(Directory(tmp_path), "w.safetensors", tensors)
    load_weights(backbone, tmp_path / "w.safetensors")
    assert same(backbone.state_dict(), theirs.state_dict())
    write_tensors(Directory(tmp_path), "w.safetensors", tensors | {"neck.weight": torch.zeros(1)})
    with pytest.raises(UsageError, match=r"do not fit this backbone: net\.neck\.weight is unknown"):
        load_weights(backbone, tmp_path / "w.safetensors")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "the weights .* do not exist or are not a regular file: pass a local safetensors file"),
        (b"not tensors", "the weights .* are not a safetensors file: convert them first"),
        ((3, 8, 8), r"convs\.0\.weight has shape \(8, 3, 3, 3\), expected \(8, 1, 3, 3\)"),
    ],
)
def test_weights_that_do_not_fit_are_one_error_before_a_run_begins(
    content: Any, message: str, tmp_path: Path, quick: Quick
) -> None:
    file = tmp_path / "w.safetensors"
    if isinstance(content, bytes):
        file.write_bytes(content)
    elif content is not None:
        save_backbone(tmp_path, content)
    with pytest.raises(UsageError, match=message):
        prepared(weights=str(file))
    with pytest.raises(UsageError, match=message):
        quick(out=tmp_path / "run", overrides={"net": {"weights": str(file)}})
    assert not (tmp_path / "run").exists()


NOT_FROZEN = ("rps", "gan-replay", "m2kd", "memo", "podnet")
"""Methods that build their own networks, generate images, or need feature maps or stages."""


class HeadRecorder(TrainListener):
    """Records the head when the main training starts."""

    def __init__(self, method: Method) -> None:
        self.method = method
        self.head = torch.empty(0)

    def stage(self, name: str, epochs: int, images: int, done: int) -> None:
        if name == "train":
            self.head = self.method.head.weight.detach().clone()


@pytest.mark.parametrize("name", [name for name in METHODS if name not in NOT_FROZEN])
def test_a_frozen_backbone_never_changes(name: str, tmp_path: Path) -> None:
    """Neither weights nor batch-norm statistics, in any step; the method trains a head on its features."""
    file, backbone = save_backbone(tmp_path)
    experiment = prepared(name, weights=str(file), frozen=True)
    learner = experiment.learner
    for step in list(experiment.stream)[:2]:
        recorder = HeadRecorder(learner.method)
        fit = learner.fit(step, experiment.training_images(step), recorder)
        train_step(fit)
        trained = learner.method.head.weight.detach().clone()
        finish_step(fit)
        assert learner.extractor is not None
        assert same(learner.extractor.net.state_dict(), backbone.state_dict())
        assert not any(module.training for module in learner.extractor.net.train().modules())
        assert fit.images is None or name == "acil" or not torch.equal(trained, recorder.head)
    with torch.no_grad():
        assert learner.method.eval().predict(some_images(experiment)).shape == (16, 4)


def test_a_frozen_run_continues_where_it_stopped(tmp_path: Path, quick: Quick) -> None:
    file, _ = save_backbone(tmp_path)
    overrides = {"net": {"weights": str(file), "frozen": True}, "stream": {"steps": "2,2", "classes": 4}}
    whole = quick(overrides=overrides)
    with pytest.raises(KeyboardInterrupt):
        quick(overrides=overrides, out=tmp_path / "again", listener=StopAfter(3))
    again = quick(overrides=overrides, out=tmp_path / "again")
    assert [step.accuracy for step in again.steps] == [step.accuracy for step in whole.steps]
    states = [read_state(result.directory) for result in (whole, again)]
    assert same(*states)


def read_state(run: Path) -> dict[str, Tensor]:
    (file,) = (run / "checkpoint").glob("*.safetensors")
    return read_tensors(Directory(file.parent), file.name)


@pytest.mark.parametrize("net", [{"weights": "w.safetensors"}, {"frozen": True}])
def test_weights_and_frozen_do_not_apply_to_methods_that_build_their_networks(net: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match=r"net\.weights and net\.frozen do not apply to this method"):
        prepared("rps", **net)


@pytest.mark.parametrize("name", ["wa", "rps", "der"])
@pytest.mark.parametrize("size", [12, 16])
def test_images_are_resized_inside_the_network(name: str, size: int) -> None:
    """Features equal those of images that were resized before."""
    resized, plain = prepared(name, input_size=size), prepared(name)
    for experiment in (resized, plain):
        begin_step(fit_of(experiment, 1))
    methods = [experiment.learner.method.eval() for experiment in (resized, plain)]
    methods[1].load_state_dict(state_of(methods[0]))
    x = some_images(plain)
    large = F.interpolate(x, (size, size), mode="bicubic", antialias=True)
    with torch.no_grad():
        torch.testing.assert_close(methods[0].features(x), methods[1].features(large))
        torch.testing.assert_close(methods[0].features(large), methods[1].features(large))
        assert not torch.allclose(methods[0].features(x), methods[1].features(x))
        for maps in zip(backbones_of(methods[0])[0].maps(x), backbones_of(methods[1])[0].maps(large), strict=True):
            torch.testing.assert_close(*maps)


def test_images_with_unequal_sides_are_resized_too() -> None:
    net = Architecture("tiny", (1, 8, 16), input_size=16)().eval()
    x = torch.rand(2, 1, 8, 16)
    with torch.no_grad():
        torch.testing.assert_close(net(x), net(F.interpolate(x, (16, 16), mode="bicubic", antialias=True)))
        assert net.maps(x)[0].shape[2:] == (8, 8)


@pytest.mark.parametrize("size", [8, 32])
def test_an_exported_model_resizes_its_images(size: int, tmp_path: Path) -> None:
    runtime = pytest.importorskip("onnxruntime")
    pixels = torch.randint(256, (20, 1, 16, 16), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    settings = {"net": {"input_size": size}}
    classifier = eq.IncrementalClassifier(backbone="tiny", epochs=1, settings=settings).fit(pixels, [0, 1] * 10)
    export_onnx(classifier.model_, tmp_path / "m.onnx")
    session = runtime.InferenceSession(tmp_path / "m.onnx")
    (found,) = session.run(["probabilities"], {"images": pixels.permute(0, 2, 3, 1).numpy()})
    np.testing.assert_allclose(found, classifier.predict_proba(pixels), atol=1e-5)


def test_a_network_for_larger_images_can_learn_small_ones() -> None:
    """Digits have 8×8 pixels, of which the backbone fast would leave nothing."""
    with pytest.raises(UsageError, match="8×8 images are too small for the backbone fast"):
        prepared(backbone="fast")
    experiment = prepared(backbone="fast", input_size=32)
    learn_step(fit_of(experiment, 1))


def test_input_sizes_that_cannot_be_used_are_rejected() -> None:
    with pytest.raises(UsageError, match=r"net\.input_size must be between 8 and 1,024 \(pixels\), got 4"):
        resolve("digits", overrides={"net": {"input_size": 4}})
    rows = np.random.default_rng(0).normal(size=(40, 4)).astype(np.float32)
    with pytest.raises(UsageError, match=r"net\.input_size is for images, not for rows of features"):
        eq.IncrementalClassifier(settings={"net": {"input_size": 32}}, epochs=1).fit(rows, [0, 1] * 20)


def test_the_identity_of_settings_has_the_hash_of_the_weights_not_their_path(tmp_path: Path) -> None:
    here, _ = save_backbone(tmp_path / "here")
    there = tmp_path / "there" / "w.safetensors"
    there.parent.mkdir()
    shutil.copy(here, there)
    other, _ = save_backbone(tmp_path / "other", seed=8)
    identity = with_net(weights=str(here)).identity()
    hexadecimal = hashlib.sha256(here.read_bytes()).hexdigest()
    assert hexadecimal.startswith(identity["net"]["weights"].partition("(")[2].rstrip(")"))
    assert len(identity["net"]["weights"].partition("(")[2]) > 12
    assert str(tmp_path) not in json.dumps(identity)
    assert with_net(weights=str(there)).identity() == identity
    assert with_net(weights=str(other)).identity() != identity
    assert with_net().identity() != identity
    assert Settings.from_identity(identity).identity() == identity


def test_a_run_continues_with_the_same_weights_in_another_place_but_not_with_others(
    tmp_path: Path, quick: Quick
) -> None:
    here, _ = save_backbone(tmp_path / "here")
    other, _ = save_backbone(tmp_path / "other", seed=8)

    def go(weights: Path) -> list[float | None]:
        net = {"weights": str(weights)}
        overrides = {"net": net, "stream": {"steps": "2,2", "classes": 4}, "train": {"epochs": 1}}
        return [step.seconds for step in quick(out=tmp_path / "run", overrides=overrides).steps]

    first = go(here)
    assert go(here.rename(tmp_path / here.name)) == first  # nothing was trained again
    with pytest.raises(UsageError, match=r"net\.weights"):
        go(other)
    assert str(tmp_path) not in (tmp_path / "run" / "config.json").read_text()


def test_weights_are_found_from_another_working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save_backbone(tmp_path)
    monkeypatch.chdir(tmp_path)
    settings = with_net(weights="w.safetensors")
    job = RemoteJob.of(Job("wa", settings, Path("run")), DataCache(None), RunResources())
    assert job.settings.net.weights == str(tmp_path / "w.safetensors")
    assert job.settings.identity() == settings.identity()


def test_a_classifier_starts_from_pretrained_weights(tmp_path: Path) -> None:
    file, backbone = save_backbone(tmp_path, (1, 8, 8))
    digits = load("digits").train
    pixels, labels = digits.read(torch.arange(60)), digits.labels[:60].numpy()
    settings = {"net": {"frozen": True}}
    options: Any = {"backbone": "tiny", "weights": file, "settings": settings, "epochs": 1, "memory": 100}
    classifier = eq.IncrementalClassifier(**options).fit(pixels, labels)
    classifier.save(tmp_path / "model")
    file.unlink()  # the model has its own copy
    again = eq.load(tmp_path / "model")
    for each in (classifier, again):
        assert each.model_.extractor is not None
        assert same(each.model_.extractor.weights, backbone.state_dict())
    assert np.array_equal(classifier.predict(pixels), again.predict(pixels))
    again.partial_fit(pixels, labels + 10)
    assert again.model_.extractor is not None
    assert same(again.model_.extractor.net.state_dict(), backbone.state_dict())


# ---- adamw


def train_toy(optimizer: Any, weight: nn.Parameter, updates: int = 20) -> np.ndarray:
    """Minimise Σ (w - 1)⁴."""
    for _ in range(updates):
        optimizer.zero_grad()
        (weight - 1).pow(4).sum().backward()
        optimizer.step()
    found: np.ndarray = weight.detach().double().numpy()
    return found


def test_adamw_decouples_the_weight_decay() -> None:
    start = torch.tensor([3.0, -2.0, 0.5, 1.5])
    found = {}
    for name in ("adamw", "adam"):
        weight = nn.Parameter(start.clone())
        schedule = Schedule(optimizer=name, lr=0.05, momentum=0.8, weight_decay=0.1)
        found[name] = train_toy(schedule.make_optimizer([weight]), weight)
    weight = nn.Parameter(start.clone())
    theirs = train_toy(torch.optim.AdamW([weight], 0.05, (0.8, 0.999), weight_decay=0.1), weight)
    np.testing.assert_allclose(found["adamw"], theirs, rtol=1e-6)
    w, m, v = start.double().numpy(), np.zeros(4), np.zeros(4)
    for t in range(1, 21):  # Algorithm 2 of Loshchilov and Hutter 2019
        gradient = 4 * (w - 1) ** 3
        m, v = 0.8 * m + 0.2 * gradient, 0.999 * v + 0.001 * gradient**2
        w = w - 0.05 * (m / (1 - 0.8**t) / (np.sqrt(v / (1 - 0.999**t)) + 1e-8) + 0.1 * w)
    np.testing.assert_allclose(found["adamw"], w, rtol=1e-4)
    assert np.abs(found["adamw"] - found["adam"]).max() > 0.01


def test_adamw_trains_a_run(quick: Quick) -> None:
    overrides = {"train": {"optimizer": "adamw", "lr": 0.01, "epochs": 3}, "stream": {"steps": "5,5"}}
    accuracy = quick(overrides=overrides).steps[0].accuracy
    assert accuracy is not None
    assert accuracy > 60


# ---- random numbers of the caller


def untouched(call: Callable[[], object]) -> bool:
    """Return whether a call leaves torch's and NumPy's global random generators as they are."""
    torch.manual_seed(123)
    np.random.seed(123)
    expected = torch.rand(5), np.random.rand(5)
    torch.manual_seed(123)
    np.random.seed(123)
    call()
    return torch.equal(torch.rand(5), expected[0]) and np.array_equal(np.random.rand(5), expected[1])


@pytest.mark.parametrize("name", ["wa", "der", "gan-replay", "podnet"])
def test_a_run_leaves_the_random_generators_alone(name: str, quick: Quick) -> None:
    overrides = {"stream": {"steps": "2,2", "classes": 4}, "train": {"epochs": 1}, "fields": short_stages(name)}
    assert untouched(lambda: quick(method=name, overrides=overrides))


@pytest.mark.parametrize("name", ["wa", "der", "m2kd"])
def test_a_classifier_leaves_the_random_generators_alone(name: str, tmp_path: Path) -> None:
    rows = np.random.default_rng(0).normal(size=(40, 4)).astype(np.float32)
    options: Any = {"epochs": 1, "memory": 20, "settings": {"fields": short_stages(name)}}
    classifier = eq.IncrementalClassifier(name, **options)
    assert untouched(lambda: classifier.fit(rows, [0, 1] * 20))
    assert untouched(lambda: classifier.partial_fit(rows, [2, 3] * 20))
    assert untouched(lambda: classifier.predict(rows))
    assert untouched(lambda: classifier.save(tmp_path / "model"))
    assert untouched(lambda: eq.load(tmp_path / "model"))
    assert untouched(lambda: eq.load(tmp_path / "model").partial_fit(rows, [4, 5] * 20))


def test_the_callers_random_numbers_do_not_change_a_run(quick: Quick) -> None:
    accuracies = []
    for seed in (1, 2):
        torch.manual_seed(seed)
        overrides = {"stream": {"steps": "2,2", "classes": 4}, "train": {"epochs": 1}}
        accuracies.append([step.norms_new for step in quick(overrides=overrides).steps])
    assert accuracies[0] == accuracies[1]
