"""The parts of a worker that take longest to open, begun before most of its modules are imported: they wait for another
process, the disk or the kernel's pages, or compute outside of the interpreter, which the imports keep busy."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import (
    AbstractAsyncContextManager,
    AbstractContextManager,
    AsyncExitStack,
    asynccontextmanager,
    nullcontext,
)
from typing import Any, TypeVar

from inference.embedding.registry import Embedders
from inference.model import ChatModel
from inference.provisioning.catalogue import SMOL_CHAT
from inference.trace import Trace
from migrations.pool import Database
from worker.config import Config
from worker.database import open_database
from worker.engines.engine_config import open_embedders
from worker.engines.local_model import open_model
from worker.home import Home
from worker.lifecycle.process import LoadProgress
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
                opening = open_model(config, parts.supervisor, loading.tell, trace)
                parts.model = parts.begin("models", opening, loading.shown())
            parts.embedders = parts.begin("embedders", open_embedders(config))
            yield parts
        finally:
            await parts.settled()


def has_own_model(config: Config, home: Home) -> bool:
    """Whether there is one model, in this process, and its weights need not be fetched."""
    if config.engines is not None or config.models is not None or home.models_file.exists():
        return False
    fetches = config.weights is not None and str(config.model or SMOL_CHAT.name) == SMOL_CHAT.name
    return not fetches or SMOL_CHAT.is_current(home.models / SMOL_CHAT.file_name)
