"""Model directories from strangers: links, pipes and wrong types change nothing outside, and nothing hangs."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from equipoise.app.model_dir import ModelDir
from equipoise.errors import RunError
from tests import hostile_runs
from tests.conftest import Ran
from tests.folders import glyph_folder
from tests.hostile_runs import ODD, fails, plant, snapshot
from tests.models import StopAfter, images_of, learn, version_of

Cli = Callable[..., Ran]
no_hang = hostile_runs.no_hang
pytestmark = pytest.mark.usefixtures("no_hang")

FILES = ("config.json", "steps.json", "images.json", "model.safetensors", "README.md", ".lock")
DIRECTORIES = ("versions", "memory", "holdout", ".step")
"""Names that every command checks before it does anything else."""
CHANGING = ("learn", "extend", "undo", "forget")
READING = ("predict", "evaluate", "export", "card", "history", "inspect")
COMMANDS = (*CHANGING, *READING)
LOADING = ("learn", "extend", "forget", "predict", "evaluate", "export", "inspect")
"""Commands that load the model."""


@pytest.fixture(scope="module")
def originals(two_steps: Path, glyph_steps: list[Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a model whose third step was interrupted, and folders of images to learn and predict."""
    folder = tmp_path_factory.mktemp("originals")
    shutil.copytree(two_steps, folder / "model")
    with pytest.raises(KeyboardInterrupt):
        learn(folder / "model", glyph_steps[2], StopAfter(1), epochs=2)
    assert (folder / "model" / ".step" / "stages.json").exists()
    glyph_folder(folder / "more", [0], count=4, test=True)
    glyph_folder(folder / "probe", [0, 3], count=1, start=5, test=True)
    shutil.copytree(glyph_steps[2], folder / "new")
    return folder


@pytest.fixture
def model(originals: Path, tmp_path: Path) -> Path:
    return shutil.copytree(originals / "model", tmp_path / "model")


@pytest.fixture
def outside(originals: Path, tmp_path: Path) -> Iterator[Path]:
    """Return a copy of the whole model, which links lead to; it must be unchanged in the end."""
    shutil.copytree(originals / "model", tmp_path / "outside")
    before = snapshot(tmp_path / "outside")
    yield tmp_path / "outside"
    assert snapshot(tmp_path / "outside") == before


def call(cli: Cli, command: str, model: Path, originals: Path) -> Ran:
    quick = ("--epochs", 2, "--holdout", 0.25, "--memory", 60, "--threads", 1, "--quiet")
    arguments: dict[str, tuple[Any, ...]] = {
        "learn": ("learn", model, originals / "new", *quick),
        "extend": ("learn", model, originals / "more", "--extend", *quick),
        "undo": ("undo", model),
        "forget": ("forget", model, "B"),
        "predict": ("predict", model, originals / "probe"),
        "evaluate": ("evaluate", model, originals / "probe"),
        "export": ("export", model, model.with_name("copy")),
        "export to ONNX": ("export", model, model.with_name("model.onnx")),
    }
    return cli(*arguments.get(command, (command, model)))


def check_works_or_fails(ran: Ran) -> None:
    """Assert that a command succeeded, or failed with one sentence."""
    if ran.code:
        fails(ran)


# ---- links, pipes and wrong types


@pytest.mark.parametrize("odd", ODD)
@pytest.mark.parametrize("name", [*FILES, *DIRECTORIES])
def test_every_command_rejects_what_is_not_a_model(
    name: str, odd: str, model: Path, outside: Path, originals: Path, cli: Cli
) -> None:
    plant(model, name, odd, outside)
    before = snapshot(model)
    for command in (*COMMANDS, "export to ONNX"):
        assert f"{model / name} is " in fails(call(cli, command, model, originals))
    assert snapshot(model) == before


def inner_names(model: Path) -> dict[str, str]:
    """Return names below a model directory that a command may or may not use."""
    version, images = version_of(model), images_of(model)
    previous = next(folder.name for folder in (model / "versions").iterdir() if folder != version)
    stage = next((model / ".step").glob("stage-*")).name
    return {
        "version": f"versions/{version.name}",
        "weights": f"versions/{version.name}/model.safetensors",
        "steps": f"versions/{version.name}/steps.json",
        "images": f"versions/{version.name}/images.json",
        "copy of the config": f"versions/{version.name}/config.json",
        "previous version": f"versions/{previous}",
        "previous config": f"versions/{previous}/config.json",
        "class": "memory/A",
        "forgotten class": "holdout/B",
        "exemplar": f"memory/A/{images.memory[0][0]}.png",
        "held-out image": f"holdout/B/{images.holdout[1][0]}.png",
        "stages": ".step/stages.json",
        "stage": f".step/{stage}",
    }


