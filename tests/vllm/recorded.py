"""What a real vLLM server said, byte for byte: written down by a proxy before it, and told again by a server in its
place. How to record it anew stands at the top of `test_contract.py`."""

from __future__ import annotations

import asyncio
import json
import re
from collections import Counter, defaultdict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

FILE = Path(__file__).with_name("recorded.jsonl")
PAUSE_S = 0.005  # between two pieces: what came after what is kept, not how long it took
BYTES_MAX = 2**20  # of a request
DONE = "data: [DONE]"  # who reads it may leave before the server does
ONCE = " of run "  # what follows it in a salt is of one run of the tests
_LENGTH = re.compile(rb"content-length: *(\d+)", re.IGNORECASE)


@dataclass(slots=True)
class Exchange:
    """A request, and its answer in the pieces that came. One that is not `whole` was ended by who read it."""

    asked: str
    pieces: list[str] = field(default_factory=list)
    whole: bool = False


def asked_of(request: bytes) -> str:
    """What makes two requests the same for vLLM: all but its name, what only our engines understand, and headers."""
    head, _, body = request.partition(b"\r\n\r\n")
    method, path, _ = head.decode().split(" ", 2)
    if not body:
        return f"{method} {path}"
    asked: dict[str, Any] = json.loads(body)
    del asked["request_id"], asked["firsttoken"]
    asked["cache_salt"] = asked["cache_salt"].partition(ONCE)[0]
    told = json.dumps(asked, sort_keys=True, separators=(",", ":"))
    return f"{method} {path} {told}"


async def read_request(reader: asyncio.StreamReader) -> bytes:
    head = await reader.readuntil(b"\r\n\r\n")
    length = _LENGTH.search(head)
    return head + (await reader.readexactly(int(length[1])) if length else b"")


@asynccontextmanager
async def recording(url: str, **about: str) -> AsyncIterator[str]:
    """The address of a proxy before the server at `url`. All that passed is in the file at the end."""
    there = urlsplit(url)
    exchanges: list[Exchange] = []

    async def pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        request = await read_request(reader)
        exchange = Exchange(asked_of(request))
        exchanges.append(exchange)
        answer, server = await asyncio.open_connection(there.hostname, there.port)
        server.write(request)
        leaving = asyncio.create_task(_gone(reader, server))
        with suppress(ConnectionError):
            while data := await answer.read(BYTES_MAX):
                exchange.pieces.append(data.decode("latin-1"))
                writer.write(data)
                await writer.drain()
            exchange.whole = not leaving.done()
        exchange.whole |= any(DONE in piece for piece in exchange.pieces)
        leaving.cancel()
        writer.close()
        server.close()

    async with _serving(pass_on) as address:
        yield address
    with FILE.open("w") as file:
        for line in (about, *map(asdict, exchanges)):
            file.write(json.dumps(line) + "\n")


@asynccontextmanager
async def replaying() -> AsyncIterator[str]:
    """The address of a server that answers as vLLM did: to the same request the same, and to the second one the
    second."""
    with FILE.open() as file:
        _, *lines = map(json.loads, file)
    told: Counter[str] = Counter()
    exchanges: dict[str, list[Exchange]] = defaultdict(list)
    for line in sorted(lines, key=lambda line: not line["whole"]):
        row = exchanges[line["asked"]]
        if line["whole"] or not row or not row[0].whole:  # a whole one will do for who leaves early, too
            row.append(Exchange(**line))

    async def tell(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked = asked_of(await read_request(reader))
        leaving = asyncio.create_task(_gone(reader, writer))
        exchange = exchanges[asked][told[asked] % len(exchanges[asked])] if asked in exchanges else _unknown()
        told[asked] += 1
        for piece in exchange.pieces:
            await asyncio.sleep(PAUSE_S)
            writer.write(piece.encode("latin-1"))
        if exchange.whole:
            with suppress(ConnectionError):
                await writer.drain()
            writer.close()
        await leaving

    async with _serving(tell) as address:
        yield address


@asynccontextmanager
async def _serving(handle: Any) -> AsyncIterator[str]:
    server = await asyncio.start_server(handle, "127.0.0.1", 0, limit=BYTES_MAX)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"


async def _gone(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Return when the client has left, and end what is made for it."""
    with suppress(ConnectionError):
        while await reader.read(1024):
            pass
    writer.close()


def _unknown() -> Exchange:
    body = json.dumps({"error": {"message": f"nobody asked vLLM this: record it anew, {FILE.parent.name} says how"}})
    head = f"HTTP/1.1 400 Bad Request\r\nContent-Length: {len(body)}\r\n\r\n"
    return Exchange("", [head + body], whole=True)
