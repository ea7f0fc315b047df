"""Connect processes of one machine through a file, so that none of them listens to other machines."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch.distributed as dist
from lightning_fabric.strategies.ddp import DDPStrategy

MEETING = "meeting"


class OneMachineStrategy(DDPStrategy):
    """Unlike Fabric's own strategy, do not listen on all network interfaces and trust every connection.

    Parameters
    ----------
    folder
        A new directory that only this user can write to.
    options
        Those of ``DDPStrategy``.
    """

    def __init__(self, folder: Path, **options: Any) -> None:
        super().__init__(**options)
        self._meeting = (folder / MEETING).resolve().as_uri()

    def setup_environment(self) -> None:
        """Connect the processes; Fabric does not connect them again."""
        dist.init_process_group(
            self.process_group_backend,
            init_method=self._meeting,
            rank=self.local_rank,
            world_size=self.num_processes,
            timeout=self._timeout or dist.default_pg_timeout,
        )
        super().setup_environment()
