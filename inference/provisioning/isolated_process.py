"""Calls one of our functions in a process of its own, where native code that aborts does no harm."""

from __future__ import annotations

import pickle
import signal
import subprocess
import sys
from collections.abc import Callable
from importlib import import_module
from typing import Generic, ParamSpec, TypeVar, get_type_hints

import orjson

from inference.errors import InferenceError

MODULE = "inference.provisioning.isolated_process"

P = ParamSpec("P")
R = TypeVar("R")


class RunFailed(InferenceError):
    """The process crashed, failed or timed out; the message is the reason in one line. `crashed`: by a signal."""

    def __init__(self, reason: str, *, crashed: bool = False) -> None:
        super().__init__(reason)
        self.crashed = crashed


class Isolated(Generic[P, R]):
    """A function of a module, in a process of its own. What it returns comes back as JSON, and must be of the type that
    it declares: the process may have read anything."""

    def __init__(self, function: Callable[P, R], *, timeout_s: float) -> None:
        self._function, self._timeout_s = function, timeout_s

    def __call__(self, *arguments: P.args, **options: P.kwargs) -> R:
        """Blocks. Raises RunFailed."""
        command, given = self.command(*arguments, **options)
        try:
            done = subprocess.run(command, input=given, capture_output=True, timeout=self._timeout_s)
        except subprocess.TimeoutExpired:
            raise RunFailed(f"did not finish within {self._timeout_s:.0f} s") from None
        if done.returncode < 0:
            raise RunFailed(f"killed by {signal.Signals(-done.returncode).name}", crashed=True)
        if done.returncode:
            said = done.stderr.decode(errors="replace").strip().splitlines()
            raise RunFailed((said or [f"exit code {done.returncode}"])[-1])
        return self.result_in(done.stdout)

    def command(self, *arguments: P.args, **options: P.kwargs) -> tuple[list[str], bytes]:
        """The command that calls the function, and its standard input."""
        place = self._function.__module__, self._function.__name__
        return [sys.executable, "-m", MODULE, *place], pickle.dumps((arguments, options))

    def result_in(self, printed: bytes) -> R:
        """What the function returned: the last line, as native code may print too. Raises ValueError."""
        from pydantic import TypeAdapter  # slow to import, and few commands call this

        result: R = TypeAdapter(get_type_hints(self._function)["return"]).validate_json(printed.rpartition(b"\n")[2])
        return result


if __name__ == "__main__":
    try:
        arguments, options = pickle.load(sys.stdin.buffer)
        found = getattr(import_module(sys.argv[1]), sys.argv[2])(*arguments, **options)
    except (InferenceError, OSError) as error:
        sys.exit(str(error))
    sys.stdout.buffer.write(b"\n" + orjson.dumps(found, option=orjson.OPT_NON_STR_KEYS))
