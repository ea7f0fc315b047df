"""Runs, their directories, and going on after a stop."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from equipoise.data.dataset import Dataset
from equipoise.data.stream import ClassStream
from equipoise.errors import RunError, UsageError
from equipoise.core.files import lock_directory, read_json, read_tensors, write_json, write_tensors
from equipoise.learn.backbones.base import SmallNet
from equipoise.methods import registry
from equipoise.study.experiment import Result
from equipoise.engine.progress import ProgressListener
from equipoise.engine.recipes import Settings, read_recipe, recipe_names, resolve
from equipoise.study.run import run
from equipoise.study.run_dir import RunDir
from tests.conftest import Quick, interruptible
from tests.test_data import make_tree

RECIPE: dict[str, dict[str, Any]] = {"train": {}}
"""As many epochs as the recipe says."""
TIMES = ("seconds", "images_per_second", "seconds_by_part", "memory_peak_mb")


def timeless(directory: Path) -> list[dict[str, Any]]:
    lines = (directory / "metrics.jsonl").read_text().splitlines()
    return [{k: v for k, v in json.loads(line).items() if k not in TIMES} for line in lines]


def final_state(directory: Path) -> dict[str, torch.Tensor]:
    (file,) = (directory / "checkpoint").glob("*.safetensors")
    return read_tensors(file)


def assert_same_run(one: Path, two: Path) -> None:
    assert timeless(one) == timeless(two)
    left, right = final_state(one), final_state(two)
    assert left.keys() == right.keys()
    for name in left:
        assert torch.equal(left[name], right[name]), name


@pytest.mark.parametrize("method", sorted(registry()))
def test_every_method_learns_digits(method: str, quick: Quick) -> None:
    fields = {"fields": {"gan_epochs": 3}} if method == "gan-replay" else {}
    result = quick(method=method, overrides=RECIPE | fields)
    assert [row["seen"] for row in result.rows] == [2, 4, 6, 8, 10]
    assert all(row["exemplars"] <= 50 for row in result.rows)
    assert result.rows[0]["top1"] > 90
    assert result.rows[-1]["top1"] > 12  # chance is 10
    for row in result.rows:
        wrong = row["e_n"] + row["e_on"] + row["e_oo"]
        tests = len(read_tensors(result.directory / "predictions" / f"step-{row['step']}.safetensors")["labels"])
        assert row["top1"] == pytest.approx(100 - 100 * wrong / tests)
        assert row["e_o"] == row["e_on"] + row["e_oo"]
    assert json.loads((result.directory / "summary.json").read_text()) == result.summary


def test_step_one_is_the_same_for_all_of_the_family(quick: Quick) -> None:
    first = {method: quick(method=method, steps="5,5").rows[0]["top1"] for method in ("ce", "ce+kd", "wa", "ce+wa")}
    assert len(set(first.values())) == 1


def test_gamma_is_the_ratio_of_mean_norms(quick: Quick) -> None:
    for row in quick(method="wa", overrides={"fields": {"clamp": False}}).rows[1:]:
        assert row["gamma"] == pytest.approx(row["norms_old"] / row["norms_new"], rel=1e-5)


def test_unequal_and_one_class_steps(quick: Quick) -> None:
    result = quick(method="wa", steps="4,1,3,1x2")
    assert [row["new"] for row in result.rows] == [4, 1, 3, 1, 1]
    assert all(row["gamma"] is not None for row in result.rows[1:])


def test_bfloat16_learns_too(quick: Quick) -> None:
    assert quick(method="wa", overrides={"runtime": {"precision": "bf16"}}).rows[0]["top1"] > 90


def test_fixed_memory_a_class_and_no_memory(quick: Quick) -> None:
    fixed = quick(method="wa", overrides={"memory": {"size": 3, "per": "class"}})
    assert [row["exemplars"] for row in fixed.rows] == [6, 12, 18, 24, 30]
    none = quick(method="ce", overrides=RECIPE | {"memory": {"size": 0}})
    assert [row["exemplars"] for row in none.rows] == [0] * 5
    assert none.rows[-1]["e_on"] > 0.9 * none.rows[-1]["e_o"]  # all is forgotten


def test_joint_is_above_and_uses_everything(quick: Quick) -> None:
    joint, ce = quick(method="joint"), quick(method="ce")
    assert joint.summary["last"] > ce.summary["last"] + 10  # type: ignore[operator]


def test_same_seed_same_bits_other_seed_other_run(quick: Quick) -> None:
    one, two, other = quick(method="wa"), quick(method="wa"), quick(method="wa", seed=1)
    assert_same_run(one.directory, two.directory)
    assert timeless(one.directory) != timeless(other.directory)


def test_a_run_of_an_older_version_goes_on_with_new_settings_at_their_defaults(quick: Quick) -> None:
    first = quick(method="wa")
    config = json.loads((first.directory / "config.json").read_text())
    del config["settings"]["train"]["multiply_repeats"]
    (first.directory / "config.json").write_text(json.dumps(config))
    assert quick(method="wa", out=first.directory).rows == first.rows
    with pytest.raises(UsageError, match=r"train.multiply_repeats = false, and this command has true"):
        quick(method="wa", out=first.directory, overrides={"train": {"epochs": 2, "multiply_repeats": True}})
    unreadable: list[dict[str, Any]] = [{}, config["settings"] | {"train": {"of": "the future"}}]
    for settings in unreadable:
        (first.directory / "config.json").write_text(json.dumps(config | {"settings": settings}))
        with pytest.raises(RunError, match="its settings cannot be read"):
            quick(method="wa", out=first.directory)


class Stop(ProgressListener):
    """Interrupts at a given batch, as Ctrl-C would."""

    def __init__(self, after: int) -> None:
        self.left = after

    def batch(self, images: int) -> None:
        self.left -= 1
        if self.left < 0:
            raise KeyboardInterrupt


@pytest.mark.parametrize("optimizer", ["sgd", "adam", "muon"])
@pytest.mark.parametrize("after", [0, 10, 33, 55])
def test_interrupted_anywhere_the_same_command_gives_the_same_bits(after: int, optimizer: str, quick: Quick) -> None:
    lr = 0.003 if optimizer == "adam" else 0.1
    overrides = {"train": {"epochs": 2, "optimizer": optimizer, "lr": lr}, "fields": {"bias": True}}
    whole = quick(method="wa", overrides=overrides)
    directory = whole.directory.with_name("stopped")
    with pytest.raises(KeyboardInterrupt):
        quick(method="wa", overrides=overrides, out=directory, reporter=Stop(after))
    quick(method="wa", overrides=overrides, out=directory)
    assert_same_run(whole.directory, directory)


def test_resume_redoes_no_finished_epoch(quick: Quick, tmp_path: Path) -> None:
    class Count(Stop):
        def __init__(self, after: int) -> None:
            super().__init__(after)
            self.epochs = 0

        def epoch(self, epoch: int, loss: float, lr: float) -> None:
            self.epochs += 1

    first, second = Count(48), Count(10**9)
    with pytest.raises(KeyboardInterrupt):
        quick(out=tmp_path / "x", reporter=first, overrides={"train": {"epochs": 3}})
    quick(out=tmp_path / "x", reporter=second, overrides={"train": {"epochs": 3}})
    assert first.epochs > 3
    assert first.epochs + second.epochs == 5 * 3
    assert (
        quick(out=tmp_path / "x", overrides={"train": {"epochs": 3}}).rows[-1]["step"] == 5
    )  # done: nothing left to do


COMMAND = [sys.executable, "-m", "equipoise", "run", "digits", "--threads", "1", "--quiet"]


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("whole") / "run"
    subprocess.run([*COMMAND, "--out", str(directory)], check=True, capture_output=True)
    return directory


@pytest.mark.parametrize("moment", [6])
def test_sigkill_at_any_moment_loses_nothing(moment: int, uninterrupted: Path, tmp_path: Path) -> None:
    """Killed as the checkpoint is being replaced for the ``moment``-th time, then run again."""
    directory = tmp_path / "run"
    process = subprocess.Popen([*COMMAND, "--out", str(directory)], stdout=subprocess.DEVNULL)
    manifest, seen, last = directory / "checkpoint" / "step" / "stages.json", 0, b""
    deadline = time.monotonic() + 60
    while seen < moment and time.monotonic() < deadline and process.poll() is None:
        try:
            now = manifest.read_bytes()
        except FileNotFoundError:
            continue
        if now != last:
            seen, last = seen + 1, now
    os.kill(process.pid, signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    again = subprocess.run([*COMMAND, "--out", str(directory)], capture_output=True, text=True)
    assert again.returncode == 0, again.stderr
    assert_same_run(uninterrupted, directory)


def test_ctrl_c_says_how_to_go_on(tmp_path: Path) -> None:
    command = [*COMMAND, "--set", "train.epochs=500", "--out", str(tmp_path / "run")]
    pipe = subprocess.PIPE
    process = subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, preexec_fn=interruptible)
    manifest = tmp_path / "run" / "checkpoint" / "step" / "stages.json"
    deadline = time.monotonic() + 60
    while not manifest.exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=30)
    assert process.returncode == 130
    assert "same command goes on" in err
    assert "Traceback" not in err


def test_run_directory_of_other_settings_is_refused(quick: Quick, tmp_path: Path) -> None:
    quick(out=tmp_path / "x")
    with pytest.raises(UsageError, match="seed = 0, and this command has 1"):
        quick(out=tmp_path / "x", seed=1)
    with pytest.raises(UsageError, match=r"method\.norm = 2, and this command has 1"):
        quick(out=tmp_path / "x", overrides={"fields": {"norm": 1}})


def test_two_processes_cannot_share_a_run_directory(tmp_path: Path, digits: Dataset) -> None:
    one, two = RunDir(tmp_path, resolve("digits")), RunDir(tmp_path, resolve("digits"))
    stream = ClassStream(digits, 5)
    with one.open(stream), pytest.raises(RunError, match="another process"):
        two.open(stream)


def test_a_file_system_without_locks_is_not_taken_for_another_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def flock(file: object, how: int) -> None:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))

    monkeypatch.setattr(fcntl, "flock", flock)
    with (
        pytest.raises(RunError, match=r"cannot be locked .*: choose a place on a file system that has locks"),
        lock_directory(tmp_path),
    ):
        pass


def test_what_is_not_utf8_can_be_written_down(tmp_path: Path) -> None:
    name = os.fsdecode(b"/data/caf\xe9")
    write_json(tmp_path / "config.json", {"command": name})
    assert read_json(tmp_path / "config.json") == {"command": name}


def test_divergence_is_told_not_hidden(quick: Quick) -> None:
    with pytest.raises(RunError, match=r"lower train\.lr \(now 1e\+15\)"):
        quick(method="ce", overrides={"train": {"epochs": 2, "lr": 1e15}})


class PlugPulled(BaseException):
    """Not an error that anybody could catch by mistake."""


@pytest.mark.parametrize("when", ["before", "after"])
def test_the_plug_pulled_at_every_single_write(
    when: str, quick: Quick, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stop the run just before, or just after, each file gets its name; then let it go on."""
    small: dict[str, Any] = {"steps": "5,5", "overrides": {"train": {"epochs": 1}}}
    whole = quick(**small)
    rename, out, writes = Path.replace, tmp_path / "pulled", 0
    while True:
        left = writes

        def pull(self: Path, target: Path) -> Path:
            nonlocal left
            left -= 1
            if left < 0 and when == "before":
                raise PlugPulled
            moved = rename(self, target)
            if left < 0:
                raise PlugPulled
            return moved

        with monkeypatch.context() as patch:
            patch.setattr(Path, "replace", pull)
            try:
                quick(out=out / str(writes), **small)
            except PlugPulled:
                pass
            else:
                break
        quick(out=out / str(writes), **small)
        assert_same_run(whole.directory, out / str(writes))
        writes += 1
    assert writes > 10


