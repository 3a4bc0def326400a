"""`firsttoken serve`: begins what takes longest, imports the rest of the worker meanwhile, and hands over to it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import closing
from typing import Any

from worker.config import PROJECT, Config
from worker.errors import StartError
from worker.home import Home
from worker.lifecycle.address import bind
from worker.lifecycle.crew.member import Member
from worker.lifecycle.process import StopSignals, function_at
from worker.lifecycle.ready_file import FIRST_START
from worker.opening import Parts, begun


async def serve(config: Config, *, began: float, member: Member | None = None) -> None:
    """Run until asked to stop; `began` is the monotonic time when the command started.

    Raises StartError and the parts' own errors, each with a one-line message for people.
    """
    if config.docs not in (None, PROJECT / "docs") and not config.docs.is_dir():
        raise StartError(f"there is no folder {config.docs} (--docs)")
    stop, home = StopSignals.by_signals(), Home(config.home)
    home.prepare()
    if member is not None:
        async with member.on_duty(stop), begun(config, home) as parts:
            serve_in_crew = await _imported(parts, "worker.serving.serve_in_crew")
            await serve_in_crew(config, home, parts, stop, member)
        return
    if home.is_new:
        print(FIRST_START, flush=True)
    with closing(bind(config.host, config.port)) as listener:
        async with begun(config, home) as parts:
            serve_alone = await _imported(parts, "worker.serving.serve_alone")
            await serve_alone(config, home, parts, stop, listener, began)


async def _imported(parts: Parts, path: str) -> Callable[..., Coroutine[Any, Any, None]]:
    """The function at a path. Its module, which is most of the worker, is imported in a thread: meanwhile other threads
    and processes open the parts."""
    with parts.trace.span("imports", lane="imports"):
        return await asyncio.to_thread(function_at, path)
