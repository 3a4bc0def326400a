"""/v1/conversations and their items; our own list of them, for the chat page; links by which anybody reads one, and
what such a link opens.

And /v1/conversations/{id}/warm: somebody is about to ask, so the model reads what stands before the question, and as
much of the question as is written, with its passages. A hint: it never takes the place of a turn, and where it would
not help nothing is done.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import asdict
from datetime import datetime
from functools import partial
from itertools import pairwise
from typing import Annotated, Any, Literal, Self
from uuid import UUID

from aiohttp import web
from pydantic import AfterValidator, Field, StringConstraints, model_validator

from agents.message import FunctionCall, FunctionCallOutput, Item, Message
from agents.prompt import question
from agents.search import query_of
from agents.store import Conversation, ConversationStore, Found, SharedConversation
from agents.turn import Turn
from inference.generation import Generation
from inference.trace import Trace
from worker.auth.audit import Act
from worker.auth.scope import Scope
from worker.edge.guard import remote_of
from worker.errors import ApiError
from worker.http.query import Including, PageQuery, Query, Switch, list_object, some_of
from worker.http.request import (
    EVERYBODY,
    JSON,
    PRINCIPAL,
    Json,
    Routes,
    json_response,
    noted,
    path_id,
)
from worker.runs.ledger import Ledger
from worker.runs.turn import hydrate, learn_turns
from worker.services import SERVICES
from worker.wire import limits
from worker.wire.items import InputItem, without_triggers
from worker.wire.options import (
    FEEDBACK,
    INCLUDABLE_OF_ITEMS,
    RESPONSE_ID,
    VERSIONS,
    Metadata,
)
from worker.wire.response import COMMENT, RATING, feedback_object, public_item
from worker.wire.response_request import ConversationReference, ResponseRequest
from worker.wire.strict import Id, Strict

NO_NUL = r"^[^\x00]*$"  # which Postgres cannot store, so it finds none
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
    excerpt = found.excerpt and asdict(found.excerpt)
    return {**conversation_object(found.conversation), "firsttoken_excerpt": excerpt}


routes = Routes()


@routes.post("/v1/conversations", Scope.CHAT)
async def create(request: web.Request, body: ConversationCreate) -> Json:
    store, tenant_id = _store(request)
    items = await request.app[SERVICES].attachments.items(tenant_id, body.items or (), "items")
    return conversation_object(await store.create(tenant_id, body.metadata or {}, items))


class ListQuery(PageQuery):
    pinned: Switch = False


@routes.get("/v1/conversations", Scope.CHAT)
async def list_conversations(request: web.Request, query: ListQuery) -> Json:
    store, tenant_id = _store(request)
    page = await store.list(tenant_id, after=query.after, limit=query.limit, pinned=query.pinned)
    await query.check(page.data, partial(store.get, tenant_id))
    return list_object([conversation_object(conversation) for conversation in page.data], page.has_more)


class SearchQuery(PageQuery):
    query: Annotated[
        str, StringConstraints(strip_whitespace=True, min_length=1, max_length=limits.SEARCH_CHARS_MAX, pattern=NO_NUL)
    ]


@routes.get("/v1/conversations/search", Scope.CHAT)
async def search_conversations(request: web.Request, query: SearchQuery) -> Json:
    """Find conversations that contain all words of `query` as prefixes, newest first, on a single page."""
    found = await request.app[SERVICES].search.find(request[PRINCIPAL].tenant_id, query.query, query.limit)
    return list_object([found_object(each) for each in found], has_more=False)


class ExportQuery(Query):
    format: Literal["markdown", "json"] = "markdown"


@routes.get("/v1/conversations/{id}/export", Scope.CHAT, tells=(JSON, "text/markdown"))
async def export(request: web.Request, query: ExportQuery) -> web.Response:
    """The whole conversation as a file: `format` is markdown (for reading) or json (with every item)."""
    store, tenant_id = _store(request)
    conversation_id, form = _conversation_id(request), query.format
    conversation = await store.get(tenant_id, conversation_id)
    items = await store.history(tenant_id, conversation_id)
    name = f"{conversation_id}.{'md' if form == 'markdown' else 'json'}"
    headers = {"Content-Disposition": f'attachment; filename="{name}"'}
    if form == "json":
        told = [public_item(item, with_results=True) for item in items]
        return json_response({**conversation_object(conversation), "items": told}, headers=headers)
    text = markdown(conversation.metadata.get("title"), items)
    return web.Response(text=text, content_type="text/markdown", charset="utf-8", headers=headers)


@routes.get("/v1/conversations/{id}", Scope.CHAT)
async def retrieve(request: web.Request) -> Json:
    store, tenant_id = _store(request)
    return conversation_object(await store.get(tenant_id, _conversation_id(request)))


@routes.post("/v1/conversations/{id}", Scope.CHAT)
async def update(request: web.Request, body: ConversationUpdate) -> Json:
    store, tenant_id = _store(request)
    return conversation_object(await store.update(tenant_id, _conversation_id(request), body.metadata or {}))


@routes.delete("/v1/conversations/{id}", Scope.CHAT)
async def delete(request: web.Request) -> Json:
    store, tenant_id = _store(request)
    conversation_id = _conversation_id(request)
    await store.delete(tenant_id, conversation_id)
    return {"id": conversation_id, "object": "conversation.deleted", "deleted": True}


@routes.post("/v1/conversations/{id}/items", Scope.CHAT)
async def add_items(request: web.Request, body: ItemsCreate) -> Json:
    store, tenant_id = _store(request)
    items = await request.app[SERVICES].attachments.items(tenant_id, body.items, "items")
    await store.add_items(tenant_id, _conversation_id(request), items)
    return list_object([public_item(item) for item in items], has_more=False)


class ItemsQuery(PageQuery, Including):
    include: Annotated[list[str], *some_of(INCLUDABLE_OF_ITEMS)] = Field(default_factory=list)


@routes.get("/v1/conversations/{id}/items", Scope.CHAT)
async def list_items(request: web.Request, query: ItemsQuery) -> Json:
    store, tenant_id = _store(request)
    page = await store.list_items(
        tenant_id, _conversation_id(request), after=query.after, limit=query.limit, order=query.order
    )
    await query.check(page.data, partial(store.get_item, tenant_id, _conversation_id(request)))
    items = [public_item(item, query.with_results) for item in page.data]
    if {RESPONSE_ID, FEEDBACK} & {*query.include}:
        responses = await store.responses_of(tenant_id, [item["id"] for item in items])
        items = [{**item, "firsttoken_response_id": responses.get(item["id"])} for item in items]
    if FEEDBACK in query.include:
        rated = await request.app[SERVICES].responses.notes(tenant_id, list(set(responses.values())), (RATING, COMMENT))
        items = [
            {**item, "firsttoken_feedback": feedback_object(rated.get(responses.get(item["id"], "")))} for item in items
        ]
    if VERSIONS in query.include:
        versions = await store.versions.of(tenant_id, [item["id"] for item in items])
        items = [{**item, "firsttoken_versions": versions.get(item["id"], [item["id"]])} for item in items]
    return list_object(items, page.has_more)


@routes.post("/v1/conversations/{id}/branch", Scope.CHAT)
async def branch(request: web.Request, body: BranchChoice) -> Json:
    """Go back to an item, so that another version follows it, or switch to an existing version."""
    store, tenant_id = _store(request)
    conversation_id = _conversation_id(request)
    if body.item_id is not None:
        await store.versions.choose(tenant_id, conversation_id, body.item_id)
    else:
        await store.versions.rewind(tenant_id, conversation_id, body.after)
    return conversation_object(await store.get(tenant_id, conversation_id))


@routes.get("/v1/conversations/{id}/items/{item_id}", Scope.CHAT)
async def retrieve_item(request: web.Request, query: Including) -> Json:
    store, tenant_id = _store(request)
    item = await store.get_item(tenant_id, _conversation_id(request), path_id(request, "item", "item_id"))
    return public_item(item, query.with_results)


@routes.delete("/v1/conversations/{id}/items/{item_id}", Scope.CHAT)
async def delete_item(request: web.Request) -> Json:
    store, tenant_id = _store(request)
    item_id = path_id(request, "item", "item_id")
    return conversation_object(await store.delete_item(tenant_id, _conversation_id(request), item_id))


def _store(request: web.Request) -> tuple[ConversationStore, UUID]:
    return request.app[SERVICES].conversations, request[PRINCIPAL].tenant_id


def _conversation_id(request: web.Request) -> str:
    return path_id(request, "conversation")


SHARED_PAGE = "/shared#"  # the token stands behind the mark, so that browsers send it to nobody else
SHARE = "/v1/conversations/{id}/share"
UNSEEN = {"Cache-Control": "no-store"}  # a link that is revoked shows nothing, from nowhere


def share_object(conversation_id: str, shared_at: datetime | None, token: str | None = None) -> dict[str, Any]:
    """`path` is the address of the link on this worker: told once, when it is made."""
    return {
        "object": "conversation.share",
        "conversation": conversation_id,
        "shared_at": shared_at and int(shared_at.timestamp()),
        "path": token and SHARED_PAGE + token,
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


@routes.post(SHARE, Scope.CHAT)
async def share(request: web.Request) -> web.Response:
    """Make a link to the conversation as it is now; a link from before stops working."""
    services, tenant_id, id = request.app[SERVICES], request[PRINCIPAL].tenant_id, path_id(request, "conversation")
    token = await services.shares.create(tenant_id, id, also=noted(request, Act.CONVERSATION_SHARED, id))
    return json_response(share_object(id, await services.shares.shared_at(tenant_id, id), token), headers=UNSEEN)


@routes.get(SHARE, Scope.CHAT)
async def retrieve_share(request: web.Request) -> Json:
    services, tenant_id, id = request.app[SERVICES], request[PRINCIPAL].tenant_id, path_id(request, "conversation")
    await services.conversations.get(tenant_id, id)
    return share_object(id, await services.shares.shared_at(tenant_id, id))


@routes.delete(SHARE, Scope.CHAT)
async def unshare(request: web.Request) -> Json:
    """Revoke the link. Idempotent."""
    services, tenant_id, id = request.app[SERVICES], request[PRINCIPAL].tenant_id, path_id(request, "conversation")
    await services.conversations.get(tenant_id, id)
    await services.shares.revoke(tenant_id, id, also=noted(request, Act.CONVERSATION_UNSHARED, id))
    return share_object(id, None)


@routes.get("/v1/shared/{token}", EVERYBODY)
async def open_link(request: web.Request) -> web.Response:
    """Read a shared conversation. Wrong tokens count towards the limit for wrong credentials of an address."""
    services = request.app[SERVICES]
    async with services.authenticator.throttle.checking(remote_of(request)):
        shared = await services.shares.open(path_id(request, "shared conversation", "token"))
        if shared is None:
            message = "This link does not work: it was revoked, or not copied completely."
            raise ApiError(401, message, code="unknown_link")
    return json_response(shared_object(shared), headers=UNSEEN)


# What a request says that stands in front of its question.
PARAMETERS = frozenset({"model", "instructions", "tools", "tool_choice", "text", "reasoning", "chat_template_kwargs"})
DRAFT = "input"  # the question as far as it is written: its search and its prefill may run ahead


@routes.post("/v1/conversations/warm", Scope.CHAT, status=202)
async def warm_new(request: web.Request, body: ResponseRequest) -> Json:
    """For a conversation that its first question will begin."""
    return await _warm(request, body, None)


@routes.post("/v1/conversations/{id}/warm", Scope.CHAT, status=202)
async def warm(request: web.Request, body: ResponseRequest) -> Json:
    return await _warm(request, body, path_id(request, "conversation"))


async def _warm(request: web.Request, body: ResponseRequest, conversation_id: str | None) -> Json:
    services, principal = request.app[SERVICES], request[PRINCIPAL]
    written = _turn_of(body, conversation_id).with_headers(request.headers, services.surface_names)
    frame = services.frame(written.model_copy(update={DRAFT: []}))
    sent = Ledger(services, principal, Trace(), frame)  # as if it were sent now
    place, speculative_search = (principal.tenant_id, principal.subject, conversation_id), services.speculative_search
    draft: Turn | None = None
    if speculative_search is not None and written.input:
        draft = sent.applied((await hydrate(services, principal, services.frame(written))).turn)
        if (query := query_of(draft, question(draft))) is not None:
            speculative_search.begin(place, query)
    elif speculative_search is not None:
        speculative_search.forget(place)  # the next key

    async def start() -> Generation | None:
        turn = sent.applied((await hydrate(services, principal, frame)).turn)
        if search := turn.file_search:
            await services.retriever.prepare(tenant_id=principal.tenant_id, stores=search.vector_store_ids)
        return await services.agent.warm(turn)

    reads = await services.prewarm_limits.read((principal.tenant_id, conversation_id), start)
    if draft is not None and speculative_search is not None:
        await learn_turns(services, draft)
        reads = await speculative_search.read(place, partial(services.agent.read_draft, draft)) or reads
    status = "reading" if reads else "skipped"
    return {"object": "conversation.warm", "conversation": conversation_id, "status": status}


def _turn_of(body: ResponseRequest, conversation_id: str | None) -> ResponseRequest:
    """The turn that will come, as far as it is known. Raises ApiError 400."""
    for name in sorted(body.model_fields_set - PARAMETERS - {DRAFT}):
        raise ApiError(400, f"Unknown parameter: '{name}'.", param=name, code="unknown_parameter")
    conversation = ConversationReference(id=conversation_id) if conversation_id else None
    return body.model_copy(update={"conversation": conversation})
