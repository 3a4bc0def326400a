"""Runs one of our modules in a process of its own, where native code that aborts does no harm."""

from __future__ import annotations

import signal
import subprocess
import sys

from inference.errors import InferenceError


class RunFailed(InferenceError):
    """The process crashed, failed or timed out; the message is the reason in one line. `crashed`: by a signal."""

    def __init__(self, reason: str, *, crashed: bool = False) -> None:
        super().__init__(reason)
        self.crashed = crashed


def run_isolated(module: str, *arguments: str, timeout_s: float) -> str:
    """Returns what `python -m module` prints. Blocks. Raises RunFailed."""
    command = [sys.executable, "-m", module, *arguments]
    try:
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=timeout_s)
    except subprocess.TimeoutExpired:
        raise RunFailed(f"did not finish within {timeout_s:.0f} s") from None
    if done.returncode < 0:
        raise RunFailed(f"killed by {signal.Signals(-done.returncode).name}", crashed=True)
    if done.returncode:
        raise RunFailed((done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1])
    return done.stdout
