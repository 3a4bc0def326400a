"""Runs other programs silently; all their output goes into one log."""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO


class SetupFailed(Exception):
    """The environment cannot be set up here. The message says what to do."""


SHOWN_LINES = 8  # of a failure: enough for an error from a compiler or pip, and still readable
COMPLAINT = re.compile(r"\b(error|CMake Error)\b.*?:", re.IGNORECASE)
LINE_CHARS_MAX = 200  # a compiler's command line has thousands of characters


class Log:
    """Appends the output of commands to `path`, one at a time."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def run(self, command: Sequence[str], failure: str) -> None:
        with self.running(command, failure) as finish:
            finish()

    @contextmanager
    def running(self, command: Sequence[str], failure: str) -> Iterator[Callable[[], None]]:
        """Run a command meanwhile. What is yielded waits until it has succeeded, or raises SetupFailed like `lines_of`.
        A command that still runs at the end is interrupted, and so is all that it has started."""
        with self.path.open("a") as log:
            begin = self._begin(log, command)
            # A group of its own: it is interrupted here, once, and can tidy up behind itself.
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, process_group=0
            )

        def finish() -> None:
            if process.wait() != 0:
                raise self._failed(failure, begin)

        try:
            yield finish
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGINT)
                process.wait()

    def lines_of(
        self, command: Sequence[str], failure: str, environment: Mapping[str, str] | None = None
    ) -> Iterator[str]:
        """Run a command and yield its output line by line. Raises SetupFailed if it fails: with the lines from its
        first error on, or else its last lines, and `failure`."""
        with self.path.open("a", errors="replace") as log:
            begin = self._begin(log, command)
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
                    yield line
        if process.returncode != 0:
            raise self._failed(failure, begin)

    def _begin(self, log: TextIO, command: Sequence[str]) -> int:
        """Where the output of this command begins in the file."""
        log.write(f"$ {shlex.join(command)}\n")
        log.flush()
        return self.path.stat().st_size

    def _failed(self, failure: str, begin: int) -> SetupFailed:
        with self.path.open("rb") as log:
            log.seek(begin)
            lines = log.read().decode(errors="replace").splitlines()
        first = next((number for number, line in enumerate(lines) if COMPLAINT.search(line)), -SHOWN_LINES)
        shown = (line.rstrip()[:LINE_CHARS_MAX] for line in lines[first:][:SHOWN_LINES])
        return SetupFailed("\n".join([*shown, f"{failure}; the whole log: {self.path}"]))