def test_files_are_synced_before_they_get_their_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    events: list[str] = []
    rename, sync = Path.replace, os.fsync

    def note_rename(self: Path, target: Path) -> Path:
        events.append("rename")
        return rename(self, target)

    def note_sync(file: int) -> None:
        events.append("sync")
        sync(file)

    monkeypatch.setattr(os, "fsync", note_sync)
    monkeypatch.setattr(Path, "replace", note_rename)
    write_json(tmp_path / "x.json", {})
    assert events == ["sync", "rename", "sync"]


@pytest.mark.parametrize(
    ("file", "content"),
    [
        ("metrics.jsonl", None),
        ("metrics.jsonl", '{"step": 1'),
        ("checkpoint/manifest.json", "{}"),
        ("checkpoint/manifest.json", "[]"),
        ("checkpoint/manifest.json", "{"),
        ("config.json", None),
        ("config.json", "[]"),
        ("config.json", '{"format": 1}'),
        ("checkpoint/step-2.safetensors", None),
        ("checkpoint/step-2.safetensors", "cut"),
    ],
)
def test_a_damaged_run_is_named_and_never_believed(file: str, content: str | None, quick: Quick) -> None:
    directory = quick(steps="5,5").directory
    (directory / file).unlink()
    if content is not None:
        (directory / file).write_text(content)
    with pytest.raises(RunError) as caught:
        quick(steps="5,5", out=directory)
    assert str(directory) in str(caught.value)


