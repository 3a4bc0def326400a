"""A worker whose engine's thread dies of an unexpected exception once there is a file `break` in its home."""

from __future__ import annotations

import sys
from pathlib import Path


def main() -> int:
    from worker.cli.main import main
    from worker.config import prepare_process

    prepare_process()  # before llama.cpp is imported
    from inference.engine.scheduler import Scheduler

    admit, broken = Scheduler.admit, Path(sys.argv[sys.argv.index("--home") + 1]) / "break"

    def admit_or_break(self: Scheduler, now_ns: int) -> object:
        if broken.exists():
            raise ZeroDivisionError("injected")
        return admit(self, now_ns)

    Scheduler.admit = admit_or_break  # type: ignore[method-assign, assignment]
    return main()


if __name__ == "__main__":
    sys.exit(main())
