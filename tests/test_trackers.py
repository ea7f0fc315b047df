"""Trackers: what the real packages wrote, read back by other means and held against metrics.jsonl. Nothing is sent."""

from __future__ import annotations

import json
import shutil
import struct
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from equipoise.cli import main
from equipoise.core.config import flatten
from equipoise.engine.progress import ListenerGroup
from equipoise.study.tracker_backends import SERVICES, MLflow, Run, Service, WandB
from equipoise.study.trackers import Tracker
from tests.conftest import Quick
from tests.test_run import Stop, timeless

# mlflow, of sqlalchemy 2.1
pytestmark = pytest.mark.filterwarnings("ignore:The ``noload`` loader strategy:DeprecationWarning")

STEPS, EPOCHS = 2, 2
WITHIN_STEP_2 = 70
"""Batches until the run is amid step 2, one epoch of it done."""


@pytest.fixture(scope="module", autouse=True)
def _offline() -> Iterator[None]:
    """Nothing is sent, and no process is left."""
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
    """One of MLflow's, for several tests: to make it takes seconds."""
    pytest.importorskip("mlflow")
    folder = tmp_path_factory.mktemp("mlflow") / "50%20 of what?#"
    folder.mkdir()
    (folder / "draft.db").write_text("its making was cut short")
    MLflow(Run("another", {}, folder, None)).finish(whole=True)
    return folder / "mlflow.db"


