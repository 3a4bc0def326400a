"""Beside /v1/responses: stopping one, reading what it was asked, and counting what a request would read."""

from __future__ import annotations

from aiohttp import web

from worker.checks import check_model, includes_results, path_id
from worker.reply import reply
from worker.request_keys import PRINCIPAL
from worker.runs.manager import RUNS
from worker.runs.turn import hydrate
from worker.services import SERVICES
from worker.wire.narrator import shown, shown_response
from worker.wire.page import PageQuery, list_object, page_of
from worker.wire.parse import parse
from worker.wire.response import ResponseFrame
from worker.wire.response_request import ResponseRequest


def routes() -> list[web.RouteDef]:
    return [
        web.post("/v1/responses/input_tokens", input_tokens),
        web.post("/v1/responses/{id}/cancel", cancel),
        web.get("/v1/responses/{id}/input_items", input_items),
    ]


async def cancel(request: web.Request) -> web.Response:
    """Stop a response, whichever worker makes it, and show it as it ended. One that has ended stays as it is."""
    body = await request.app[RUNS].cancel(request[PRINCIPAL].tenant_id, path_id(request, "response"))
    return reply(shown_response(body))


async def input_items(request: web.Request) -> web.Response:
    """The request's own items; what stood before them belongs to other responses."""
    services, tenant_id = request.app[SERVICES], request[PRINCIPAL].tenant_id
    query = PageQuery.parse(request.query)
    record = await services.responses.get(tenant_id, path_id(request, "response"))
    items = [shown(item, includes_results(request)) for item in record.input]
    page, has_more = page_of(items, query)
    return reply(list_object(page, has_more))


async def input_tokens(request: web.Request) -> web.Response:
    """How many tokens the model would read first, without the passages of a file search: those are not known yet."""
    services, principal = request.app[SERVICES], request[PRINCIPAL]
    body = parse(ResponseRequest, await request.read())
    model = check_model(body.model, services)
    turn = await hydrate(services, principal, ResponseFrame(body, model))
    count = await services.agent.count(turn.turn)
    return reply({"object": "response.input_tokens", "input_tokens": count})
