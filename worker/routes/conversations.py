"""/v1/conversations and their items; and our own list of them, for the chat page."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import pairwise
from typing import Annotated, Any, Self
from uuid import UUID

from aiohttp import web
from pydantic import AfterValidator, Field, model_validator

from agents.message import FunctionCall, FunctionCallOutput, Item, Message
from agents.store import Conversation, ConversationStore, Found
from worker.auth.principal import Scope
from worker.errors import invalid
from worker.http.request import BODY, INCLUDE, PRINCIPAL, includes, json_response, path_id
from worker.http.route import JSON, RouteDocs, needs
from worker.services import SERVICES
from worker.wire import limits
from worker.wire.items import InputItem, without_triggers
from worker.wire.options import FEEDBACK, RESPONSE_ID, RESULTS, VERSIONS, Metadata
from worker.wire.page import PAGE, PageQuery, list_object, search_words
from worker.wire.parse import parsed
from worker.wire.response import COMMENT, RATING, feedback_object, public_item
from worker.wire.strict import Id, Strict

SPEAKERS = {"user": "Question", "assistant": "Answer"}
IMAGE = "*(image)*"
Items = Annotated[list[InputItem], Field(max_length=limits.ITEMS_ADD_MAX), AfterValidator(without_triggers)]


def markdown(title: str | None, items: Iterable[Item]) -> str:
    """A document for people: the messages, the tools that were used, and the sources that the answers cite."""
    return "\n\n".join([f"# {title or 'Conversation'}", *_sections(items)]) + "\n"


def _said(message: Message) -> str:
    """The text, with a note in the place of each picture."""
    cuts = [0, *(placed.at for placed in message.pictures), len(message.text)]
    texts = [message.text[begin:end] for begin, end in pairwise(cuts)]
    return "\n\n".join(filter(None, [texts[0], *(part for text in texts[1:] for part in (IMAGE, text))]))


def _sections(items: Iterable[Item]) -> Iterator[str]:
    calls: dict[str, str] = {}
    for item in items:
        match item:
            case Message() if item.role in SPEAKERS:
                yield f"## {SPEAKERS[item.role]}\n\n{_said(item)}"
                if sources := _sources(item):
                    yield sources
            case FunctionCall():
                calls[item.call_id] = f"{item.name} {item.arguments}"
                if item.result is not None:
                    yield _quoted(f"{calls[item.call_id]}: {item.result.output}")
            case FunctionCallOutput() if item.output:
                yield _quoted(f"{calls.get(item.call_id, 'Tool')}: {item.output}")


def _sources(message: Message) -> str:
    titles = {citation.number: citation.title or citation.filename for citation in message.citations}
    return "\n".join(f"- [{number}] {titles[number]}" for number in sorted(titles))


def _quoted(text: str) -> str:
    return "\n".join(f"> {line}" for line in text.splitlines())


class ConversationCreate(Strict):
    items: Items | None = None
    metadata: Metadata | None = None


class ConversationUpdate(Strict):
    metadata: Metadata | None


class ItemsCreate(Strict):
    items: Annotated[Items, Field(min_length=1)]


class BranchChoice(Strict):
    """`item_id`: an item of the version to switch to; `after`: the item to go back to, or null for the beginning."""

    item_id: Id | None = None
    after: Id | None = None

    @model_validator(mode="after")
    def _one(self) -> Self:
        if len(self.model_fields_set) != 1 or (self.item_id is None and "after" not in self.model_fields_set):
            raise ValueError("give either item_id or after")
        return self


def conversation_object(conversation: Conversation) -> dict[str, Any]:
    """`firsttoken_updated_at`: the time of the last message, by which our own list is sorted. `firsttoken_beginning`:
    in that list, the first question of conversations without a title."""
    beginning = {"firsttoken_beginning": conversation.beginning} if conversation.beginning else {}
    return {
        "id": conversation.id,
        "object": "conversation",
        "created_at": int(conversation.created_at.timestamp()),
        "metadata": conversation.metadata,
        "firsttoken_updated_at": int(conversation.updated_at.timestamp()),
        **beginning,
    }


def found_object(found: Found) -> dict[str, Any]:
    """`firsttoken_excerpt`: of the message that matches, with the positions of the words in it."""
    excerpt = found.excerpt and {
        "item_id": found.excerpt.item_id,
        "text": found.excerpt.text,
        "marks": found.excerpt.marks,
    }
    return {**conversation_object(found.conversation), "firsttoken_excerpt": excerpt}


def deleted_object(conversation_id: str) -> dict[str, Any]:
    return {"id": conversation_id, "object": "conversation.deleted", "deleted": True}


def routes() -> list[web.RouteDef]:
    return needs(
        Scope.CHAT,
        web.post("/v1/conversations", create),
        web.get("/v1/conversations", list_conversations),
        web.get("/v1/conversations/search", search),
        web.get("/v1/conversations/{id}", retrieve),
        web.get("/v1/conversations/{id}/export", export),
        web.post("/v1/conversations/{id}", update),
        web.delete("/v1/conversations/{id}", delete),
        web.post("/v1/conversations/{id}/branch", branch),
        web.post("/v1/conversations/{id}/items", add_items),
        web.get("/v1/conversations/{id}/items", list_items),
        web.get("/v1/conversations/{id}/items/{item_id}", retrieve_item),
        web.delete("/v1/conversations/{id}/items/{item_id}", delete_item),
    )


@RouteDocs(ConversationCreate)
async def create(request: web.Request) -> web.Response:
    store, tenant_id = _store(request)
    body = await parsed(ConversationCreate, request[BODY])
    items = await request.app[SERVICES].attachments.items(tenant_id, body.items or (), "items")
    return json_response(conversation_object(await store.create(tenant_id, body.metadata or {}, items)))


@RouteDocs(query=PAGE)
async def list_conversations(request: web.Request) -> web.Response:
    store, tenant_id = _store(request)
    query = PageQuery.parse(request.query)
    pinned = request.query.get("pinned") == "true"
    page = await store.list(tenant_id, after=query.after, limit=query.limit, pinned=pinned)
    return json_response(list_object([conversation_object(conversation) for conversation in page.data], page.has_more))


@RouteDocs(query=PAGE)
async def search(request: web.Request) -> web.Response:
    """Find conversations that contain all words of `query` as prefixes, newest first, on a single page."""
    words, page = search_words(request.query), PageQuery.parse(request.query)
    found = await request.app[SERVICES].search.find(request[PRINCIPAL].tenant_id, words, page.limit)
    return json_response(list_object([found_object(each) for each in found], has_more=False))


@RouteDocs(tells=(JSON, "text/markdown"))
async def export(request: web.Request) -> web.Response:
    """The whole conversation as a file: `format` is markdown (for reading) or json (with every item)."""
    store, tenant_id = _store(request)
    conversation_id, form = _conversation_id(request), request.query.get("format", "markdown")
    if form not in ("markdown", "json"):
        raise invalid("format", "it must be markdown or json.")
    conversation = await store.get(tenant_id, conversation_id)
    items = await store.history(tenant_id, conversation_id)
    name = f"{conversation_id}.{'md' if form == 'markdown' else 'json'}"
    headers = {"Content-Disposition": f'attachment; filename="{name}"'}
    if form == "json":
        told = [public_item(item, with_results=True) for item in items]
        return json_response({**conversation_object(conversation), "items": told}, headers=headers)
    text = markdown(conversation.metadata.get("title"), items)
    return web.Response(text=text, content_type="text/markdown", charset="utf-8", headers=headers)


async def retrieve(request: web.Request) -> web.Response:
    store, tenant_id = _store(request)
    return json_response(conversation_object(await store.get(tenant_id, _conversation_id(request))))


@RouteDocs(ConversationUpdate)
async def update(request: web.Request) -> web.Response:
    store, tenant_id = _store(request)
    body = await parsed(ConversationUpdate, request[BODY])
    return json_response(
        conversation_object(await store.update(tenant_id, _conversation_id(request), body.metadata or {}))
    )


async def delete(request: web.Request) -> web.Response:
    store, tenant_id = _store(request)
    conversation_id = _conversation_id(request)
    await store.delete(tenant_id, conversation_id)
    return json_response(deleted_object(conversation_id))


@RouteDocs(ItemsCreate)
async def add_items(request: web.Request) -> web.Response:
    store, tenant_id = _store(request)
    body = await parsed(ItemsCreate, request[BODY])
    items = await request.app[SERVICES].attachments.items(tenant_id, body.items, "items")
    await store.add_items(tenant_id, _conversation_id(request), items)
    return json_response(list_object([public_item(item) for item in items], has_more=False))


@RouteDocs(query=PAGE | INCLUDE)
async def list_items(request: web.Request) -> web.Response:
    store, tenant_id = _store(request)
    query, with_results = PageQuery.parse(request.query), includes(request, RESULTS)
    page = await store.list_items(
        tenant_id, _conversation_id(request), after=query.after, limit=query.limit, order=query.order
    )
    items = [public_item(item, with_results) for item in page.data]
    if includes(request, RESPONSE_ID) or includes(request, FEEDBACK):
        responses = await store.responses_of(tenant_id, [item["id"] for item in items])
        items = [{**item, "firsttoken_response_id": responses.get(item["id"])} for item in items]
    if includes(request, FEEDBACK):
        rated = await request.app[SERVICES].responses.notes(tenant_id, list(set(responses.values())), (RATING, COMMENT))
        items = [
            {**item, "firsttoken_feedback": feedback_object(rated.get(responses.get(item["id"], "")))} for item in items
        ]
    if includes(request, VERSIONS):
        versions = await store.versions.of(tenant_id, [item["id"] for item in items])
        items = [{**item, "firsttoken_versions": versions.get(item["id"], [item["id"]])} for item in items]
    return json_response(list_object(items, page.has_more))


@RouteDocs(BranchChoice)
async def branch(request: web.Request) -> web.Response:
    """Go back to an item, so that another version follows it, or switch to an existing version."""
    store, tenant_id = _store(request)
    conversation_id = _conversation_id(request)
    body = await parsed(BranchChoice, request[BODY])
    if body.item_id is not None:
        await store.versions.choose(tenant_id, conversation_id, body.item_id)
    else:
        await store.versions.rewind(tenant_id, conversation_id, body.after)
    return json_response(conversation_object(await store.get(tenant_id, conversation_id)))


@RouteDocs(query=INCLUDE)
async def retrieve_item(request: web.Request) -> web.Response:
    store, tenant_id = _store(request)
    item = await store.get_item(tenant_id, _conversation_id(request), path_id(request, "item", "item_id"))
    return json_response(public_item(item, includes(request, RESULTS)))


async def delete_item(request: web.Request) -> web.Response:
    store, tenant_id = _store(request)
    item_id = path_id(request, "item", "item_id")
    return json_response(conversation_object(await store.delete_item(tenant_id, _conversation_id(request), item_id)))


def _store(request: web.Request) -> tuple[ConversationStore, UUID]:
    return request.app[SERVICES].conversations, request[PRINCIPAL].tenant_id


def _conversation_id(request: web.Request) -> str:
    return path_id(request, "conversation")
