"""``equipoise`` and ``python -m equipoise``."""

import sys

from equipoise.signals import undisturbed


def start() -> None:
    """Load the command line, which an impatient Ctrl-C must not tear apart, and run it."""
    try:
        with undisturbed():
            from equipoise.cli import main
    except KeyboardInterrupt:
        sys.exit(130)
    main()


if __name__ == "__main__":
    start()
