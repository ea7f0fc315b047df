"""``equipoise`` and ``python -m equipoise``."""

import sys

from equipoise.core.output import open_standard_streams
from equipoise.core.safe_path import use_safe_path
from equipoise.core.signals import defer_signals


def start() -> None:
    """Import the command line without interruption, then run it."""
    open_standard_streams()
    use_safe_path()
    try:
        with defer_signals():
            from equipoise.cli import main
    except KeyboardInterrupt:
        sys.exit(130)
    main()


if __name__ == "__main__":
    start()
