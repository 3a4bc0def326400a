"""/v1/responses: one turn, streamed or whole, and its stored response. And beside them: stopping one, reading what it
was asked, rating it, counting what a request would read, and turning a conversation into a sealed summary and its
newest turns, to go on from."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace
from time import monotonic
from typing import Annotated

from aiohttp import web

from agents.compaction import compact
from agents.errors import NotFound
from agents.message import Compaction, new_id
from agents.payload import to_payload
from inference.frozen import changed
from inference.trace import Trace
from worker.auth.scope import Scope
from worker.auth.secret import sealed
from worker.errors import PLATFORM, ClientGone
from worker.http.query import Including, PageQuery, Switch, whole
from worker.http.request import (
    BODY,
    EVENTS,
    JSON,
    PRINCIPAL,
    TRACE,
    Json,
    Routes,
    json_response,
    path_id,
)
from worker.lifecycle.supervisor import at_most
from worker.runs.choice import read_request
from worker.runs.disconnect import COME_BACK, HEADER, Disconnect
from worker.runs.event_stream import EventStream
from worker.runs.idempotency import Earlier, Once, in_use, unstored
from worker.runs.ledger import Ledger
from worker.runs.manager import RUNS
from worker.runs.run import Run, read_stored
from worker.runs.turn import hydrate, prompt_tokens
from worker.services import SERVICES
from worker.telemetry.telemetry import server_timing
from worker.wire import limits
from worker.wire.events import DONE
from worker.wire.items import AS_ITEMS, InputItem
from worker.wire.options import CacheRetention, PromptCacheOptions, ServiceTier
from worker.wire.response import Dialect, Feedback, public_item, public_response, usage_object
from worker.wire.response_request import ResponseRequest, ShortKey, SteerRequest
from worker.wire.strict import Id, ModelName, Strict, Text, Unsupported, parsed, up_to

EVENTS_MAX = 10**9 - 1  # they are counted in 32 bits
BEGIN_S = 5.0  # the longest time until a first request is accepted or refused, with a prompt of a megabyte
LOOK_S = 0.05
END_S = 5.0  # how long the end of a response that is deleted may take


routes = Routes()


@routes.post("/v1/responses", Scope.CHAT, takes=ResponseRequest, tells=(JSON, EVENTS))
async def create(request: web.Request) -> web.StreamResponse | Json:
    with request[TRACE].span("edge"):
        body, once = await read_request(request, ResponseRequest)
    id = new_id("resp")
    if once is None:
        return await _respond_with(request, body, await _start(request, body, id), id)
    return await (_respond_once if body.stored else _respond_unstored)(request, body, once, id)


async def _respond_once(request: web.Request, body: ResponseRequest, once: Once, id: str) -> web.StreamResponse | Json:
    again = False
    while True:
        async with once.first(id, again=again) as earlier:
            if earlier is None:
                started = await _start(request, body, id, COME_BACK)
        if earlier is None:
            return await _respond_with(request, body, started, id)
        first_id = await _begun(request, earlier)
        if again or not await _may_begin_again(request, body, first_id):
            return await _repeat(request, body, first_id)
        again = True


async def _respond_unstored(
    request: web.Request, body: ResponseRequest, once: Once, id: str
) -> web.StreamResponse | Json:
    async with unstored(once) as ending:
        started = await _start(request, body, id)
        if not isinstance(started, Run):
            return started
        # A conversation has its input already.
        ending.repeats = body.conversation is None and request.app[SERVICES].agent.repeats(started.turn.turn)
        try:
            return await _respond_with(request, body, started, id)
        finally:
            ending.failed = is_ours(started.snapshot)


async def _start(request: web.Request, body: ResponseRequest, id: str, usual: Disconnect | None = None) -> Run | Json:
    """The run, or the response as it was queued. Raises what refuses the request."""
    principal, dialect = request[PRINCIPAL], Dialect.of(request.headers)
    if body.background:  # generated independently of this request
        return await request.app[RUNS].backlog.enqueue(principal, body, dialect, id)
    on_disconnect = Disconnect.parse(request.headers.get(HEADER), usual)
    runs, trace = request.app[RUNS], request[TRACE]
    resumable = HEADER in request.headers and on_disconnect.grace_s > 0
    return await runs.create(
        principal, trace, body, dialect=dialect, on_disconnect=on_disconnect, id=id, resumable=resumable
    )


async def _respond_with(
    request: web.Request, body: ResponseRequest, started: Run | Json, id: str
) -> web.StreamResponse | Json:
    if body.stream:
        return await _follow(request, id, -1, started if isinstance(started, Run) else None)
    return await _whole(request, started) if isinstance(started, Run) else started


async def _begun(request: web.Request, earlier: Earlier) -> str:
    """The first response with this key, once it can be read and is not in the hands of a lost worker. Raises ApiError
    409 if that takes too long."""
    running, tenant_id, id = request.app[SERVICES].running, request[PRINCIPAL].tenant_id, earlier.response_id
    give_up_at = monotonic() + BEGIN_S
    while id is None or not await running.is_in_hand(tenant_id, id):
        if monotonic() >= give_up_at:
            raise in_use()
        await asyncio.sleep(LOOK_S)
    return id


async def _may_begin_again(request: web.Request, body: ResponseRequest, id: str) -> bool:
    """Whether the platform failed the first response with this key, and all that it may have called may run twice.
    Waits for its end, unless it is streamed."""
    services, runs, principal = request.app[SERVICES], request.app[RUNS], request[PRINCIPAL]
    tenant_id = principal.tenant_id
    try:
        if not body.stream and not body.background:
            await runs.ended(tenant_id, id)
        record = await services.responses.get(tenant_id, id)
        if not is_ours(record.body) or body.servers:  # tools of servers that the request names may do anything
            return False
        said = body.model_copy(update={"input": []})
        turn = await hydrate(services, principal, services.frame(said, id=id))
    except NotFound:  # it was refused after all, and removed
        raise in_use() from None
    return services.agent.repeats(replace(turn, items=record.input).turn)


async def _repeat(request: web.Request, body: ResponseRequest, id: str) -> web.StreamResponse | Json:
    """The response of the first request with this key, from its start. Raises ApiError 409 if that is gone."""
    services, tenant_id = request.app[SERVICES], request[PRINCIPAL].tenant_id
    try:
        if body.stream:
            return await _follow(request, id, -1)
        if not body.background:
            await request.app[RUNS].ended(tenant_id, id)
        record = await services.responses.get(tenant_id, id)
    except NotFound:
        raise in_use() from None
    return public_response(record.body, body.with_results)


def is_ours(response: Json) -> bool:
    """Whether a response failed through no fault of its request."""
    return bool(response["status"] == "failed" and response["error"]["code"] == PLATFORM)


async def _whole(request: web.Request, run: Run) -> web.Response | Json:
    with run.readers.reading():
        await run.wait()
    if run.left:
        tenant_id = request[PRINCIPAL].tenant_id
        await request.app[RUNS].ended(tenant_id, run.id)
        record = await request.app[SERVICES].responses.get(tenant_id, run.id)
        return public_response(record.body, run.turn.frame.request.with_results)
    if run.error is not None:
        raise run.error
    return json_response(run.snapshot, headers={"Server-Timing": server_timing(request[TRACE])})


class FollowQuery(Including):
    """`starting_after`: the sequence number of the last event that was received."""

    stream: Switch = False
    starting_after: Annotated[int, *whole(0, EVENTS_MAX)] | None = None


@routes.get("/v1/responses/{id}", Scope.CHAT, tells=(JSON, EVENTS))
async def retrieve(request: web.Request, query: FollowQuery) -> web.StreamResponse | Json:
    services, tenant_id = request.app[SERVICES], request[PRINCIPAL].tenant_id
    response_id = path_id(request, "response")
    if query.stream:
        return await _follow(request, response_id, -1 if query.starting_after is None else query.starting_after)
    record = await services.responses.get(tenant_id, response_id)
    return public_response(record.body, query.with_results)


async def _follow(request: web.Request, response_id: str, after: int, run: Run | None = None) -> web.StreamResponse:
    """All events after a sequence number: the past ones, then new ones as they come. `run` makes the response here."""
    runs, tenant_id, stream = request.app[RUNS], request[PRINCIPAL].tenant_id, EventStream(request)
    try:
        if run := run or runs.get(tenant_id, response_id):
            after = await run.read(stream, after + 1) - 1
        if run is None or run.left:  # another worker makes it, or resumes it
            await read_stored(runs.services, stream, tenant_id, response_id, after, runs.get)
    except ClientGone:
        return stream.response
    return await stream.close(DONE)


@routes.delete("/v1/responses/{id}", Scope.CHAT)
async def delete(request: web.Request) -> Json:
    """Delete the response. One in progress is cancelled first."""
    services, tenant_id = request.app[SERVICES], request[PRINCIPAL].tenant_id
    response_id = path_id(request, "response")
    await request.app[RUNS].cancel(tenant_id, response_id)
    async with at_most(END_S):
        await request.app[RUNS].ended(tenant_id, response_id)
    await services.responses.delete(tenant_id, response_id)
    return {"id": response_id, "object": "response", "deleted": True}


@routes.post("/v1/responses/{id}/cancel", Scope.CHAT)
async def cancel(request: web.Request) -> Json:
    """Cancel a response at whichever worker generates it, and return its final state. A finished one is unchanged."""
    body = await request.app[RUNS].cancel(request[PRINCIPAL].tenant_id, path_id(request, "response"))
    return public_response(body)


@routes.post("/v1/responses/{id}/answer_now", Scope.CHAT, status=202)
async def answer_now(request: web.Request) -> Json:
    """End the reasoning of a response in progress, at whichever worker generates it: its answer begins."""
    response_id = path_id(request, "response")
    await request.app[RUNS].answer_now(request[PRINCIPAL].tenant_id, response_id)
    return {"object": "response.answer_now", "response": response_id}


@routes.post("/v1/responses/{id}/steer", Scope.CHAT, status=202)
async def steer(request: web.Request, body: SteerRequest) -> Json:
    """Say something to a response in progress, at whichever worker generates it: it ends at the next safe place, and
    the response that is named here goes on."""
    services, tenant_id, response_id = request.app[SERVICES], request[PRINCIPAL].tenant_id, path_id(request, "response")
    said = await services.attachments.items(tenant_id, body.input, "input")
    accepted = await request.app[RUNS].steer(tenant_id, response_id, said, stop_tools=body.stop_tools)
    told = {"id": accepted.id, "previous_response_id": response_id, "response": accepted.successor}
    return {"object": "response.steer", **told}


@routes.post("/v1/responses/{id}/feedback", Scope.CHAT)
async def rate(request: web.Request, body: Feedback) -> Json:
    """Store a rating. It appears in the metadata of the response and with its trace."""
    services, tenant_id, id = request.app[SERVICES], request[PRINCIPAL].tenant_id, path_id(request, "response")
    await services.responses.annotate(tenant_id, id, body.notes)
    await request.app[RUNS].recorded(tenant_id, id)
    await services.telemetry.flush()  # the trace of an answer that has just ended may still wait
    attributes = await services.telemetry.traces.annotate(tenant_id, id, body.notes)
    services.canaries.rate(attributes, body.rating)
    return {"object": "response.feedback", "response": id, "rating": body.rating, "comment": body.comment}


class InputItemsQuery(PageQuery, Including):
    pass


@routes.get("/v1/responses/{id}/input_items", Scope.CHAT)
async def input_items(request: web.Request, query: InputItemsQuery) -> Json:
    """The items of the request itself; earlier items belong to other responses."""
    services, tenant_id = request.app[SERVICES], request[PRINCIPAL].tenant_id
    record = await services.responses.get(tenant_id, path_id(request, "response"))
    return query.of([public_item(item, query.with_results) for item in record.input])


@routes.post("/v1/responses/input_tokens", Scope.CHAT)
async def input_tokens(request: web.Request, body: ResponseRequest) -> Json:
    """The number of prompt tokens, without the passages of a file search, which are not known yet."""
    services, principal = request.app[SERVICES], request[PRINCIPAL]
    frame = services.frame(body.with_headers(request.headers, services.surface_names))
    sent = Ledger(services, principal, Trace(), frame)  # as if it were sent now
    count = await prompt_tokens(services, sent.applied((await hydrate(services, principal, frame)).turn))
    return {"object": "response.input_tokens", "input_tokens": count}


class CompactRequest(Strict):
    model: ModelName
    input: Annotated[list[InputItem], up_to(limits.ITEMS_MAX), AS_ITEMS] | None = None
    instructions: Text | None = None
    previous_response_id: Id | None = None
    prompt_cache_key: ShortKey | None = None
    service_tier: ServiceTier | None = None
    prompt_cache_retention: CacheRetention = None
    prompt_cache_options: PromptCacheOptions | None = None
    image: Unsupported = None

    @property
    def request(self) -> ResponseRequest:
        """The request whose conversation should be compacted."""
        return ResponseRequest.model_construct(
            model=self.model,
            input=self.input or [],
            instructions=self.instructions,
            previous_response_id=self.previous_response_id,
            service_tier=self.service_tier,
            store=False,
        )


@routes.post("/v1/responses/compact", Scope.CHAT, takes=CompactRequest)
async def compact_conversation(request: web.Request) -> web.Response:
    """Nothing is stored: send the output back as the input of the next request."""
    services, trace, principal = request.app[SERVICES], request[TRACE], request[PRINCIPAL]
    with trace.span("edge"):
        body = await parsed(CompactRequest, request[BODY])
        frame = services.frame(body.request)
    ledger = Ledger(services, principal, trace, frame)
    with ledger.recording() as outcome:
        with services.admission.turn(principal.tenant_id):
            with trace.span("hydrate"):
                turn = await hydrate(services, principal, frame)
            asked = changed(turn.turn, priority=ledger.priority)
            compacted = await compact(services.agent, services.model_of(body.model), asked, trace)
        outcome.status = "completed"
    summary = Compaction(sealed(services.seals, principal.tenant_id, compacted.summary))
    content = {
        "id": frame.id,
        "object": "response.compaction",
        "created_at": int(time.time()),
        "output": [to_payload(item) for item in (*compacted.before, summary, *compacted.recent)],
        "usage": usage_object(compacted.usage),
    }
    return json_response(content, headers={"Server-Timing": server_timing(trace)})
