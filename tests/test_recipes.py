"""Recipes and settings: what they resolve to, and what is rejected."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from equipoise.engine.recipes import read_recipe, recipe_names, resolve
from equipoise.engine.settings import Settings
from equipoise.errors import UsageError
from equipoise.methods.registry import registry


@pytest.mark.parametrize("name", recipe_names())
def test_every_recipe_resolves_for_every_method(name: str) -> None:
    recipe = read_recipe(name)
    assert recipe["about"]
    for method in registry():
        settings = resolve(recipe["dataset"], method, name)
        assert json.loads(json.dumps(settings.identity())) == settings.identity()
        assert Settings.from_identity(settings.identity()).identity() == settings.identity()


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"train": {"epoch": 3}}, "did you mean 'epochs'"),
        ({"train": {"epochs": "many"}}, "train.epochs must be a whole number, got 'many'"),
        ({"train": {"epochs": True}}, "train.epochs must be a whole number, got True"),
        ({"fields": {"norm": 3}}, "method.norm must be one of 1, 2, got 3"),
        ({"fields": {"distill": False}}, "'wa' implies distill=True"),
        ({"memory": {"size": -1}}, "memory.size must be between 0 and 1,000,000,000,000, got -1: raise it to 0"),
        ({"net": {"backbone": "resnet23"}}, "did you mean 'resnet32'"),
        ({"augment": {"padd": 3}}, "did you mean 'pad'"),
        ({"runtime": {"device": "warp"}}, "the device 'warp' is not available here"),
        ({"runtime": {"device": "meta"}}, "the device 'meta' is not available here"),
        ({"runtime": {"threads": 0}}, "runtime.threads must be between 1 and .*, got 0: raise it to 1"),
        ({"net": {"backbone": 3}}, "net.backbone must be a string, got 3"),
        ({"train": {"momentum": -1.0}}, "train.momentum must be at least 0 and below 1, got -1.0: raise it to 0"),
        ({"train": {"momentum": 0.0, "nesterov": True}}, "train.nesterov needs a momentum above 0"),
        ({"train": {"weight_decay": -1.0}}, "train.weight_decay must be between 0 and 1,000,000, got -1.0"),
        ({"train": {"batch_size": 1}}, "train.batch_size must be between 2 and"),
        ({"train": {"warmup": 2.0}}, "train.warmup must be between 0 and 1, got 2.0: lower it to 1"),
        ({"train": {"lr_schedule": "milestones", "milestones": [9]}}, "lie beyond the 8 epochs"),
        ({"augment": {"pad": -1}}, "augment.pad must be between 0 and 65,536, got -1"),
        ({"augment": {"std": [0.0]}}, "augment.std must be between 1e-36 and"),
        ({"fields": {"temperature": 0.0}}, "temperature must be between 0.001 and"),
        ({"fields": {"kd_weight": 7.0}}, "kd_weight must be between 0 and 1"),
        ({"trian": {"epochs": 3}}, "did you mean 'train'"),
        ({"train": 3}, "'train' in the overrides must be a table of settings, got 3"),
    ],
)
def test_invalid_settings_are_rejected_in_one_sentence(overrides: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message) as caught:
        resolve("digits", "wa", overrides=overrides)
    assert len(str(caught.value).splitlines()) == 1


def test_names_of_older_versions_are_understood(tmp_path: Path) -> None:
    file = tmp_path / "old.toml"
    file.write_text("[train]\nshape = 'constant'\n[net]\nmirror = true\n[methods.wa.fields]\nredraw = false\n")
    settings = resolve("digits", "wa", str(file), overrides={"fields": {"balance": 0.5}})
    assert (settings.train.lr_schedule, settings.net.flip_tta) == ("constant", True)
    assert (settings.fields["reinit_head"], settings.fields["kd_weight"]) == (False, 0.5)


def test_a_recipe_file(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text('[train]\nepochs = 1\n[methods.wa.fields]\nnorm = 2\n[methods."ce+kd".train]\nlr = 0.5\n')
    wa, kd = resolve("digits", "wa", str(file)), resolve("digits", "ce+kd", str(file))
    assert (wa.train.epochs, wa.fields["norm"], wa.train.lr) == (1, 2, 0.1)
    assert (kd.fields["norm"], kd.train.lr) == (2, 0.5)
    for text, message in [
        ("[trian]\n", "did you mean 'train'"),
        ("train = 3\n", r"'train' in the recipe .* must be a table, \[train\], got 3"),
        ("dataset = 3\n", "'dataset' in the recipe .* must be a string, got 3"),
        ("[methods]\nwa = 3\n", "methods.wa of the recipe .* must be a table of sections"),
        ("[methods.wa.trian]\nx = 3\n", "did you mean 'train'"),
        ("[methods.wq.train]\nx = 3\n", "did you mean 'wa'"),
        ("[train\n", "is not valid TOML"),
    ]:
        file.write_text(text)
        with pytest.raises(UsageError, match=message):
            resolve("digits", "wa", str(file))
    file.write_bytes(b"\xff\xfe")
    with pytest.raises(UsageError, match=r"cannot read the recipe file .*: check that it is a UTF-8 text file"):
        resolve("digits", "wa", str(file))


def test_a_recipe_can_extend_another(tmp_path: Path) -> None:
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
    with pytest.raises(UsageError, match="extends itself"):
        resolve("glyphs", "wa", str(mine))


@pytest.mark.parametrize("section", ["fields", "memory", "train"])
def test_settings_that_are_newer_than_a_run_have_their_defaults(section: str) -> None:
    settings = resolve("digits", "wa")
    old = settings.identity()
    old[section] = dict(list(old[section].items())[:1])
    found = Settings.from_identity(old).identity()
    assert list(found[section]) == list(settings.identity()[section])
