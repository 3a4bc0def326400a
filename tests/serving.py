"""A worker as people start it: a process of `firsttoken serve` with a home, a log and a ready file."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

from tests.warm_process import WarmProcess

START_TIMEOUT_S = 100.0  # an embedded Postgres and three models, or the sample documents: seconds of two cores
STOP_TIMEOUT_S = 60.0
ROOT = Path(__file__).resolve().parent.parent
# Else each model that was idle for a minute is measured, for seconds and beside other tests. This is the usual layout.
CHOSEN = {"FIRSTTOKEN_KV_LAYOUT": "streams"}
LATE = {"FIRSTTOKEN_LATE": "wait"}  # on a busy machine, much is


class Worker:
    """`ready` is the content of its ready file; the log stands in `log`."""

    def __init__(
        self, home: Path, *arguments: str, name: str = "worker", program: str = "tests.margins", **environment: str
    ) -> None:
        self.log = home / f"{name}.log"
        self.ready_file = home / f"{name}-ready.json"
        command = ["serve", "--port", "0", "--home", str(home), "--ready-file", str(self.ready_file), *arguments]
        with self.log.open("wb") as log:
            self.process = WarmProcess(program, command, log, log, clean_environment(**CHOSEN, **LATE, **environment))

    def wait_until_ready(self, timeout_s: float = START_TIMEOUT_S) -> dict[str, Any]:
        """The content of the ready file. Raises AssertionError with the log when the worker does not get there."""
        give_up_at = time.monotonic() + timeout_s
        while not self.ready_file.exists():
            assert self.process.poll() is None, f"the worker ended:\n{self.log.read_text()}"
            if time.monotonic() > give_up_at:
                self.process.kill()
                self.process.wait()
                raise AssertionError(f"the worker is not ready:\n{self.log.read_text()}")
            time.sleep(0.02)
        ready: dict[str, Any] = json.loads(self.ready_file.read_text())
        return ready

    def wait_until_read(self, timeout_s: float = START_TIMEOUT_S) -> dict[str, Any]:
        """The same, once the sample documents can be found."""
        ready, give_up_at = self.wait_until_ready(), time.monotonic() + timeout_s
        asked = Request(
            f"{ready['url']}/v1/vector_stores/docs", headers={"Authorization": f"Bearer {ready['api_key']}"}
        )
        while True:
            with urlopen(asked) as answer:
                if json.load(answer)["status"] == "completed":
                    return ready
            assert time.monotonic() < give_up_at, f"the sample documents are not read:\n{self.log.read_text()}"
            time.sleep(0.1)

    def stop(self, number: signal.Signals = signal.SIGTERM) -> int:
        """Ask the worker to end; returns its exit code. One that does not end is killed."""
        self.process.send_signal(number)
        try:
            return self.process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            raise


def run_command(observe: Callable[[], None]) -> int:
    """The command `firsttoken` in this process, which `observe` prepares for what a test wants to know of it."""
    from worker.cli.main import main
    from worker.config import prepare_process

    prepare_process()  # before llama.cpp is imported
    observe()
    return main()


def clean_environment(**changes: str) -> dict[str, str]:
    """Our environment without what would configure a worker."""
    kept = {
        name: value for name, value in os.environ.items() if not name.startswith(("FIRSTTOKEN_", "DATABASE_", "PG"))
    }
    return {**kept, **changes}
