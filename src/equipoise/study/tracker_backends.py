"""Where a tracker's figures go: one small adapter a service, its package imported only when a run is told to it."""

from __future__ import annotations

import os
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar
from uuid import uuid4


@dataclass(frozen=True)
class Run:
    """What a service is told of a run when it starts or goes on."""

    name: str
    settings: dict[str, Any]
    """All in one layer, as ``train.lr``."""
    folder: Path
    """For the service's own files."""
    id: str | None
    """What the service called the run when it began; None for a new one."""


class Service(ABC):
    """Where figures go: ``at`` counts steps or epochs, as ``axis`` says; ``moment`` counts all calls of a run."""

    packages: ClassVar[tuple[str, ...]]
    id: str

    @abstractmethod
    def __init__(self, run: Run) -> None: ...

    @staticmethod
    def where() -> str:
        """What must not change if a run is to go on there."""
        return "here"

    @abstractmethod
    def log(self, axis: str, at: int, moment: int, figures: Mapping[str, float]) -> None: ...

    @abstractmethod
    def finish(self, whole: bool) -> None: ...


class TensorBoard(Service):
    packages = ("tensorboardX",)

    def __init__(self, run: Run) -> None:
        # the plain writer: SummaryWriter has a thread, and waits for ever when that has died of a full disk
        from tensorboardX.event_file_writer import EventsWriter
        from tensorboardX.summary import hparams

        # a file is named by the second, and one that is there would be overwritten
        self.writer = EventsWriter(str(run.folder / "events"), filename_suffix=f".{uuid4().hex[:8]}")
        self.id = run.id or run.name
        experiment, begin, self.end = hparams(run.settings, {"top1": 0, "summary/average_without_first": 0})
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

    def finish(self, whole: bool) -> None:
        if whole:
            self._write(self.end)
        self.writer.close()


class WandB(Service):
    packages = ("wandb",)

    @staticmethod
    def where() -> str:
        return os.environ.get("WANDB_MODE") or ("online" if os.environ.get("WANDB_API_KEY") else "offline")

    def __init__(self, run: Run) -> None:
        offline = self.where() == "offline"
        if offline:
            os.environ.setdefault("WANDB_ERROR_REPORTING", "false")  # offline is to mean that nobody is called
            # or a killed run loses the last 15 s: the file is written so seldom
            os.environ.setdefault("WANDB_X_TRANSACTION_LOG_FLUSH_INTERVAL", "1")
        import wandb

        self.id = run.id or uuid4().hex[:12]
        self.run = wandb.init(
            id=self.id,
            resume="allow",
            project=os.environ.get("WANDB_PROJECT") or "equipoise",
            name=run.name,
            config=run.settings,
            dir=run.folder.parent,  # it adds a folder "wandb" itself
            mode="offline" if offline else None,
            settings=wandb.Settings(console="off", silent=offline),
        )
        self.axes: dict[str, str] = {}

    def log(self, axis: str, at: int, moment: int, figures: Mapping[str, float]) -> None:
        for name in figures.keys() - self.axes.keys():
            self.axes[name] = axis
            self.run.define_metric(name, step_metric=axis)
        # numbers of our own let `wandb sync` join the parts of a run that was stopped
        self.run.log({axis: at, **figures}, step=moment, commit=True)

    def finish(self, whole: bool) -> None:
        self.run.finish(exit_code=0 if whole else 1)


class MLflow(Service):
    packages = ("mlflow", "sqlalchemy", "alembic")  # mlflow-skinny leaves out what its own SQLite store needs

    @staticmethod
    def where() -> str:
        return os.environ.get("MLFLOW_TRACKING_URI") or "here"

    def __init__(self, run: Run) -> None:
        uri, artifacts = self.where(), None
        if uri == "here":
            os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")  # a local store is to mean that nobody is called
            os.environ.setdefault("MLFLOW_LOGGING_LEVEL", "WARNING")  # or it tells of its tables amid ours
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
        params = [Param(name, str(value)[:500]) for name, value in run.settings.items()]  # longer ones are refused
        self.client.log_batch(self.id, params=params)

    def log(self, axis: str, at: int, moment: int, figures: Mapping[str, float]) -> None:
        from mlflow.entities import Metric

        now = round(time.time() * 1000)
        self.client.log_batch(self.id, [Metric(name, value, now, at) for name, value in figures.items()])

    def finish(self, whole: bool) -> None:
        self.client.set_terminated(self.id, "FINISHED" if whole else "KILLED")


def _database(folder: Path) -> str:
    """The address of a SQLite file, made under another name: one whose making was cut short can never be opened."""
    from mlflow import MlflowClient

    def address(file: Path) -> str:
        return "sqlite:///" + str(file).translate({ord(sign): f"%{ord(sign):X}" for sign in "%?#"})

    file, draft = folder / "mlflow.db", folder / "draft.db"
    if not file.exists():
        draft.unlink(missing_ok=True)
        MlflowClient(address(draft))
        draft.replace(file)
    return address(file)


SERVICES: dict[str, type[Service]] = {"tensorboard": TensorBoard, "wandb": WandB, "mlflow": MLflow}
