"""Models and runs from strangers whose files are valid, but hold impossible numbers, types and sizes."""

from __future__ import annotations

import io
import json
import os
import shutil
import struct
import zlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch
from PIL import Image
from torch import Tensor

from equipoise.app.model_dir import ModelDir
from equipoise.app.stored_images import decode_stored
from equipoise.core import tensors
from equipoise.core.directory import Directory
from equipoise.core.files import digest
from equipoise.core.tensors import read_file, read_tensors
from equipoise.engine.learner import make_method
from equipoise.engine.results import MAX_STEPS, StepResult, read_results
from equipoise.engine.settings import Settings
from equipoise.errors import DataError, RunError
from equipoise.learn.saved_state import check_layout
from equipoise.serve.current import CurrentModel
from equipoise.study.align_file import align_file
from equipoise.study.console import RunListener
from equipoise.study.run import run
from tests import hostile_runs
from tests.conftest import Ran
from tests.folders import glyph_folder, unseen
from tests.hostile_runs import fails
from tests.models import QUICK, learn, version_of

Cli = Callable[..., Ran]
State = dict[str, Tensor]
Change = Callable[[State], State]
no_hang = hostile_runs.no_hang
pytestmark = pytest.mark.usefixtures("no_hang")

F32 = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}


# ---- the safetensors format


def packed(header: Any, data: bytes = b"", length: int | None = None) -> bytes:
    """Return a safetensors file with this header."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text) if length is None else length) + text + data


BAD_FILES = {
    "empty": b"",
    "short": b"\1\0\0",
    "header longer than the file": packed({}, length=100),
    "header of 4 GB": packed({}, length=4 << 30),
    "not JSON": packed(b"{]"),
    "not UTF-8": packed(b'{"\xff": 1}'),
    "deep nesting": packed(b"[" * 100_000),
    "not an object": packed([]),
    "not a tensor": packed({"a": 5}),
    "float8": packed({"a": F32 | {"dtype": "F8_E4M3", "shape": [8]}}, bytes(8)),
    "negative side": packed({"a": F32 | {"shape": [-1, -2]}}, bytes(8)),
    "fractional side": packed({"a": F32 | {"shape": [2.0]}}, bytes(8)),
    "huge side": packed({"a": F32 | {"shape": [2**62, 4]}}, bytes(8)),
    "huge number": packed(b'{"a":{"dtype":"F32","shape":[' + b"9" * 5000 + b'],"data_offsets":[0,8]}}', bytes(8)),
    "wrong size": packed({"a": F32 | {"shape": [3]}}, bytes(8)),
    "end before start": packed({"a": F32 | {"data_offsets": [8, 0]}}, bytes(8)),
    "gap": packed({"a": F32 | {"data_offsets": [8, 16]}}, bytes(16)),
    "overlap": packed({"a": F32, "b": F32}, bytes(8)),
    "data missing": packed({"a": F32}, bytes(4)),
    "data behind": packed({"a": F32}, bytes(12)),
    "NaN": packed({"a": F32}, struct.pack("<2f", 1, float("nan"))),
    "infinity": packed({"a": F32}, struct.pack("<2f", float("-inf"), 1)),
    "too large": packed({"a": F32}, struct.pack("<2f", 1e38, 1)),
}


@pytest.mark.parametrize("which", BAD_FILES)
def test_a_file_that_is_no_good(which: str, tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(BAD_FILES[which])
    reads: list[Callable[[], State]] = [
        lambda: read_tensors(Directory(tmp_path), "a"),
        lambda: read_file(tmp_path / "a"),
    ]
    for read in reads:
        with pytest.raises(RunError, match=r"cannot read .*a as safetensors: it is damaged \(.+\)") as raised:
            read()
        assert "\n" not in str(raised.value)


def test_the_tensors_of_a_good_file(tmp_path: Path) -> None:
    wanted = {"none": torch.zeros(0, 3), "one": torch.tensor(5.0), "many": torch.randn(300, 100).half()}
    (tmp_path / "a").write_bytes(tensors.serialize(wanted, {"format": "pt"}))
    found = read_tensors(Directory(tmp_path), "a")
    assert found.keys() == wanted.keys()
    assert all(torch.equal(found[name], value) for name, value in wanted.items())


def test_unwanted_tensors_are_not_read(tmp_path: Path) -> None:
    """The file of 8 GB has no data on disk; reading it would take 8 GB of memory."""
    header = packed({"a": {"dtype": "F32", "shape": [2 << 30], "data_offsets": [0, 8 << 30]}})
    (tmp_path / "a").write_bytes(header)
    os.truncate(tmp_path / "a", len(header) + (8 << 30))

    def reject(layout: tensors.Layout) -> None:
        raise ValueError(f"a has shape {tuple(layout['a'].shape)}")

    with pytest.raises(RunError, match=r"a has shape \(2147483648,\)\); restore it from a copy"):
        read_tensors(Directory(tmp_path), "a", reject)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 1e38])
def test_numbers_that_could_not_be_read_again_are_not_written(value: float) -> None:
    with pytest.raises(RunError, match=r"a has values that are not finite, or far too large.*training diverged"):
        tensors.serialize({"a": torch.tensor([1.0, value])})


# ---- models


@pytest.fixture(scope="module")
def originals(two_steps: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a model, and folders of images to learn and to predict."""
    folder = tmp_path_factory.mktemp("originals")
    shutil.copytree(two_steps, folder / "model")
    glyph_folder(folder / "more", [0], count=2, test=True)
    glyph_folder(folder / "probe", [0, 3], count=1, start=5, test=True)
    glyph_folder(folder / "new", [7], count=2)
    return folder


