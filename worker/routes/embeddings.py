"""POST /v1/embeddings: unit vectors of texts by one of the embedding models of this worker."""

from __future__ import annotations

from aiohttp import web

from worker.auth.access import needs
from worker.auth.scope import USUAL
from worker.http.json_response import json_response
from worker.http.request import BODY, IGNORED, PRINCIPAL, TRACE
from worker.http.route_docs import RouteDocs
from worker.runs.embed_inputs import check_inputs, embed_inputs
from worker.services import SERVICES
from worker.wire.embeddings_request import EmbeddingsRequest
from worker.wire.parse import parsed


def routes() -> list[web.RouteDef]:
    return needs(USUAL, web.post("/v1/embeddings", create))


@RouteDocs(EmbeddingsRequest)
async def create(request: web.Request) -> web.Response:
    services, tenant_id = request.app[SERVICES], request[PRINCIPAL].tenant_id
    body = check_inputs(services, await parsed(EmbeddingsRequest, request[BODY], request[IGNORED], bulk="input"))
    with services.admission.turn(tenant_id):
        return json_response(await embed_inputs(services, tenant_id, request[TRACE], body))
