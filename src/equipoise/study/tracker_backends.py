"""Experiment trackers that runs can report to. A tracker's package is imported only when a run uses it."""

from __future__ import annotations

import os
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar
from uuid import uuid4

from equipoise.core.directory import Directory
from equipoise.engine.metrics import METRICS


@dataclass(frozen=True)
class TrackedRun:
    """Facts about a run that a tracker gets when it starts or continues."""

    name: str
    settings: dict[str, Any]
    """Flat, such as ``train.lr``."""
    folder: Path
    """For the tracker's own files."""
    id: str | None
    """The tracker's name for the run; None for a new one."""


class TrackerBackend(ABC):
    """A connection to one tracker for one run."""

    packages: ClassVar[tuple[str, ...]]
    id: str

    @abstractmethod
    def __init__(self, run: TrackedRun) -> None: ...

    @staticmethod
    def where() -> str:
        """Return the destination; a run can only be continued in the same one."""
        return "here"

    @abstractmethod
    def log(self, axis: str, at: int, moment: int, figures: Mapping[str, float]) -> None:
        """Log metrics of step or epoch (``axis``) number ``at``; ``moment`` counts all calls of a run."""

    @abstractmethod
    def finish(self, complete: bool) -> None:
        """Close the connection; ``complete`` tells whether the run is finished or was interrupted."""


class TensorBoard(TrackerBackend):
    packages = ("tensorboardX",)

    def __init__(self, run: TrackedRun) -> None:
        # the plain writer: SummaryWriter has a thread, and waits forever if a full disk has killed it
        from tensorboardX.event_file_writer import EventsWriter
        from tensorboardX.summary import hparams

        # files are named by the second, and an existing one would be overwritten
        self.writer = EventsWriter(str(run.folder / "events"), filename_suffix=f".{uuid4().hex[:8]}")
        self.id = run.id or run.name
        steps = [metric.accuracy for metric in METRICS.values()]
        summary = [f"summary/{metric.average_without_first}" for metric in METRICS.values()]
        experiment, begin, self.end = hparams(run.settings, dict.fromkeys([*steps, *summary], 0))
        if run.id is None:
            self._write(experiment)
            self._write(begin)

    def _write(self, summary: Any, at: int = 0) -> None:
        from tensorboardX.proto.event_pb2 import Event

        self.writer.write_event(Event(wall_time=time.time(), step=at, summary=summary))
        self.writer.flush()

    def log(self, axis: str, at: int, moment: int, figures: Mapping[str, float]) -> None:
        from tensorboardX.proto.summary_pb2 import Summary

        self._write(Summary(value=[Summary.Value(tag=tag, simple_value=value) for tag, value in figures.items()]), at)

    def finish(self, complete: bool) -> None:
        if complete:
            self._write(self.end)
        self.writer.close()


class WandB(TrackerBackend):
    packages = ("wandb",)

    @staticmethod
    def where() -> str:
        return os.environ.get("WANDB_MODE") or ("online" if os.environ.get("WANDB_API_KEY") else "offline")

    def __init__(self, run: TrackedRun) -> None:
        offline = self.where() == "offline"
        if offline:
            os.environ.setdefault("WANDB_ERROR_REPORTING", "false")  # offline must mean that nothing is sent
            # by default the file is written every 15 s, which a killed run would lose
            os.environ.setdefault("WANDB_X_TRANSACTION_LOG_FLUSH_INTERVAL", "1")
        import wandb

        self.id = run.id or uuid4().hex[:12]
        self.run = wandb.init(
            id=self.id,
            resume="allow",
            project=os.environ.get("WANDB_PROJECT") or "equipoise",
            name=run.name,
            config=run.settings,
            dir=run.folder.parent,  # wandb adds the folder "wandb" itself
            mode="offline" if offline else None,
            settings=wandb.Settings(console="off", silent=offline),
        )
        self.axes: dict[str, str] = {}

    def log(self, axis: str, at: int, moment: int, figures: Mapping[str, float]) -> None:
        for name in figures.keys() - self.axes.keys():
            self.axes[name] = axis
            self.run.define_metric(name, step_metric=axis)
        # with our own step numbers, `wandb sync` joins the parts of an interrupted run
        self.run.log({axis: at, **figures}, step=moment, commit=True)

    def finish(self, complete: bool) -> None:
        self.run.finish(exit_code=0 if complete else 1)


class MLflow(TrackerBackend):
    packages = ("mlflow", "sqlalchemy", "alembic")  # mlflow-skinny lacks what its SQLite store needs

    @staticmethod
    def where() -> str:
        return os.environ.get("MLFLOW_TRACKING_URI") or "here"

    def __init__(self, run: TrackedRun) -> None:
        uri, artifacts = self.where(), None
        if uri == "here":
            os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")  # a local store must mean that nothing is sent
            os.environ.setdefault("MLFLOW_LOGGING_LEVEL", "WARNING")  # or it logs its tables between ours
            folder = run.folder.resolve()
            uri, artifacts = _database(folder), (folder / "artifacts").as_uri()
        from mlflow import MlflowClient
        from mlflow.entities import Param

        self.client = MlflowClient(uri)
        if run.id is not None:
            self.id = run.id
            self.client.update_run(self.id, status="RUNNING")
            return
        name = os.environ.get("MLFLOW_EXPERIMENT_NAME") or "equipoise"
        known = self.client.get_experiment_by_name(name)
        experiment = known.experiment_id if known else self.client.create_experiment(name, artifacts)
        self.id = self.client.create_run(experiment, run_name=run.name).info.run_id
        params = [Param(name, str(value)[:500]) for name, value in run.settings.items()]  # MLflow rejects longer ones
        self.client.log_batch(self.id, params=params)

    def log(self, axis: str, at: int, moment: int, figures: Mapping[str, float]) -> None:
        from mlflow.entities import Metric

        now = round(time.time() * 1000)
        self.client.log_batch(self.id, [Metric(name, value, now, at) for name, value in figures.items()])

    def finish(self, complete: bool) -> None:
        self.client.set_terminated(self.id, "FINISHED" if complete else "KILLED")


def _database(folder: Path) -> str:
    """Return the URI of a SQLite file. It is created under another name: MLflow cannot open one that is incomplete."""
    from mlflow import MlflowClient

    def uri(file: Path) -> str:
        return "sqlite:///" + str(file).translate({ord(sign): f"%{ord(sign):X}" for sign in "%?#"})

    file, draft = folder / "mlflow.db", folder / "draft.db"
    Directory(folder).check_owned({file.name: "file"})
    if not file.exists():
        draft.unlink(missing_ok=True)
        MlflowClient(uri(draft))
        draft.replace(file)
    return uri(file)


BACKENDS: dict[str, type[TrackerBackend]] = {"tensorboard": TensorBoard, "wandb": WandB, "mlflow": MLflow}
