"""Real processes that train one run together, connected by gloo."""

from __future__ import annotations

import json
import multiprocessing
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from equipoise.core import distributed
from equipoise.core.extras import available
from equipoise.core.launch_env import LaunchEnv, is_main_process, launch_env
from equipoise.data.augment import Augment
from equipoise.data.images import Images
from equipoise.data.memory import Memory
from equipoise.data.stream import Step
from equipoise.errors import UsageError
from equipoise.learn.backbones.fast import Whitening
from equipoise.learn.backbones.lite import EfficientNetLite
from equipoise.learn.extractor import ENGINES, Engine, Extractor
from equipoise.learn.fit import Fit
from equipoise.learn.importance import mean_over_images
from equipoise.learn.inference import same_tensors as same
from equipoise.learn.method import Method
from equipoise.learn.runtime import Runtime
from equipoise.learn.schedule import Schedule
from equipoise.methods.ewc import drawn_log_likelihood
from equipoise.methods.registry import registry
from equipoise.methods.wa import WA
from equipoise.study.process_group import _end_children, process_layout, run_in_group
from equipoise.testing import Trial, check_distributed
from equipoise.testing.distributed import _learn_distributed
from tests.conftest import Ran, run_command
from tests.runs import final_state
from tests.test_method_api import check_frozen_in_a_group, check_sums_in_a_group, save_backbone
from tests.test_runtime import HAS_GLIBC, check_freed_memory_is_reused

LONG = ("run", "digits", "--epochs", "15", "--steps", "2", "--threads", "1")
RUN = ("run", "digits", "--epochs", "2", "--steps", "2", "--threads", "1", "--json")


def equipoise(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "equipoise", *arguments]


