"""Trackers: what the real packages write is read by other means and compared with metrics.jsonl. Nothing is sent."""

from __future__ import annotations

import json
import shutil
import struct
import subprocess
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from equipoise.core.config import flatten
from equipoise.errors import UsageError
from equipoise.study.console import ListenerGroup
from equipoise.study.tracker_backends import BACKENDS, MLflow, TrackedRun, TrackerBackend, WandB
from equipoise.study.trackers import Tracker, make_trackers
from tests.conftest import Quick, Ran
from tests.runs import Stop, timeless

# mlflow, of sqlalchemy 2.1
pytestmark = pytest.mark.filterwarnings("ignore:The ``noload`` loader strategy:DeprecationWarning")

STEPS, EPOCHS = 2, 2
WITHIN_STEP_2 = 70
"""Batches until the run is in step 2, after one of its epochs."""


@pytest.fixture(scope="module", autouse=True)
def _offline() -> Iterator[None]:
    """Send nothing, and leave no process behind."""
    with pytest.MonkeyPatch.context() as patch:
        for name in ("WANDB_API_KEY", "MLFLOW_TRACKING_URI", "MLFLOW_EXPERIMENT_NAME"):
            patch.delenv(name, raising=False)
        patch.setenv("WANDB_MODE", "offline")
        patch.setenv("WANDB_ERROR_REPORTING", "false")
        patch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")
        patch.setenv("MLFLOW_LOGGING_LEVEL", "WARNING")
        yield
    if "wandb" in sys.modules:
        sys.modules["wandb"].teardown()


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a database of MLflow for several tests: creating one takes seconds."""
    pytest.importorskip("mlflow")
    folder = tmp_path_factory.mktemp("mlflow") / "50%20 of what?#"
    folder.mkdir()
    (folder / "draft.db").write_text("left by an interrupted process")
    MLflow(TrackedRun("another", {}, folder, None)).finish(complete=True)
    return folder / "mlflow.db"


@pytest.fixture
def directory(name: str, tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    """Return where to store a run that is tracked by ``name``."""
    if name == "mlflow":
        folder = tmp_path / "tracked" / "tracking" / "mlflow"
        folder.mkdir(parents=True)
        shutil.copy(request.getfixturevalue("database"), folder)
    return tmp_path / "tracked"


@dataclass
class Tracked:
    """What a tracker received."""

    points: dict[str, list[tuple[int, float]]] = field(default_factory=lambda: defaultdict(list))
    settings: dict[str, Any] = field(default_factory=dict)
    runs: set[str] = field(default_factory=set)


def read_tensorboard(directory: Path) -> Tracked:
    event_pb2 = pytest.importorskip("tensorboardX.proto.event_pb2")
    hparams_pb2 = pytest.importorskip("tensorboardX.proto.plugin_hparams_pb2")
    tracked = Tracked(runs={"the only one"})
    for file in sorted((directory / "tracking" / "tensorboard").iterdir()):
        data = file.read_bytes()
        while data:  # a TFRecord: length, its checksum, the event, its checksum
            (length,) = struct.unpack("<Q", data[:8])
            event = event_pb2.Event.FromString(data[12 : 12 + length])
            data = data[16 + length :]
            for value in event.summary.value:
                if value.WhichOneof("value") == "simple_value":
                    tracked.points[value.tag].append((event.step, value.simple_value))
                elif value.tag == "_hparams_/session_start_info":
                    content = hparams_pb2.HParamsPluginData.FromString(value.metadata.plugin_data.content)
                    assert not tracked.settings
                    for name, setting in content.session_start_info.hparams.items():
                        tracked.settings[name] = getattr(setting, setting.WhichOneof("kind"))
    return tracked


def read_wandb(directory: Path) -> Tracked:
    internal_pb2 = pytest.importorskip("wandb.proto.wandb_internal_pb2")
    pytest.importorskip("wandb").teardown()  # its service writes the file a little after a run has finished
    tracked, moment = Tracked(), 0
    for file in sorted((directory / "tracking" / "wandb").glob("offline-run-*/*.wandb"), key=lambda file: file.parent):
        tracked.runs.add(file.stem)
        for data in _leveldb_records(file.read_bytes()):
            record = internal_pb2.Record.FromString(data)
            for update in record.run.config.update:
                tracked.settings[update.key or update.nested_key[0]] = json.loads(update.value_json)
            logged = {item.key or item.nested_key[0]: json.loads(item.value_json) for item in record.history.item}
            if logged:
                assert record.history.step.num > moment  # or `wandb sync` would drop it
                moment = record.history.step.num
                axis = "epoch" if "epoch" in logged else "step"
                for name in logged.keys() - {axis} - {key for key in logged if key.startswith("_")}:
                    tracked.points[name].append((logged[axis], logged[name]))
    return tracked


def _leveldb_records(data: bytes) -> Iterator[bytes]:
    """LevelDB's log format: after 7 bytes of header, chunks (checksum, length, kind) in blocks of 32 KB."""
    at, parts = 7, b""
    while at + 7 <= len(data):
        if (left := 2**15 - at % 2**15) < 7:
            at += left
            continue
        length, kind = struct.unpack("<HB", data[at + 4 : at + 7])
        parts += data[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):  # whole, or the last part
            yield parts
            parts = b""


