"""A private worker to measure: real process, real database, bundled models, a temporary home. And two ways of doing the
same in alternation: a busy machine slows both, and ratios are taken pair by pair."""

from __future__ import annotations

import asyncio
import json
import os
import sys
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from typing import TypeVar

import aiohttp

from inference.attention import AUTO
from inference.attention import attention as usual
from inference.llama import has_gpu

START_MAX_S = 120.0


@dataclass(frozen=True, slots=True)
class Served:
    url: str
    api_key: str
    pid: int
    start_s: float  # from the command to the ready file

    @property
    def headers(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.api_key}"}

    @property
    def rss_mb(self) -> float:
        """Resident memory of the worker, without Postgres."""
        status = Path(f"/proc/{self.pid}/status").read_text()
        return int(status.split("VmRSS:")[1].split()[0]) / 1024

    @property
    def cpu_s(self) -> float:
        """CPU time that the worker has used, without Postgres."""
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@asynccontextmanager
async def serve(home: Path, *flags: str, program: Sequence[str] = ("worker",)) -> AsyncIterator[Served]:
    """Run `firsttoken serve` on a free port and stop it at the end. `program`: the module, and arguments before the
    command. Raises RuntimeError if it does not start."""
    ready = home / "ready.json"
    ready.unlink(missing_ok=True)
    command = [sys.executable, "-m", *program, "serve", "--port", "0", "--home", str(home), "--ready-file", str(ready)]
    command += usual(AUTO, AUTO, gpu=has_gpu()).flags.split()  # explicit, so that no calibration runs meanwhile
    command += ["--late", "wait"]  # the cost of answers is measured, not admission
    started = monotonic()
    process = await asyncio.create_subprocess_exec(*command, *flags, stdout=asyncio.subprocess.DEVNULL)
    try:
        while not ready.exists():
            if process.returncode is not None or monotonic() - started > START_MAX_S:
                raise RuntimeError(f"the worker did not start: {' '.join(command)}")
            await asyncio.sleep(0.02)
        told = json.loads(ready.read_text())
        worker = Served(told["url"], told["api_key"], told["pid"], monotonic() - started)
        await _until_read(worker)
        yield worker
    finally:
        if process.returncode is None:
            process.terminate()
        await process.wait()


async def _until_read(worker: Served) -> None:
    """Return when it reads no sample documents any more: beside that, it would be measured at something else."""
    async with aiohttp.ClientSession(headers=worker.headers) as session:
        while True:
            async with session.get(f"{worker.url}/v1/vector_stores/docs") as answer:
                if (await answer.json()).get("status") != "in_progress":  # without documents there is no such store
                    return
            await asyncio.sleep(0.1)


@asynccontextmanager
async def served(*flags: str) -> AsyncIterator[Served]:
    """A worker on its second start, which is the usual case: the database is migrated, the documents are ingested."""
    with tempfile.TemporaryDirectory(prefix="firsttoken-bench-", ignore_cleanup_errors=True) as folder:
        async with serve(Path(folder), *flags) as first:
            print(f"first start {first.start_s:.1f} s", file=sys.stderr)
        async with serve(Path(folder), *flags) as second:
            print(f"second start {second.start_s:.1f} s, {second.rss_mb:.0f} MB resident", file=sys.stderr)
            yield second


Way = TypeVar("Way")
Measured = TypeVar("Measured")


async def pairs(
    ways: tuple[Way, Way], measure: Callable[[Way], Awaitable[Measured]], rounds: int
) -> list[tuple[Measured, Measured]]:
    """The measurements of both ways, by round, after one warm-up round."""
    measured = []
    for number in range(rounds + 1):
        order = (0, 1) if number % 2 else (1, 0)
        ran = {at: await measure(ways[at]) for at in order}
        measured.append((ran[0], ran[1]))
    return measured[1:]
