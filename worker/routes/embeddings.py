"""POST /v1/embeddings: unit vectors of texts by one of the embedding models of this worker."""

from __future__ import annotations

from aiohttp import web

from worker.auth.access import needs
from worker.auth.scope import USUAL
from worker.described import Described
from worker.reply import reply
from worker.request_keys import BODY, IGNORED, PRINCIPAL, TRACE
from worker.services import SERVICES
from worker.vectors import accepted, embedded
from worker.wire.embeddings_request import EmbeddingsRequest
from worker.wire.parse import parse


def routes() -> list[web.RouteDef]:
    return needs(USUAL, web.post("/v1/embeddings", create))


@Described(EmbeddingsRequest)
async def create(request: web.Request) -> web.Response:
    services, tenant_id = request.app[SERVICES], request[PRINCIPAL].tenant_id
    body = accepted(services, parse(EmbeddingsRequest, request[BODY], request[IGNORED], bulk="input"))
    with services.admission.turn(tenant_id):
        return reply(await embedded(services, tenant_id, request[TRACE], body))
