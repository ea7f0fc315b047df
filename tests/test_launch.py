"""Launchers: whoever makes the runs, the figures are the same; what is lost on the way is taken up again."""

from __future__ import annotations

import io
import json
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from rich.console import Console

from equipoise.cli.launch_options import Launch
from equipoise.errors import EquipoiseError, RunError, UsageError
from equipoise.core.files import lock_directory, read_tensors
from equipoise.study.compare import Board, Cell, Onlooker, ComparisonStatus, compare, plan
from equipoise.study.launch import Data, Job, RunStatus, remote
from equipoise.study.launch.processes import Processes
from equipoise.study.launch.ray import Ray, _connect
from equipoise.study.launch.remote import Order, Remote, Share, carry_out
from equipoise.study.launch.slurm import Slurm
from tests.conftest import interruptible

TINY: dict[str, dict[str, Any]] = {"train": {"epochs": 1}, "stream": {"steps": "5,5"}, "runtime": {"threads": 1}}
WILD = '[net]\nbackbone = "tiny"\n[memory]\nsize = 50\n[methods.ce.train]\nlr = 1e30\n'
LONG = ("--methods", "ce,wa", "--seeds", "0,1", "--steps", "5,5", "--epochs", "12", "--threads", "1")
needs_ray = pytest.mark.skipif(find_spec("ray") is None, reason="ray is not installed: pip install 'equipoise[ray]'")
needs_submitit = pytest.mark.skipif(
    find_spec("submitit") is None, reason="submitit is not installed: pip install 'equipoise[slurm]'"
)


def cells(methods: str = "ce wa", seeds: str = "0 1", **more: Any) -> list[Cell]:
    more.setdefault("overrides", TINY)
    return plan("digits", methods.split(), [int(seed) for seed in seeds.split()], **more)


class Inline(Remote):
    """Carries orders out in this process, the last first."""

    def __init__(self) -> None:
        super().__init__(Share())
        self.submitted: list[str] = []
        self.stopped = 0

    def submit(self, orders: Mapping[int, Order]) -> None:
        self.orders = dict(orders)
        self.submitted += [order.job.name for order in orders.values()]

    def ended(self) -> Iterator[tuple[int, str | None]]:
        index, order = self.orders.popitem()
        yield index, carry_out(order)

    def stop(self) -> None:
        self.stopped += 1


def same_runs(here: Path, there: Path) -> None:
    """Every figure but those of time, and every weight."""
    table = json.loads((here / "compare.json").read_text())
    assert json.loads((there / "compare.json").read_text()) == table
    directories = [run["directory"] for entry in table["entries"] for run in entry["runs"]]
    assert directories
    for directory in directories:
        for file in sorted((here / directory).rglob("*.safetensors")):
            mine, other = read_tensors(file), read_tensors(there / file.relative_to(here))
            assert mine.keys() == other.keys()
            assert all(torch.equal(mine[name], other[name]) for name in mine), file


def descendants(pid: int) -> list[int]:
    """The processes below a process."""
    below: dict[int, list[int]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            parent = int(stat.read_text().rpartition(")")[2].split()[1])
        except OSError:  # it has just ended
            continue
        below.setdefault(parent, []).append(int(stat.parent.name))
    found = list(below.get(pid, []))
    for child in found:
        found += below.get(child, [])
    return found


def runs_of(pids: Sequence[int]) -> list[Path]:
    """Run directories that these processes have locked."""
    files = []
    for pid in pids:
        for link in Path(f"/proc/{pid}/fd").glob("*"):
            try:
                files.append(link.readlink())
            except OSError:
                continue
    return [file.parent for file in files if file.name == ".lock"]


def in_second_step(run: Path) -> bool:
    """Whether a step is whole, and an epoch of the next is saved."""
    try:
        said: dict[str, Any] = json.loads((run / "checkpoint" / "step" / "stages.json").read_text())
    except FileNotFoundError:
        return False
    return bool(said["of"] == "step 2")


def wait_for(what: Callable[[], Any], process: subprocess.Popen[str] | None = None, seconds: float = 60) -> Any:
    deadline = time.monotonic() + seconds
    while not (found := what()):
        assert process is None or process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.05)
    return found


def start(*arguments: object, **environment: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "equipoise", *map(str, arguments)],
        env={**os.environ, "OMP_NUM_THREADS": "1", **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=interruptible,
    )


