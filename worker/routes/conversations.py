"""/v1/conversations and their items; and our own list of them, for the chat page."""

from __future__ import annotations

from uuid import UUID

from aiohttp import web

from agents.store import ConversationStore
from worker.checks import includes_results, path_id
from worker.reply import reply
from worker.request_keys import PRINCIPAL
from worker.services import SERVICES
from worker.wire.conversation import (
    ConversationCreate,
    ConversationUpdate,
    ItemsCreate,
    conversation_object,
    deleted_object,
)
from worker.wire.narrator import shown
from worker.wire.page import PageQuery, list_object
from worker.wire.parse import parse


def routes() -> list[web.RouteDef]:
    return [
        web.post("/v1/conversations", create),
        web.get("/v1/conversations", list_conversations),
        web.get("/v1/conversations/{id}", retrieve),
        web.post("/v1/conversations/{id}", update),
        web.delete("/v1/conversations/{id}", delete),
        web.post("/v1/conversations/{id}/items", add_items),
        web.get("/v1/conversations/{id}/items", list_items),
        web.get("/v1/conversations/{id}/items/{item_id}", retrieve_item),
        web.delete("/v1/conversations/{id}/items/{item_id}", delete_item),
    ]


async def create(request: web.Request) -> web.Response:
    store, tenant_id = _store(request)
    body = parse(ConversationCreate, await request.read())
    items = await request.app[SERVICES].attachments.items(tenant_id, body.items or (), "items")
    return reply(conversation_object(await store.create(tenant_id, body.metadata or {}, items)))


async def list_conversations(request: web.Request) -> web.Response:
    store, tenant_id = _store(request)
    query = PageQuery.parse(request.query)
    page = await store.list(tenant_id, after=query.after, limit=query.limit)
    return reply(list_object([conversation_object(conversation) for conversation in page.data], page.has_more))


async def retrieve(request: web.Request) -> web.Response:
    store, tenant_id = _store(request)
    return reply(conversation_object(await store.get(tenant_id, _conversation_id(request))))


async def update(request: web.Request) -> web.Response:
    store, tenant_id = _store(request)
    body = parse(ConversationUpdate, await request.read())
    return reply(conversation_object(await store.update(tenant_id, _conversation_id(request), body.metadata or {})))


async def delete(request: web.Request) -> web.Response:
    store, tenant_id = _store(request)
    conversation_id = _conversation_id(request)
    await store.delete(tenant_id, conversation_id)
    return reply(deleted_object(conversation_id))


async def add_items(request: web.Request) -> web.Response:
    store, tenant_id = _store(request)
    body = parse(ItemsCreate, await request.read())
    items = await request.app[SERVICES].attachments.items(tenant_id, body.items, "items")
    await store.add_items(tenant_id, _conversation_id(request), items)
    return reply(list_object([shown(item) for item in items], has_more=False))


async def list_items(request: web.Request) -> web.Response:
    store, tenant_id = _store(request)
    query, with_results = PageQuery.parse(request.query), includes_results(request)
    page = await store.list_items(
        tenant_id, _conversation_id(request), after=query.after, limit=query.limit, order=query.order
    )
    return reply(list_object([shown(item, with_results) for item in page.data], page.has_more))


async def retrieve_item(request: web.Request) -> web.Response:
    store, tenant_id = _store(request)
    item = await store.get_item(tenant_id, _conversation_id(request), path_id(request, "item", "item_id"))
    return reply(shown(item, includes_results(request)))


async def delete_item(request: web.Request) -> web.Response:
    store, tenant_id = _store(request)
    item_id = path_id(request, "item", "item_id")
    return reply(conversation_object(await store.delete_item(tenant_id, _conversation_id(request), item_id)))


def _store(request: web.Request) -> tuple[ConversationStore, UUID]:
    return request.app[SERVICES].conversations, request[PRINCIPAL].tenant_id


def _conversation_id(request: web.Request) -> str:
    return path_id(request, "conversation")
