"""Beside /v1/responses: stopping one, reading what it was asked, rating it, counting what a request would read, and
turning a conversation into a sealed summary and its newest turns, to go on from.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Annotated, Any

from aiohttp import web
from pydantic import BeforeValidator, StringConstraints

from agents.compaction import compact
from agents.events import Usage
from agents.message import Compaction, Item, new_id
from agents.payload import to_payload
from worker.auth.principal import Scope
from worker.auth.secret import sealed
from worker.http.request import BODY, INCLUDE, PRINCIPAL, TRACE, check_model, includes, json_response, path_id
from worker.http.route import RouteDocs, needs
from worker.runs.ledger import Ledger
from worker.runs.manager import RUNS
from worker.runs.turn import hydrate, prompt_tokens
from worker.services import SERVICES
from worker.telemetry.telemetry import server_timing
from worker.wire import limits
from worker.wire.items import InputItem, as_items
from worker.wire.options import RESULTS, CacheRetention, PromptCacheOptions, ServiceTier
from worker.wire.page import PAGE, PageQuery, list_object, page_of
from worker.wire.parse import parsed
from worker.wire.response import Feedback, ResponseFrame, public_item, public_response, usage_object
from worker.wire.response_request import ResponseRequest, ShortKey, SteerRequest
from worker.wire.strict import Id, Strict, Text, Unsupported, up_to


def routes() -> list[web.RouteDef]:
    return needs(
        Scope.CHAT,
        web.post("/v1/responses/input_tokens", input_tokens),
        web.post("/v1/responses/compact", compact_conversation),
        web.post("/v1/responses/{id}/cancel", cancel),
        web.post("/v1/responses/{id}/answer_now", answer_now),
        web.post("/v1/responses/{id}/steer", steer),
        web.post("/v1/responses/{id}/feedback", rate),
        web.get("/v1/responses/{id}/input_items", input_items),
    )


async def cancel(request: web.Request) -> web.Response:
    """Cancel a response at whichever worker generates it, and return its final state. A finished one is unchanged."""
    body = await request.app[RUNS].cancel(request[PRINCIPAL].tenant_id, path_id(request, "response"))
    return json_response(public_response(body))


@RouteDocs(status=202)
async def answer_now(request: web.Request) -> web.Response:
    """End the reasoning of a response in progress, at whichever worker generates it: its answer begins."""
    response_id = path_id(request, "response")
    await request.app[RUNS].answer_now(request[PRINCIPAL].tenant_id, response_id)
    return json_response({"object": "response.answer_now", "response": response_id}, status=202)


@RouteDocs(SteerRequest, status=202)
async def steer(request: web.Request) -> web.Response:
    """Say something to a response in progress, at whichever worker generates it: it ends at the next safe place, and
    the response that is named here goes on."""
    services, tenant_id, response_id = request.app[SERVICES], request[PRINCIPAL].tenant_id, path_id(request, "response")
    body = await parsed(SteerRequest, request[BODY])
    said = await services.attachments.items(tenant_id, body.input, "input")
    accepted = await request.app[RUNS].steer(tenant_id, response_id, said, stop_tools=body.stop_tools)
    told = {"id": accepted.id, "previous_response_id": response_id, "response": accepted.successor}
    return json_response({"object": "response.steer", **told}, status=202)


@RouteDocs(Feedback)
async def rate(request: web.Request) -> web.Response:
    """Store a rating. It appears in the metadata of the response and with its trace."""
    services, tenant_id, id = request.app[SERVICES], request[PRINCIPAL].tenant_id, path_id(request, "response")
    body = await parsed(Feedback, request[BODY])
    await services.responses.annotate(tenant_id, id, body.notes)
    await services.telemetry.flush()  # the trace of an answer that has just ended may still wait
    attributes = await services.telemetry.traces.annotate(tenant_id, id, body.notes)
    services.canaries.rate(attributes, body.rating)
    return json_response(
        {"object": "response.feedback", "response": id, "rating": body.rating, "comment": body.comment}
    )


@RouteDocs(query=PAGE | INCLUDE)
async def input_items(request: web.Request) -> web.Response:
    """The items of the request itself; earlier items belong to other responses."""
    services, tenant_id = request.app[SERVICES], request[PRINCIPAL].tenant_id
    query = PageQuery.parse(request.query)
    record = await services.responses.get(tenant_id, path_id(request, "response"))
    items = [public_item(item, includes(request, RESULTS)) for item in record.input]
    page, has_more = page_of(items, query)
    return json_response(list_object(page, has_more))


@RouteDocs(ResponseRequest)
async def input_tokens(request: web.Request) -> web.Response:
    """The number of prompt tokens, without the passages of a file search, which are not known yet."""
    services, principal = request.app[SERVICES], request[PRINCIPAL]
    body = await parsed(ResponseRequest, request[BODY])
    model = check_model(body.model, services)
    turn = await hydrate(services, principal, ResponseFrame(body, model))
    count = await prompt_tokens(services, turn.turn)
    return json_response({"object": "response.input_tokens", "input_tokens": count})


class CompactRequest(Strict):
    model: Annotated[str, StringConstraints(min_length=1, max_length=200)]
    input: Annotated[list[InputItem], up_to(limits.ITEMS_MAX), BeforeValidator(as_items)] | None = None
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


def compaction_object(id: str, output: Sequence[Item], usage: Usage) -> dict[str, Any]:
    return {
        "id": id,
        "object": "response.compaction",
        "created_at": int(time.time()),
        "output": [to_payload(item) for item in output],
        "usage": usage_object(usage),
    }


@RouteDocs(CompactRequest)
async def compact_conversation(request: web.Request) -> web.Response:
    """Nothing is stored: send the output back as the input of the next request."""
    services, trace, principal = request.app[SERVICES], request[TRACE], request[PRINCIPAL]
    with trace.span("edge"):
        body = await parsed(CompactRequest, request[BODY])
        model = check_model(body.model, services)
    ledger = Ledger(services, principal, trace, new_id("resp"), model=model)
    with ledger.recording() as outcome:
        with services.admission.turn(principal.tenant_id):
            with trace.span("hydrate"):
                turn = await hydrate(services, principal, ResponseFrame(body.request, model))
            compacted = await compact(services.agent, services.model_of(body.model), turn.turn, trace)
        outcome.status = "completed"
    summary = Compaction(sealed(services.seals, principal.tenant_id, compacted.summary))
    output = (*compacted.before, summary, *compacted.recent)
    content = compaction_object(ledger.response_id, output, compacted.usage)
    return json_response(content, headers={"Server-Timing": server_timing(trace)})