# ---- what all remote launchers share


def test_results_stand_in_the_cells_own_order_whoever_made_them(tmp_path: Path) -> None:
    compare(cells(), tmp_path / "local")
    launcher = Inline()
    compare(cells(), tmp_path / "remote", launcher=launcher)
    same_runs(tmp_path / "local", tmp_path / "remote")
    assert launcher.submitted == ["ce, seed 0", "wa, seed 0", "ce, seed 1", "wa, seed 1"]
    assert launcher.stopped == 1


def test_finished_runs_are_read_and_not_submitted(tmp_path: Path) -> None:
    compare(cells(seeds="0"), tmp_path)
    launcher = Inline()
    table = compare(cells(), tmp_path, launcher=launcher)
    assert launcher.submitted == ["ce, seed 1", "wa, seed 1"]
    assert [entry["n"] for entry in table["entries"]] == [2, 2]
    again = Inline()
    assert compare(cells(), tmp_path, launcher=again) == table
    assert (again.submitted, again.stopped) == ([], 0)
    (tmp_path / "wa/steps-5_5/seed-0/metrics.jsonl").write_text("{")
    (failed,) = compare(cells(), tmp_path, launcher=again)["failed"]
    assert "wa/steps-5_5/seed-0 cannot be read" in failed["error"]


def test_a_run_that_fails_elsewhere_is_told_and_the_others_go_on(tmp_path: Path) -> None:
    recipe = tmp_path / "wild.toml"
    recipe.write_text(WILD)
    table = compare(cells(seeds="0", recipe=str(recipe)), tmp_path / "out", launcher=Inline())
    assert [entry["label"] for entry in table["entries"]] == ["wa"]
    assert [(run["label"], "loss" in run["error"]) for run in table["failed"]] == [("ce", True)]


def test_an_interrupted_comparison_stops_what_is_under_way(tmp_path: Path) -> None:
    class Impatient(Onlooker):
        def standing(self, standing: ComparisonStatus) -> None:
            if standing.done:
                raise KeyboardInterrupt

    launcher = Inline()
    with pytest.raises(KeyboardInterrupt):
        compare(cells(), tmp_path, launcher=launcher, onlooker=Impatient())
    assert launcher.stopped == 1
    assert len(compare(cells(), tmp_path, launcher=launcher)["entries"]) == 2
    assert launcher.submitted[4:] == ["ce, seed 0", "wa, seed 0", "ce, seed 1"]


def order(tmp_path: Path, share: Share | None = None) -> Order:
    (cell,) = cells("ce", "0")
    return Order.of(Job(cell.name, cell.settings, tmp_path / "run"), Data(None), share or Share())


def test_a_run_waits_for_whoever_has_not_let_go_of_its_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = order(tmp_path)
    (tmp_path / "run").mkdir()
    with lock_directory(tmp_path / "run"):
        monkeypatch.setattr(remote, "PATIENCE", 0.1)
        assert "another process is writing to" in str(carry_out(given))
    monkeypatch.setattr(remote, "PATIENCE", 30.0)
    holding = threading.Event()

    def hold() -> None:
        with lock_directory(tmp_path / "run"):
            holding.set()
            time.sleep(1.5)

    thread = threading.Thread(target=hold)
    thread.start()
    holding.wait()
    assert carry_out(given) is None
    thread.join()
    assert (tmp_path / "run" / "summary.json").exists()


def test_an_order_says_what_a_run_gets(tmp_path: Path) -> None:
    assert order(tmp_path).cpus == 1  # runtime.threads
    for share, cpus, threads, devices in (
        (Share(cpus=3), 3, 3, 1),
        (Share(gpus=0.5), 1, 1, 1),
        (Share(gpus=4), 4, 1, 4),
        (Share(cpus=8, gpus=4), 8, 2, 4),
    ):
        given = order(tmp_path, share)
        runtime = given.job.settings.runtime
        assert (given.cpus, runtime.threads, runtime.devices) == (cpus, threads, devices)
    if not torch.cuda.is_available():
        assert "the device 'cuda' cannot be used here" in str(carry_out(order(tmp_path, Share(gpus=1))))


