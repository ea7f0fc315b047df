"""Training progress: a bar on a terminal, occasional lines in a pipe."""

from __future__ import annotations

import time
from collections.abc import Sequence

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn

from equipoise.core.console import make_console
from equipoise.learn.stage import TrainListener


class ProgressBar(TrainListener):
    """Shows how far training is, its throughput and the time left."""

    def __init__(self, quiet: bool = False, console: Console | None = None) -> None:
        self.console = console or make_console()
        self.quiet = quiet
        self.progress: Progress | None = None

    def start(self, workloads: Sequence[int], done: int = 0) -> None:
        """Begin a bar.

        Parameters
        ----------
        workloads
            Images that each step trains on, over all epochs.
        done
            Number of steps that are finished already.
        """
        self.workloads, self.at_step = workloads, done + 1
        self.total, self.passed = sum(workloads), sum(workloads[:done])
        self.started, self.started_at = time.monotonic(), self.passed
        self.last_line = 0.0
        if self.console.is_terminal and not self.quiet and done < len(workloads):
            self.progress = Progress(
                TextColumn("  {task.description}"),
                BarColumn(bar_width=28),
                TextColumn("{task.fields[facts]}"),
                console=self.console,
                transient=True,
            )
            self.task = self.progress.add_task("starting", total=self.total, completed=self.passed, facts="")
            self.progress.start()

    def stage(self, name: str, epochs: int, images: int, done: int) -> None:
        self.stage_name, self.epochs, self.at_epoch, self.loss = name, epochs, done, float("nan")
        if name == "train":
            self.passed = sum(self.workloads[: self.at_step - 1]) + done * images
            self.started, self.started_at = time.monotonic(), self.passed

    def batch(self, images: int) -> None:
        self.passed += images
        if self.progress is not None:
            self.progress.update(self.task, completed=self.passed, description=self._position(1), facts=self._facts())

    def epoch(self, epoch: int, loss: float, lr: float) -> None:
        self.at_epoch, self.loss = epoch, loss
        now = time.monotonic()
        if self.progress is None and not self.quiet and now - self.last_line > 5:
            self.last_line = now
            self.console.print(f"  {self._position(0)} {self._facts()}", style="dim")

    def _position(self, ahead: int) -> str:
        epoch = min(self.at_epoch + ahead, self.epochs)
        step = f"step {self.at_step}/{len(self.workloads)} " if len(self.workloads) > 1 else ""
        stage = "" if self.stage_name == "train" else f"{self.stage_name} "
        return f"{step}{stage}epoch {epoch}/{self.epochs}"

    def _facts(self) -> str:
        rate = (self.passed - self.started_at) / max(time.monotonic() - self.started, 1e-6)
        left = duration(max(self.total - self.passed, 0) / rate) if rate > 0 else "…"
        loss = "" if self.loss != self.loss else f"loss {self.loss:.3f}  "
        return f"{loss}{rate:,.0f} images/s  {left} left"

    def close(self) -> None:
        """Remove the bar from the screen."""
        if self.progress is not None:
            self.progress.stop()
            self.progress = None


def duration(seconds: float) -> str:
    """Format a duration.

    >>> duration(7.2), duration(200), duration(70_000)
    ('7 s', '3:20', '19 h 26 min')
    """
    if seconds < 100:
        return f"{seconds:.0f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 100:
        return f"{minutes}:{rest:02d}"
    return f"{minutes // 60} h {minutes % 60} min"
