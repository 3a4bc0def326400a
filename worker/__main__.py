"""The command `firsttoken`, which is also `python -m worker`. Signals are handled before anything else is imported."""

from __future__ import annotations

import sys

from worker.cli.early_signals import handle_early


def main() -> int:
    handle_early()
    from worker.cli.main import main

    try:
        return main()
    finally:
        handle_early()  # only the interpreter's own end is left


if __name__ == "__main__":
    sys.exit(main())