def test_trackers_are_told_by_whoever_makes_the_run(tmp_path: Path) -> None:
    if find_spec("tensorboardX") is None:
        pytest.skip("tensorboardX is not installed: pip install 'equipoise[track]'")
    assert carry_out(order(tmp_path, Share(track="tensorboard"))) is None
    assert json.loads((tmp_path / "run" / "tracking" / "tensorboard.json").read_text())["finished"]


def test_the_watch_reads_directories(tmp_path: Path) -> None:
    (cell,) = cells("ce", "0", overrides={**TINY, "train": {"epochs": 4}})
    job = Job(cell.name, cell.settings, tmp_path)
    watch = remote.Watch([job])
    assert watch.look([job]) == ([RunStatus("ce, seed 0", 0.0, None)], None)
    (tmp_path / ".lock").touch()
    assert watch.look([job])[0][0].place == "starting"
    (tmp_path / "config.json").write_text('{"sizes": [5, 5]}')
    (tmp_path / "metrics.jsonl").write_text("{}\n")
    (tmp_path / "checkpoint" / "step").mkdir(parents=True)
    (tmp_path / "checkpoint" / "step" / "stages.json").write_text('{"stages": [{"epochs": 2}]}')
    (run,), left = watch.look([job])
    assert (run.share, run.place) == (0.75, "step 2/2 epoch 2/4")
    assert left is not None
    assert watch.look([]) == ([], 0.0)
    (known,), left = remote.Watch([job]).look([job])  # another command's: nobody has taken it up in ours
    assert (known.share, known.place, left) == (0.75, None, None)


@pytest.mark.parametrize("height", [40, 12])
def test_a_terminal_shows_where_every_run_is(height: int, tmp_path: Path) -> None:
    console = Console(file=io.StringIO(), force_terminal=True, width=100, height=height, highlight=False)
    board = Board(console=console)
    compare(cells("ce", "0"), tmp_path, launcher=Inline(), onlooker=board)
    runs = [RunStatus(f"wa, seed {seed}", 0.5, "step 1/2 epoch 3/8") for seed in range(20)]
    board.under_way([*runs, RunStatus("wa, seed 20", 0.0, None)], 600)
    assert board.live is not None
    lines = ["".join(part.text for part in line) for line in console.render_lines(board.live.renderable)]
    board.close()
    assert len(lines) < height
    assert any("wa, seed 0: step 1/2 epoch 3/8" in line for line in lines)
    assert ("1 more" if height == 40 else " more") in lines[-1]


def test_a_pipe_gets_the_table_of_every_run_that_others_made_and_a_line_now_and_then(tmp_path: Path) -> None:
    text = io.StringIO()
    board = Board(console=Console(file=text, width=100))
    compare(cells("ce", "0 1"), tmp_path, launcher=Inline(), onlooker=board)
    said = text.getvalue()
    name, head, *rows = [line.split()[0] for line in said.splitlines()[:4]]
    assert name.endswith("seed-1")
    assert (head, rows) == ("step", ["1/2", "2/2"])
    assert said.index("ce/steps-5_5/seed-1") < said.index("1 of 2 runs done") < said.index("ce/steps-5_5/seed-0")
    assert "2 of 2 runs done\n" in said
    runs = [RunStatus("wa, seed 0", 0.5, "step 1/2 epoch 3/8"), RunStatus("wa, seed 1", 0.0, None)]
    board.last_line = -100.0
    for _ in range(2):  # soon again: nothing new
        board.under_way(runs, 600)
    assert text.getvalue()[len(said) :] == "  wa, seed 0: step 1/2 epoch 3/8; wa, seed 1: waiting; about 10:00 left\n"


# ---- Ray


class Node:
    """A machine of a Ray cluster: on one computer, with an address of its own."""

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
        """At once, with all that runs on it."""
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
    """A secret that machines of a cluster share, and a place of its own; sockets allow only short paths."""
    place = Path("/tmp") / f"eq-{secrets.token_hex(4)}"
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    yield {
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN": secrets.token_hex(32),
        "RAY_TMPDIR": str(place),
        "RAY_USAGE_STATS_ENABLED": "0",
    }
    shutil.rmtree(place, ignore_errors=True)


@pytest.fixture
def two_nodes(ray_environment: dict[str, str]) -> Iterator[tuple[str, list[Node]]]:
    """A cluster's address and its machines; the first is its head."""
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


