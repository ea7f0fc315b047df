"""Run directories with damaged or hostile contents: one sentence, and nothing is deleted because of them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from equipoise.core.directory import Directory
from equipoise.core.tensors import write_tensors
from equipoise.study.compare import plan
from equipoise.study.launch import Job, remote
from tests import hostile_runs
from tests.conftest import Ran
from tests.hostile_runs import COMMANDS, FIRST, SETTINGS, call, check_rejected, copy_of, fails, snapshot

no_hang, originals, outside = hostile_runs.no_hang, hostile_runs.originals, hostile_runs.outside
pytestmark = pytest.mark.usefixtures("no_hang")

NESTED = '{"format": 2, "settings": {"data": ' + '{"a": ' * 400 + "1" + "}" * 400 + "}}"


@pytest.mark.parametrize(
    "content",
    ["", "{", "[]", "null", "3", "NaN", '{"format": 2, "settings": []}', '{"settings": {}}', NESTED, "[" * 100_000],
)
@pytest.mark.parametrize("command", COMMANDS)
def test_config_json_that_is_damaged(
    content: str, command: str, originals: Path, tmp_path: Path, cli: Callable[..., Ran]
) -> None:
    comparison = copy_of(originals, "stopped" if command in ("run", "compare") else "finished", tmp_path)
    (comparison / FIRST / "config.json").write_text(content)
    check_rejected(call(cli, command, comparison), command)


@pytest.mark.parametrize(
    ("section", "value"),
    [
        (None, {}),
        ("method", ["wa"]),
        ("method", "a\nb\x1b[31m"),
        ("dataset", {"a": 1}),
        ("dataset", "two\nlines\x1b[31m"),
        ("seed", "0"),
        ("fields", "text"),
        ("fields", [1]),
        ("fields", {"norm": "two"}),
        ("fields", {"a\nb": 1}),
        ("memory", 3),
        ("memory", {"size": None}),
        ("stream", [["steps", 5]]),
        ("train", {"epochs": {}}),
        ("train", None),
        ("runtime", ["precision"]),
        ("runtime", {"precision": 7}),
        ("net", {"weights": 3}),
        ("data", {"a\nb": "c\nd"}),
        ("unknown", 1),
    ],
)
@pytest.mark.parametrize("command", ["run", "report"])
def test_settings_of_a_wrong_type(
    section: str | None, value: Any, command: str, originals: Path, tmp_path: Path, cli: Callable[..., Ran]
) -> None:
    """`run` rejects all of them; a report may show those that it does not need."""
    comparison = copy_of(originals, "finished", tmp_path)
    file = comparison / FIRST / "config.json"
    config = json.loads(file.read_text())
    config["settings"] = value if section is None else config["settings"] | {section: value}
    file.write_text(json.dumps(config))
    ran = call(cli, command, comparison)
    if command == "run":
        assert fails(ran).isprintable()
    else:
        assert ran.code == 0, ran.err
        assert all(line.startswith(f"equipoise: skipped {FIRST}: ") for line in ran.err.splitlines())
        assert len(ran.err.splitlines()) <= 1
        assert ran.err.rstrip("\n").isprintable()


@pytest.mark.parametrize("command", COMMANDS)
def test_a_run_of_a_newer_version(command: str, originals: Path, tmp_path: Path, cli: Callable[..., Ran]) -> None:
    comparison = copy_of(originals, "finished", tmp_path)
    file = comparison / FIRST / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"format": 3}))
    before = snapshot(comparison / FIRST)
    sentence = check_rejected(call(cli, command, comparison), command)
    assert "format 3, but this version of equipoise reads up to 2: update equipoise" in sentence
    assert snapshot(comparison / FIRST) == before


@pytest.mark.parametrize(
    "change",
    [
        {"state": "../../x"},
        {"state": "/etc/passwd"},
        {"state": "step"},
        {"state": "step/../../config.json"},
        {"state": ""},
        {"state": 3},
        {"state": None},
        {"state": "step-1.safetensors\n"},
        {"steps": -1},
        {"steps": "1"},
        {"steps": 10**400},
        {"steps": 0},
        {"steps": 3},
        {"format": 3},
        {"format": "two"},
        {"data": 5},
        {"data": "another"},
        {"memory": {"0": [1]}},
        {"memory": [[0, [10**30]]]},
        {"memory": [[0, [10**6]]]},
        {"memory": [[0, [-1]]]},
        {"memory": [[99, [1]]]},
        {"memory": [["a", [1]]]},
    ],
)
def test_a_manifest_that_was_changed(
    change: dict[str, Any], originals: Path, outside: Path, tmp_path: Path, cli: Callable[..., Ran]
) -> None:
    comparison = copy_of(originals, "stopped", tmp_path)
    (comparison / FIRST.parent / "x").write_text("not a state")
    checkpoint = comparison / FIRST / "checkpoint"
    manifest = json.loads((checkpoint / "manifest.json").read_text())
    (checkpoint / "manifest.json").write_text(json.dumps(manifest | change))
    before = snapshot(checkpoint)
    sentence = fails(call(cli, "run", comparison))
    assert sentence.isprintable()
    if change == {"format": 3}:
        assert "update equipoise" in sentence
    assert snapshot(checkpoint) == before  # nothing is deleted because of it


@pytest.mark.parametrize(
    "content",
    [
        "[]",
        '{"stages": 3}',
        '{"of": "step 2", "stages": [{"file": "../../../config.json", "epochs": 1, "seconds": 1}]}',
        '{"of": "step 2", "stages": [{"file": "/etc/passwd", "epochs": 1, "seconds": 1}]}',
        '{"of": "step 2", "stages": [{"file": "stages.json", "epochs": 1, "seconds": 1}]}',
        '{"of": "step 2", "stages": [{"file": "stage-0-epoch-7.safetensors", "epochs": 1, "seconds": 1}]}',
        '{"of": "step 2", "stages": [{"file": "stage-0-epoch-1.safetensors", "epochs": "1", "seconds": 1}]}',
        '{"of": "step 2", "stages": [{"file": "stage-0-epoch-1.safetensors", "epochs": 1, "seconds": NaN}]}',
        '{"of": "step 2", "stages": [{"file": "stage-0-epoch-1.safetensors", "epochs": -1, "seconds": 1}]}',
        '{"of": "step 1", "stages": [{"file": "../x", "epochs": 1, "seconds": 1}]}',
    ],
)
def test_a_list_of_stages_that_was_changed(
    content: str, originals: Path, outside: Path, tmp_path: Path, cli: Callable[..., Ran]
) -> None:
    comparison = copy_of(originals, "stopped", tmp_path)
    step = comparison / FIRST / "checkpoint" / "step"
    (step / "stages.json").write_text(content)
    assert str(step) in fails(call(cli, "run", comparison))
    assert (step / "stages.json").read_text() == content


@pytest.mark.parametrize("tensors", [{}, {"method.head.weight": 3}, {"optimizer.0.momentum_buffer": 3}, {"a.b": 3}])
@pytest.mark.parametrize("file", ["step-1.safetensors", "step/stage-0-epoch-1.safetensors"])
def test_tensors_of_another_network(
    tensors: dict[str, int], file: str, originals: Path, tmp_path: Path, cli: Callable[..., Ran]
) -> None:
    comparison = copy_of(originals, "stopped", tmp_path)
    directory = Directory(comparison / FIRST / "checkpoint")
    write_tensors(directory, file, {name: torch.zeros(size) for name, size in tensors.items()})
    assert "damaged" in fails(call(cli, "run", comparison))


@pytest.mark.parametrize("config", ["[]", "{}", '{"sizes": []}', '{"sizes": 3}', '{"sizes": "abc"}', '{"sizes": [5]}'])
def test_the_monitor_survives_any_content(config: str, originals: Path, tmp_path: Path) -> None:
    comparison = copy_of(originals, "stopped", tmp_path)
    (comparison / FIRST / "config.json").write_text(config)
    (comparison / FIRST / "metrics.jsonl").write_text("\n" * 9)
    (cell,) = plan("digits", ["wa"], [0], overrides=SETTINGS)
    job = Job(cell.name, cell.settings, comparison / FIRST)
    (status,), left = remote.RunMonitor([job]).look([job])
    assert 0 <= status.fraction <= 1
    assert left is None or left >= 0
