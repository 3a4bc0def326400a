"""/v1/conversations/{id}/share: a link by which anybody reads a conversation; and what such a link opens."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from aiohttp import web

from agents.message import Message
from agents.store import SharedConversation
from worker.auth.audit import Act
from worker.auth.principal import Scope
from worker.edge.guard import remote_of
from worker.errors import ApiError
from worker.http.request import PRINCIPAL, json_response, noted, path_id
from worker.http.route import EVERYBODY, declare, needs
from worker.services import SERVICES

PAGE = "/shared#"  # the token stands behind the mark, so that browsers send it to nobody else
SHARE = "/v1/conversations/{id}/share"
UNSEEN = {"Cache-Control": "no-store"}  # a link that is revoked shows nothing, from nowhere


def share_object(conversation_id: str, shared_at: datetime | None, token: str | None = None) -> dict[str, Any]:
    """`path` is the address of the link on this worker: told once, when it is made."""
    return {
        "object": "conversation.share",
        "conversation": conversation_id,
        "shared_at": shared_at and int(shared_at.timestamp()),
        "path": token and PAGE + token,
    }


def shared_object(shared: SharedConversation) -> dict[str, Any]:
    """The texts alone: what they cite stays with its owner."""
    return {
        "object": "shared_conversation",
        "title": shared.title,
        "shared_at": int(shared.shared_at.timestamp()),
        "messages": [
            {"role": item.role, "text": item.text, "status": item.status}
            for item in shared.items
            if isinstance(item, Message)
        ],
    }


def routes() -> list[web.RouteDef]:
    return [
        *needs(Scope.CHAT, web.post(SHARE, create), web.get(SHARE, retrieve), web.delete(SHARE, revoke)),
        *declare(EVERYBODY, web.get("/v1/shared/{token}", open_link)),
    ]


async def create(request: web.Request) -> web.Response:
    """Of the conversation as it is now; a link from before stops working."""
    services, tenant_id, id = request.app[SERVICES], request[PRINCIPAL].tenant_id, path_id(request, "conversation")
    token = await services.shares.create(tenant_id, id, also=noted(request, Act.CONVERSATION_SHARED, id))
    return json_response(share_object(id, await services.shares.shared_at(tenant_id, id), token), headers=UNSEEN)


async def retrieve(request: web.Request) -> web.Response:
    services, tenant_id, id = request.app[SERVICES], request[PRINCIPAL].tenant_id, path_id(request, "conversation")
    await services.conversations.get(tenant_id, id)
    return json_response(share_object(id, await services.shares.shared_at(tenant_id, id)))


async def revoke(request: web.Request) -> web.Response:
    """Revoke the link. Idempotent."""
    services, tenant_id, id = request.app[SERVICES], request[PRINCIPAL].tenant_id, path_id(request, "conversation")
    await services.conversations.get(tenant_id, id)
    await services.shares.revoke(tenant_id, id, also=noted(request, Act.CONVERSATION_UNSHARED, id))
    return json_response(share_object(id, None))


async def open_link(request: web.Request) -> web.Response:
    """Read a shared conversation. Wrong tokens count towards the limit for wrong credentials of an address."""
    services = request.app[SERVICES]
    async with services.authenticator.throttle.checking(remote_of(request)):
        shared = await services.shares.open(path_id(request, "shared conversation", "token"))
        if shared is None:
            message = "This link does not work: it was revoked, or not copied completely."
            raise ApiError(401, message, code="unknown_link")
    return json_response(shared_object(shared), headers=UNSEEN)