@needs_ray
@pytest.mark.slow
def test_runs_of_a_node_that_dies_are_taken_up_elsewhere(
    tmp_path: Path, two_nodes: tuple[str, list[Node]], ray_environment: dict[str, str]
) -> None:
    address, (_, second) = two_nodes
    out = tmp_path / "ray"
    command = ("compare", "digits", *LONG, "--launcher", "ray", "--ray-address", address, "--json", "--out", out)
    driver = start(*command, **ray_environment)

    def in_the_middle() -> list[Path]:
        return [run for run in runs_of(descendants(second.process.pid)) if in_second_step(run)]

    (lost,) = wait_for(in_the_middle, driver)
    second.kill()
    before = (lost / "metrics.jsonl").read_text()
    assert not (lost / "summary.json").exists()
    said, complaints = driver.communicate(timeout=120)
    assert driver.returncode == 0, complaints
    table = json.loads(said)  # and nothing else: Ray would tell of its losses
    assert [(entry["label"], entry["n"]) for entry in table["entries"]] == [("ce", 2), ("wa", 2)]
    assert table["failed"] == []
    assert (lost / "metrics.jsonl").read_text().startswith(before)  # seconds and all: the step was not learned again
    overrides = {"train": {"epochs": 12}, "stream": {"steps": "5,5"}, "runtime": {"threads": 1}}
    compare(cells(overrides=overrides), tmp_path / "local")
    same_runs(tmp_path / "local", out)


@needs_ray
@pytest.mark.slow
def test_ctrl_c_leaves_nothing_of_our_own_cluster_behind(tmp_path: Path, ray_environment: dict[str, str]) -> None:
    """One of the methods fails before."""
    recipe = tmp_path / "wild.toml"
    recipe.write_text(WILD)
    out = tmp_path / "out"
    settings = ("--seeds", "0", "--steps", "5,5", "--epochs", "15", "--recipe", recipe)
    driver = start("compare", "digits", *LONG[:2], *settings, "--launcher", "ray", "--out", out, **ray_environment)
    wait_for(lambda: (out / "compare.json").exists() and list((out / "wa").rglob("stages.json")), driver)
    ours = descendants(driver.pid)
    assert runs_of(ours)
    driver.send_signal(signal.SIGINT)
    _, complaints = driver.communicate(timeout=60)
    assert driver.returncode == 130
    assert complaints.count("ce, seed 0 failed: ") == 1
    assert "every finished epoch is saved, and the same command goes on from there" in complaints
    wait_for(lambda: not any(Path(f"/proc/{pid}").exists() for pid in ours))
    overrides = {"train": {"epochs": 15}, "stream": {"steps": "5,5"}, "runtime": {"threads": 1}}
    table = compare(cells(seeds="0", recipe=str(recipe), overrides=overrides), out)  # any launcher goes on
    assert [entry["label"] for entry in table["entries"]] == ["wa"]
    assert [(run["label"], "loss" in run["error"]) for run in table["failed"]] == [("ce", True)]


@needs_ray
def test_an_address_without_a_cluster_is_told_at_once() -> None:
    with pytest.raises(UsageError, match=r"no Ray cluster at 127.0.0.1:\d+ takes us in .*Connection refused"):
        _connect(f"127.0.0.1:{free_port()}")


def test_a_run_that_fits_nowhere_on_this_machine_is_refused(tmp_path: Path) -> None:
    launcher = Ray("local", Share())
    launcher._ray = SimpleNamespace(cluster_resources=lambda: {"CPU": 2.0})
    launcher._check({0: order(tmp_path, Share(cpus=2))})
    for share, sentence in (
        (Share(cpus=3), "a run is to have 3 CPUs, and this machine has 2: give a smaller --cpus-per-run"),
        (Share(gpus=0.5), "a run is to have 0.5 GPUs, and this machine has 0: give a smaller --gpus-per-run"),
    ):
        with pytest.raises(UsageError, match=sentence):
            launcher._check({0: order(tmp_path, share)})


# ---- SLURM


