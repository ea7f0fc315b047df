"""Recipes and weights from strangers: nothing is downloaded, nothing hangs, and errors are one sentence."""

from __future__ import annotations

import os
import struct
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from equipoise.engine import recipes
from equipoise.engine.recipes import MAX_BYTES, read_recipe, recipe_names, resolve
from equipoise.errors import UsageError
from equipoise.learn.backbones import BACKBONES, check_backbone, weights
from equipoise.learn.backbones.weights import load_weights

TEXTS = {
    "digits": ("[train]\nepochs = " + "9" * 5000, "has a value that is too large"),
    "brackets": ("[train]\nepochs = " + "[" * 20_000, "nested more than 6 levels deep"),
    "inline tables": ("[train]\nepochs = " + "{a=" * 10_000, "nested more than 6 levels deep"),
    "lists": ("[train]\nsizes = " + "[" * 50 + "]" * 50, "nested more than 6 levels deep"),
    "dotted key": ("a." * 20_000 + "a = 1", "has a line with more than 200 dots"),
    "dotted keys": ("\n".join("a." * 100 + f"b{n} = 1" for n in range(200)), "nested more than 6 levels deep"),
    "dotted header": ("[" + "a." * 20_000 + "a]", "has a line with more than 200 dots"),
    "a long name": ("a" * 60_000 + " = 1", "unknown section in the recipe"),
    "a long setting": ("[train]\n" + "a" * 60_000 + " = 1", r"unknown setting in \[train\]"),
    "a long value": ("train = '" + "a" * 60_000 + "'", "must be a table"),
    "a method": ("methods = 'all'", "must be a table"),
    "a surrogate": ('[net]\nbackbone = "\\ud800"', "is not valid TOML"),
    "null": ('[net]\nbackbone = "a\\u0000b"', "net.backbone must be valid Unicode"),
    "nan": ("[train]\nlr = nan", "train.lr must be above 0 and at most 1,000,000, got nan"),
    "inf": ("[train]\nlr = inf", "train.lr must be above 0 and at most 1,000,000, got inf"),
    "date": ("[train]\nlr = 1979-05-27", "train.lr must be a number"),
    "no date": ("[train]\nlr = 2021-13-45", "is not valid TOML"),
    "carriage return": ("[train]\rlr = 1", "is not valid TOML"),
    "processes": ("[runtime]\ndevices = 100000", "runtime.devices must be between 1 and"),
    "two processes": ("[runtime]\ndevices = 2", "sets runtime.devices, which a recipe may not do"),
    "processes for a method": ("[methods.wa.runtime]\nnodes = 2", "sets runtime.nodes, which a recipe may not do"),
    "a compiler": ("[runtime]\ncompile = true", "sets runtime.compile, which a recipe may not do"),
    "threads": ("[runtime]\nthreads = 100000", "runtime.threads must be between 1 and"),
    "hub": ("[net]\nweights = 'hub'", "asks to download weights, which only you can allow: add --weights hub"),
    "hub for a method": ("[methods.wa.net]\nweights = 'hub'", "asks to download weights"),
    "hf-hub": ("[net]\nbackbone = 'timm:hf-hub:a/b'", "is not the name of a timm network"),
    "hf_hub": ("[net]\nbackbone = 'timm:hf_hub:a/b'", "is not the name of a timm network"),
    "a directory": ("[net]\nbackbone = 'timm:local-dir:/tmp'", "is not the name of a timm network"),
}


@pytest.mark.parametrize("name", TEXTS)
def test_a_hostile_recipe_is_one_sentence(name: str, tmp_path: Path) -> None:
    text, message = TEXTS[name]
    file = tmp_path / "it.toml"
    file.write_text(text, newline="")
    started = time.perf_counter()
    with pytest.raises(UsageError, match=message) as caught:
        resolve("digits", "wa", str(file))
    assert time.perf_counter() - started < 2
    assert len(str(caught.value)) < 2000
    assert "\n" not in str(caught.value)


def test_a_table_does_not_extend_a_value(tmp_path: Path) -> None:
    (tmp_path / "below.toml").write_text("[train]\nsizes = [1.0]\n")
    (tmp_path / "it.toml").write_text(f'like = "{tmp_path / "below.toml"}"\n[train.sizes]\na = 1\n')
    with pytest.raises(UsageError, match=r"train\.sizes must be"):
        resolve("digits", "wa", str(tmp_path / "it.toml"))


def test_a_long_name_of_weights_is_no_file(tmp_path: Path) -> None:
    (tmp_path / "it.toml").write_text(f"[net]\nweights = '{'a' * 300}'\n")
    assert resolve("digits", "wa", str(tmp_path / "it.toml")).identity()["net"]["weights"] == "a" * 300


def test_users_may_set_what_recipes_may_not(tmp_path: Path) -> None:
    (tmp_path / "it.toml").write_text("[runtime]\ndevices = 2\n")
    asked = {"runtime": {"devices": 3}}
    assert resolve("digits", "wa", str(tmp_path / "it.toml"), overrides=asked).runtime.devices == 3


