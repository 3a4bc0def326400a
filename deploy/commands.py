"""Runs other programs silently; all their output goes into one log."""

from __future__ import annotations

import re
import shlex
import subprocess
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path


class SetupFailed(Exception):
    """The environment cannot be set up here. The message says what to do."""


SHOWN_LINES = 8  # of a failure: enough for an error from a compiler or pip, and still readable
COMPLAINT = re.compile(r"\b(error|CMake Error)\b.*?:", re.IGNORECASE)
LINE_CHARS_MAX = 200  # a compiler's command line has thousands of characters


class Log:
    """Appends the output of commands to `path`."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def run(self, command: Sequence[str], failure: str) -> None:
        for _ in self.lines_of(command, failure):
            pass

    def lines_of(
        self, command: Sequence[str], failure: str, environment: Mapping[str, str] | None = None
    ) -> Iterator[str]:
        """Run a command and yield its output line by line. Raises SetupFailed if it fails: with the lines from its
        first error on, or else its last lines, and `failure`."""
        shown: deque[str] = deque(maxlen=SHOWN_LINES)
        complaining = False
        with self.path.open("a", errors="replace") as log:
            log.write(f"$ {shlex.join(command)}\n")
            with subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                errors="replace",
                env=environment,
            ) as process:
                assert process.stdout is not None
                for line in process.stdout:
                    log.write(line)
                    if not complaining and COMPLAINT.search(line):
                        complaining = True
                        shown.clear()
                    if not complaining or len(shown) < SHOWN_LINES:
                        shown.append(line.rstrip()[:LINE_CHARS_MAX])
                    yield line
        if process.returncode != 0:
            raise SetupFailed("\n".join([*shown, f"{failure}; the whole log: {self.path}"]))