@needs_submitit
@pytest.mark.slow
def test_a_preempted_job_is_queued_again_and_goes_on(tmp_path: Path) -> None:
    overrides = {**TINY, "train": {"epochs": 15}}
    out = tmp_path / "slurm"

    class Preempting(Slurm):
        preempted: Path | None = None
        before = ""

        def ended(self) -> Iterator[tuple[int, str | None]]:
            for pid in (pid for job in self._jobs.values() for pid in descendants(int(job.job_id))):
                for run in runs_of([pid]):
                    if self.preempted is None and in_second_step(run):
                        os.kill(pid, signal.SIGUSR2)
                        self.preempted, self.before = run, (run / "metrics.jsonl").read_text()
            yield from super().ended()

    launcher = Preempting({"time": "5"}, out / "jobs", Share(), cluster="local")
    table = compare(cells(seeds="0", overrides=overrides), out, launcher=launcher)
    assert table["failed"] == []
    assert launcher.preempted is not None
    log = "".join(file.read_text() for file in (out / "jobs").glob("*_log.out"))
    assert log.count("Starting with") == 3  # two jobs, one of them twice
    assert "Requeued job" in log
    assert (launcher.preempted / "metrics.jsonl").read_text().startswith(launcher.before)
    assert list((out / "jobs").glob("*.pkl")) == []
    compare(cells(seeds="0", overrides=overrides), tmp_path / "local")
    same_runs(tmp_path / "local", out)


@needs_submitit
@pytest.mark.slow
def test_jobs_that_fail_die_or_are_cancelled(tmp_path: Path) -> None:
    recipe = tmp_path / "wild.toml"
    recipe.write_text(WILD)
    overrides = {**TINY, "train": {"epochs": 100}}

    class Deadly(Slurm):
        def ended(self) -> Iterator[tuple[int, str | None]]:
            for job in self._jobs.values():
                for pid in descendants(int(job.job_id)):
                    if any(run.parent.parent.name == "wa" for run in runs_of([pid])):
                        os.kill(pid, signal.SIGKILL)
            yield from super().ended()

    launcher = Deadly({}, tmp_path / "jobs", Share(), cluster="local")
    asked = cells(seeds="0", overrides=overrides, recipe=str(recipe))
    table = compare(asked, tmp_path / "out", launcher=launcher)
    assert table["entries"] == []
    wild, killed = (run["error"] for run in table["failed"])
    assert "loss" in wild
    assert "ended unexpectedly: its last words are in" in killed

    class Impatient(Onlooker):
        def under_way(self, runs: Sequence[RunStatus], seconds_left: float | None) -> None:
            if any(run.place and run.share for run in runs):
                raise KeyboardInterrupt

    gentle = Slurm({}, tmp_path / "jobs", Share(), cluster="local")
    with pytest.raises(KeyboardInterrupt):
        compare(asked[1:], tmp_path / "out", launcher=gentle, onlooker=Impatient())
    assert runs_of(descendants(os.getpid())) == []
    assert not (tmp_path / "jobs" / "jobs.json").exists()