def test_another_models_state_is_refused(quick: Quick) -> None:
    directory = quick(steps="5,5").directory
    write_tensors(directory / "checkpoint" / "step-2.safetensors", {"weight": torch.zeros(3)})
    with pytest.raises(RunError, match="is damaged"):
        quick(steps="5,5", out=directory)


def test_data_that_changed_under_a_run_is_noticed(tmp_path: Path) -> None:
    make_tree(tmp_path / "data", ["a", "b"], 8)
    small: dict[str, Any] = {
        "data_root": tmp_path / "data",
        "out": tmp_path / "run",
        "overrides": {"train": {"epochs": 1}, "net": {"backbone": "tiny"}, "data": {"size": 8}},
    }
    run("folder", **small)
    run("folder", **small)
    (tmp_path / "data" / "a" / "0.png").unlink()
    with pytest.raises(RunError, match="the data has changed"):
        run("folder", **small)


def test_steps_divide_weight_decay_in_training(quick: Quick) -> None:
    decay: dict[str, Any] = {"train": {"epochs": 1, "weight_decay": 0.1, "divide_weight_decay": True}}
    plain: dict[str, Any] = {"train": {"epochs": 1, "weight_decay": 0.1}}
    divided, whole = quick(method="ce", overrides=decay), quick(method="ce", overrides=plain)
    assert divided.rows[0]["norms_new"] == whole.rows[0]["norms_new"]  # the first step divides by 1
    assert divided.rows[1]["norms_new"] != whole.rows[1]["norms_new"]


