"""GET /v1/responses with an upgrade: a WebSocket whose messages request responses, one answered after the other.

One task of a connection reads its messages, another answers them.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from struct import pack
from typing import Any

import orjson
from aiohttp import WSCloseCode, WSMsgType, web

from agents.call_payload import OUTPUT_TYPES
from agents.call_shape import PLAIN
from agents.errors import WaitsForCaller
from agents.message import Compaction, FileSearchCall, FunctionCall, Item, ToolListing
from worker.auth.access import needs
from worker.auth.principal import Principal
from worker.auth.scope import Scope
from worker.auth.session import require_same_origin
from worker.edge.budget import BUDGET, Reservation
from worker.edge.guard import guard_of, remote_of
from worker.errors import BROKE, ApiError, ClientGone, rate_limited
from worker.http.error_mapping import to_api_error
from worker.http.middleware import join_trace
from worker.http.request_keys import PRINCIPAL
from worker.http.route_docs import RouteDocs
from worker.routes.sockets.register import SOCKETS
from worker.runs.disconnect import HEADER, Disconnect
from worker.runs.event_stream import HEARTBEAT_S, Stream
from worker.runs.manager import RUNS, Runs
from worker.runs.reader import read_run
from worker.runs.run import Run
from worker.services import DRAINING, SERVICES
from worker.wire import limits, sse
from worker.wire.dialect import Dialect
from worker.wire.events import steer
from worker.wire.headers import with_headers
from worker.wire.parse import parsed
from worker.wire.response_request import ResponseRequest
from worker.wire.socket_message import CreateMessage, SaidMessage, SteerMessage, error_event

TEXT = 0x81  # a complete text message in one frame (RFC 6455, section 5.2)
LENGTH_16, LENGTH_64 = 126, 127


class SocketStream(Stream):
    """Its frames go directly to the transport, in one piece, so that pings and closes from aiohttp never interleave
    with them. aiohttp also reports whether the client is still connected.
    """

    async def open(self) -> None:
        """Nothing to send: the handshake has opened the stream."""

    def _encoded(self, frames: Sequence[bytes]) -> bytes:
        return b"".join([message(sse.data_of(frame)) for frame in frames])


def message(data: bytes) -> bytes:
    """A frame as servers send it: without a mask."""
    size = len(data)
    if size < LENGTH_16:
        return b"%c%c%b" % (TEXT, size, data)
    if size < 2**16:
        return pack("!BBH", TEXT, LENGTH_16, size) + data
    return pack("!BBQ", TEXT, LENGTH_64, size) + data


RESPONSES_MAX = 16  # a client continues the newest one, or one that it branches from
CHARS_MAX = limits.TEXT_CHARS_MAX  # of all of them: more than any supported context holds


@dataclass(slots=True)
class Memory:
    """Maps an id to everything up to and including a response, oldest first. Evicts the least recently used."""

    _kept: OrderedDict[str, tuple[Item, ...]] = field(default_factory=OrderedDict)
    _chars: int = 0

    def keep(self, response_id: str, items: Sequence[Item]) -> None:
        self.take(response_id)
        self._kept[response_id] = tuple(items)
        self._chars += _chars(items)
        while len(self._kept) > RESPONSES_MAX or self._chars > CHARS_MAX:
            self.take(next(iter(self._kept)))

    def take(self, response_id: str) -> tuple[Item, ...] | None:
        """Remove and return what is kept under this id; None if there is nothing."""
        items = self._kept.pop(response_id, None)
        self._chars -= _chars(items or ())
        return items


def _chars(items: Sequence[Item]) -> int:
    return sum(map(_size, items))


def _size(item: Item) -> int:
    match item:
        case FunctionCall():
            return len(item.arguments) + (len(item.result.output) if item.result else 0)
        case ToolListing():
            return len(orjson.dumps(item.tools))
        case Compaction():
            return 2 * len(item.sealed)  # and its content
        case FileSearchCall():
            return sum(len(result.text) for result in item.results)
    return len(getattr(item, "text", "") or getattr(item, "output", ""))


log = logging.getLogger("firsttoken.sockets")

WAITING_MAX = 4  # messages queued behind the current one; each may be as large as a request body
IDLE_S = 600.0  # a connection without requests for this long is closed; clients reconnect
AUTHENTICATION = frozenset({401, 403})


def routes() -> list[web.RouteDef]:
    return needs(Scope.CHAT, web.get("/v1/responses", connect, allow_head=False))


@RouteDocs(status=101, tells=())
async def connect(request: web.Request) -> web.StreamResponse:
    """A browser sends its cookie with a handshake from any page, so the origin of a session is checked."""
    principal, draining = request[PRINCIPAL], request.app[DRAINING]
    if not web.WebSocketResponse().can_prepare(request):
        raise ApiError(426, "Send POST with a body, or GET as the handshake of a WebSocket.", code="upgrade_required")
    if principal.via == "session":
        require_same_origin("POST", request.headers)
    if draining.is_set():
        raise ApiError(503, "The worker is shutting down.", type="server_error", retry_after_s=1.0)
    tenant_id = principal.tenant_id
    with request.app[SOCKETS].open(tenant_id), request.app[BUDGET].reserve(tenant_id) as holding:
        body_bytes = request.app[SERVICES].config.body_bytes
        return await Connection(request.app[RUNS], request, draining, body_bytes, holding).serve()


STEER = b"response.steer"
FAILED_STEER = "successor_creation_failed"
STEER_CODES = frozenset(
    {"response_not_found", "too_many_pending_steers", "response_already_completed", "response_not_active"}
)


def steer_of(message: bytes) -> dict[str, Any] | None:
    """The message, if it steers a response."""
    with suppress(ValueError):
        asked = orjson.loads(message)
        if isinstance(asked, dict) and asked.get("type") == STEER.decode():
            return {"previous_response_id": asked.get("previous_response_id"), "input": asked.get("input")}
    return None


@dataclass(frozen=True, slots=True)
class _Said:
    """What was accepted: under this id, as the client sent it, and as the input of a request."""

    steer_id: str
    asked: dict[str, Any]
    input: list[SaidMessage]


class Connection:
    """`serve` returns when either side is done. A response whose connection is lost follows its disconnect policy."""

    def __init__(
        self, runs: Runs, request: web.Request, draining: asyncio.Event, message_bytes_max: int, holding: Reservation
    ) -> None:
        self._runs = runs
        self._services = runs.services
        self._request = request
        self._draining = draining
        self._dialect = Dialect.of(request.headers)
        self._on_disconnect = Disconnect.parse(request.headers.get(HEADER))
        self._memory = Memory()
        self._messages: asyncio.Queue[bytes] = asyncio.Queue(WAITING_MAX)
        self._holding = holding
        self._run: Run | None = None  # whose events are being sent
        self._said: list[_Said] = []  # to it
        self._pending: tuple[str, list[_Said]] = ("", [])  # the response before, and what waits for its outputs
        self._arriving_bytes = 0  # of an incomplete message
        self._taken_bytes = 0  # of messages that are queued or being answered
        self._reading: asyncio.Task[None] | None = None
        self._close_code = WSCloseCode.OK
        self._socket = web.WebSocketResponse(
            heartbeat=HEARTBEAT_S,
            max_msg_size=message_bytes_max,
            compress=False,  # tokens are too short to benefit
        )
        self._stream = SocketStream(request)

    async def serve(self) -> web.WebSocketResponse:
        await self._socket.prepare(self._request)
        self._stream.begin()
        self._reading = asyncio.create_task(self._read())
        tasks = [self._reading, asyncio.create_task(self._answer_all())]
        if guard := guard_of(self._request):
            guard.on_bytes = self._hold_arriving
        authenticator, principal = self._services.authenticator, self._request[PRINCIPAL]
        try:
            with authenticator.revocable(principal, self._refuse):
                done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            with suppress(asyncio.CancelledError):  # of the reader, when its messages take too much memory
                done.pop().result()
        finally:
            if guard:
                guard.on_bytes = None
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
            self._stream.end()
            with suppress(ConnectionError):
                await self._socket.close(code=self._close_code)
        return self._socket

    def _refuse(self) -> None:
        """The credential was revoked, which ends the request that opened the connection."""
        self._close_code = WSCloseCode.POLICY_VIOLATION

    async def _read(self) -> None:
        """Read until the client closes. Runs while responses are made, so that pings are answered and a disconnect is
        noticed.
        """
        with suppress(ConnectionError, TimeoutError):
            async for message in self._socket:
                if message.type is WSMsgType.ERROR:  # such as a message that is too large: aiohttp closes by itself
                    return
                await self._take(message.data)

    def _hold_arriving(self, count: int) -> None:
        """Bytes have arrived: they count before their message is complete."""
        self._arriving_bytes += count
        self._hold()

    def _hold(self) -> None:
        """Close the connection if it holds more than the tenant may."""
        try:
            self._holding.resize(self._arriving_bytes + self._taken_bytes)
        except ApiError:
            self._close_code = WSCloseCode.TRY_AGAIN_LATER
            if self._reading is not None:
                self._reading.cancel()

    async def _take(self, data: str | bytes) -> None:
        message = data.encode() if isinstance(data, str) else data
        self._arriving_bytes = 0
        if STEER in message and (asked := await asyncio.to_thread(steer_of, message)) is not None:
            return await self._steer(message, asked)
        try:
            self._messages.put_nowait(message)
            self._taken_bytes += len(message)
            self._hold()
        except asyncio.QueueFull:
            text = f"{WAITING_MAX} requests are already waiting on this connection: read their answers first."
            await self._complain(rate_limited(text))

    async def _answer_all(self) -> None:
        """Answer until the worker is stopped, the connection is idle for too long, or the client does not read."""
        with suppress(ConnectionError, ClientGone):
            while (message := await self._next()) is not None:
                await self._answer(message)
                self._taken_bytes -= len(message)
                self._hold()

    async def _next(self) -> bytes | None:
        """The next message; None when the worker is being stopped or the connection was idle for too long."""
        arriving = asyncio.create_task(self._messages.get())
        draining = asyncio.create_task(self._draining.wait())
        waits: list[asyncio.Task[Any]] = [arriving, draining]
        try:
            await asyncio.wait(waits, timeout=IDLE_S, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()
        if self._draining.is_set():
            self._close_code = WSCloseCode.GOING_AWAY
            return None
        return arriving.result() if arriving.done() else None

    async def _answer(self, message: bytes) -> None:
        """Make the response that a message requests and send its events, or an error."""
        try:
            surfaces = self._services.surface_names
            body = with_headers(await parsed(CreateMessage, message), self._request.headers, surfaces)
            previous_id = body.previous_response_id or ""
            if previous_id == self._pending[0]:
                said = [message for each in self._pending[1] for message in each.input]
                body = body.model_copy(update={"input": [*said, *body.input]})
            remembered = self._memory.take(previous_id)  # a continuation consumes it even if it fails
            run = await self._start(body, remembered)
        except Exception as error:  # top-level boundary: the connection survives a failed request
            await self._complain(_explained(error))
            return
        self._pending = ("", [])
        await self._tell(run)
        if run.snapshot["status"] != "failed" and remembered is not None:
            self._memory.keep(previous_id, remembered)
        while (successor := await self._successor(run)) is not None:
            await self._tell(run := successor)

    async def _successor(self, run: Run) -> Run | None:
        """What goes on with what was said to a response, which its client is told if nothing does."""
        came = await run.next if run.next is not None else None
        said, self._said = self._said, []
        if not isinstance(came, ApiError):
            return came
        waits = isinstance(came.__cause__, WaitsForCaller) and run.turn.conversation_id is None
        self._pending = (run.id, said if waits else [])
        for each in said:
            if waits:
                event = steer("pending", run.id, each.steer_id) | {"reason": "waiting_for_required_input"}
                await self._send(orjson.dumps({**event, **_outputs_of(run), "sequence_number": len(run.frames)}))
            else:
                await self._refuse_steer(came, each.asked, each.steer_id)
        return None

    async def _steer(self, message: bytes, asked: dict[str, Any]) -> None:
        """Say something to the response whose events are being sent."""
        tenant_id, run = self._request[PRINCIPAL].tenant_id, self._run
        try:
            body = await parsed(SteerMessage, message)
            if run is None or run.id != body.previous_response_id:
                text = "The response is not in progress on this connection."
                raise ApiError(404, text, param="previous_response_id", code="response_not_found")
            said = await self._services.attachments.items(tenant_id, body.input, "input")
            accepted = await self._runs.steer(tenant_id, run.id, said, stop_tools=body.stop_tools)
        except Exception as error:  # top-level boundary: the connection survives what is refused
            await self._refuse_steer(_explained(error), asked)
            return
        self._said.append(_Said(accepted.id, asked, body.input))
        if not accepted.told:  # its last event was on its way
            event = steer("accepted", run.id, accepted.id)
            await self._send(orjson.dumps({**event, "sequence_number": len(run.frames)}))

    async def _refuse_steer(self, error: ApiError, asked: dict[str, Any], steer_id: str | None = None) -> None:
        number = len(self._run.frames) if self._run else 0
        event = steer("failed", asked["previous_response_id"], steer_id, {"input": asked["input"]})
        code = error.code if error.code in STEER_CODES else "invalid_input" if error.status == 400 else FAILED_STEER
        details = {"type": "invalid_request_error", "code": code, "message": error.message}
        await self._send(orjson.dumps({**event, "sequence_number": number, "error": details}))

    async def _start(self, body: ResponseRequest, remembered: tuple[Item, ...] | None) -> Run:
        """The credential is checked for each request: keys are revoked while connections last."""
        return await self._runs.create(
            await self._principal(),
            join_trace(self._request.headers.get("Traceparent")),
            body,
            dialect=self._dialect,
            on_disconnect=self._on_disconnect,
            remembered=remembered,
        )

    async def _principal(self) -> Principal:
        request = self._request
        principal = await self._services.authenticator.identify(
            request.headers, request.cookies, request.method, join_trace(None), remote_of(request)
        )
        if principal is None:
            raise ApiError(401, "This session has ended. Sign in again.", type="authentication_error")
        return principal

    async def _tell(self, run: Run) -> None:
        """Send every event as it happens. A client that disconnects early gives up its place as a reader."""
        self._run = run
        await read_run(run, self._stream)
        if not run.turn.frame.request.stored and run.snapshot["status"] not in ("failed", "cancelled"):
            self._memory.keep(run.id, (*run.turn.history, *run.turn.items, *run.output))
        if run.snapshot["status"] == "cancelled":  # its events just end, but a client here waits for a final one
            text = "The response was cancelled."
            await self._complain(ApiError(409, text, code="response_cancelled"))

    async def _complain(self, error: ApiError) -> None:
        await self._send(orjson.dumps(error_event(error)))
        if error.status in AUTHENTICATION:
            self._close_code = WSCloseCode.POLICY_VIOLATION
            raise ConnectionAbortedError

    async def _send(self, message: bytes) -> None:
        """Raises ConnectionError, also for a client that has stopped reading."""
        await self._stream.room()
        await self._socket.send_frame(message, WSMsgType.TEXT)


def _outputs_of(run: Run) -> dict[str, Any]:
    """The outputs and approvals that a response waits for, without their contents."""
    return {"required_input": [_output_of(call) for call in run.open_calls]}


def _output_of(call: FunctionCall) -> dict[str, Any]:
    kind = OUTPUT_TYPES[call.shape.form]
    if kind == OUTPUT_TYPES["mcp_approval"]:
        return {"type": kind, "approval_request_id": call.call_id}
    return {"type": kind, "call_id": call.call_id, **({"name": call.name} if call.shape == PLAIN else {})}


def _explained(error: Exception) -> ApiError:
    answer = to_api_error(error)
    if answer is None:
        log.error("a request on a WebSocket failed", exc_info=error)
        return ApiError(500, BROKE, type="server_error", code="server_error")
    return answer