@pytest.fixture
def model(originals: Path, tmp_path: Path) -> Path:
    return shutil.copytree(originals / "model", tmp_path / "model")


def rewrite(model: Path, change: Change, file: str = "model.safetensors") -> None:
    """Change the weights of the current version, and the hash of them in config.json."""
    targets = [model / file] if file == "backbone.safetensors" else [version_of(model) / file, model / file]
    data = safetensors.torch.save(change(safetensors.torch.load(targets[0].read_bytes())))
    name = "extractor" if file == "backbone.safetensors" else "weights"
    configs = [model / "config.json", version_of(model) / "config.json"]
    for config in configs:
        facts = json.loads(config.read_text()) | {name: digest(data).hex()}
        config.unlink()
        config.write_text(json.dumps(facts))
    for target in targets:
        target.unlink()
        target.write_bytes(data)


def put(name: str, value: float, place: int = 0) -> Change:
    """Return what replaces one number of a tensor."""

    def change(state: State) -> State:
        changed = state[name].clone()
        changed.view(-1)[place] = value
        return state | {name: changed}

    return change


def to(name: str, dtype: torch.dtype) -> Change:
    return lambda state: state | {name: state[name].to(dtype)}


def set_(name: str, value: Tensor) -> Change:
    return lambda state: state | {name: value}


