"""Calls one of our functions in a process of its own, where native code that aborts does no harm."""

from __future__ import annotations

import pickle
import signal
import subprocess
import sys
from collections.abc import Callable
from importlib import import_module
from typing import Any

import orjson

from inference.errors import InferenceError

MODULE = "inference.provisioning.isolated_process"


class RunFailed(InferenceError):
    """The process crashed, failed or timed out; the message is the reason in one line. `crashed`: by a signal."""

    def __init__(self, reason: str, *, crashed: bool = False) -> None:
        super().__init__(reason)
        self.crashed = crashed


def run_isolated(function: Callable[..., Any], *arguments: Any, timeout_s: float, **options: Any) -> Any:
    """What a function of a module returns, as JSON has it: it comes from a process that may have read anything. Keys
    are strings, and records mappings. Blocks. Raises RunFailed."""
    command, given = call(function, *arguments, **options)
    try:
        done = subprocess.run(command, input=given, capture_output=True, timeout=timeout_s)
    except subprocess.TimeoutExpired:
        raise RunFailed(f"did not finish within {timeout_s:.0f} s") from None
    if done.returncode < 0:
        raise RunFailed(f"killed by {signal.Signals(-done.returncode).name}", crashed=True)
    if done.returncode:
        said = done.stderr.decode(errors="replace").strip().splitlines()
        raise RunFailed((said or [f"exit code {done.returncode}"])[-1])
    return result_in(done.stdout)


def call(function: Callable[..., Any], *arguments: Any, **options: Any) -> tuple[list[str], bytes]:
    """The command that calls the function, and its standard input."""
    return [sys.executable, "-m", MODULE, function.__module__, function.__name__], pickle.dumps((arguments, options))


def result_in(printed: bytes) -> Any:
    """What the function returned: the last line, as native code may print too. Raises ValueError."""
    return orjson.loads(printed.rpartition(b"\n")[2])


if __name__ == "__main__":
    try:
        arguments, options = pickle.load(sys.stdin.buffer)
        found = getattr(import_module(sys.argv[1]), sys.argv[2])(*arguments, **options)
    except (InferenceError, OSError) as error:
        sys.exit(str(error))
    sys.stdout.buffer.write(b"\n" + orjson.dumps(found, option=orjson.OPT_NON_STR_KEYS))
