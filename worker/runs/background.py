"""Background responses: requests are stored in a queue; each is taken by one worker, which runs it as a turn. A turn is
restored from what is stored, also that of a response which another worker had begun."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from contextlib import ExitStack
from dataclasses import replace
from typing import Any, TypeAlias, cast
from uuid import UUID

import orjson

from agents.errors import NotFound
from agents.progress import CannotResume
from inference.trace import Trace
from migrations.pool import DATABASE_AWAY, certain
from worker.auth.principal import Principal, Via
from worker.auth.secret import Seals, opened
from worker.errors import BUSY
from worker.http.error_mapping import explained
from worker.lifecycle.supervisor import Healthy, Supervised, at_most
from worker.runs.ledger import Ledger
from worker.runs.queue_store import Job
from worker.runs.run_services import RunServices
from worker.runs.running_store import OwnedResponse
from worker.runs.turn import ResponseTurn, hydrate, record_of
from worker.wire.response import Dialect, EventEncoder, ResponseFrame
from worker.wire.response_request import ResponseRequest

BACKGROUND = {"background": True}  # in a trace: nobody waits for the answer


def stored_request(seals: Seals, tenant_id: UUID, body: ResponseRequest) -> dict[str, Any]:
    """The request without its items. What it says about MCP servers contains secrets, so it is encrypted."""
    request = body.model_dump(mode="json", by_alias=True, exclude_unset=True, exclude={"input"})
    if body.servers:
        request["tools"] = seals.close(tenant_id, orjson.dumps(request["tools"]).decode())
    return request


def _request_of(seals: Seals, tenant_id: UUID, stored: Mapping[str, Any]) -> ResponseRequest:
    """Raises CannotResume if this worker has another secret."""
    tools = stored.get("tools")
    if isinstance(tools, str):
        opened_tools = seals.open(tenant_id, tools)
        if opened_tools is None:
            raise CannotResume("its tools were encrypted with another secret")
        stored = {**stored, "tools": orjson.loads(opened_tools)}
    return ResponseRequest.model_validate(stored)


def job_of(services: RunServices, turn: ResponseTurn, grace_s: float) -> dict[str, Any]:
    """What another worker needs of a turn in addition to what is stored of it anyway. `grace_s` is how long the turn
    continues without a reader."""
    request = stored_request(services.seals, turn.tenant_id, turn.frame.request)
    grace = None if grace_s == float("inf") else grace_s
    return {"request": request, "caller": _caller(turn), "history": len(turn.history), "grace_s": grace}


def _caller(turn: ResponseTurn) -> dict[str, str]:
    return {"via": turn.principal.via, "subject": turn.principal.subject, "dialect": turn.frame.dialect.value}


async def restored_turn(
    services: RunServices,
    owned: OwnedResponse,
    request: Mapping[str, Any],
    caller: Mapping[str, str],
    history: int | None = None,
) -> tuple[ResponseTurn, Ledger]:
    """The turn of a stored response, for its caller. `history`: the number of items that preceded the request when the
    response was begun; later ones are left out.

    Raises the errors that refuse it: also ApiError 401 when its key is no longer valid, NotFound, and CannotResume.
    """
    tenant_id, response_id = owned.tenant_id, owned.response_id
    principal = await services.authenticator.principal_of(tenant_id, cast(Via, caller["via"]), caller["subject"])
    record = await services.responses.get(tenant_id, response_id)
    model = services.checked(record.body["model"])
    frame = ResponseFrame(
        _request_of(services.seals, tenant_id, request),
        model,
        response_id,
        record.body["created_at"],
        Dialect(caller["dialect"]),
        services.sampling_defaults(request.get("model")),
    )
    trace = Trace(attributes=dict(BACKGROUND))
    with trace.span("hydrate"):
        items = tuple(opened(services.seals, tenant_id, item, "input") for item in record.input)
        turn = replace(await hydrate(services, principal, frame, trace=trace), items=items)
    if history is not None:
        if len(turn.history) < history:
            raise CannotResume("the items before it were deleted")
        turn = replace(turn, history=turn.history[:history])
    return turn, Ledger(services, principal, trace, frame)


log = logging.getLogger("firsttoken.runs")

POLL_S = 5.0
SILENT_S = 60.0  # a pass is a few statements, each with a timeout
RETRY_S = 1.0
STORE_S = 5.0


# Runs a response that was taken from the queue to its end; raises the errors that refuse it.
Run: TypeAlias = Callable[[OwnedResponse], Awaitable[None]]


class Backlog:
    """At most `places` responses at once, none with 0; the others wait for any worker with a free place.

    Postgres notifies of new ones (LISTEN), and a slow poll covers missed notifications. Two statements and a loop: a
    library for queues would bring a second driver and its own tables, and still not know which events were sent.
    """

    def __init__(self, services: RunServices, places: int, run: Run) -> None:
        self._services = services
        self._places = places
        self._run = run
        self._making: dict[asyncio.Task[None], OwnedResponse] = {}
        self._queued = asyncio.Event()
        self._stopped = False
        self._taking: Supervised | None = None
        self._untold = False  # other workers were not notified of it

    @property
    def has_room(self) -> bool:
        return not self._stopped and self._services.presence.is_alive and len(self._making) < self._places

    async def enqueue(self, principal: Principal, body: ResponseRequest, dialect: Dialect, id: str) -> dict[str, Any]:
        """Store a request for any worker with a free place, and return the response as it is now. Where this worker has
        one, the others are not told: they would all ask the database for the same row.

        Raises the errors that refuse the request, as far as they can be known before it starts, and TooManyQueued.
        """
        services = self._services
        body = body.entitled(principal.best_class)
        frame = services.frame(body, id=id, dialect=dialect)
        ledger = Ledger(services, principal, Trace(attributes=dict(BACKGROUND)), frame)
        with ExitStack() as held:
            ledger.count(held)
            turn = await hydrate(services, principal, frame)
            await services.agent.count(ledger.applied(turn.turn))
        request, queued = stored_request(services.seals, turn.tenant_id, body), frame.queued()
        job = Job(request, _caller(turn), ledger.priority)
        record, events = record_of(turn, queued, ()), EventEncoder(frame).queue()
        here = self.has_room
        await _undisturbed(
            certain(lambda: services.queue.add(turn.tenant_id, record, job, events, tell=not here), STORE_S)
        )
        if here:
            self._untold = True
            self.look()
        return queued

    def start(self) -> None:
        if self._places:
            supervisor = self._services.supervisor
            self._taking = supervisor.start("queue", self._keep_taking, silent_s=SILENT_S)

    def holds(self, taken: OwnedResponse) -> bool:
        """Whether this worker is about to run it, or to put it back."""
        return taken in self._making.values()

    def look(self) -> None:
        """There may be a queued response to take."""
        self._queued.set()

    def stop(self) -> None:
        """Take no more responses from the queue."""
        self._stopped = True

    async def close(self) -> None:
        """Leave responses that were taken but not begun to other workers, as if this one had died."""
        self.stop()
        if self._taking:
            await self._taking.stop()
        for task in self._making:
            task.cancel()
        if self._making:
            await asyncio.wait(self._making)

    async def _keep_taking(self, healthy: Healthy) -> None:
        while True:
            self._queued.clear()
            await self._take_all()
            healthy()
            async with at_most(POLL_S):
                await self._queued.wait()

    async def _take_all(self) -> None:
        while self.has_room:
            taken = await self._services.queue.take(self._services.presence.worker)
            if taken is None:
                self._untold = False
                return
            task = asyncio.create_task(self._make(taken), name="background")
            self._making[task] = taken
            task.add_done_callback(self._free)
        if self._untold:  # more arrived at once than there is capacity for
            await self._services.queue.notify_workers()
            self._untold = False

    def _free(self, task: asyncio.Task[None]) -> None:
        self._making.pop(task, None)
        self.look()

    async def _make(self, taken: OwnedResponse) -> None:
        try:
            await self._run(taken)
        except NotFound:
            log.info("%s was deleted before it started", taken.response_id)
        except Exception as error:  # the boundary: any error that prevents the start of a response ends it, or waits
            queue, answer = self._services.queue, explained(error, log, "the start of %s", taken.response_id)
            if answer.status in BUSY:
                await asyncio.sleep(RETRY_S)
                await _try(lambda: queue.put_back(taken, died=False))
            else:
                await _try(lambda: queue.fail(taken, answer.failure))


async def _undisturbed(storing: Coroutine[Any, Any, None]) -> None:
    """Also where the caller leaves: whether it is stored decides what becomes of the caller's key, and a COMMIT that is
    under way may be carried out when nobody waits for it."""
    task = asyncio.create_task(storing, name="enqueue")
    try:
        await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait([task])
        raise


async def _try(store: Callable[[], Awaitable[Any]]) -> None:
    """For a while. What this worker holds and does not make is put back by the janitor."""
    try:
        await certain(store, STORE_S)
    except DATABASE_AWAY as error:
        log.warning("the queue could not be updated: %r", error)
