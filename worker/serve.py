"""`firsttoken serve`: begins the parts of a worker that take longest, imports the rest of it meanwhile, and hands over.

These parts wait for another process, the disk or the kernel's pages, or compute outside of the interpreter, which the
imports keep busy.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import (
    AbstractAsyncContextManager,
    AbstractContextManager,
    AsyncExitStack,
    asynccontextmanager,
    closing,
    nullcontext,
)
from typing import Any, TypeVar

from inference.embedding.registry import Embedders
from inference.model import ChatModel
from inference.trace import Trace
from migrations.pool import Database
from worker.config import PROJECT, Config
from worker.database import open_database
from worker.engines.engine_config import check_memory, is_fetched, open_embedders
from worker.engines.local_model import open_model
from worker.errors import StartError
from worker.home import Home
from worker.lifecycle.address import bind
from worker.lifecycle.crew.member import Member
from worker.lifecycle.process import LoadProgress, StopSignals, function_at, say
from worker.lifecycle.ready_file import FIRST_START, check_folder
from worker.lifecycle.supervisor import Supervisor

T = TypeVar("T")


class Parts:
    """`model` is None where there are several, one elsewhere, or none yet. The phases of the start are the spans of
    `trace`, and those of the model the spans of `model_trace`."""

    database: asyncio.Task[Database]
    embedders: asyncio.Task[Embedders]
    model: asyncio.Task[ChatModel] | None = None

    def __init__(self, stack: AsyncExitStack) -> None:
        self.supervisor, self.loading = Supervisor(), LoadProgress()
        self.trace, self.model_trace = Trace(), Trace()
        self._stack = stack
        self._tasks: list[asyncio.Task[Any]] = []

    def begin(
        self,
        part: str,
        opening: AbstractAsyncContextManager[T],
        meanwhile: AbstractContextManager[None] | None = None,
    ) -> asyncio.Task[T]:
        """Open a part in a task of its own. It is closed with the others, also if nobody awaits it."""

        async def opened() -> T:
            with self.trace.span(part, lane=part), meanwhile or nullcontext():
                return await self._stack.enter_async_context(opening)

        task = asyncio.create_task(opened(), name=part)
        self._tasks.append(task)
        return task

    async def settled(self) -> None:
        """Stop opening what is not open yet."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


@asynccontextmanager
async def begun(config: Config, home: Home) -> AsyncIterator[Parts]:
    """The parts that every worker has, and its model if that is here. Each is closed at the end, the last one first."""
    async with AsyncExitStack() as stack:
        parts = Parts(stack)
        try:
            parts.database = parts.begin("database", open_database(config, parts.supervisor))
            if has_own_model(config, home):
                loading, trace = parts.loading, parts.model_trace
                opening = open_model(config, parts.supervisor, loading.report, trace)
                parts.model = parts.begin("models", opening, loading.shown())
            parts.embedders = parts.begin("embedders", open_embedders(config))
            yield parts
        finally:
            await parts.settled()


def has_own_model(config: Config, home: Home) -> bool:
    """Whether there is one model, in this process, and its weights need not be fetched."""
    if config.engines is not None or config.models is not None or home.models_file.exists():
        return False
    return not is_fetched(config)


async def serve(config: Config, *, began: float, member: Member | None = None) -> None:
    """Run until asked to stop; `began` is the monotonic time when the command started.

    Raises StartError and the parts' own errors, each with a one-line message for people.
    """
    if config.docs not in (None, PROJECT / "docs") and not config.docs.is_dir():
        raise StartError(f"there is no folder {config.docs} (--docs)")
    check_folder(config.ready_file)
    check_memory()
    stop, home = StopSignals.by_signals(), Home(config.home)
    home.prepare()
    if member is not None:
        async with member.on_duty(stop), begun(config, home) as parts:
            serve_in_crew = await _imported(parts, "worker.serving.serve_in_crew")
            await serve_in_crew(config, home, parts, stop, member)
        return
    if home.is_new:
        say(FIRST_START)
    with closing(bind(config.host, config.port)) as listener:
        async with begun(config, home) as parts:
            serve_alone = await _imported(parts, "worker.serving.serve_alone")
            await serve_alone(config, home, parts, stop, listener, began)


async def _imported(parts: Parts, path: str) -> Callable[..., Coroutine[Any, Any, None]]:
    """The function at a path. Its module, which is most of the worker, is imported in a thread: meanwhile other threads
    and processes open the parts."""
    with parts.trace.span("imports", lane="imports"):
        return await asyncio.to_thread(function_at, path)
