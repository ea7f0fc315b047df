"""Python imports this first where the directory is on its path: jobs of `equipoise serve` are interrupted on order.

While the file that EQUIPOISE_FAULT names exists, the process that learns does what its JSON says:

since    an event of Python's, and how the name of its file ends, for example ["os.rename", "config.json"]
at       the number of the change of the file system after it, from 1; 0 is the event itself
fault    kill        this process
         kill all    this process and the server's process group
         kill group  the server's process group; this process stops until it gets SIGCONT
         stop        this process stops until it gets SIGCONT
         ENOSPC, …   an error that the change raises, see ``Injector``
"""

import json
import os
import signal
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

if "equipoise.serve.worker" in sys.orig_argv:
    sys.path.insert(0, str(Path(__file__).parents[3]))
    from tests.faults.inject import Injector

    ORDER = os.environ["EQUIPOISE_FAULT"]
    NAMED = {"open": 0, "os.rename": 1}
    """Position of the file's name in the arguments of an event."""

    class Ordered(Injector):
        """Takes orders while it runs; a new one is counted from its beginning."""

        order: str | None = None
        since = ("", "")
        begun = False

        def _audit(self, event: str, arguments: tuple[Any, ...]) -> None:
            if event in NAMED and self._is_first(event, arguments[NAMED[event]]):
                self.begun = True
                if not self.at:
                    self.interrupt(event)
            else:
                super()._audit(event, arguments)

        def _is_first(self, event: str, name: Any) -> bool:
            if not isinstance(name, str | bytes) or os.fsdecode(name) == ORDER:  # reading it is an event, too
                return False
            ending = os.fsdecode(name).endswith
            return self._ordered() and not self.begun and event == self.since[0] and ending(self.since[1])

        def _ordered(self) -> bool:
            order = None
            with suppress(FileNotFoundError):
                order = Path(ORDER).read_text()
            if order != self.order:
                self.order, self.begun = order, False
                self.events.clear()
                if order:
                    fields = json.loads(order)
                    self.since, self.at, self.fault = tuple(fields["since"]), fields["at"], fields["fault"]
            return bool(order)

        def change(self, event: str) -> None:
            if self._ordered() and self.begun and self.at:
                super().change(event)

        def interrupt(self, event: str) -> None:
            if self.fault in ("kill all", "kill group"):
                os.killpg(os.getpgid(os.getppid()), signal.SIGKILL)
            if self.fault in ("stop", "kill group"):
                os.kill(os.getpid(), signal.SIGSTOP)
            elif self.fault == "kill all":
                os.kill(os.getpid(), signal.SIGKILL)
            else:
                super().interrupt(event)

    Ordered().install()
