"""The version that answers requests. The directory may change at any time, by a job or by the command line."""

from __future__ import annotations

from threading import Lock

import torch

from equipoise.app.learn import size_for
from equipoise.app.model_dir import ModelDir
from equipoise.errors import EquipoiseError
from equipoise.serve.snapshot import Snapshot
from equipoise.serve.words import for_the_page, without_paths


class CurrentModel:
    """Follows a model directory; ``snapshot`` is replaced as a whole."""

    def __init__(self, place: ModelDir) -> None:
        self.place = place
        self.snapshot: Snapshot | None = None
        self.problem: str | None = None
        """Why the version on disk cannot be used; answers then come from the previous one."""
        self._seen: int | None = None
        self._lock = Lock()

    @property
    def size(self) -> int:
        """Pixels per side of a picture; if there is no model yet, those of the model that will be created."""
        snapshot = self.snapshot  # another thread may replace it
        return snapshot.size if snapshot else size_for("lite0", 0)

    def version_on_disk(self) -> str | None:
        """Return the version that is current on disk: None if there is no model, empty if it cannot be read."""
        try:
            return self.place.config().version if self.place.exists else None
        except (EquipoiseError, OSError):
            return ""

    def refresh(self) -> bool:
        """Load the version on disk if it is a different one; return whether anything changed."""
        with self._lock:
            seen = self.place.directory.modified_ns("config.json")
            if seen == self._seen and self.problem is None:
                return False
            before = self.snapshot and self.snapshot.config, self.problem
            try:
                self._load(seen is not None or self.place.directory.exists("config.json"))
            except (EquipoiseError, OSError) as error:
                self.problem = for_the_page(without_paths(str(error), self.place.path))
            self._seen = seen
            return before != (self.snapshot and self.snapshot.config, self.problem)

    def _load(self, exists: bool) -> None:
        if not exists:  # deleted: start again
            self.snapshot, self.problem = None, None
            return
        if self.snapshot is None or self.place.config() != self.snapshot.config:
            loaded = Snapshot.load(self.place)
            size = loaded.size
            loaded.predict([torch.zeros(size, size, 3, dtype=torch.uint8).numpy()], 1, 0.95)  # the first pass is slow
            self.snapshot = loaded
        self.problem = None