TEMPERATURE = "calibration.temperature"
CHANGES: dict[str, Change] = {
    "NaN in the head": put("head.weight", float("nan")),
    "infinity in the head": put("head.weight", float("inf")),
    "1e38 in the head": put("head.weight", 1e38),
    "NaN in the backbone": put("backbone.convs.0.weight", float("nan")),
    "fewer rows": lambda state: state | {"head.weight": state["head.weight"][:5]},
    "more rows": lambda state: state | {"head.weight": state["head.weight"].repeat(2, 1)},
    "no rows": lambda state: state | {"head.weight": state["head.weight"][:0]},
    "fewer features": lambda state: state | {"head.weight": state["head.weight"][:, :5].contiguous()},
    "a vector for a head": lambda state: state | {"head.weight": state["head.weight"].flatten()},
    "float64": to("head.weight", torch.float64),
    "float16": to("head.weight", torch.float16),
    "bfloat16": to("head.weight", torch.bfloat16),
    "float8": to("head.weight", torch.float8_e5m2),
    "int64": to("head.weight", torch.int64),
    "no head": lambda state: {name: value for name, value in state.items() if name != "head.weight"},
    "another tensor": set_("more", torch.zeros(3)),
    "negative size": set_("sizes", torch.tensor([-3, 9])),
    "float sizes": to("sizes", torch.float32),
    "huge sizes": set_("sizes", torch.tensor([2**62, 2**62])),
    "no sizes": set_("sizes", torch.zeros(0, dtype=torch.long)),
    "sizes in a square": set_("sizes", torch.tensor([[3, 3]])),
    "too many sizes": set_("sizes", torch.zeros(100_001, dtype=torch.long)),
    "temperature 0": put(TEMPERATURE, 0.0),
    "temperature 1e-300": put(TEMPERATURE, 1e-300),
    "temperature -1": put(TEMPERATURE, -1.0),
    "temperature NaN": put(TEMPERATURE, float("nan")),
    "two temperatures": set_(TEMPERATURE, torch.ones(2, dtype=torch.float64)),
    "temperature of integers": set_(TEMPERATURE, torch.tensor(1)),
    "spread 0": put("calibration.expected", 0.0, 2),
    "fewer means": lambda state: state | {"calibration.means": state["calibration.means"][:5]},
    "narrow means": lambda state: state | {"calibration.means": state["calibration.means"][:, :5].contiguous()},
    "negative count": put("calibration.counts", -1.0),
    "falling quantiles": put("calibration.quantiles", 1e9),
    "another calibration": set_("calibration.more", torch.zeros(3)),
}

PREDICTING = ("predict", "evaluate", "sort", "suspects")
OTHERS = ("inspect", "report", "export", "onnx", "learn", "extend", "forget", "rename", "merge", "move")
LOADING = (*PREDICTING, *OTHERS)
"""Commands that load the model. The others, ``card``, ``history`` and ``undo``, do not look at its weights."""


def call(cli: Cli, command: str, model: Path, originals: Path) -> Ran:
    quick = ("--epochs", 1, "--holdout", 0.25, "--memory", 60, "--threads", 1, "--quiet")
    arguments: dict[str, tuple[Any, ...]] = {
        "predict": ("predict", model, originals / "probe", "--json"),
        "evaluate": ("evaluate", model, originals / "probe", "--json"),
        "sort": ("sort", model, originals / "probe", model.with_name("sorted"), "--json"),
        "suspects": ("suspects", model, originals / "probe", "--json"),
        "inspect": ("inspect", model, "--json"),
        "report": ("report", model),
        "export": ("export", model, model.with_name("copy")),
        "onnx": ("export", model, model.with_name("model.onnx")),
        "learn": ("learn", model, originals / "new", *quick),
        "extend": ("learn", model, originals / "more", "--extend", *quick),
        "forget": ("forget", model, "B"),
        "rename": ("rename", model, "B", "Z"),
        "merge": ("merge", model, "A", "B"),
        "move": ("move", model, "A", "B", "00000000"),
    }
    return cli(*arguments.get(command, (command, model)))


def refuse_nan(text: str) -> Any:
    raise AssertionError(f"{text} is not JSON")


@pytest.mark.parametrize("which", CHANGES)
def test_a_model_with_impossible_weights_is_rejected(which: str, model: Path, originals: Path, cli: Cli) -> None:
    rewrite(model, CHANGES[which])
    before = {file: file.read_bytes() for file in model.rglob("*") if file.is_file()}
    for command in LOADING:
        ran = call(cli, command, model, originals)
        assert str(model) in fails(ran), command
        assert "NaN" not in ran.out, command
    assert {file: file.read_bytes() for file in model.rglob("*") if file.is_file()} == before


@pytest.mark.parametrize("which", ["NaN in the head", "fewer rows", "temperature NaN", "float8"])
def test_the_server_reports_a_model_with_impossible_weights(which: str, model: Path) -> None:
    rewrite(model, CHANGES[which])
    current = CurrentModel(ModelDir(model))
    assert current.refresh()
    assert current.snapshot is None
    assert "model.safetensors" in str(current.problem)
    assert str(model) not in str(current.problem)  # clients need not know where things are


