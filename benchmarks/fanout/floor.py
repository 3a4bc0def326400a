"""The floor: what aiohttp, uvloop and asyncpg take for the answers of a worker, without the worker.

A bare server on the same libraries reads the same requests and answers with the bytes that a worker sent: an event for
each step of a thread, as many in a second as the worker made. Beside stored answers it runs the statements that the
worker ran for as many, as many and with the same values, which Postgres throws away.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import pickle
import re
import socket
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import asyncpg
import orjson
import uvloop
from aiohttp import web

Statement: TypeAlias = tuple[str, list[Any]]  # with its values
TOKEN = re.compile(rb'"delta":(?:"[^"]|\{"content":"[^"])')  # an event with text, of either API
HEADERS = {"Content-Type": "text/event-stream", "Cache-Control": "no-cache"}


@dataclass(frozen=True)
class Answers:
    """What the bare server does. `statements_per_answer` may be a fraction: answers share statements."""

    sent: bytes  # a streamed response of the worker
    tokens: int  # of each answer
    steps_per_s: float
    login: dict[str, Any] | None = None  # to the database of the worker
    statements: tuple[Statement, ...] = ()
    statements_per_answer: float = 0.0

    def parts(self) -> tuple[bytes, bytes, bytes]:
        """The events before the first token, the one of a token, and those after the last."""
        body, left = b"", self.sent.partition(b"\r\n\r\n")[2]
        while size := int(left.partition(b"\r\n")[0], 16):
            left = left.partition(b"\r\n")[2]
            body, left = body + left[:size], left[size + 2 :]
        events = [event + b"\n\n" for event in body.split(b"\n\n")[:-1]]
        told = [number for number, event in enumerate(events) if TOKEN.search(event)]
        middle = sorted([events[number] for number in told], key=len)[len(told) // 2]
        return b"".join(events[: told[0]]), middle, b"".join(events[told[-1] + 1 :])


@dataclass(slots=True)
class Stream:
    transport: asyncio.Transport
    ended: asyncio.Future[None]
    left: int  # tokens


class Server:
    def __init__(self, answers: Answers) -> None:
        self._answers, self._generated = answers, 0
        self._head, token, self._tail = answers.parts()
        self._chunk = b"%x\r\n%b\r\n" % (len(token), token)
        self._running: list[Stream] = []
        self._due, self._statements = 0.0, itertools.cycle(answers.statements)
        self._tasks: set[asyncio.Task[None]] = set()

    async def serve(self, ready: Path) -> None:
        """Serve until the process is ended."""
        if self._answers.login:
            self._pool = await asyncpg.create_pool(**self._answers.login, min_size=1, reset=_nothing)
        app = web.Application()
        app.router.add_post("/v1/{api:.*}", self._answer)
        app.router.add_get("/metrics", self._metrics)
        runner = web.AppRunner(app, access_log=None)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        threading.Thread(target=self._step, args=(asyncio.get_running_loop(),), daemon=True).start()
        told = {"url": f"http://127.0.0.1:{runner.addresses[0][1]}", "api_key": "", "pid": os.getpid()}
        await asyncio.to_thread(ready.write_text, json.dumps(told))
        await asyncio.Event().wait()

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        orjson.loads(await request.read())
        response, transport = web.StreamResponse(headers=HEADERS), request.transport
        assert transport is not None
        connection = transport.get_extra_info("socket")
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_CORK, 1)  # headers and first events in one packet
        await response.prepare(request)
        await response.write(self._head)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_CORK, 0)
        self._due += self._answers.statements_per_answer
        while self._due >= 1:
            self._due -= 1
            self._tasks.add(task := asyncio.create_task(self._execute(*next(self._statements))))
            task.add_done_callback(self._tasks.discard)
        ended = asyncio.get_running_loop().create_future()
        self._running.append(Stream(transport, ended, self._answers.tokens))
        await ended
        await response.write_eof(self._tail)
        return response

    async def _execute(self, statement: str, values: list[Any]) -> None:
        async with self._pool.acquire() as connection:
            await connection.execute(statement, *values)

    async def _metrics(self, _: web.Request) -> web.Response:
        return web.Response(text=f'firsttoken_tokens_total{{kind="generated"}} {self._generated}\n')

    def _step(self, loop: asyncio.AbstractEventLoop) -> None:
        while True:
            time.sleep(1 / self._answers.steps_per_s)
            loop.call_soon_threadsafe(self._deliver)

    def _deliver(self) -> None:
        running, self._running = self._running, []
        for stream in running:
            if stream.transport.is_closing():
                continue
            if not stream.left:
                stream.ended.set_result(None)
                continue
            stream.left -= 1
            stream.transport.write(self._chunk)
            self._generated += 1
            self._running.append(stream)


async def _nothing(_: object) -> None: ...


def serve_bare(answers: Path, ready: Path) -> None:
    server = Server(pickle.loads(answers.read_bytes()))
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(server.serve(ready))
