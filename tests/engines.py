"""Engines in processes of their own, as people start them, and models that reach them."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import subprocess
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from inference.bundled import CHAT_MODEL
from inference.remote.remote_model import RemoteModel
from tests.serving import CHOSEN, START_TIMEOUT_S, STOP_TIMEOUT_S, clean_environment
from tests.warm_process import WarmProcess
from worker.engines.exchange import EngineTransport

READY = re.compile(r"^Firsttoken engine .* is ready .* at (\S+)$", re.MULTILINE)


class EngineProcess:
    """A process of `firsttoken engine`, by default on a Unix socket in its home."""

    def __init__(self, home: Path, *arguments: str, name: str = "engine", **environment: str) -> None:
        self.log = home / f"{name}.log"
        listen = () if "--listen" in arguments else ("--listen", f"unix:{home / name}.sock")
        command = ["engine", "--home", str(home), "--threads", "1", "--kv-disk-mb", "0", *listen, *arguments]
        with self.log.open("wb") as log:
            self.process = WarmProcess("tests.margins", command, log, log, clean_environment(**CHOSEN, **environment))

    def wait_until_ready(self) -> str:
        """Its address, as workers are told it. Raises AssertionError with the log when it does not get there."""
        give_up_at = time.monotonic() + START_TIMEOUT_S
        while (found := READY.search(self.log.read_text())) is None:
            assert self.process.poll() is None, f"the engine ended:\n{self.log.read_text()}"
            assert time.monotonic() < give_up_at, f"the engine is not ready:\n{self.log.read_text()}"
            time.sleep(0.02)
        return found[1]

    def kill(self) -> None:
        os.kill(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def stop(self) -> int:
        """Ask it to end; returns its exit code. One that does not end is killed."""
        if (code := self.process.poll()) is not None:
            return code
        self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self.kill()
            raise


@asynccontextmanager
async def reaching(*urls: str, token: str | None = None) -> AsyncIterator[RemoteModel]:
    """A model whose engines are there, looked after as a worker does."""
    digest = "salt of {}".format
    model = await asyncio.to_thread(RemoteModel.load, CHAT_MODEL, urls, EngineTransport(token), digest)
    await model.start()
    watch = asyncio.create_task(model.watch(lambda: None))
    try:
        yield model
    finally:
        watch.cancel()
        await asyncio.gather(watch, return_exceptions=True)
        await model.close()