def read_mlflow(directory: Path, uri: str | None = None) -> Tracked:
    client = pytest.importorskip("mlflow").MlflowClient(uri or f"sqlite:///{directory}/tracking/mlflow/mlflow.db")
    experiment = client.get_experiment_by_name("equipoise")
    tracked = Tracked()
    for run in client.search_runs([experiment.experiment_id], "attributes.run_name = 'digits-wa-seed0'"):
        tracked.runs.add(run.info.run_id)
        assert run.info.status == "FINISHED"
        tracked.settings |= run.data.params
        for name in run.data.metrics:
            history = client.get_metric_history(run.info.run_id, name)
            tracked.points[name] += [(metric.step, metric.value) for metric in history]
    return tracked


READERS = {"tensorboard": read_tensorboard, "wandb": read_wandb, "mlflow": read_mlflow}


@pytest.fixture(params=READERS)
def name(request: pytest.FixtureRequest) -> str:
    for package in BACKENDS[request.param].packages:
        pytest.importorskip(package, reason=f"{package} is not installed: pip install 'equipoise[track]'")
    return str(request.param)


def results_of(directory: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (directory / "metrics.jsonl").read_text().splitlines()]


def is_number(value: object) -> bool:
    return isinstance(value, int | float)


def assert_points(tracked: Tracked, figure: str, wanted: dict[int, float]) -> None:
    assert sorted(at for at, _ in tracked.points.get(figure, [])) == sorted(wanted), figure
    assert dict(tracked.points.get(figure, [])) == pytest.approx(wanted), figure


def assert_complete(tracked: Tracked, directory: Path) -> None:
    """Check that every figure of every step, the summary and the loss of every epoch arrived once."""
    rows = [flatten(row) for row in results_of(directory)]
    wanted = "accuracy accuracy_top5 gamma errors.e_n errors_uncorrected.e_on norms_old exemplars seconds"
    wanted += " summary/last summary/last_top5 summary/average_top5_without_first"
    assert set(wanted.split()) <= tracked.points.keys()
    for figure in {key for row in rows for key in row} - {"step"}:
        assert_points(tracked, figure, {row["step"]: row[figure] for row in rows if is_number(row.get(figure))})
    for figure, value in json.loads((directory / "summary.json").read_text()).items():
        assert_points(tracked, f"summary/{figure}", {STEPS: value})
    for figure in ("loss/train", "lr/train"):
        assert sorted(at for at, _ in tracked.points[figure]) == list(range(1, STEPS * EPOCHS + 1))


def test_a_tracker_has_what_metrics_jsonl_has(
    name: str, directory: Path, quick: Quick, capsys: pytest.CaptureFixture[str]
) -> None:
    plain = quick(steps=STEPS).directory
    quick(steps=STEPS, out=directory, listener=Tracker(name))
    assert capsys.readouterr().err == ""
    tracked = READERS[name](directory)
    assert_complete(tracked, directory)
    settings = json.loads((directory / "config.json").read_text())["settings"]
    assert float(tracked.settings["train.lr"]) == settings["train"]["lr"]
    assert tracked.settings["method"] == "wa"
    assert timeless(directory) == timeless(plain)
    assert {file.name for file in directory.iterdir()} - {file.name for file in plain.iterdir()} == {"tracking"}


def test_an_interrupted_run_is_continued_in_the_tracker(name: str, directory: Path, quick: Quick) -> None:
    first = ListenerGroup(Tracker(name), Stop(WITHIN_STEP_2))
    with pytest.raises(KeyboardInterrupt):
        quick(steps=STEPS, out=directory, listener=first)
    first.close()
    assert len(results_of(directory)) == 1
    quick(steps=STEPS, out=directory, listener=Tracker(name))
    quick(steps=STEPS, out=directory, listener=Tracker(name))  # it is finished: nothing is sent
    tracked = READERS[name](directory)
    assert len(tracked.runs) == 1
    assert_complete(tracked, directory)


def test_steps_learned_without_a_tracker_are_sent_later(quick: Quick, tmp_path: Path) -> None:
    pytest.importorskip("tensorboardX")
    with pytest.raises(KeyboardInterrupt):
        quick(steps=STEPS, out=tmp_path / "run", listener=Stop(WITHIN_STEP_2))
    quick(steps=STEPS, out=tmp_path / "run", listener=Tracker("tensorboard"))
    tracked = read_tensorboard(tmp_path / "run")
    assert [at for at, _ in tracked.points["accuracy"]] == [1, 2]
    assert [at for at, _ in tracked.points["loss/train"]] == [STEPS * EPOCHS]  # other losses are in no file


