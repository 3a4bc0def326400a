"""GET /v1/responses with an upgrade: a WebSocket whose messages request responses. Those with the same `stream_id`, or
without one, are answered one after the other.

One task of a connection reads its messages, and one for each lane answers them.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter, OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any
from uuid import UUID

import orjson
from aiohttp import WSCloseCode, WSMsgType, web

from agents.errors import TurnOver, WaitsForCaller
from agents.function_tool import PLAIN
from agents.message import Compaction, ConfigurationUpdate, FileSearchCall, FunctionCall, Item, ToolListing
from agents.payload import OUTPUT_TYPES
from inference.lru_cache import LruCache
from worker.auth.principal import Principal
from worker.auth.scope import Scope
from worker.auth.session import require_same_origin
from worker.edge.body import BUDGET, Reservation
from worker.edge.guard import guard_of, remote_of
from worker.errors import ApiError, ClientGone, rate_limited
from worker.http.error_mapping import explained
from worker.http.middleware import join_trace
from worker.http.request import PRINCIPAL, Routes
from worker.lifecycle.supervisor import first_of
from worker.routes.sockets.lane import WAITING_MAX, Lane, Said, SocketStream
from worker.runs.disconnect import HEADER, Disconnect
from worker.runs.event_stream import HEARTBEAT_S
from worker.runs.manager import RUNS, Runs
from worker.runs.run import Run
from worker.services import DRAINING, SERVICES
from worker.wire import limits
from worker.wire.events import steer
from worker.wire.response import Dialect
from worker.wire.response_request import CreateMessage, ResponseRequest, SteerMessage, error_event
from worker.wire.strict import parsed

RESPONSES_MAX = 16  # a client continues the newest one, or one that it branches from
CHARS_MAX = limits.TEXT_CHARS_MAX  # of all of them: more than any supported context holds


def memory() -> LruCache[str, tuple[Item, ...]]:
    """Everything up to and including a response, by its id, oldest first."""
    return LruCache(CHARS_MAX, lambda _, items: max(sum(map(_size, items)), CHARS_MAX // RESPONSES_MAX))


def _size(item: Item) -> int:
    match item:
        case FunctionCall():
            return len(item.arguments) + (len(item.result.output) if item.result else 0)
        case ToolListing():
            return len(orjson.dumps(item.tools))
        case ConfigurationUpdate():
            return len(orjson.dumps(item.format))
        case Compaction():
            return 2 * len(item.sealed)  # and its content
        case FileSearchCall():
            return sum(len(result.text) for result in item.results)
    return len(getattr(item, "text", "") or getattr(item, "output", ""))


log = logging.getLogger("firsttoken.sockets")

LANES_MAX = 8  # responses at once on a connection, besides the turns that a tenant may have
IDLE_S = 600.0  # a connection without requests for this long is closed; clients reconnect
AUTHENTICATION = frozenset({401, 403})


routes = Routes()


@routes.get("/v1/responses", Scope.CHAT, allow_head=False, status=101, tells=())
async def connect(request: web.Request) -> web.StreamResponse:
    """A browser sends its cookie with a handshake from any page, so the origin of a session is checked."""
    principal, draining = request[PRINCIPAL], request.app[DRAINING]
    if not web.WebSocketResponse().can_prepare(request):
        raise ApiError(426, "Send POST with a body, or GET as the handshake of a WebSocket.", code="upgrade_required")
    if principal.via == "session":
        require_same_origin("POST", request.headers)
    if draining.is_set():
        raise ApiError(503, "The worker is shutting down.", retry_after_s=1.0)
    tenant_id = principal.tenant_id
    with request.app[SOCKETS].open(tenant_id), request.app[BUDGET].reserve(tenant_id) as holding:
        body_bytes = request.app[SERVICES].config.body_bytes
        return await Connection(request.app[RUNS], request, draining, body_bytes, holding).serve()


STEER, STREAM_ID = b"response.steer", b'"stream_id"'
FAILED_STEER = "successor_creation_failed"
STEER_CODES = frozenset(
    {"response_not_found", "too_many_pending_steers", "response_already_completed", "response_not_active"}
)


def routed(message: bytes) -> tuple[dict[str, Any] | None, str | None]:
    """What the message says to a running response, if it does; and the lane that it names."""
    with suppress(ValueError):
        asked = orjson.loads(message)
        if isinstance(asked, dict):
            if asked.get("type") == STEER.decode():
                return {"previous_response_id": asked.get("previous_response_id"), "input": asked.get("input")}, None
            if isinstance(lane := asked.get("stream_id"), str) and 0 < len(lane) <= limits.KEY_CHARS_MAX:
                return None, lane
    return None, None


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
        self._memory = memory()
        self._lanes: OrderedDict[str | None, Lane] = OrderedDict()  # by `stream_id`, least recently named first
        self._over = asyncio.Event()  # all lanes are
        self._holding = holding
        self._arriving_bytes = 0  # of an incomplete message
        self._taken_bytes = 0  # of messages that are queued or being answered
        self._reading: asyncio.Task[None] | None = None
        self._close_code = WSCloseCode.OK
        self._socket = web.WebSocketResponse(
            heartbeat=HEARTBEAT_S,
            max_msg_size=message_bytes_max,
            compress=False,  # tokens are too short to benefit
        )

    async def serve(self) -> web.WebSocketResponse:
        await self._socket.prepare(self._request)
        self._lane(None)
        self._reading = asyncio.create_task(self._read())
        if guard := guard_of(self._request):
            guard.on_bytes = self._hold_arriving
        authenticator, principal = self._services.authenticator, self._request[PRINCIPAL]
        try:
            with authenticator.revocable(principal, self._refuse):
                await first_of(self._reading, self._over.wait())
            with suppress(asyncio.CancelledError):  # of the reader, when its messages take too much memory
                self._reading.result()
        finally:
            if guard:
                guard.on_bytes = None
            tasks = [lane.task for lane in self._lanes.values() if lane.task is not None]
            for name in tuple(self._lanes):
                self._drop(name)
            await asyncio.gather(*tasks, return_exceptions=True)
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
        name: str | None = None
        if STEER in message or STREAM_ID in message:
            asked, name = await asyncio.to_thread(routed, message)
            if asked is not None:
                return await self._steer(message, asked)
            if name not in self._lanes and not self._makes_room():
                text = f"{LANES_MAX} streams of this connection are being answered: wait for one of them."
                return await self._complain(SocketStream(self._request, name), rate_limited(text))
        lane = self._lane(name)
        try:
            lane.messages.put_nowait(message)
            lane.unanswered += 1
            self._taken_bytes += len(message)
            self._hold()
        except asyncio.QueueFull:
            text = f"{WAITING_MAX} requests are already waiting on this connection: read their answers first."
            await self._complain(lane.stream, rate_limited(text))

    def _makes_room(self) -> bool:
        """Whether there may be another lane with a name, perhaps in place of an idle one."""
        named = [name for name in self._lanes if name is not None]
        idle = [name for name in named if self._lanes[name].is_idle]
        if len(named) >= LANES_MAX and idle:
            self._drop(idle[0])
        return len(named) < LANES_MAX or bool(idle)

    def _lane(self, name: str | None) -> Lane:
        lane = self._lanes.get(name)
        if lane is None:
            lane = self._lanes[name] = Lane(SocketStream(self._request, name))
            lane.stream.begin()
            lane.task = asyncio.create_task(self._answer_lane(name, lane))
        self._lanes.move_to_end(name)
        return lane

    def _drop(self, name: str | None) -> None:
        lane = self._lanes.pop(name)
        lane.stream.end()
        if lane.task is not None:
            lane.task.cancel()

    async def _answer_lane(self, name: str | None, lane: Lane) -> None:
        """Answer the requests of a lane until the worker is stopped, or the lane was idle for too long."""
        try:
            await self._answer_each(lane)
            while not (self._draining.is_set() or lane.is_idle):
                await self._answer_each(lane)
        except ConnectionError:  # the client is gone, or its credential has ended
            if self._reading is not None:
                self._reading.cancel()
        lane.stream.end()
        del self._lanes[name]
        if not self._lanes:
            self._over.set()

    async def _answer_each(self, lane: Lane) -> None:
        with suppress(ClientGone):
            while (message := await self._next(lane)) is not None:
                await self._answer(lane, message)
                lane.unanswered -= 1
                self._taken_bytes -= len(message)
                self._hold()

    async def _next(self, lane: Lane) -> bytes | None:
        """The next message; None when the worker is being stopped or the lane was idle for too long."""
        arriving = asyncio.create_task(lane.messages.get())
        await first_of(arriving, self._draining.wait(), within_s=IDLE_S)
        if self._draining.is_set():
            self._close_code = WSCloseCode.GOING_AWAY
            return None
        return None if arriving.cancelled() else arriving.result()

    async def _answer(self, lane: Lane, message: bytes) -> None:
        """Make the response that a message requests and send its events, or an error."""
        previous_id = ""
        try:
            asked = await parsed(CreateMessage, message)
            body = asked.with_headers(self._request.headers, self._services.surface_names)
            previous_id = body.previous_response_id or ""
            if previous_id == lane.pending[0]:
                said = [message for each in lane.pending[1] for message in each.input]
                body = body.model_copy(update={"input": [*said, *body.input]})
            run = await self._start(body, self._memory.get(previous_id))
        except Exception as error:  # top-level boundary: the connection survives a failed request
            self._memory.pop(previous_id)  # a continuation that fails consumes it
            await self._complain(lane.stream, explained(error, log, "a request on a WebSocket"))
            return
        lane.pending = ("", [])
        await self._stream(lane, run)
        if run.snapshot["status"] == "failed":
            self._memory.pop(previous_id)
        while (successor := await self._successor(lane, run)) is not None:
            await self._stream(lane, run := successor)

    async def _successor(self, lane: Lane, run: Run) -> Run | None:
        """What goes on with what was said to a response, which its client is told if nothing does."""
        came = await run.next if run.next is not None else None
        said, lane.said = lane.said, []
        if not isinstance(came, ApiError):
            return came
        waits = isinstance(came.__cause__, WaitsForCaller) and run.turn.conversation_id is None
        lane.pending = (run.id, said if waits else [])
        for each in said:
            if waits:
                event = steer("pending", run.id, each.steer_id) | {"reason": "waiting_for_required_input"}
                required = [_output_of(call) for call in run.open_calls]
                number = len(run.broadcast.frames)
                await self._send(lane.stream, {**event, "required_input": required, "sequence_number": number})
            else:
                await self._refuse_steer(lane, came, each.asked, each.steer_id)
        return None

    async def _steer(self, message: bytes, asked: dict[str, Any]) -> None:
        """Say something to a response whose events are being sent."""
        tenant_id, lane = self._request[PRINCIPAL].tenant_id, self._lane(None)
        try:
            body = await parsed(SteerMessage, message)
            lanes = (each for each in self._lanes.values() if each.run)
            found = next((each for each in lanes if each.run and each.run.id == body.previous_response_id), None)
            if found is None or found.run is None:
                text = "The response is not in progress on this connection."
                type = "invalid_request_error"
                raise ApiError(404, text, type=type, param="previous_response_id", code="response_not_found")
            lane, run = found, found.run
            if run.ended and not run.turn.frame.request.stored:  # nobody else knows that it was there
                raise TurnOver(run.id)
            said = await self._services.attachments.items(tenant_id, body.input, "input")
            accepted = await self._runs.steer(tenant_id, run.id, said, stop_tools=body.stop_tools)
        except Exception as error:  # top-level boundary: the connection survives what is refused
            await self._refuse_steer(lane, explained(error, log, "a steer on a WebSocket"), asked)
            return
        lane.said.append(Said(accepted.id, asked, body.input))
        if not accepted.told:  # its last event was on its way
            event = steer("accepted", run.id, accepted.id)
            await self._send(lane.stream, {**event, "sequence_number": len(run.broadcast.frames)})

    async def _refuse_steer(
        self, lane: Lane, error: ApiError, asked: dict[str, Any], steer_id: str | None = None
    ) -> None:
        number = len(lane.run.broadcast.frames) if lane.run else 0
        event = steer("failed", asked["previous_response_id"], steer_id, {"input": asked["input"]})
        code = error.code if error.code in STEER_CODES else "invalid_input" if error.status == 400 else FAILED_STEER
        details = {"type": "invalid_request_error", "code": code, "message": error.message}
        await self._send(lane.stream, {**event, "sequence_number": number, "error": details})

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
            raise ApiError(401, "This session has ended. Sign in again.")
        return principal

    async def _stream(self, lane: Lane, run: Run) -> None:
        """Send every event as it happens. A client that disconnects early gives up its place as a reader."""
        lane.run = run
        await run.read(lane.stream)
        if not run.turn.frame.request.stored and run.snapshot["status"] not in ("failed", "cancelled"):
            self._memory.put(run.id, (*run.turn.history, *run.turn.items, *run.output))
        if run.snapshot["status"] == "cancelled":  # its events just end, but a client here waits for a final one
            text = "The response was cancelled."
            await self._complain(lane.stream, ApiError(409, text, code="response_cancelled"))

    async def _complain(self, stream: SocketStream, error: ApiError) -> None:
        await self._send(stream, error_event(error))
        if error.status in AUTHENTICATION:
            self._close_code = WSCloseCode.POLICY_VIOLATION
            raise ConnectionAbortedError

    async def _send(self, stream: SocketStream, event: dict[str, Any]) -> None:
        """Raises ConnectionError, also for a client that has stopped reading."""
        await stream.room()
        await self._socket.send_frame(stream.labelled(orjson.dumps(event)), WSMsgType.TEXT)


def _output_of(call: FunctionCall) -> dict[str, Any]:
    """The output or approval that a response waits for, without its contents."""
    kind = OUTPUT_TYPES[call.shape.form]
    if kind == OUTPUT_TYPES["mcp_approval"]:
        return {"type": kind, "approval_request_id": call.call_id}
    return {"type": kind, "call_id": call.call_id, **({"name": call.name} if call.shape == PLAIN else {})}


OPEN_MAX = 1024  # an idle one costs some kilobytes and a ping every 15 seconds
TENANT_OPEN_MAX = 64
RETRY_AFTER_S = 5.0


class Sockets:
    def __init__(self) -> None:
        self._open: Counter[UUID] = Counter()

    @contextmanager
    def open(self, tenant_id: UUID) -> Iterator[None]:
        """Hold a place for the duration of a connection. Raises ApiError(429) if there is none."""
        if self._open.total() >= OPEN_MAX or self._open[tenant_id] >= TENANT_OPEN_MAX:
            message = f"Too many connections are open; the limit per tenant is {TENANT_OPEN_MAX}."
            raise rate_limited(f"{message} Close one, or try again in a moment.", RETRY_AFTER_S)
        self._open[tenant_id] += 1
        try:
            yield
        finally:
            self._open[tenant_id] -= 1
            if not self._open[tenant_id]:
                del self._open[tenant_id]


SOCKETS: web.AppKey[Sockets] = web.AppKey("sockets", Sockets)