@pytest.mark.parametrize("command", ["card", "history", "undo"])
def test_other_commands_need_no_weights(command: str, model: Path, originals: Path, cli: Cli) -> None:
    rewrite(model, CHANGES["NaN in the head"])
    ran = call(cli, command, model, originals)
    assert ran.code == 0, ran.err


def test_a_variance_below_zero_is_found_by_a_prediction(model: Path, originals: Path, cli: Cli) -> None:
    """Its root is not a number, though all weights are."""
    name = next(name for name in ModelDir(model).load().method.state_dict() if name.endswith("running_var"))
    rewrite(model, put(name, -1.0))
    assert "it does not predict finite numbers" in fails(call(cli, "predict", model, originals))


def test_answers_that_are_not_finite_are_an_error(model: Path) -> None:
    """Weights may be fine for one image and overflow for another."""
    loaded = ModelDir(model).load()
    with torch.no_grad():
        for weight in loaded.method.parameters():
            weight.mul_(1e20)
    with pytest.raises(RunError, match="the model's predictions are not finite: restore it from a copy"):
        loaded.probabilities(loaded.inputs(unseen([0])))


# ---- a frozen backbone, and a method that is solved for


def frozen_model(place: Path, folder: Path, keep: str) -> Path:
    overrides: dict[str, Any] = QUICK | {"net": {"backbone": "tiny", "frozen": True}}
    learn(place, folder, method="slda", keep=keep, memory=None, holdout=0.25, overrides=overrides)
    return place