@pytest.mark.parametrize("number", [MAX_BYTES + 1, 3 << 30])
def test_a_recipe_that_is_too_large_is_not_read(number: int, tmp_path: Path) -> None:
    file = tmp_path / "it.toml"
    file.touch()
    os.truncate(file, number)
    with pytest.raises(UsageError, match=r"the recipe file .* has more than 65,536 bytes"):
        read_recipe(str(file))


def make_fifo(place: Path) -> None:
    os.mkfifo(place)


def make_link_to_device(place: Path) -> None:
    place.symlink_to("/dev/zero")


def make_link_to_itself(place: Path) -> None:
    place.symlink_to(place)


@pytest.mark.parametrize("make", [make_fifo, make_link_to_device, Path.mkdir, make_link_to_itself, lambda place: None])
def test_only_regular_files_are_read(make: Any, tmp_path: Path) -> None:
    for name in ("it.toml", "it.safetensors"):
        make(tmp_path / name)
    with pytest.raises(UsageError, match=r"is not a regular file|does not exist|cannot read the recipe file"):
        read_recipe(str(tmp_path / "it.toml"))
    with pytest.raises(UsageError, match="do not exist or are not a regular file"):
        load_weights(BACKBONES["tiny"](3, True), tmp_path / "it.safetensors")


def test_a_link_to_a_recipe_is_read(tmp_path: Path) -> None:
    (tmp_path / "one.toml").write_text("[train]\nepochs = 3\n")
    (tmp_path / "two.toml").symlink_to(tmp_path / "one.toml")
    assert read_recipe(str(tmp_path / "two.toml")) == {"train": {"epochs": 3}}


@pytest.mark.parametrize("name", ["a\0b.toml", "\ud800.toml"])
def test_a_name_that_no_file_can_have_is_one_sentence(name: str) -> None:
    with pytest.raises(UsageError, match="is not a valid path"):
        read_recipe(name)


def test_recipes_extend_each_other_only_so_often(tmp_path: Path) -> None:
    for number in range(40):
        (tmp_path / f"{number}.toml").write_text(f'like = "{tmp_path}/{number + 1}.toml"')
    (tmp_path / "40.toml").write_text("[train]\nepochs = 3\n")
    assert read_recipe(str(tmp_path / "30.toml")) == {"train": {"epochs": 3}}
    with pytest.raises(UsageError, match="extends more than 16 others"):
        read_recipe(str(tmp_path / "0.toml"))


def test_the_user_can_allow_a_download_that_a_recipe_asks_for(tmp_path: Path) -> None:
    file = tmp_path / "it.toml"
    file.write_text("[net]\nbackbone = 'timm:resnet18'\nweights = 'hub'\n")
    own = {"net": {"weights": "hub"}}
    assert resolve("digits", "ce", str(file), overrides=own).net.weights == "hub"
    assert resolve("digits", "ce", str(file), overrides={"net": {"weights": "mine"}}).net.weights == "mine"


def test_published_recipes_stay_far_below_the_limits() -> None:
    folder = Path(recipes.__file__).parent.parent / "recipes"
    sizes = [(folder / f"{name}.toml").stat().st_size for name in recipe_names()]
    assert 2 * max(sizes) < MAX_BYTES


@pytest.mark.parametrize("name", ["timm:", "timm:a/b", "timm:a b", "timm:é", "timm:hf-hub:x", "timm:x\n"])
def test_only_plain_names_of_timm_are_passed_on(name: str) -> None:
    with pytest.raises(UsageError, match="is not the name of a timm network"):
        check_backbone(name)


@pytest.mark.parametrize("size", [20 << 30, 600 << 20])
def test_sparse_weights_are_not_read(size: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "it.safetensors"
    file.touch()
    os.truncate(file, size)
    monkeypatch.setattr(weights, "read_file", lambda path: pytest.fail("it was read"))
    with pytest.raises(UsageError, match=r"the weights .* have more than 5.* bytes, too many for this backbone"):
        load_weights(BACKBONES["tiny"](3, True), file)


@pytest.mark.parametrize("header", [b"", b"{}", b"[" * 1000, struct.pack("<Q", 2**63) + b"{}"])
def test_weights_with_a_wrong_header_are_rejected(header: bytes, tmp_path: Path) -> None:
    file = tmp_path / "it.safetensors"
    file.write_bytes(header)
    os.truncate(file, 400 << 20)
    with pytest.raises(UsageError, match="are not a safetensors file"):
        load_weights(BACKBONES["tiny"](3, True), file)


def test_weights_of_another_network_are_rejected_without_timm(tmp_path: Path) -> None:
    file = tmp_path / "it.safetensors"
    save_file({"conv.weight": torch.zeros(3)}, file)
    with pytest.raises(UsageError, match="do not fit this backbone"):
        load_weights(BACKBONES["tiny"](3, True), file)