NEEDED_BY = {
    "version": "predict",
    "weights": "predict",
    "steps": "history",
    "images": "card",
    "copy of the config": None,
    "previous version": "undo",
    "previous config": "undo",
    "class": "learn",
    "forgotten class": "forget",
    "exemplar": "learn",
    "held-out image": "forget",
    "stages": "learn",
    "stage": "learn",
}
"""A command that cannot do without it."""


@pytest.mark.parametrize("odd", ["link", "pipe"])
@pytest.mark.parametrize("which", NEEDED_BY)
def test_no_command_uses_a_link_inside_a_model(
    which: str, odd: str, model: Path, outside: Path, originals: Path, cli: Cli, tmp_path: Path
) -> None:
    """Either a command does not need the file, or it rejects it."""
    plant(model, inner_names(model)[which], odd, outside)
    for command in COMMANDS:
        place = shutil.copytree(model, tmp_path / f"copy for {command}", symlinks=True, copy_function=copy_any)
        ran = call(cli, command, place, originals)
        check_works_or_fails(ran)
        assert ran.code == 2 or command != NEEDED_BY[which]
        shutil.rmtree(tmp_path / "copy", ignore_errors=True)


def copy_any(source: str, target: str) -> None:
    """Copy a file, or make another pipe where a pipe is."""
    if Path(source).is_fifo():
        os.mkfifo(target)
    else:
        shutil.copy2(source, target, follow_symlinks=False)


@pytest.mark.parametrize("command", CHANGING)
def test_cleaning_up_deletes_nothing_behind_links(
    command: str, model: Path, outside: Path, originals: Path, cli: Cli
) -> None:
    """Names that no version mentions are deleted, but never what a link of such a name leads to."""
    image = next((outside / "memory" / "A").iterdir()).name
    (model / "versions" / "0009-00000000").symlink_to(next((outside / "versions").iterdir()))
    (model / "memory" / "Z").symlink_to(outside / "memory" / "A")
    (model / "memory" / "C" / f"{'0' * 32}.png").symlink_to(outside / "memory" / "A" / image)
    (model / ".0123456789abcdef.tmp").symlink_to(outside / "config.json")
    (model / ".step" / "stage-7-epoch-7.safetensors").symlink_to(outside / "model.safetensors")
    ran = call(cli, command, model, originals)
    check_works_or_fails(ran)
    if command == "forget":
        assert ran.code == 0, ran.err
        assert not (model / "holdout" / "B").exists()


def test_a_model_may_be_reached_through_a_link(model: Path, originals: Path, cli: Cli, tmp_path: Path) -> None:
    """The user has named it; only links inside are rejected."""
    (tmp_path / "shortcut").symlink_to(model)
    for command in ("predict", "learn", "undo"):
        ran = call(cli, command, tmp_path / "shortcut", originals)
        assert ran.code == 0, ran.err
    assert ModelDir(model).load().classes == list("ABCDEF")


# ---- JSON files

HUGE = 10**400
NESTED: Any = []
for _ in range(200):
    NESTED = [NESTED]


def replaced(value: Any, path: tuple[Any, ...], new: Any) -> Any:
    """Return a JSON value with another value at a path."""
    if not path:
        return new
    changed = value.copy()
    changed[path[0]] = replaced(value.get(path[0]) if isinstance(value, dict) else value[path[0]], path[1:], new)
    return changed


def tamper(model: Path, file: str, path: tuple[Any, ...], new: Any) -> None:
    """Change a file of the current version."""
    for target in [model / file] if file == "config.json" else [model / file, version_of(model) / file]:
        text = json.dumps(replaced(json.loads(target.read_text()), path, new))
        target.unlink()  # they are one file
        target.write_text(text)