@pytest.fixture(scope="module")
def frozen(glyph_steps: list[Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a model with a frozen backbone that keeps features with thumbnails."""
    return frozen_model(tmp_path_factory.mktemp("models") / "frozen", glyph_steps[0], "thumbnails")


@pytest.fixture(scope="module")
def solved(glyph_steps: list[Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a model with a frozen backbone that keeps the statistics of each class."""
    return frozen_model(tmp_path_factory.mktemp("models") / "solved", glyph_steps[0], "statistics")


FROZEN: dict[str, Change] = {
    "fewer means": lambda state: state | {"means": state["means"][:2].contiguous()},
    "NaN in the means": put("means", float("nan")),
    "integer means": to("means", torch.int64),
    "square counts": set_("counts", torch.ones(3, 3, dtype=torch.float64)),
    "no bias": lambda state: {name: value for name, value in state.items() if name != "head.bias"},
    "short bias": lambda state: state | {"head.bias": state["head.bias"][:2]},
}


@pytest.mark.parametrize("which", FROZEN)
def test_a_solved_model_with_impossible_statistics_is_rejected(
    which: str, solved: Path, tmp_path: Path, originals: Path, cli: Cli
) -> None:
    place = shutil.copytree(solved, tmp_path / "model")
    assert call(cli, "inspect", place, originals).code == 0
    rewrite(place, FROZEN[which])
    for command in ("predict", "evaluate", "inspect", "forget", "learn"):
        assert str(place) in fails(call(cli, command, place, originals)), command


def test_a_class_without_images_has_no_suspects(frozen: Path, tmp_path: Path, cli: Cli) -> None:
    place = shutil.copytree(frozen, tmp_path / "model")
    file = version_of(place) / "images.json"
    images = json.loads(file.read_text())
    images["memory"][0] = []
    file.unlink()
    file.write_text(json.dumps(images))
    assert "the model keeps no image of A: learn some with --extend" in fails(cli("suspects", place))


BACKBONES: dict[str, Change] = {
    "NaN": put("convs.0.weight", float("nan")),
    "float16": to("convs.0.weight", torch.float16),
    "missing": lambda state: {name: value for name, value in state.items() if name != "convs.0.weight"},
    "another": set_("more", torch.zeros(1)),
    "wider": set_("convs.0.weight", torch.zeros(64, 3, 3, 3)),
    "variance": put("norms.0.running_var", -1.0),
}


@pytest.mark.parametrize("which", BACKBONES)
def test_a_backbone_with_impossible_weights_is_rejected(
    which: str, frozen: Path, tmp_path: Path, originals: Path, cli: Cli
) -> None:
    place = shutil.copytree(frozen, tmp_path / "model")
    rewrite(place, BACKBONES[which], "backbone.safetensors")
    for command in (
        ("predict", "evaluate", "learn", "sort") if which == "variance" else ("predict", "inspect", "export")
    ):
        ran = call(cli, command, place, originals)
        fails(ran)
        assert "NaN" not in ran.out


BLOCKS: dict[str, Change] = {
    "NaN": put("features", float("nan")),
    "wide": lambda state: state | {"features": state["features"].repeat(1, 2)},
    "float64": to("features", torch.float64),
    "no ids": lambda state: {name: value for name, value in state.items() if name != "ids"},
    "large thumbnails": set_("thumbnails", torch.zeros(10_000_000, dtype=torch.uint8)),
}


@pytest.mark.parametrize("which", BLOCKS)
def test_a_block_of_features_with_impossible_values_is_rejected(
    which: str, frozen: Path, tmp_path: Path, originals: Path, cli: Cli
) -> None:
    place = shutil.copytree(frozen, tmp_path / "model")
    block = next((place / "memory" / "A").glob("*.safetensors"))
    block.write_bytes(safetensors.torch.save(BLOCKS[which](safetensors.torch.load(block.read_bytes()))))
    for command in ("export", "forget", "learn"):
        assert f"the stored features {block} are damaged" in fails(call(cli, command, place, originals))


# ---- runs


class StopAfterStep(RunListener):
    """Interrupts a run after its first step."""

    def step(self, result: StepResult) -> None:
        raise KeyboardInterrupt


RUN: dict[str, Any] = {"method": "wa", "steps": "3,2", "overrides": {"train": {"epochs": 1}, "stream": {"classes": 5}}}


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a run whose first step is finished; it must not be changed."""
    place = tmp_path_factory.mktemp("runs") / "stopped"
    with pytest.raises(KeyboardInterrupt):
        run("digits", out=place, listener=StopAfterStep(), **RUN)
    return place


STATES: dict[str, Change] = {
    "NaN": put("head.weight", float("nan")),
    "1e38": put("head.weight", 1e38),
    "fewer rows": CHANGES["fewer features"],
    "more rows": CHANGES["more rows"],
    "float64": CHANGES["float64"],
    "huge sizes": set_("sizes", torch.tensor([2**62])),
    "negative size": set_("sizes", torch.tensor([-3, 6])),
}


@pytest.mark.parametrize("which", STATES)
def test_a_run_with_impossible_weights_is_not_continued(which: str, stopped: Path, tmp_path: Path) -> None:
    place = shutil.copytree(stopped, tmp_path / "run")
    file = place / "checkpoint" / "step-1.safetensors"
    file.write_bytes(safetensors.torch.save(STATES[which](safetensors.torch.load(file.read_bytes()))))
    with pytest.raises(RunError, match=r"the run in .* is damaged \(.+\): remove it to start again"):
        run("digits", out=place, **RUN)


@pytest.mark.parametrize("which", ["weight", "bias"])
def test_a_head_that_is_not_finite_is_not_aligned(which: str, tmp_path: Path) -> None:
    state = {"fc.weight": torch.ones(4, 3), "fc.bias": torch.ones(4)}
    state[f"fc.{which}"][0] = float("nan")
    (tmp_path / "a.safetensors").write_bytes(safetensors.torch.save(state))
    with pytest.raises(DataError, match=r"cannot align .*fc\.weight has values that are not finite"):
        align_file(tmp_path / "a.safetensors", "fc.weight", 2, tmp_path / "b.safetensors")


def test_half_of_a_surrogate_pair_in_a_run_is_rejected(stopped: Path, tmp_path: Path, cli: Cli) -> None:
    place = shutil.copytree(stopped, tmp_path / "run")
    (place / "summary.json").write_text('{"\\ud800": 1.0}')
    assert "summary.json is not valid JSON" in fails(cli("report", place))


# ---- sizes of files


def sparse(file: Path, entries: dict[str, tuple[str, list[int], int]]) -> None:
    """Write a valid file of zeros without any data on disk."""
    header, place = {}, 0
    for name, (dtype, shape, width) in entries.items():
        size = int(np.prod(shape)) * width
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [place, place + size]}
        place += size
    start = packed(header)
    file.write_bytes(start)
    os.truncate(file, len(start) + place)


@pytest.mark.parametrize("name", ["head.weight", "more", "calibration.means", "backbone.convs.0.weight"])
def test_huge_weights_are_not_read(name: str, model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    state = safetensors.torch.load((model / "model.safetensors").read_bytes())
    kinds = {torch.float32: ("F32", 4), torch.int64: ("I64", 8), torch.float64: ("F64", 8)}
    entries = {key: (kinds[v.dtype][0], list(v.shape), kinds[v.dtype][1]) for key, v in state.items()}
    entries[name] = ("F32", [6, 150_000_000], 4)
    weights = version_of(model) / "model.safetensors"
    weights.unlink()
    sparse(weights, entries)
    with pytest.raises(RunError, match=rf"model\.safetensors as safetensors: .*{name.rpartition('.')[2]}"):
        ModelDir(model).load()


class Counting:
    """Counts how many networks are made."""

    def __init__(self, architecture: Any) -> None:
        self.architecture, self.made = architecture, 0

    def __call__(self, final_relu: bool = True) -> Any:
        self.made += 1
        return self.architecture(final_relu)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.architecture, name)


@pytest.mark.parametrize("method", ["der", "memo", "m2kd", "foster"])
def test_a_number_of_steps_makes_no_networks(method: str, two_steps: Path) -> None:
    settings = replace(Settings.from_identity(ModelDir(two_steps).config().settings), method=method, fields={})
    made = make_method(settings, (3, 24, 24), settings.make_memory())
    made.architecture = counting = Counting(made.architecture)  # type: ignore[assignment]
    state = made.state_dict() | {"sizes": torch.tensor([6] + [0] * 3000)}
    with pytest.raises(ValueError, match=r"is missing|it lists 6"):
        check_layout(made, state, 6)
    assert counting.made <= 1


@pytest.mark.parametrize("picture", ["wide", "tall", "second header", "columns", "objects"])
def test_a_stored_image_of_another_shape_is_not_decoded(picture: str, monkeypatch: pytest.MonkeyPatch) -> None:
    file = io.BytesIO()
    if picture in ("wide", "tall"):
        Image.new("1", (13_000, 24) if picture == "wide" else (24, 13_000)).save(file, "PNG")
    elif picture == "second header":
        wide = b"IHDR" + struct.pack(">2I5B", 13_000, 24, 8, 2, 0, 0, 0)
        Image.new("RGB", (24, 24)).save(file, "PNG")
        again = struct.pack(">I", 13) + wide + struct.pack(">I", zlib.crc32(wide))
        file = io.BytesIO(file.getvalue()[:33] + again + file.getvalue()[33:])
    else:
        np.save(file, np.zeros((5, 24)) if picture == "columns" else np.zeros((3, 24, 24), object), allow_pickle=True)
    monkeypatch.setattr(Image.Image, "load", lambda self: pytest.fail("it was decoded"))
    ending = ".npy" if picture in ("columns", "objects") else ".png"
    with pytest.raises(ValueError, match=r"24 × 24 pixels|expected \(3, 24, 24\)|Object arrays cannot be loaded"):
        decode_stored(file.getvalue(), "a" + ending, (3, 24, 24))


def test_too_many_steps() -> None:
    with pytest.raises(RunError, match=f"it has {MAX_STEPS + 1} steps"):
        read_results([{}] * (MAX_STEPS + 1), "steps.json")
