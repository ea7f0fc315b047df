"""Start other Python processes that import nothing from the current directory, which may be a stranger's."""

from __future__ import annotations

import os


def use_safe_path() -> None:
    """Keep the current directory out of ``sys.path`` in all Python processes that this one starts.

    ``python -m`` and ``python -c`` put it first, so they would run a ``json.py`` that lies there. Multiprocessing and
    SLURM use both.
    """
    os.environ.setdefault("PYTHONSAFEPATH", "1")