def check_commands(failing: tuple[str, ...], model: Path, originals: Path, cli: Cli, tmp_path: Path) -> None:
    """Assert that these commands fail with one sentence, and that all others still work."""
    for command in COMMANDS:
        place = shutil.copytree(model, tmp_path / f"copy for {command}")
        ran = call(cli, command, place, originals)
        if command in failing:
            assert str(place) in fails(ran), command
        else:
            assert ran.code == 0, (command, ran.err)
        shutil.rmtree(tmp_path / "copy", ignore_errors=True)


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ((), 5),
        ((), NESTED),
        (("format",), "2"),
        (("format",), HUGE),
        (("version",), 3),
        (("version",), "../../outside"),
        (("version",), "0001-0000000g"),
        (("previous",), "../../outside"),
        (("previous",), ["0001-00000000"]),
        (("weights",), None),
        (("shape",), [3, 24]),
        (("shape",), [3, 0, 24]),
        (("shape",), "3x24x24"),
        (("classes",), {}),
        (("classes",), []),
        (("classes", 0), None),
        (("classes", 0), ["A"]),
        (("classes", 0), "B"),
        (("classes", 0), "\ud800"),
        (("settings",), []),
        (("settings", "method"), 5),
        (("settings", "method"), "wa]\nlicense: [mit"),
        (("settings", "method"), "w" * 101),
        (("augment",), 3),
    ],
    ids=repr,
)
def test_a_config_of_wrong_types_is_rejected(
    path: tuple[Any, ...], value: Any, model: Path, originals: Path, cli: Cli, tmp_path: Path
) -> None:
    tamper(model, "config.json", path, value)
    check_commands(COMMANDS, model, originals, cli, tmp_path)


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("weights",), "0" * 32),
        (("shape",), [3, HUGE, 24]),
        (("shape",), [4, 24, 24]),
        (("classes",), list("ABCDEFG")),
        (("augment", "mean"), [0.5, 0.5]),
        (("augment", "std"), 0),
        (("augment", "pad"), HUGE),
        (("augment", "flip"), "yes"),
        (("settings", "method"), "../wa"),
        (("settings", "method"), "a-plug-in"),
        (("settings", "fields"), []),
        (("settings", "fields", "norm"), HUGE),
        (("settings", "memory", "size"), [20]),
        (("settings", "memory", "size"), -1),
        (("settings", "net"), None),
        (("settings", "net", "backbone"), ["tiny"]),
        (("settings", "net", "backbone"), "../tiny"),
        (("settings", "net", "input_size"), HUGE),
        (("settings", "train", "epochs"), {}),
        (("settings", "train", "exemplar_repeats"), HUGE),
        (("settings", "train", "batch_size"), HUGE),
        (("settings", "train", "sizes"), NESTED),
        (("settings", "data"), 3),
        (("settings", "seed"), "0"),
        (("settings", "runtime"), {"precision": 7}),
        (("settings", "stream"), "5"),
        (("settings", "surprise"), 1),
    ],
    ids=repr,
)
def test_settings_that_cannot_be_loaded_are_rejected(
    path: tuple[Any, ...], value: Any, model: Path, originals: Path, cli: Cli, tmp_path: Path
) -> None:
    """A step can still be undone: the version before has its own settings."""
    tamper(model, "config.json", path, value)
    failing = (*LOADING, "card") if path == ("classes",) else LOADING  # images.json lists six classes
    check_commands(failing, model, originals, cli, tmp_path)


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ((), {}),
        ((), []),
        ((), [[]]),
        ((), NESTED),
        ((0,), None),
        ((0, "step"), 2),
        ((0, "step"), "1"),
        ((0, "kind"), "dance"),
        ((0, "classes"), "A"),
        ((0, "seen"), 1.5),
        ((1, "accuracy"), "high"),
        ((1, "accuracy"), HUGE),
        ((1, "gamma"), [1]),
        ((1, "errors"), 3),
        ((1, "errors", "e_n"), None),
        ((1, "per_class"), {}),
        ((1, "per_class", 0, "name"), None),
        ((1, "per_class", 0, "correct"), HUGE),
        ((1, "per_class", 0, "correct"), -1),
        ((1, "finished"), 20260101),
        ((1, "warning"), ["none"]),
        ((1, "figures"), [1]),
    ],
    ids=repr,
)
def test_steps_of_wrong_types_are_rejected(
    path: tuple[Any, ...], value: Any, model: Path, originals: Path, cli: Cli, tmp_path: Path
) -> None:
    tamper(model, "steps.json", path, value)
    check_commands((*LOADING, "card", "history"), model, originals, cli, tmp_path)


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ((), []),
        ((), NESTED),
        (("memory",), {}),
        (("memory",), [[]]),
        (("memory", 0), "A"),
        (("memory", 0, 0), 5),
        (("memory", 0, 0), HUGE),
        (("memory", 0, 0), "../../../outside/config"),
        (("holdout", 0, 0), ""),
        (("holdout", 0, 0), "f" * 33),
        (("holdout", 0, 0), ["f" * 32]),
    ],
    ids=repr,
)
def test_names_of_images_of_wrong_types_are_rejected(
    path: tuple[Any, ...], value: Any, model: Path, originals: Path, cli: Cli, tmp_path: Path
) -> None:
    tamper(model, "images.json", path, value)
    failing = ("learn", "extend", "forget", "export", "inspect", "card")
    check_commands(failing, model, originals, cli, tmp_path)