@pytest.fixture
def directory(name: str, tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    """Where a run goes that is told to ``name``."""
    if name == "mlflow":
        folder = tmp_path / "told" / "tracking" / "mlflow"
        folder.mkdir(parents=True)
        shutil.copy(request.getfixturevalue("database"), folder)
    return tmp_path / "told"


@dataclass
class Heard:
    """What a service was told, whoever it is."""

    points: dict[str, list[tuple[int, float]]] = field(default_factory=lambda: defaultdict(list))
    settings: dict[str, Any] = field(default_factory=dict)
    runs: set[str] = field(default_factory=set)


def hear_tensorboard(directory: Path) -> Heard:
    event_pb2 = pytest.importorskip("tensorboardX.proto.event_pb2")
    hparams_pb2 = pytest.importorskip("tensorboardX.proto.plugin_hparams_pb2")
    heard = Heard(runs={"the only one"})
    for file in sorted((directory / "tracking" / "tensorboard").iterdir()):
        data = file.read_bytes()
        while data:  # a TFRecord: length, its checksum, the event, its checksum
            (length,) = struct.unpack("<Q", data[:8])
            event = event_pb2.Event.FromString(data[12 : 12 + length])
            data = data[16 + length :]
            for value in event.summary.value:
                if value.WhichOneof("value") == "simple_value":
                    heard.points[value.tag].append((event.step, value.simple_value))
                elif value.tag == "_hparams_/session_start_info":
                    content = hparams_pb2.HParamsPluginData.FromString(value.metadata.plugin_data.content)
                    assert not heard.settings
                    for name, setting in content.session_start_info.hparams.items():
                        heard.settings[name] = getattr(setting, setting.WhichOneof("kind"))
    return heard


def hear_wandb(directory: Path) -> Heard:
    internal_pb2 = pytest.importorskip("wandb.proto.wandb_internal_pb2")
    pytest.importorskip("wandb").teardown()  # its service writes the file a little after a run has finished
    heard, moment = Heard(), 0
    for file in sorted((directory / "tracking" / "wandb").glob("offline-run-*/*.wandb"), key=lambda file: file.parent):
        heard.runs.add(file.stem)
        for data in _leveldb_records(file.read_bytes()):
            record = internal_pb2.Record.FromString(data)
            for update in record.run.config.update:
                heard.settings[update.key or update.nested_key[0]] = json.loads(update.value_json)
            told = {item.key or item.nested_key[0]: json.loads(item.value_json) for item in record.history.item}
            if told:
                assert record.history.step.num > moment  # or `wandb sync` would drop it
                moment = record.history.step.num
                axis = "epoch" if "epoch" in told else "step"
                for name in told.keys() - {axis} - {key for key in told if key.startswith("_")}:
                    heard.points[name].append((told[axis], told[name]))
    return heard


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


def hear_mlflow(directory: Path, uri: str | None = None) -> Heard:
    client = pytest.importorskip("mlflow").MlflowClient(uri or f"sqlite:///{directory}/tracking/mlflow/mlflow.db")
    experiment = client.get_experiment_by_name("equipoise")
    heard = Heard()
    for run in client.search_runs([experiment.experiment_id], "attributes.run_name = 'digits-wa-seed0'"):
        heard.runs.add(run.info.run_id)
        assert run.info.status == "FINISHED"
        heard.settings |= run.data.params
        for name in run.data.metrics:
            history = client.get_metric_history(run.info.run_id, name)
            heard.points[name] += [(metric.step, metric.value) for metric in history]
    return heard


HEAR = {"tensorboard": hear_tensorboard, "wandb": hear_wandb, "mlflow": hear_mlflow}


@pytest.fixture(params=HEAR)
def name(request: pytest.FixtureRequest) -> str:
    for package in SERVICES[request.param].packages:
        pytest.importorskip(package, reason=f"{package} is not here: pip install 'equipoise[track]'")
    return str(request.param)


def rows_of(directory: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (directory / "metrics.jsonl").read_text().splitlines()]


def is_number(value: object) -> bool:
    return isinstance(value, int | float)


def assert_points(heard: Heard, figure: str, wanted: dict[int, float]) -> None:
    assert sorted(at for at, _ in heard.points.get(figure, [])) == sorted(wanted), figure
    assert dict(heard.points.get(figure, [])) == pytest.approx(wanted), figure


def assert_told_all_once(heard: Heard, directory: Path) -> None:
    """Every figure of every step, the summary, and the loss of every epoch, each at its place and once."""
    rows = [flatten(row) for row in rows_of(directory)]
    wanted = "top1 top5 top1_uncorrected gamma e_n e_on e_oo norms_old norms_new exemplars seconds images_per_second"
    assert set(wanted.split()) <= heard.points.keys()
    for figure in {key for row in rows for key in row} - {"step"}:
        assert_points(heard, figure, {row["step"]: row[figure] for row in rows if is_number(row.get(figure))})
    for figure, value in json.loads((directory / "summary.json").read_text()).items():
        assert_points(heard, f"summary/{figure}", {STEPS: value})
    for figure in ("loss/train", "lr/train"):
        assert sorted(at for at, _ in heard.points[figure]) == list(range(1, STEPS * EPOCHS + 1))


def test_a_service_has_what_metrics_jsonl_has(
    name: str, directory: Path, quick: Quick, capsys: pytest.CaptureFixture[str]
) -> None:
    plain = quick(steps=STEPS).directory
    quick(steps=STEPS, out=directory, reporter=Tracker(name))
    assert capsys.readouterr().err == ""
    heard = HEAR[name](directory)
    assert_told_all_once(heard, directory)
    settings = json.loads((directory / "config.json").read_text())["settings"]
    assert float(heard.settings["train.lr"]) == settings["train"]["lr"]
    assert heard.settings["method"] == "wa"
    assert timeless(directory) == timeless(plain)
    assert {file.name for file in directory.iterdir()} - {file.name for file in plain.iterdir()} == {"tracking"}


def test_a_run_that_stopped_is_told_on(name: str, directory: Path, quick: Quick) -> None:
    first = ListenerGroup(Tracker(name), Stop(WITHIN_STEP_2))
    with pytest.raises(KeyboardInterrupt):
        quick(steps=STEPS, out=directory, reporter=first)
    first.close()
    assert len(rows_of(directory)) == 1
    quick(steps=STEPS, out=directory, reporter=Tracker(name))
    quick(steps=STEPS, out=directory, reporter=Tracker(name))  # it is done: nothing is told
    heard = HEAR[name](directory)
    assert len(heard.runs) == 1
    assert_told_all_once(heard, directory)


def test_what_was_learned_without_a_tracker_is_told_later(quick: Quick, tmp_path: Path) -> None:
    pytest.importorskip("tensorboardX")
    with pytest.raises(KeyboardInterrupt):
        quick(steps=STEPS, out=tmp_path / "run", reporter=Stop(WITHIN_STEP_2))
    quick(steps=STEPS, out=tmp_path / "run", reporter=Tracker("tensorboard"))
    heard = hear_tensorboard(tmp_path / "run")
    assert [at for at, _ in heard.points["top1"]] == [1, 2]
    assert [at for at, _ in heard.points["loss/train"]] == [STEPS * EPOCHS]  # the others are in no file


def test_mlflow_goes_where_its_own_variable_says(
    quick: Quick, database: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copy(database, tmp_path / "elsewhere.db")
    uri = f"sqlite:///{tmp_path}/elsewhere.db"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    result = quick(steps=STEPS, reporter=Tracker("mlflow"))
    assert_told_all_once(hear_mlflow(result.directory, uri), result.directory)
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
def test_wandb_is_offline_unless_told(
    environment: Mapping[str, str], where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("WANDB_MODE")
    for key, value in environment.items():
        monkeypatch.setenv(key, value)
    assert WandB.where() == where
    assert MLflow.where() == "here"


class Broken(Service):
    """Fails when it is asked to do what ``broken`` says."""

    packages = ()
    broken = ""
    opened = 0

    def __init__(self, run: Run) -> None:
        Broken.opened += 1
        self.id, self.calls = "x", 0
        self.maybe("open")

    def maybe(self, what: str) -> None:
        if what == self.broken:
            raise OSError("the disk\nis full")

    def log(self, axis: str, at: int, moment: int, figures: Mapping[str, float]) -> None:
        self.maybe(axis)

    def finish(self, whole: bool) -> None:
        self.maybe("finish")


@pytest.mark.parametrize("what", ["open", "epoch", "step", "finish"])
def test_a_tracker_that_fails_is_one_warning_and_the_run_goes_on(
    what: str, quick: Quick, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(SERVICES, "broken", Broken)
    monkeypatch.setattr(Broken, "broken", what)
    monkeypatch.setattr(Broken, "opened", 0)
    tracker = Tracker("broken")
    assert len(quick(steps=STEPS, reporter=tracker).rows) == STEPS
    assert len(quick(steps=STEPS, reporter=tracker).rows) == STEPS  # another run of a comparison: it is not tried again
    tracker.close()
    assert Broken.opened == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("equipoise: tracking with broken has stopped (the disk is full): the run goes on")


def test_a_damaged_note_of_what_was_told_does_not_end_a_run(quick: Quick, tmp_path: Path) -> None:
    (tmp_path / "run" / "tracking").mkdir(parents=True)
    (tmp_path / "run" / "tracking" / "tensorboard.json").write_text("{")
    assert len(quick(steps=STEPS, out=tmp_path / "run", reporter=Tracker("tensorboard")).rows) == STEPS


@pytest.mark.parametrize(
    ("track", "missing", "message"),
    [
        ("tensorbord", None, "there is no tracker 'tensorbord': did you mean 'tensorboard'?"),
        ("wandb", "wandb", "tracking with wandb needs the package wandb: pip install 'equipoise[track]'"),
        ("mlflow", "alembic", "tracking with mlflow needs the package alembic: pip install 'equipoise[track]'"),
    ],
)
def test_a_mistake_is_told_before_training(
    track: str,
    missing: str | None,
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    for package in ("mlflow", "sqlalchemy", "wandb"):
        pytest.importorskip(package)
    if missing:
        monkeypatch.setitem(sys.modules, missing, None)
    with pytest.raises(SystemExit) as exit_:
        main(["run", "digits", "--track", track, "--out", str(tmp_path / "run")])
    assert exit_.value.code == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


def test_the_command_line_tells_a_list_of_trackers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("tensorboardX")
    out = tmp_path / "run"
    command = "run digits --steps 2 --epochs 1 --threads 1 --json --track tensorboard, --out"
    with pytest.raises(SystemExit):
        main([*command.split(), str(out)])
    captured = capsys.readouterr()
    assert captured.err == ""
    assert len(captured.out.splitlines()) == STEPS + 1
    assert [at for at, _ in hear_tensorboard(out).points["top1"]] == [1, 2]


def test_packages_are_imported_only_for_a_run() -> None:
    code = (
        "import sys\nfrom equipoise.study.trackers import make_trackers, SERVICES\n"
        "assert make_trackers('') == []\n"
        "try: make_trackers(','.join(SERVICES))\nexcept Exception as error: assert 'equipoise[track]' in str(error)\n"
        "sys.exit(any(package in sys.modules for kind in SERVICES.values() for package in kind.packages))"
    )
    assert subprocess.run([sys.executable, "-c", code], timeout=60).returncode == 0