def test_mlflow_uses_its_own_environment_variable(
    quick: Quick, database: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copy(database, tmp_path / "elsewhere.db")
    uri = f"sqlite:///{tmp_path}/elsewhere.db"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    result = quick(steps=STEPS, listener=Tracker("mlflow"))
    assert_complete(read_mlflow(result.directory, uri), result.directory)
    assert not list((result.directory / "tracking" / "mlflow").iterdir())


@pytest.mark.parametrize(
    ("environment", "where"),
    [
        ({}, "offline"),
        ({"WANDB_API_KEY": "x"}, "online"),
        ({"WANDB_API_KEY": "x", "WANDB_MODE": "offline"}, "offline"),
        ({"WANDB_MODE": "online"}, "online"),
    ],
)
def test_wandb_is_offline_by_default(
    environment: Mapping[str, str], where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("WANDB_MODE")
    for key, value in environment.items():
        monkeypatch.setenv(key, value)
    assert WandB.where() == where
    assert MLflow.where() == "here"


class Broken(TrackerBackend):
    """Fails at the operation that ``broken`` names."""

    packages = ()
    broken = ""
    opened = 0

    def __init__(self, run: TrackedRun) -> None:
        Broken.opened += 1
        self.id, self.calls = "x", 0
        self.maybe_fail("open")

    def maybe_fail(self, operation: str) -> None:
        if operation == self.broken:
            raise OSError("the disk\nis full")

    def log(self, axis: str, at: int, moment: int, figures: Mapping[str, float]) -> None:
        self.maybe_fail(axis)

    def finish(self, complete: bool) -> None:
        self.maybe_fail("finish")


@pytest.mark.parametrize("operation", ["open", "epoch", "step", "finish"])
def test_a_tracker_that_fails_gives_one_warning_and_the_run_continues(
    operation: str, quick: Quick, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(BACKENDS, "broken", Broken)
    monkeypatch.setattr(Broken, "broken", operation)
    monkeypatch.setattr(Broken, "opened", 0)
    tracker = Tracker("broken")
    assert len(quick(steps=STEPS, listener=tracker).steps) == STEPS
    assert len(quick(steps=STEPS, listener=tracker).steps) == STEPS  # another run of a comparison: not tried again
    tracker.close()
    assert Broken.opened == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("equipoise: tracking with broken stopped (the disk is full): the run continues")


def test_a_damaged_state_file_does_not_end_a_run(quick: Quick, tmp_path: Path) -> None:
    (tmp_path / "run" / "tracking").mkdir(parents=True)
    (tmp_path / "run" / "tracking" / "tensorboard.json").write_text("{")
    assert len(quick(steps=STEPS, out=tmp_path / "run", listener=Tracker("tensorboard")).steps) == STEPS


def test_a_link_in_place_of_the_state_file_is_not_followed(
    quick: Quick, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    outside = tmp_path / "outside.json"
    outside.write_text("{}")
    (tmp_path / "run" / "tracking").mkdir(parents=True)
    (tmp_path / "run" / "tracking" / "tensorboard.json").symlink_to(outside)
    assert len(quick(steps=STEPS, out=tmp_path / "run", listener=Tracker("tensorboard")).steps) == STEPS
    assert "is a symbolic link" in capsys.readouterr().err
    assert outside.read_text() == "{}"


@pytest.mark.parametrize(
    ("track", "missing", "message"),
    [
        ("tensorbord", None, "unknown tracker 'tensorbord': did you mean 'tensorboard'?"),
        ("wandb", "wandb", "tracking with wandb needs the package wandb: pip install 'equipoise[track]'"),
        ("mlflow", "alembic", "tracking with mlflow needs the package alembic: pip install 'equipoise[track]'"),
    ],
)
def test_errors_are_reported_before_training(
    track: str, missing: str | None, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for package in ("mlflow", "sqlalchemy", "wandb"):
        pytest.importorskip(package)
    if missing:
        monkeypatch.setitem(sys.modules, missing, None)
    with pytest.raises(UsageError) as caught:
        make_trackers(track)
    assert message in str(caught.value)


def test_the_command_line_checks_trackers_before_training(cli: Callable[..., Ran], tmp_path: Path) -> None:
    ran = cli("run", "digits", "--track", "tensorbord", "--out", tmp_path / "run")
    assert ran.code == 2
    assert "unknown tracker 'tensorbord'" in ran.err
    assert not (tmp_path / "run").exists()


def test_the_command_line_takes_a_list_of_trackers(cli: Callable[..., Ran], tmp_path: Path) -> None:
    pytest.importorskip("tensorboardX")
    command = "run digits --steps 2 --epochs 1 --threads 1 --json --track tensorboard, --out"
    ran = cli(*command.split(), tmp_path / "run")
    assert ran.err == ""
    assert len(ran.out.splitlines()) == STEPS + 1
    assert [at for at, _ in read_tensorboard(tmp_path / "run").points["accuracy"]] == [1, 2]


def test_packages_are_imported_only_for_a_run() -> None:
    code = (
        "import sys\nfrom equipoise.study.trackers import make_trackers, BACKENDS\n"
        "assert make_trackers('') == []\n"
        "try: make_trackers(','.join(BACKENDS))\nexcept Exception as error: assert 'equipoise[track]' in str(error)\n"
        "sys.exit(any(package in sys.modules for kind in BACKENDS.values() for package in kind.packages))"
    )
    assert subprocess.run([sys.executable, "-c", code], timeout=60).returncode == 0