def test_a_network_that_dies_without_a_memory_is_told_too(quick: Quick, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SmallNet, "forward", lambda self, x: torch.zeros(len(x), self.width, requires_grad=True))
    with pytest.raises(RunError, match=r"the same scores after step 1: the network has died.*method\.clip=false"):
        quick(method="ce", overrides={"memory": {"size": 0}})


def test_a_dead_network_is_told(quick: Quick, monkeypatch: pytest.MonkeyPatch) -> None:
    alive = SmallNet.compute
    monkeypatch.setattr(SmallNet, "compute", lambda self, x: [0 * found for found in alive(self, x)])
    with pytest.raises(RunError, match="the network has died"):
        quick(method="ce")


def test_aligning_beats_distillation_alone(tmp_path: Path) -> None:
    """The paper's point, on 30 glyphs in 3 steps."""
    overrides: dict[str, dict[str, Any]] = {"stream": {"classes": 30, "steps": 3}, "memory": {"size": 90}}
    last = {
        method: run("glyphs", method=method, out=tmp_path / method, overrides=overrides).rows[-1]
        for method in ("ce+kd", "wa")
    }
    assert last["wa"]["top1"] > last["ce+kd"]["top1"] + 5
    assert last["wa"]["e_on"] < last["ce+kd"]["e_on"]


