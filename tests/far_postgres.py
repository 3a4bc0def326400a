"""A proxy to Postgres that adds the latency of a remote database and counts the traffic."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import parse_qs, urlencode, urlsplit, urlunsplit

PIECE_BYTES = 1 << 16
READY_FOR_QUERY = ord("Z")
HEADER_BYTES = 5  # type, and length without the type


@dataclass(slots=True)
class Counts:
    """`round_trips`: responses of the server after which the client may send again."""

    round_trips: int = 0
    connections: int = 0
    connections_max: int = 0


class Answers:
    """Splits the server's output into messages, to count those that end a round trip. Pure."""

    def __init__(self) -> None:
        self._skip = 0  # remaining bytes of the current message
        self._head = b""

    def feed(self, data: bytes) -> int:
        """Feed output of the server; returns the number of round trips that end in these bytes."""
        ended, at = 0, 0
        while at < len(data):
            if self._skip:
                step = min(self._skip, len(data) - at)
                self._skip -= step
                at += step
                continue
            taken = data[at : at + HEADER_BYTES - len(self._head)]
            self._head += taken
            at += len(taken)
            if len(self._head) == HEADER_BYTES:
                ended += self._head[0] == READY_FOR_QUERY
                self._skip = int.from_bytes(self._head[1:], "big") - 4
                self._head = b""
        return ended


class FarPostgres:
    """Listens next to the server's socket; `rtt_s` may change at any time."""

    def __init__(self, dsn: str, folder: Path, rtt_s: float = 0.0) -> None:
        parts = urlsplit(dsn)
        query = {name: values[0] for name, values in parse_qs(parts.query).items()}
        name = f".s.PGSQL.{query.get('port', parts.port or 5432)}"
        self._real, self._path = str(Path(query["host"], name)), str(folder / name)
        self.dsn = urlunsplit(parts._replace(query=urlencode({**query, "host": str(folder)})))
        self.rtt_s = rtt_s
        self.counts = Counts()

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[FarPostgres]:
        server = await asyncio.start_unix_server(self._accept, self._path)
        try:
            yield self
        finally:
            server.close()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        counts = self.counts
        counts.connections += 1
        counts.connections_max = max(counts.connections_max, counts.connections)
        try:
            theirs, ours = await asyncio.open_unix_connection(self._real)
            async with asyncio.TaskGroup() as ways:
                ways.create_task(self._carry(reader, ours, None))
                ways.create_task(self._carry(theirs, writer, Answers()))
        except* OSError:
            pass
        finally:
            counts.connections -= 1
            writer.close()

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, answers: Answers | None) -> None:
        """Forward a direction. Each chunk arrives half a round trip after it was sent, whatever was sent before."""
        loop, under_way = asyncio.get_running_loop(), asyncio.Queue[tuple[float, bytes]]()

        async def deliver() -> None:
            while True:
                at, data = await under_way.get()
                await asyncio.sleep(max(0.0, at - loop.time()))
                if not data:
                    break
                writer.write(data)
                with suppress(ConnectionError):
                    await writer.drain()

        delivering = asyncio.create_task(deliver())
        try:
            while data := await reader.read(PIECE_BYTES):
                if answers is not None:
                    self.counts.round_trips += answers.feed(data)
                under_way.put_nowait((loop.time() + self.rtt_s / 2, data))
            under_way.put_nowait((loop.time() + self.rtt_s / 2, b""))
            await delivering
        finally:
            delivering.cancel()
            writer.close()