@needs_submitit
def test_what_sbatch_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import submitit

    for name in ("sbatch", "srun"):
        (tmp_path / name).write_text("#!/bin/sh\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    options = {"partition": "gpu", "time": "1-12", "exclusive": "true", "array-parallelism": "3"}
    launcher = Slurm(options, tmp_path / "jobs", Share(gpus=1))
    executor = launcher._executor(submitit.AutoExecutor, 4)._executor
    lines = executor._make_submission_file_text("true", "id").splitlines()
    for line in (
        "#SBATCH --partition=gpu",
        "#SBATCH --time=2160",
        "#SBATCH --exclusive",
        "#SBATCH --requeue",
        "#SBATCH --cpus-per-task=4",
        "#SBATCH --gpus-per-node=1",
    ):
        assert line in lines
    assert any(line.startswith("srun ") and "--cpus-per-task=4" in line for line in lines)
    assert executor.parameters["array_parallelism"] == 3


@needs_submitit
def test_a_queue_that_does_not_answer_is_not_an_empty_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Jobs of a killed command live on; to hand theirs out again would make two of each."""
    scripts = {
        "sbatch": "echo Submitted batch job 99",
        "squeue": f"test -e {tmp_path}/asked && echo 7_0 || {{ touch {tmp_path}/asked; false; }}",
    }
    for name, script in scripts.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{script}\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    given = order(tmp_path, Share())
    record = tmp_path / "jobs" / "jobs.json"
    record.parent.mkdir()
    record.write_text(json.dumps({str(given.job.directory): "7_0"}))
    launcher = Slurm({}, record.parent, Share())
    launcher.pause = 0.0
    launcher.submit({0: given})
    assert [job.job_id for job in launcher._jobs.values()] == ["7_0"]
    (tmp_path / "squeue").write_text("#!/bin/sh\nfalse\n")
    assert list(launcher.ended()) == []
    launcher._alone.close()
    deaf = Slurm({}, record.parent, Share())
    deaf.pause = 0.0
    with pytest.raises(RunError, match="squeue does not answer"):
        deaf.submit({0: given})
    deaf.stop()
    assert json.loads(record.read_text()) == {str(given.job.directory): "7_0"}


# ---- processes of this machine


@pytest.mark.slow
def test_processes_of_this_machine_make_runs_side_by_side(tmp_path: Path) -> None:
    """One is killed, then whoever started them: the same command goes on, and comes to what one process comes to."""
    out = tmp_path / "out"
    command = ("compare", "digits", *LONG[:2], "--seeds", "0", *LONG[4:], "--launcher", "processes", "--json")

    def begun() -> tuple[subprocess.Popen[str], list[int]]:
        driver = start(*command, "--out", out)
        busy = wait_for(lambda: [pid for pid in descendants(driver.pid) if any(map(in_second_step, runs_of([pid])))])
        return driver, busy

    driver, (victim, *_) = begun()
    os.kill(victim, signal.SIGKILL)
    said, complaints = driver.communicate(timeout=120)
    assert driver.returncode == 2
    assert "killed by SIGKILL; out of memory?): the same command goes on with it" in complaints
    table = json.loads(said)
    assert (len(table["failed"]), len(table["entries"])) == (1, 1)
    driver, others = begun()
    driver.kill()
    driver.communicate()
    wait_for(lambda: not any(Path(f"/proc/{pid}").exists() for pid in others))
    overrides = {"train": {"epochs": 12}, "stream": {"steps": "5,5"}, "runtime": {"threads": 1}}
    asked = cells(seeds="0", overrides=overrides)
    compare(asked, out, launcher=Processes(Share()))
    compare(asked, tmp_path / "local")
    same_runs(tmp_path / "local", out)


def test_as_many_at_once_as_cores_allow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 3)
    monkeypatch.setattr(Processes, "_fill", lambda self: None)
    for cpus, expected in ((1, 3), (2, 1), (4, 1)):
        launcher = Processes(Share())
        launcher.submit({0: order(tmp_path, Share(cpus=cpus))})
        assert launcher._at_once == expected


# ---- refusals


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"ray_address": "here:1"}, "--ray-address is for --launcher ray, and this is local"),
        ({"slurm": ["a=b"], "launcher": "ray"}, "--slurm is for --launcher slurm, and this is ray"),
        ({"cpus_per_run": 2}, "--cpus-per-run is for --launcher processes or ray or slurm"),
        ({"gpus_per_run": 1, "launcher": "processes"}, "--gpus-per-run is for --launcher ray or slurm"),
        ({"cpus_per_run": 0, "launcher": "ray"}, "--cpus-per-run is 0, but a run needs at least 1"),
        ({"gpus_per_run": 1.5, "launcher": "ray"}, "--gpus-per-run is 1.5: give a whole number"),
        ({"gpus_per_run": 0.5, "launcher": "slurm"}, "--gpus-per-run is 0.5, but SLURM gives only whole ones"),
        ({"slurm": ["gpu"], "launcher": "slurm"}, "--slurm gpu cannot be read: write NAME=VALUE"),
        ({"slurm": ["time=soon"], "launcher": "slurm"}, "the time 'soon' cannot be read"),
        ({"slurm": ["array-parallelism=x"], "launcher": "slurm"}, "array_parallelism is 'x', but it takes a whole"),
        ({"launcher": "slurm"}, "sbatch was not found"),
    ],
)
def test_mistakes_are_told_before_anything_starts(
    options: dict[str, Any], sentence: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UsageError, match=sentence):
        replace(Launch(), **options).make(tmp_path, "")


@pytest.mark.parametrize("name", ["ray", "slurm"])
def test_a_launcher_without_its_package_names_the_extra(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(f"equipoise.study.launch.{name}.find_spec", lambda package: None)
    with pytest.raises(EquipoiseError, match=rf"pip install 'equipoise\[{name}\]'"):
        Ray(None, Share()) if name == "ray" else Slurm({}, Path("jobs"), Share())