# ---- recipes and settings


@pytest.mark.parametrize("name", recipe_names())
def test_every_recipe_resolves_for_every_method(name: str) -> None:
    recipe = read_recipe(name)
    assert recipe["about"]
    for method in registry():
        settings = resolve(recipe["dataset"], method, name)
        assert json.loads(json.dumps(settings.identity())) == settings.identity()


def test_paper_recipe_is_the_authors() -> None:
    settings = resolve("cifar100", "wa", "cifar100-paper")
    train = settings.train
    assert (train.epochs, train.batch_size, train.lr, train.momentum) == (250, 32, 0.1, 0.9)
    lrs = [train.lr_at(epoch) for epoch in (0, 99, 100, 149, 150, 199, 200, 249)]
    assert lrs == pytest.approx([0.1, 0.1, 0.01, 0.01, 0.001, 0.001, 0.0001, 0.0001])
    assert [train.for_step(step).weight_decay for step in (1, 2, 5)] == pytest.approx([1e-4, 5e-5, 2e-5])
    fields = settings.fields
    for other in ("icarl", "joint", "ewc"):
        assert not resolve("cifar100", other, "cifar100-paper").train.divide_weight_decay  # that is WA's alone
    assert (fields["norm"], fields["clip"], fields["clamp"], fields["redraw"], fields["bias"]) == (
        1,
        True,
        True,
        True,
        False,
    )
    assert (settings.memory["size"], settings.stream.order, settings.stream.steps) == (2000, "1993", 5)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"train": {"epoch": 3}}, "did you mean 'epochs'"),
        ({"train": {"epochs": "many"}}, "train.epochs is 'many', but it takes a whole number"),
        ({"train": {"epochs": True}}, "train.epochs is True"),
        ({"fields": {"norm": 3}}, "norm is 3, but it takes 1 or 2"),
        ({"fields": {"distil": False}}, "means distil = True"),
        ({"memory": {"size": -1}}, "cannot be negative"),
        ({"net": {"backbone": "resnet23"}}, "did you mean 'resnet32'"),
        ({"augment": {"padd": 3}}, "did you mean 'pad'"),
        ({"runtime": {"device": "warp"}}, "device 'warp' cannot be used"),
        ({"runtime": {"device": "meta"}}, "device 'meta' cannot be used"),
        ({"runtime": {"threads": 0}}, "at least 1"),
        ({"net": {"backbone": 3}}, "net.backbone is 3, but it takes a text"),
        ({"train": {"momentum": -1.0}}, "momentum is -1.0"),
        ({"train": {"momentum": 0.0, "nesterov": True}}, "above 0 with nesterov"),
        ({"train": {"weight_decay": -1.0}}, "cannot be negative"),
        ({"train": {"batch_size": 1}}, "at least 2 images"),
        ({"train": {"warmup": 2.0}}, "from 0 to 1"),
        ({"train": {"shape": "milestones", "milestones": [9]}}, "reach past the 8 epochs"),
        ({"augment": {"pad": -1}}, "cannot be negative"),
        ({"augment": {"std": [0.0]}}, "must be above 0"),
        ({"fields": {"temperature": 0.0}}, "must be above 0"),
        ({"fields": {"balance": 7.0}}, "from 0 to 1"),
        ({"trian": {"epochs": 3}}, "did you mean 'train'"),
        ({"train": 3}, "must be a section of settings"),
    ],
)
def test_impossible_settings_are_one_sentence(overrides: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        resolve("digits", "wa", overrides=overrides)


def test_own_recipe_file(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text('[train]\nepochs = 1\n[methods.wa.fields]\nnorm = 2\n[methods."ce+kd".train]\nlr = 0.5\n')
    wa, kd = resolve("digits", "wa", str(file)), resolve("digits", "ce+kd", str(file))
    assert (wa.train.epochs, wa.fields["norm"], wa.train.lr) == (1, 2, 0.1)
    assert (kd.fields["norm"], kd.train.lr) == (2, 0.5)
    for text, message in [
        ("[trian]\n", "did you mean 'train'"),
        ("train = 3\n", "must be a section"),
        ("dataset = 3\n", "must be a text"),
        ("[methods]\nwa = 3\n", "it holds sections"),
        ("[methods.wa.trian]\nx = 3\n", "did you mean 'train'"),
        ("[methods.wq.train]\nx = 3\n", "did you mean 'wa'"),
        ("[train\n", "is not TOML"),
    ]:
        file.write_text(text)
        with pytest.raises(UsageError, match=message):
            resolve("digits", "wa", str(file))
    file.write_bytes(b"\xff\xfe")
    with pytest.raises(UsageError, match="cannot be read as text"):
        resolve("digits", "wa", str(file))


# ---- real data


@pytest.mark.realdata
def test_real_cifar_shows_the_effect(cifar_root: Path, tmp_path: Path) -> None:
    """A part of the smoke recipe: aligning helps, and by much, where old images are few."""
    overrides: dict[str, dict[str, Any]] = {
        "net": {"backbone": "tiny"},
        "train": {"epochs": 6},  # 3 leave this net so raw that aligning changes nothing yet
        "stream": {"classes": 20, "steps": 4},
        "memory": {"size": 100},
    }
    result: Result = run(
        "cifar100", recipe="cifar100-smoke", data_root=cifar_root, out=tmp_path / "wa", overrides=overrides
    )
    last = result.rows[-1]
    assert last["top1"] > last["top1_uncorrected"] + 2
    assert last["norms_new"] > last["norms_old"]


def test_a_recipe_can_be_like_another_but_for_what_it_says(tmp_path: Path) -> None:
    fast, hour = read_recipe("cifar100-fast"), read_recipe("cifar100-hour")
    assert hour["train"]["epochs"] > fast["train"]["epochs"]
    same = {"epochs": fast["train"]["epochs"], "first_epochs": fast["train"]["first_epochs"]}
    assert hour | {"about": fast["about"], "train": hour["train"] | same} == fast
    mine = tmp_path / "mine.toml"
    mine.write_text('like = "glyphs"\n[methods.wa.fields]\nnorm = 2\n[train]\nepochs = 1\n')
    settings, published = resolve("glyphs", "wa", str(mine)), resolve("glyphs", "wa")
    assert (settings.train.epochs, settings.fields["norm"]) == (1, 2)
    assert (settings.train.lr, settings.memory) == (published.train.lr, published.memory)
    other = tmp_path / "other.toml"
    mine.write_text(f'like = "{other}"')
    other.write_text(f'like = "{mine}"')
    with pytest.raises(UsageError, match="is like itself"):
        resolve("glyphs", "wa", str(mine))


@pytest.mark.parametrize("section", ["fields", "memory", "train"])
def test_settings_that_are_newer_than_a_run_are_at_their_defaults(section: str) -> None:
    settings = resolve("digits", "wa")
    old = settings.identity()
    old[section] = dict(list(old[section].items())[:1])
    found = Settings.of(old).identity()
    assert list(found[section]) == list(settings.identity()[section])