def environment(**extra: str) -> dict[str, str]:
    """Return our environment without the variables of torchrun and SLURM."""
    foreign = ("SLURM_", "TORCHELASTIC_", "MASTER_", "RANK", "WORLD_SIZE", "LOCAL_", "NODE_RANK", "GROUP_")
    plain = {name: value for name, value in os.environ.items() if not name.startswith(foreign)}
    return plain | {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"} | extra


@pytest.fixture(autouse=True)
def _started_by_the_user(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in os.environ.keys() - environment().keys():
        monkeypatch.delenv(name)


@pytest.fixture
def here(capfd: pytest.CaptureFixture[str]) -> Callable[..., Ran]:
    """Return a function that runs a command in this process, with what its processes print."""

    def go(*arguments: object) -> Ran:
        code = run_command(*arguments)
        captured = capfd.readouterr()
        return Ran(code, captured.out, captured.err)

    return go


def free_port() -> str:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return str(free.getsockname()[1])


# ---- arithmetic


@pytest.mark.parametrize("world", [1, 2, 3, 5])
@pytest.mark.parametrize("size", [1, 2, 3, 4, 7, 10, 32])
def test_shards_make_up_the_batch_and_their_weighted_means_its_mean(
    monkeypatch: pytest.MonkeyPatch, world: int, size: int
) -> None:
    values = torch.arange(size).double() ** 2
    monkeypatch.setattr(distributed, "world_size", lambda: world)
    shards, mean = [], 0.0
    for rank in range(world):
        monkeypatch.setattr(distributed, "rank", lambda rank=rank: rank)
        shard = distributed.shard(torch.arange(size))
        shards.append(shard.tolist())
        mean += values[shard].mean().item() * distributed.shard_weight(torch.arange(size)) / world
    assert mean == pytest.approx(values.mean().item())
    if size >= 2 * world:
        assert [place for shard in shards for place in shard] == list(range(size))  # every image once
        assert min(map(len, shards)) >= 2
    else:
        assert shards == [list(range(size))] * world


@dataclass(eq=False)
class Plain(Method):
    """Softmax regression: without batch norm, two processes compute exactly what one does."""

    rehearsal = "none"
    seen: list[Tensor] = field(default_factory=list)
    """The labels that this process trained on."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.layer, self.idle = nn.Linear(12, 4), nn.Linear(3, 3)  # the second is not trained

    def logits(self, x: Tensor) -> Tensor:
        logits: Tensor = self.layer(x.flatten(1))
        return logits

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        self.seen.append(y)
        return F.cross_entropy(self.logits(x), y)


def train_plain() -> tuple[Plain, Fit]:
    pixels = torch.randint(256, (47, 3, 2, 2), generator=torch.Generator().manual_seed(0), dtype=torch.uint8)
    images = Images.of(pixels, torch.arange(47) % 4)
    torch.manual_seed(0)
    method, step = Plain(), Step(1, 0, 4, images)
    schedule = Schedule(epochs=3, batch_size=10, lr=0.1)
    fit = Fit(method, step, images, Memory(0), schedule, Augment(flip=True), Runtime(), (0, "step", 1))
    fit.train(images)
    return method, fit


def compare_with_one_process() -> None:
    shared, fit = train_plain()
    with distributed.local():
        single, _ = train_plain()
    for name, value in shared.state_dict().items():
        torch.testing.assert_close(value, single.state_dict()[name], rtol=1e-5, atol=1e-6)
    assert shared.idle.weight.grad is None  # and so it was not decayed
    counts = torch.tensor([len(labels) for labels in shared.seen])
    everything = distributed.all_reduce_sum(torch.bincount(torch.cat(shared.seen)))
    assert everything.tolist() == (3 * torch.bincount(fit.step.images.labels)).tolist()  # three epochs, each image once
    assert counts.tolist() == [5, 5, 5, 5, 4 if distributed.is_main() else 3] * 3
    rows = fit.map(fit.step.images, lambda x: x.flatten(1))
    assert rows.shape == (47, 12)
    sampled = distributed.all_reduce_sum(torch.tensor(sum(len(x) for x, _ in fit.sample(fit.step.images, 41, batch=4))))
    assert sampled == 41
    importance = fisher(shared, fit)
    with distributed.local():
        torch.testing.assert_close(importance, fisher(shared, fit), rtol=1e-5, atol=1e-7)
    check_whitening()
    check_features()


def check_features() -> None:
    """A frozen network computes the same bits, however many processes share the images."""
    torch.manual_seed(0)
    extractor = Extractor(EfficientNetLite(3), Augment((0.5,), (0.5,)), Runtime(threads=1), engine_installed())
    pixels = torch.randint(256, (150, 3, 32, 32), generator=torch.Generator().manual_seed(0), dtype=torch.uint8)
    together = extractor.extract(Images.of(pixels))
    with distributed.local():
        assert torch.equal(extractor.extract(Images.of(pixels)), together)


def engine_installed() -> Engine:
    return "onnxruntime" if all(map(available, ENGINES["onnxruntime"])) else "torch"


def check_whitening() -> None:
    """Whitening is fitted on the whole first batch, even if each process has only a shard of it."""
    pixels = torch.randn(9, 2, 6, 6, generator=torch.Generator().manual_seed(0))
    mine, whole = Whitening(2).train(), Whitening(2).train()
    mine(distributed.shard(pixels))
    with distributed.local():
        whole(pixels)
    torch.testing.assert_close(mine.axes.abs(), whole.axes.abs(), rtol=1e-4, atol=1e-5)  # an axis has no sign
    assert torch.equal(distributed.all_reduce_sum(mine.axes.clone()), 2 * mine.axes)


def fisher(method: Method, fit: Fit) -> Tensor:
    samples = fit.sample(fit.step.images, 41, batch=4)
    return mean_over_images(method, samples, drawn_log_likelihood, torch.square)["layer_weight"]


@pytest.mark.slow
def test_every_method_agrees_across_processes() -> None:
    """Equal weights and memory after every step, and the evaluation of one process: the contract of each method."""
    alike = ("ce", "ce+wa", "ce+kd")  # wa without some of its parts
    check_distributed([Trial(name, {}) for name in registry() if name not in alike])


def differ_after_learning() -> None:
    """Train a method that changes its weights differently on each process."""
    WA.after_update = lambda self: self.head.weight.data.add_(distributed.rank())  # type: ignore[assignment,method-assign]
    _learn_distributed([Trial("wa", {})])


def check_nobody_else_can_connect() -> None:
    """Check the sockets of this process: the system writes addresses as hexadecimal numbers, the last byte first."""
    own = {str(file.readlink()) for file in Path("/proc/self/fd").iterdir() if file.is_symlink()}
    rows = [line.split() for name in ("tcp", "tcp6") for line in Path(f"/proc/net/{name}").read_text().splitlines()[1:]]
    listening = {row[1].split(":")[0] for row in rows if row[3] == "0A" and f"socket:[{row[9]}]" in own}
    assert listening == {"0100007F"}, listening


def check_a_group(weights: Path) -> None:
    """Run these checks in the same two processes, because a group takes seconds to start; the last one must fail."""
    if sys.platform == "linux":
        check_nobody_else_can_connect()
    if HAS_GLIBC:
        check_freed_memory_is_reused()
    compare_with_one_process()
    check_sums_in_a_group()
    check_frozen_in_a_group(weights)
    differ_after_learning()


def test_two_processes_compute_what_one_does_and_the_contract_notices_if_they_differ(tmp_path: Path) -> None:
    pytest.importorskip("lightning_fabric")
    with pytest.raises(Exception, match="different weights after step 1"):
        run_in_group(partial(check_a_group, save_backbone(tmp_path)[0]))


# ---- starting and stopping


def start_with_torchrun(out: Path) -> list[subprocess.Popen[str]]:
    """Start a run on two nodes: two addresses of the loopback interface stand for two machines."""
    port = free_port()
    return [
        subprocess.Popen(
            [
                *(sys.executable, "-m", "torch.distributed.run", "--nnodes", "2", "--nproc-per-node", "1"),
                *("--rdzv-backend", "c10d", "--rdzv-endpoint", f"127.0.0.2:{port}", "--rdzv-id", port),
                *("--local-addr", address, "-m", "equipoise", *RUN, "--out", str(out)),
            ],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment(),
        )
        for address in ("127.0.0.2", "127.0.0.3")
    ]


def start_with_srun(out: Path) -> list[subprocess.Popen[str]]:
    """Start a run with the environment variables that SLURM gives to two tasks."""
    slurm = {
        "SLURM_JOB_ID": free_port()[-4:],
        "SLURM_STEP_NUM_TASKS": "2",
        "SLURM_STEP_NUM_NODES": "1",
        "SLURM_NTASKS": "2",
        "SLURM_NTASKS_PER_NODE": "2",
        "SLURM_NNODES": "1",
        "SLURM_NODELIST": "127.0.0.1",
        "SLURM_NODEID": "0",
        "SLURM_JOB_NAME": "learn",
    }
    return [
        subprocess.Popen(
            equipoise(*RUN, "--out", str(out)),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment(**slurm, SLURM_PROCID=str(rank), SLURM_LOCALID=str(rank)),
        )
        for rank in (0, 1)
    ]


def test_torchrun_and_srun_give_the_same_as_our_own_processes(tmp_path: Path, here: Callable[..., Ran]) -> None:
    ours = here(*RUN, "--devices", 2, "--out", tmp_path / "ours")
    assert (ours.code, ours.err) == (0, "")
    assert len(ours.out.splitlines()) == 3  # two steps and the summary, printed once
    for start in (start_with_torchrun, start_with_srun):
        out = tmp_path / start.__name__
        processes = start(out)
        outputs = [process.communicate(timeout=120) for process in processes]
        assert [process.returncode for process in processes] == [0, 0], outputs
        assert sorted(len(printed.splitlines()) for printed, _ in outputs) == [0, 3]  # only the main process prints
        assert same(final_state(out), final_state(tmp_path / "ours"))


def children(pid: int) -> list[int]:
    tasks = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [int(task) for task in tasks if b"spawn_main" in Path(f"/proc/{task}/cmdline").read_bytes()]


def start_and_wait(out: Path) -> subprocess.Popen[str]:
    """Start a long run in two processes; return when they have finished an epoch."""
    stages = out / "checkpoint/step/stages.json"
    before = stages.stat().st_mtime_ns if stages.exists() else None
    command = equipoise(*LONG, "--devices", "2", "--out", str(out))
    run = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment())
    deadline = time.monotonic() + 60
    while not stages.exists() or stages.stat().st_mtime_ns == before:
        assert time.monotonic() < deadline, "no epoch was finished in time"
        assert run.poll() is None, run.communicate()
        time.sleep(0.1)
    return run


def gone(pids: Sequence[int]) -> bool:
    deadline = time.monotonic() + 20
    while any(Path(f"/proc/{pid}").exists() for pid in pids):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.2)
    return True


def test_a_run_in_two_processes_is_killed_then_stopped_then_finished_in_one(
    tmp_path: Path, here: Callable[..., Ran]
) -> None:
    out = tmp_path / "run"
    run = start_and_wait(out)
    workers = children(run.pid)
    os.kill(workers[1], signal.SIGKILL)
    _, err = run.communicate(timeout=60)
    assert run.returncode == 2
    (sentence,) = err.splitlines()
    assert sentence.endswith("every finished epoch is saved; run the same command again to continue")
    assert gone(workers)

    run = start_and_wait(out)
    workers = children(run.pid)
    run.terminate()
    out_text, err = run.communicate(timeout=60)
    assert "continuing the run" in out_text
    assert run.returncode == 130
    assert err.strip().startswith("stopped; every finished epoch is saved")
    assert len(err.strip().splitlines()) == 2
    assert gone(workers)

    done = here(*LONG, "--out", out)
    assert done.code == 0, done.err
    assert "continuing the run" in done.out
    assert json.loads((out / "summary.json").read_text())["last"] > 50


def test_no_process_outlives_a_killed_command(tmp_path: Path) -> None:
    run = start_and_wait(tmp_path / "run")
    workers = children(run.pid)
    run.kill()
    run.communicate(timeout=60)
    assert gone(workers)


# ---- errors


@pytest.mark.parametrize(
    ("mistake", "sentence"),
    [
        (("cifar100", "--data-root", "nowhere"), "the data root nowhere is not a directory"),  # on rank 0
        (("digits", "--set", "train.lr=1e6"), "the loss became"),  # on all ranks
    ],
)
def test_an_error_is_reported_once(
    tmp_path: Path, mistake: tuple[str, ...], sentence: str, here: Callable[..., Ran]
) -> None:
    done = here("run", *mistake, "--threads", 1, "--devices", 2, "--out", tmp_path / "run")
    assert done.code == 2
    (line,) = done.err.splitlines()
    assert line.startswith(f"equipoise: {sentence}")


@pytest.mark.parametrize(
    ("runtime", "environment", "sentence"),
    [
        (Runtime(nodes=2), {}, "2 nodes need an address to connect"),
        (
            Runtime(devices=3),
            {"TORCHELASTIC_RUN_ID": "x", "LOCAL_WORLD_SIZE": "2", "WORLD_SIZE": "2", "RANK": "0"},
            "torchrun started 1 × 2 processes",
        ),
        (Runtime(), {"WORLD_SIZE": "4", "RANK": "1"}, "WORLD_SIZE is set, but torchrun did not"),
        (Runtime(), {"SLURM_STEP_NUM_TASKS": "3", "SLURM_STEP_NUM_NODES": "2"}, "3 tasks on 2 nodes"),
    ],
)
def test_process_groups_that_do_not_match_are_rejected(
    monkeypatch: pytest.MonkeyPatch, runtime: Runtime, environment: dict[str, str], sentence: str
) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(UsageError, match=sentence):
        process_layout(runtime)


TORCHRUN = {"TORCHELASTIC_RUN_ID": "x", "LOCAL_WORLD_SIZE": "2", "WORLD_SIZE": "4", "RANK": "0"}
SRUN = {"SLURM_STEP_NUM_TASKS": "2", "SLURM_STEP_NUM_NODES": "1", "SLURM_PROCID": "0"}
NODE = {"MASTER_ADDR": "x", "NODE_RANK": "1"}


@pytest.mark.parametrize(
    ("environment", "sentence"),
    [
        ({"TORCHELASTIC_RUN_ID": "x"}, "LOCAL_WORLD_SIZE is not set, but must be a whole number of at least 1"),
        (TORCHRUN | {"LOCAL_WORLD_SIZE": "0"}, "LOCAL_WORLD_SIZE is '0', but must be"),
        (TORCHRUN | {"WORLD_SIZE": "0"}, "WORLD_SIZE is '0', but must be"),
        (TORCHRUN | {"WORLD_SIZE": "3"}, "WORLD_SIZE is 3, not a multiple of LOCAL_WORLD_SIZE, which is 2"),
        (TORCHRUN | {"RANK": "-1"}, "RANK is '-1', but must be a whole number of at least 0"),
        (TORCHRUN | {"RANK": ""}, "RANK is '', but must be"),
        ({"SLURM_STEP_NUM_TASKS": "abc"}, "SLURM_STEP_NUM_TASKS is 'abc', but must be"),
        ({"SLURM_STEP_NUM_TASKS": "2"}, "SLURM_PROCID is not set, but must be a whole number of at least 0"),
        (SRUN | {"SLURM_STEP_NUM_NODES": "0"}, "SLURM_STEP_NUM_NODES is '0', but must be"),
        (SRUN | {"SLURM_PROCID": "9" * 5000}, "SLURM_PROCID is '9999"),
        ({"WORLD_SIZE": "abc"}, "WORLD_SIZE is 'abc', but must be"),
        (NODE | {"NODE_RANK": "abc"}, "NODE_RANK is 'abc', but must be"),
        (NODE | {"NODE_RANK": "\x1b"}, "NODE_RANK is '"),
    ],
    ids=str,
)
def test_environment_variables_that_are_no_numbers_are_named(
    monkeypatch: pytest.MonkeyPatch, environment: dict[str, str], sentence: str
) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert is_main_process()
    with pytest.raises(UsageError, match=sentence) as caught:
        process_layout(Runtime())
    assert str(caught.value).isprintable()
    assert re.search(": (start the command with|use torchrun, or unset|set it to|use --)", str(caught.value))


def test_the_environment_of_a_process_group_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    found = []
    for environment in (TORCHRUN, SRUN, NODE, {"SLURM_STEP_NUM_TASKS": "1"}, {"WORLD_SIZE": "", "NODE_RANK": "x"}):
        with monkeypatch.context() as patch:
            for name, value in environment.items():
                patch.setenv(name, value)
            found.append(launch_env())
    assert found == [
        LaunchEnv("torchrun", 2, 2, 0),
        LaunchEnv("srun", 2, 1, 0),
        LaunchEnv(rank=1),
        LaunchEnv(),
        LaunchEnv(),
    ]


def test_zero_processes_are_rejected() -> None:
    with pytest.raises(UsageError, match=r"runtime\.devices must be between 1 and .*, got 0"):
        Runtime(devices=0)


def reject_process_groups(method: WA, memory: Memory) -> None:
    """Stand in for the ``check`` of a method that works in one process only."""
    if distributed.world_size() > 1:
        raise UsageError("wa does not support several processes: use --devices 1")


def test_a_method_can_reject_process_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(WA, "check", reject_process_groups)
    Trial("wa", {}).experiment()
    monkeypatch.setattr(distributed, "world_size", lambda: 2)
    with pytest.raises(UsageError, match="wa does not support several processes: use --devices 1"):
        Trial("wa", {}).experiment()


def test_a_process_of_unknown_rank_reports_its_errors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "4")
    assert is_main_process()


def test_children_of_the_caller_are_left_alone() -> None:
    child = multiprocessing.get_context("spawn").Process(target=time.sleep, args=(60,))
    child.start()
    try:
        _end_children(multiprocessing.active_children())
        assert child.is_alive()
        _end_children([])
        assert not child.is_alive()
    finally:
        child.kill()
