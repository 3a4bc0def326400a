"""A worker that is started for a comparison: a process of its own, with a temporary home and database."""

from __future__ import annotations

import asyncio
import os
import sys
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import orjson

from worker.errors import StartError
from worker.evals.eval_target import LocalWorker
from worker.home import FOLDER_OF_ROOT, Home

START_MAX_S = 300.0  # a large model is read from a disk
STOP_MAX_S = 30.0
POLL_S = 0.05
REASON_CHARS_MAX = 500
NOTHING = Path()
# How it starts: when the comparison is killed, the worker dies too. Linux has a signal for that; elsewhere it survives.
BEGINS = """
import ctypes, runpy, signal, sys
prctl = getattr(ctypes.CDLL(None), "prctl", None)
if prctl is not None:
    prctl(1, signal.SIGTERM)  # PR_SET_PDEATHSIG
sys.argv[0] = "firsttoken"
runpy.run_module("worker", run_name="__main__", alter_sys=True)
"""

# Fixed settings: whatever the environment says, a comparison must not touch a production database, and waits for each
# answer instead of having it refused as late.
OWN = ("--port", "0", "--database-url", "", "--database-direct-url", "", "--late", "wait", "--workers", "1")


@asynccontextmanager
async def started(
    private: LocalWorker, documents: Path | None, models: Path | None = None
) -> AsyncIterator[tuple[str, str]]:
    """Its URL and API key. `documents` is a folder that it reads into the store `docs`, empty for none, or None for the
    documentation; `models` is the folder of pulled models. Raises StartError with the worker's own message if it does
    not start."""
    with tempfile.TemporaryDirectory(prefix="firsttoken-gate-", ignore_cleanup_errors=True) as folder:
        os.chmod(folder, FOLDER_OF_ROOT)  # the embedded database may run as another user
        home = Path(folder)
        if models is not None:
            _link(models, Home(home))
        ready, said = home / "ready.json", home / "said"
        docs = () if documents is None else ("--docs", "" if documents == NOTHING else str(documents))
        command = [sys.executable, "-c", BEGINS, "serve", *private.flags, *docs, *OWN]
        with open(said, "wb") as output:  # noqa: ASYNC230 (a new file of our own)
            process = await asyncio.create_subprocess_exec(
                *(*command, "--home", folder, "--ready-file", str(ready)),
                stdout=output,
                stderr=output,
            )
        try:
            await _wait(process, ready, said, private)
            told = orjson.loads(ready.read_bytes())
            yield told["url"], told["api_key"]
        finally:
            if process.returncode is None:
                process.terminate()
                try:
                    async with asyncio.timeout(STOP_MAX_S):
                        await process.wait()
                except TimeoutError:
                    process.kill()
                    await process.wait()


def _link(models: Path, home: Home) -> None:
    """The folder may not exist yet."""
    home.models.symlink_to(models.absolute(), target_is_directory=True)


async def _wait(process: asyncio.subprocess.Process, ready: Path, said: Path, private: LocalWorker) -> None:
    try:
        async with asyncio.timeout(START_MAX_S):
            while not await asyncio.to_thread(os.path.exists, ready):
                if process.returncode is not None:
                    lines = (await asyncio.to_thread(said.read_text, "utf-8", "replace")).strip().splitlines()
                    reason = lines[-1].removeprefix("firsttoken: ") if lines else "it ended without a message"
                    raise StartError(f"no worker could be started with {private}: {reason[:REASON_CHARS_MAX]}")
                await asyncio.sleep(POLL_S)
    except TimeoutError:
        raise StartError(f"the worker with {private} was not ready after {START_MAX_S:.0f} s") from None