@pytest.mark.parametrize("name", ["../../outside", "..", "/etc", "a/../b", "A\x1b[31m\nB", "=1+1"])
def test_a_class_name_cannot_lead_out_of_the_model(
    name: str, model: Path, outside: Path, originals: Path, cli: Cli, tmp_path: Path
) -> None:
    tamper(model, "config.json", ("classes", 1), name)
    for command in COMMANDS:
        place = shutil.copytree(model, tmp_path / f"copy for {command}")
        check_works_or_fails(call(cli, command, place, originals))
        shutil.rmtree(tmp_path / "copy", ignore_errors=True)
    check_works_or_fails(cli("forget", model, name))


@pytest.mark.parametrize(
    "text", ["", "{", "NaN", '{"of": Infinity}', "[" * 100_000, '{"of": 1}', '{"of": "x", "stages": 3}']
)
def test_a_damaged_checkpoint_is_rejected_and_undo_removes_it(
    text: str, model: Path, originals: Path, cli: Cli
) -> None:
    (model / ".step" / "stages.json").write_text(text)
    assert str(model / ".step") in fails(call(cli, "learn", model, originals))
    assert call(cli, "predict", model, originals).code == 0
    assert call(cli, "undo", model, originals).code == 0
    assert not (model / ".step").exists()


# ---- what a config.json may not start


def settle(model: Path, **net: Any) -> None:
    """Change the settings of the network in both copies of the config."""
    for file in (model / "config.json", version_of(model) / "config.json"):
        facts = json.loads(file.read_text())
        facts["settings"]["net"] |= net
        file.unlink()
        file.write_text(json.dumps(facts))


@pytest.mark.parametrize("command", LOADING)
def test_a_path_of_weights_is_never_opened(command: str, model: Path, originals: Path, cli: Cli) -> None:
    secret = model.with_name("secret.txt")
    secret.write_text("precious")
    settle(model, weights=str(secret))
    assert "net.weights must be the name and hash of a file" in fails(call(cli, command, model, originals))
    assert "secret.txt (" not in (version_of(model) / "config.json").read_text()


@pytest.mark.parametrize("backbone", ["timm:hf-hub:a/b", "timm:hf_hub:a/b", "timm:local-dir:/tmp"])
def test_a_model_downloads_no_network(backbone: str, model: Path, originals: Path, cli: Cli) -> None:
    settle(model, backbone=backbone)
    assert "is not the name of a timm network" in fails(call(cli, "predict", model, originals))


# ---- sizes


def test_images_of_impossible_sizes_are_rejected(model: Path, originals: Path, cli: Cli) -> None:
    facts = json.loads((model / "config.json").read_text())
    (model / "config.json").unlink()
    (model / "config.json").write_text(json.dumps(facts | {"shape": [3, 2048, 2049]}))
    assert "its images have more than 12,582,912 values" in fails(call(cli, "predict", model, originals))


def list_often(model: Path, times: int) -> None:
    """List the first exemplar of a class many times more."""
    file = version_of(model) / "images.json"
    images = json.loads(file.read_text())
    images["memory"][0] += [images["memory"][0][0]] * times
    file.unlink()
    file.write_text(json.dumps(images))


def test_an_image_that_is_listed_often_is_read_once(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = ModelDir(model).load(images=True).memory.exemplars[0]
    list_often(model, 5000)
    often = ModelDir(model).load(images=True).memory.exemplars[0]
    assert len(often) == len(whole) + 5000
    assert len(often.store) == len(whole.store)
    assert often.read()[[0, -1]].equal(whole.read()[[0, 0]])
    monkeypatch.setattr("equipoise.app.kept_images.MAX_IMAGES", 5000)
    with pytest.raises(RunError, match="lists more than 5,000 images"):
        ModelDir(model).load(images=True)


def test_a_card_that_is_too_large_is_left_alone(model: Path, originals: Path, cli: Cli) -> None:
    (model / "README.md").unlink()
    (model / "README.md").touch()
    os.truncate(model / "README.md", 1 << 30)
    assert call(cli, "forget", model, originals).code == 0
    assert (model / "README.md").stat().st_size == 1 << 30
    assert len(list((model / "versions").iterdir())) == 1  # of deleted classes nothing is kept
