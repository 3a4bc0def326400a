"""Between a pool and Postgres: stands still, keeps a COMMIT back, or holds or loses the answer to one that was carried
out."""

from __future__ import annotations

import asyncio
import re
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from urllib.parse import parse_qs, urlencode, urlsplit, urlunsplit

COMMIT = b"commit\0"
# Of an act, which is its own transaction: the message that prepares it, and the one that carries it out.
ACT = re.compile(rb"(__asyncpg_stmt_\w+__)\0select [^$]*_response(?:s|_events)\(\$1")
BIND = re.compile(rb"B.{4}\0(__asyncpg_stmt_\w+__)\0", re.DOTALL)
READY = b"Z\0\0\0\5"  # the server has answered everything


class Proxy:
    """Tests set its fields at any time. `commits_lost` counts down; `after` COMMITs pass before."""

    def __init__(self, dsn: str, folder: Path) -> None:
        parts = urlsplit(dsn)
        query = {name: values[0] for name, values in parse_qs(parts.query).items()}
        name = f".s.PGSQL.{query.get('port', parts.port or 5432)}"
        self._real = str(Path(query["host"], name))
        self._path = str(folder / name)
        self.dsn = urlunsplit(parts._replace(query=urlencode({**query, "host": str(folder)})))
        self.commits_lost = 0
        self.after = 0
        self.holds = False  # the answer to the next COMMIT, until `go_on`
        self.held = asyncio.Event()
        self.keeps = False  # the next COMMIT itself, until `let_go`, whoever may have left meanwhile
        self.kept = asyncio.Event()
        self._letting_go = asyncio.Event()
        self._over = False
        self._going = asyncio.Event()
        self._going.set()
        self._writers: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()

    def stand_still(self) -> None:
        self._going.clear()

    def go_on(self) -> None:
        self._going.set()

    def let_go(self) -> None:
        self._letting_go.set()

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[Proxy]:
        server = await asyncio.start_unix_server(self._accept, self._path)
        try:
            yield self
        finally:
            server.close()
            self._over = True
            self.cut()
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)

    def cut(self) -> None:
        """All connections of this moment."""
        for writer in self._writers:
            writer.transport.abort()

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._over:
            writer.transport.abort()
            return
        task = asyncio.create_task(self._take(reader, writer))
        task.add_done_callback(lambda _: writer.transport.abort())  # also of one that did not get to begin
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _take(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        both = {writer}
        losing, holding = asyncio.Event(), asyncio.Event()
        try:
            server_reader, server_writer = await asyncio.open_unix_connection(self._real)
            both.add(server_writer)
            self._writers |= both
            passing = [
                asyncio.create_task(self._pass(reader, server_writer, losing, holding, asks=True)),
                asyncio.create_task(self._pass(server_reader, writer, losing, holding)),
            ]
            try:
                await asyncio.wait(passing, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for task in passing:
                    task.cancel()
                await asyncio.wait(passing)
        except OSError:
            pass  # the server is gone
        finally:
            self._writers -= both
            for each in both:
                each.transport.abort()  # all of them first: this may be cancelled while it waits
            for each in both:
                with suppress(OSError):
                    await each.wait_closed()

    async def _pass(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        losing: asyncio.Event,
        holding: asyncio.Event,
        *,
        asks: bool = False,
    ) -> None:
        acts = set[bytes]()
        with suppress(ConnectionError):
            while data := await reader.read(65536):
                await self._going.wait()
                acts.update(ACT.findall(data))
                if asks and (COMMIT in data or acts.intersection(BIND.findall(data))):
                    if self.keeps:
                        self.keeps = False
                        self.kept.set()
                        await self._letting_go.wait()
                    self._meet_commit(losing, holding)
                if not asks and holding.is_set() and READY in data:
                    holding.clear()
                    self.stand_still()
                    self.held.set()
                    await self._going.wait()
                if not asks and losing.is_set() and READY in data:
                    return
                writer.write(data)
                await writer.drain()

    def _meet_commit(self, losing: asyncio.Event, holding: asyncio.Event) -> None:
        if not (self.holds or self.commits_lost):
            return
        if self.after:
            self.after -= 1
        elif self.holds:
            self.holds = False
            holding.set()
        else:
            self.commits_lost -= 1
            losing.set()


@asynccontextmanager
async def proxied(dsn: str) -> AsyncIterator[Proxy]:
    with tempfile.TemporaryDirectory(prefix="proxy-") as folder:
        async with Proxy(dsn, Path(folder)).serving() as proxy:
            yield proxy
