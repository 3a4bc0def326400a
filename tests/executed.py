"""Which functions a worker executes: `python -m tests.executed` is the command `firsttoken` with its calls noted.

Each SIGUSR2 writes the functions of our packages that were called since the last one, in the order of their first
calls, to the file that the environment variable names. Every call goes through Python, so the worker is slow.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, FrameType
from typing import NamedTuple

from tests.serving import ROOT, Worker, run_command

FILE = "TEST_EXECUTED_FILE"  # environment variable: where functions are written down
PACKAGES = tuple(f"{ROOT / name}{os.sep}" for name in ("worker", "agents", "retrieval", "inference", "migrations"))
WRITTEN_MAX_S = 60.0


class Function(NamedTuple):
    path: str
    name: str  # Class.name of a method
    lines: int


# --- in the process that is observed ---


def note_calls(path: Path) -> None:
    seen: dict[CodeType, None] = {}

    def note(frame: FrameType, event: str, _: object) -> None:
        if event == "call" and frame.f_code not in seen and frame.f_code.co_filename.startswith(PACKAGES):
            seen[frame.f_code] = None

    def write(*_: object) -> None:
        nonlocal seen
        found, seen = seen, {}  # other threads go on
        part = path.with_suffix(".part")
        part.write_text(json.dumps([function(code) for code in found]))
        part.replace(path)

    signal.signal(signal.SIGUSR2, write)
    threading.setprofile(note)
    sys.setprofile(note)


def function(code: CodeType) -> Function:
    lines = {line for _, _, line in code.co_lines() if line}
    name = code.co_qualname.replace(".<locals>", "")
    return Function(str(Path(code.co_filename).relative_to(ROOT)), name, len(lines))


# --- in the process of the tests ---


@dataclass
class Calls:
    worker: Worker
    path: Path

    @classmethod
    def of_new_worker(cls, home: Path) -> Calls:
        path = home / "executed.json"
        return cls(Worker(home, "--docs", "", program="tests.executed", **{FILE: str(path)}), path)

    def taken(self) -> Sequence[Function]:
        """The functions that were called since the last time."""
        self.path.unlink(missing_ok=True)
        self.worker.process.send_signal(signal.SIGUSR2)
        give_up_at = time.monotonic() + WRITTEN_MAX_S
        while not self.path.exists():
            assert time.monotonic() < give_up_at, "the worker wrote no functions"
            time.sleep(0.02)
        return [Function(*each) for each in json.loads(self.path.read_text())]


if __name__ == "__main__":
    sys.exit(run_command(lambda: note_calls(Path(os.environ[FILE]))))
