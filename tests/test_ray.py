"""Comparisons on a real Ray cluster."""

from __future__ import annotations

import json
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace

import pytest

from equipoise.errors import UsageError
from equipoise.study.compare import compare
from equipoise.study.launch.ray import Ray, _connect
from equipoise.study.launch.remote import RunResources
from tests.conftest import interruptible
from tests.launching import (
    DIVERGING,
    LONG,
    all_ended,
    assert_same_runs,
    cells,
    descendants,
    in_second_step,
    locked_runs,
    remote_job,
    start,
    wait_for,
)

pytestmark = pytest.mark.skipif(find_spec("ray") is None, reason="ray is not installed: pip install 'equipoise[ray]'")


class Node:
    """A machine of a Ray cluster: on this computer, with an address of its own."""

    def __init__(self, environment: Mapping[str, str], *options: str) -> None:
        command = ["ray", "start", "--num-cpus=1", "--disable-usage-stats", "--block", *options]
        self.process = subprocess.Popen(
            [str(Path(sys.executable).parent / command[0]), *command[1:]],
            env={**os.environ, **environment},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            preexec_fn=interruptible,
        )

    def kill(self) -> None:
        """Kill it at once, with everything that runs on it."""
        for pid in [self.process.pid, *descendants(self.process.pid)]:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        self.process.wait()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def answers(address: str) -> bool:
    host, _, port = address.partition(":")
    with socket.socket() as probe:
        return probe.connect_ex((host, int(port))) == 0


@pytest.fixture
def ray_environment(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, str]]:
    """Return variables with a secret that all machines of a cluster share, and a short path for its sockets."""
    folder = Path("/tmp") / f"eq-{secrets.token_hex(4)}"
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    yield {
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN": secrets.token_hex(32),
        "RAY_TMPDIR": str(folder),
        "RAY_USAGE_STATS_ENABLED": "0",
    }
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def two_nodes(ray_environment: dict[str, str]) -> Iterator[tuple[str, list[Node]]]:
    """Return the address of a cluster and its two machines; the first is its head."""
    address = f"127.0.0.1:{free_port()}"
    head = ("--head", f"--port={address[10:]}", "--include-dashboard=false", "--node-ip-address=127.0.0.1")
    nodes = [Node(ray_environment, *head, f"--temp-dir={ray_environment['RAY_TMPDIR']}")]
    try:
        wait_for(lambda: answers(address))
        nodes.append(Node(ray_environment, f"--address={address}", "--node-ip-address=127.0.0.2"))
        yield address, nodes
    finally:
        for node in reversed(nodes):
            node.kill()


@pytest.mark.slow
def test_runs_of_a_machine_that_dies_continue_elsewhere(
    tmp_path: Path, two_nodes: tuple[str, list[Node]], ray_environment: dict[str, str]
) -> None:
    address, (_, second) = two_nodes
    out = tmp_path / "ray"
    command = ("compare", "digits", *LONG, "--launcher", "ray", "--ray-address", address, "--json", "--out", out)
    driver = start(*command, **ray_environment)

    def interruptible_runs() -> list[Path]:
        return [run for run in locked_runs(descendants(second.process.pid)) if in_second_step(run)]

    (lost,) = wait_for(interruptible_runs, driver)
    second.kill()
    before = (lost / "metrics.jsonl").read_text()
    assert not (lost / "summary.json").exists()
    printed, errors = driver.communicate(timeout=240)
    assert driver.returncode == 0, errors
    table = json.loads(printed)  # and nothing else: Ray itself would print that it lost a machine
    assert [(entry["label"], entry["n"]) for entry in table["entries"]] == [("ce", 2), ("wa", 2)]
    assert table["failed"] == []
    assert (lost / "metrics.jsonl").read_text().startswith(before)  # the same times: the step was not repeated
    overrides = {"train": {"epochs": 12}, "stream": {"steps": "5,5"}, "runtime": {"threads": 1}}
    compare(cells(overrides=overrides), tmp_path / "local")
    assert_same_runs(tmp_path / "local", out)


@pytest.mark.slow
def test_ctrl_c_leaves_no_process_of_our_own_cluster_behind(tmp_path: Path, ray_environment: dict[str, str]) -> None:
    """One of the methods fails before."""
    recipe = tmp_path / "diverging.toml"
    recipe.write_text(DIVERGING)
    out = tmp_path / "out"
    settings = ("--seeds", "0", "--steps", "5,5", "--epochs", "60", "--recipe", recipe)
    driver = start("compare", "digits", *LONG[:2], *settings, "--launcher", "ray", "--out", out, **ray_environment)
    wait_for(lambda: (out / "compare.json").exists() and list((out / "wa").rglob("stages.json")), driver)
    ours = descendants(driver.pid)
    assert locked_runs(ours)
    driver.send_signal(signal.SIGINT)
    _, errors = driver.communicate(timeout=120)
    assert driver.returncode == 130, errors
    assert errors.count("ce, seed 0 failed: ") == 1
    assert "every finished epoch is saved, run the same command to continue" in errors
    wait_for(lambda: all_ended(ours))
    overrides = {"train": {"epochs": 60}, "stream": {"steps": "5,5"}, "runtime": {"threads": 1}}
    table = compare(cells(seeds="0", recipe=str(recipe), overrides=overrides), out)  # any launcher can continue it
    assert [entry["label"] for entry in table["entries"]] == ["wa"]
    assert [(run["label"], "loss" in run["error"]) for run in table["failed"]] == [("ce", True)]


def test_an_address_without_a_cluster_is_reported_at_once() -> None:
    with pytest.raises(UsageError, match=r"cannot connect to a Ray cluster at 127.0.0.1:\d+ .*Connection refused"):
        _connect(f"127.0.0.1:{free_port()}")


def test_a_run_that_does_not_fit_on_this_machine_is_rejected(tmp_path: Path) -> None:
    launcher = Ray("local", RunResources())
    launcher._ray = SimpleNamespace(cluster_resources=lambda: {"CPU": 2.0})
    launcher._check({0: remote_job(tmp_path, RunResources(cpus=2))})
    for resources, sentence in (
        (RunResources(cpus=3), "a run needs 3 CPUs, but this machine has 2: set a smaller --cpus-per-run"),
        (RunResources(gpus=0.5), "a run needs 0.5 GPUs, but this machine has 0: set a smaller --gpus-per-run"),
    ):
        with pytest.raises(UsageError, match=sentence):
            launcher._check({0: remote_job(tmp_path, resources)})
