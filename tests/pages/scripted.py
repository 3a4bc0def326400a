"""A worker whose answers a test writes event by event, so that it can look at the page between two of them.

It serves the real pages; behind them only the wire of the public contract, with no model, database or sign-in.
"""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, TypeAlias
from uuid import UUID

from aiohttp import web
from aiohttp.typedefs import Handler

from worker.auth.principal import Principal
from worker.http.request import PRINCIPAL
from worker.routes import pages

DOCUMENT = "Öl 😀 first.\nThe queue span covers the wait for a slot in the engine.\nLast line.\n"
PASSAGE_START = DOCUMENT.index("The queue")
PASSAGE_END = DOCUMENT.index("\nLast")

PASSAGE = {
    "number": 1,
    "file_id": "file_1",
    "filename": "docs/TRACE.md",
    "title": "Tracing: spans",
    "text": DOCUMENT[PASSAGE_START:PASSAGE_END],
    "start_char": PASSAGE_START,
    "end_char": PASSAGE_END,
    "score": 0.8,
}
STORE = {
    "id": "vs_1",
    "object": "vector_store",
    "name": "docs",
    "status": "completed",
    "file_counts": {"in_progress": 0, "completed": 9},
    "firsttoken_score_threshold": 0.42,
}


def span(name: str, start_ms: float, duration_ms: float, lane: str = "main", **attributes: int | str) -> dict[str, Any]:
    stamps = {"start_ms": start_ms, "duration_ms": duration_ms}
    return {"name": name, "lane": lane, "parent": None, **stamps, "attributes": attributes}


TRACE = {
    "id": "ab" * 16,
    "started_at": 1.8e9,
    "duration_ms": 100.0,
    "ttft_ms": 60.0,
    "tpot_ms": 10.0,
    "status": "completed",
    "surface": "chat",
    "model": "demo-chat",
    "response_id": "resp_1",
    "conversation_id": "conv_1",
    "attributes": {},
    "spans": [
        span(
            "prefill",
            0.0,
            60.0,
            new_tokens=30,
            cached_tokens=70,
            **{"cache.segment": "system", "cache.cause": "edited"},
        ),
        span("decode", 60.0, 20.0, tokens=5),
        span("tool:calculator", 80.0, 12.5, lane="tools"),
    ],
}


class Stream:
    """The events of one answer, in the order and with the fields that the contract gives them."""

    def __init__(self, response: web.StreamResponse, sequence_number: int = 0) -> None:
        self._response = response
        self._sequence_number = sequence_number
        self._output_index = -1
        self.piece_bytes = 65536

    async def send(self, type: str, **fields: Any) -> None:
        data = {"type": type, **fields, "sequence_number": self._sequence_number}
        self._sequence_number += 1
        await self.write(f"event: {type}\ndata: {json.dumps(data, ensure_ascii=False)}\n\n".encode())

    async def write(self, data: bytes) -> None:
        """Write in pieces of at most `piece_bytes`, each on its way before the next."""
        for start in range(0, len(data), self.piece_bytes):
            await self._response.write(data[start : start + self.piece_bytes])
            await asyncio.sleep(0)

    async def think(self, text: str, until: asyncio.Event | None = None) -> None:
        """The thought goes on `until` somebody ends it."""
        self._output_index += 1
        place = {"output_index": self._output_index}
        item = {"id": "rs_1", "type": "reasoning", "summary": [], "status": "in_progress", "content": []}
        part = {"type": "reasoning_text", "text": text}
        await self.send("response.output_item.added", **place, item=item)
        await self.send("response.reasoning_text.delta", **place, item_id="rs_1", content_index=0, delta=text)
        if until is not None:
            await until.wait()
        done = {**item, "status": "completed", "content": [part]}
        await self.send("response.output_item.done", **place, item=done)

    async def begin_text(self, item_id: str = "msg_1") -> None:
        self._output_index += 1
        item = {"id": item_id, "type": "message", "role": "assistant", "status": "in_progress", "content": []}
        await self.send("response.output_item.added", output_index=self._output_index, item=item)

    async def text(self, delta: str, item_id: str = "msg_1") -> None:
        place = {"item_id": item_id, "output_index": self._output_index, "content_index": 0}
        await self.send("response.output_text.delta", **place, delta=delta, logprobs=[])

    async def end_text(self, text: str, item_id: str = "msg_1") -> None:
        await self.send("response.output_item.done", output_index=self._output_index, item=message(text, item_id))

    async def sources(self) -> None:
        self._output_index += 1
        await self.send("firsttoken:sources", response_id="resp_1", output_index=self._output_index, passages=[PASSAGE])

    async def complete(self) -> None:
        await self.send("response.completed", response={"id": "resp_1", "status": "completed"})
        await self.done()

    async def done(self) -> None:
        await self.write(b"data: [DONE]\n\n")


Script: TypeAlias = Callable[[Stream], Awaitable[None]]


def message(
    text: str,
    item_id: str = "msg_1",
    role: str = "assistant",
    status: str = "completed",
    response_id: str | None = None,
) -> dict[str, Any]:
    kind = "output_text" if role == "assistant" else "input_text"
    part = {"type": kind, "text": text, "annotations": [], "logprobs": []}
    stored = {} if response_id is None else {"firsttoken_response_id": response_id}
    return {"id": item_id, "type": "message", "role": role, "status": status, "content": [part], **stored}


async def hello(stream: Stream) -> None:
    await stream.begin_text()
    await stream.text("Hello.")
    await stream.end_text("Hello.")
    await stream.complete()


async def hello_with_trace(stream: Stream) -> None:
    await stream.begin_text()
    await stream.text("Hello.")
    await stream.end_text("Hello.")
    await stream.send("firsttoken:trace", trace=TRACE)
    await stream.complete()


@dataclass(slots=True)
class ScriptedWorker:
    """`script` writes the next answers; `refusals` (a status with headers) are given to the next turns instead.

    `rest` writes what is left of an answer for those who come back, and `resumed` are the numbers from which they did.
    """

    script: Script
    url: str = ""
    refusals: list[tuple[int, dict[str, str]]] = field(default_factory=list)
    conversations: dict[str, dict[str, Any]] = field(default_factory=dict)
    items: list[dict[str, Any]] = field(default_factory=list)
    turns: list[dict[str, Any]] = field(default_factory=list)
    warmed: list[tuple[str | None, list[dict[str, Any]]]] = field(default_factory=list)
    drafts: list[str] = field(default_factory=list)  # of questions, to search ahead for
    rest: Script | None = None
    resumed: list[int] = field(default_factory=list)
    deleted: list[str] = field(default_factory=list)
    branches: list[dict[str, Any]] = field(default_factory=list)
    files: list[dict[str, Any]] = field(default_factory=list)  # of every store, newest first
    refused: str | None = None  # why the next file is
    ratings: list[dict[str, Any]] = field(default_factory=list)
    searched: list[str] = field(default_factory=list)
    found: list[dict[str, Any]] = field(default_factory=list)
    shared: bool = False
    cancelled: list[str] = field(default_factory=list)
    hurried: asyncio.Event = field(default_factory=asyncio.Event)  # the answer is wanted now
    states: dict[str, dict[str, Any]] = field(default_factory=dict)  # of responses, where they are not the usual ones
    said: list[str] = field(default_factory=list)  # to the answer that is made
    heard: asyncio.Event = field(default_factory=asyncio.Event)  # something was said to it
    over: bool = False  # the answer has ended just before something is said to it
    replies: asyncio.Event | None = None  # to what is said, once it is set
    reason: dict[str, str] = field(default_factory=dict)  # of the refusals, where it matters: {message, code}
    signed_in: bool = True
    sessions: list[dict[str, Any]] = field(default_factory=list)
    parameters: int = 11_000_000
    tools_shown: str = "of_template"
    modalities: list[str] = field(default_factory=lambda: ["text"])  # that the model reads
    stores: list[dict[str, Any]] = field(default_factory=lambda: [STORE])
    documented: set[str] = field(default_factory=lambda: {"vs_1"})  # stores that have the answer to the example

    def routes(self) -> list[web.RouteDef]:
        return [
            web.get("/v1/conversations", self.list_conversations),
            web.post("/v1/conversations", self.create_conversation),
            web.get("/v1/conversations/search", self.search_conversations),
            web.route("*", "/v1/conversations/{id}/share", self.share),
            web.post("/v1/conversations/warm", self.warm),
            web.post("/v1/conversations/{id}/warm", self.warm),
            web.get("/v1/conversations/{id}", self.get_conversation),
            web.post("/v1/conversations/{id}", self.update_conversation),
            web.delete("/v1/conversations/{id}", self.delete_conversation),
            web.get("/v1/conversations/{id}/items", self.list_items),
            web.post("/v1/conversations/{id}/items", self.add_items),
            web.delete("/v1/conversations/{id}/items/{item_id}", self.delete_item),
            web.post("/v1/conversations/{id}/branch", self.branch),
            web.get("/v1/models", self.list_models),
            web.get("/ops/api/traces/{id}", self.trace),
            web.get("/v1/vector_stores", self.list_stores),
            web.post("/v1/vector_stores", self.create_store),
            web.post("/v1/vector_stores/{id}/search", self.search),
            web.get("/v1/vector_stores/{id}/files", self.list_files),
            web.post("/v1/vector_stores/{id}/files", self.add_file),
            web.post("/v1/files", self.upload),
            web.delete("/v1/files/{id}", self.delete_file),
            web.get("/v1/files/{id}/content", self.file_content),
            web.get("/v1/sessions", self.list_sessions),
            web.delete("/v1/sessions", self.sign_out),
            web.delete("/v1/sessions/{id}", self.sign_out),
            web.post("/v1/responses", self.respond),
            web.get("/v1/responses/{id}", self.retrieve),
            web.post("/v1/responses/{id}/cancel", self.cancel),
            web.post("/v1/responses/{id}/answer_now", self.answer_now),
            web.post("/v1/responses/{id}/steer", self.steer),
            web.post("/v1/responses/{id}/feedback", self.rate),
            *pages.routes,
        ]

    async def list_conversations(self, request: web.Request) -> web.Response:
        pinned = "pinned" in request.query
        newest_first = [
            conversation
            for conversation in reversed(self.conversations.values())
            if not pinned or "firsttoken:pinned" in conversation["metadata"]
        ]
        ids, after = [conversation["id"] for conversation in newest_first], request.query.get("after")
        if after is not None and after not in ids:
            return web.json_response({"error": {"message": "Invalid 'after'", "param": "after"}}, status=400)
        start = 0 if after is None else ids.index(after) + 1
        end = start + int(request.query.get("limit", 100))
        return web.json_response({"object": "list", "data": newest_first[start:end], "has_more": end < len(ids)})

    async def search_conversations(self, request: web.Request) -> web.Response:
        self.searched.append(request.query["query"])
        return web.json_response({"object": "list", "data": self.found})

    async def share(self, request: web.Request) -> web.Response:
        self.shared = {"GET": self.shared, "POST": True, "DELETE": False}[request.method]
        path = "/shared#secret" if request.method == "POST" else None
        return web.json_response({"shared_at": 1.8e9 if self.shared else None, "path": path})

    async def create_conversation(self, request: web.Request) -> web.Response:
        body = await request.json()
        conversation_id = f"conv_{len(self.conversations) + 1}"
        created = {
            "id": conversation_id,
            "object": "conversation",
            "created_at": 1.8e9,
            "metadata": body.get("metadata") or {},
        }
        self.items += [
            {"id": f"item_{n}", "status": "completed", **each} for n, each in enumerate(body.get("items", ()))
        ]
        self.conversations[conversation_id] = created
        return web.json_response(created)

    async def warm(self, request: web.Request) -> web.Response:
        body, place = await request.json(), request.match_info.get("id")
        if "input" in body:
            self.drafts.append(body["input"])
        else:
            self.warmed.append((place, body["tools"]))
        return web.json_response({"object": "conversation.warm", "status": "reading"}, status=202)

    async def get_conversation(self, request: web.Request) -> web.Response:
        found = self.conversations.get(request.match_info["id"])
        return _error(404, "No such conversation.", {}) if found is None else web.json_response(found)

    async def update_conversation(self, request: web.Request) -> web.Response:
        conversation = self.conversations[request.match_info["id"]]
        conversation["metadata"] = (await request.json())["metadata"]
        return web.json_response(conversation)

    async def delete_conversation(self, request: web.Request) -> web.Response:
        del self.conversations[request.match_info["id"]]
        return web.json_response({"deleted": True})

    async def list_items(self, request: web.Request) -> web.Response:
        if request.match_info["id"] not in self.conversations:
            return _error(404, "No such conversation.", {})
        newest_first = request.query.get("order") == "desc"
        data = self.items[::-1][: int(request.query["limit"])] if newest_first else self.items
        return web.json_response({"object": "list", "data": data, "has_more": False})

    async def add_items(self, request: web.Request) -> web.Response:
        added = (await request.json())["items"]
        self.items += [
            {"id": f"item_{len(self.items) + n}", "status": "completed", **each} for n, each in enumerate(added)
        ]
        return web.json_response({"object": "list", "data": added})

    async def delete_item(self, request: web.Request) -> web.Response:
        self.deleted.append(request.match_info["item_id"])
        self.items = [item for item in self.items if item["id"] != request.match_info["item_id"]]
        return web.json_response(self.conversations[request.match_info["id"]])

    async def branch(self, request: web.Request) -> web.Response:
        """Going back is done; going on with another version is only noted."""
        self.branches.append(await request.json())
        if "after" in self.branches[-1]:
            ids = [None, *(item["id"] for item in self.items)]
            self.items = self.items[: ids.index(self.branches[-1]["after"])]
        return web.json_response(self.conversations[request.match_info["id"]])

    async def list_models(self, request: web.Request) -> web.Response:
        model = {
            "id": "demo-chat",
            "object": "model",
            "firsttoken_parameters": self.parameters,
            "firsttoken_tools": self.tools_shown,
            "architecture": {"input_modalities": self.modalities},
        }
        return web.json_response({"object": "list", "data": [model]})

    async def trace(self, request: web.Request) -> web.Response:
        return web.json_response({**TRACE, "response_id": request.match_info["id"]})

    async def search(self, request: web.Request) -> web.Response:
        found = [PASSAGE] if request.match_info["id"] in self.documented else []
        return web.json_response({"object": "vector_store.search_results.page", "data": found})

    async def list_stores(self, request: web.Request) -> web.Response:
        return web.json_response({"object": "list", "data": self.stores, "has_more": False})

    async def create_store(self, request: web.Request) -> web.Response:
        name = (await request.json())["name"]
        self.stores = [*self.stores, {**STORE, "id": f"vs_{len(self.stores) + 1}", "name": name}]
        return web.json_response(self.stores[-1])

    async def upload(self, request: web.Request) -> web.Response:
        file = (await request.post())["file"]
        assert isinstance(file, web.FileField)
        if self.refused is not None:
            return _error(413, self.refused, {})
        return web.json_response({"id": f"file_{file.filename}", "filename": file.filename})

    async def add_file(self, request: web.Request) -> web.Response:
        file_id = (await request.json())["file_id"]
        name = file_id.removeprefix("file_")
        added = {"id": file_id, "status": "in_progress", "firsttoken_filename": name, "firsttoken_passages": 0}
        self.files.insert(0, {**added, "store": request.match_info["id"]})
        return web.json_response(added)

    async def list_files(self, request: web.Request) -> web.Response:
        data = [file for file in self.files if file["store"] == request.match_info["id"]]
        return web.json_response({"object": "list", "data": data, "has_more": False})

    async def delete_file(self, request: web.Request) -> web.Response:
        self.files = [file for file in self.files if file["id"] != request.match_info["id"]]
        return web.json_response({"deleted": True})

    async def file_content(self, request: web.Request) -> web.Response:
        return web.Response(text=DOCUMENT)

    async def list_sessions(self, request: web.Request) -> web.Response:
        return web.json_response({"object": "list", "data": self.sessions, "has_more": False})

    async def sign_out(self, request: web.Request) -> web.Response:
        id = request.match_info.get("id")
        self.signed_in = id not in (None, "current")
        self.sessions = [session for session in self.sessions if session["id"] != id]
        return web.json_response({"id": "sess_1", "object": "session.deleted", "deleted": True})

    async def respond(self, request: web.Request) -> web.StreamResponse:
        self.turns.append(await request.json())
        if self.refusals:
            status, headers = self.refusals.pop(0)
            return _error(status, f"Refused with {status}.", headers, **self.reason)
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        stream = Stream(response)
        await stream.send("response.created", response={"id": "resp_1", "status": "in_progress"})
        await self.script(stream)
        return response

    async def retrieve(self, request: web.Request) -> web.StreamResponse:
        usual = {"id": "resp_1", "status": "in_progress" if self.rest else "completed"}
        if "stream" not in request.query:
            return web.json_response(self.states.get(request.match_info["id"], usual))
        self.resumed.append(int(request.query.get("starting_after", -1)))
        if self.rest is None:
            return _error(404, "The events of this response are not kept any more.", {})
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        await self.rest(Stream(response, self.resumed[-1] + 1))
        return response

    async def rate(self, request: web.Request) -> web.Response:
        self.ratings.append({"response": request.match_info["id"], **await request.json()})
        return web.json_response({"object": "response.feedback"})

    async def answer_now(self, request: web.Request) -> web.Response:
        self.hurried.set()
        return web.json_response({"response": request.match_info["id"]}, status=202)

    async def steer(self, request: web.Request) -> web.Response:
        self.said.append((await request.json())["input"])
        self.heard.set()
        if self.replies is not None:
            await self.replies.wait()
        if self.over:
            return _error(409, "It has ended.", {})
        return web.json_response({"object": "response.steer", "id": "steer_1", "response": "resp_2"}, status=202)

    async def cancel(self, request: web.Request) -> web.Response:
        self.cancelled.append(request.match_info["id"])
        return web.json_response({"id": request.match_info["id"], "status": "cancelled"})


def _error(status: int, text: str, headers: dict[str, str], **told: str) -> web.Response:
    error = {"message": text, "type": "invalid_request_error", "param": None, "code": None, **told}
    return web.json_response({"error": error}, status=status, headers=headers)


@asynccontextmanager
async def serving(worker: ScriptedWorker, place: socket.socket | None = None) -> AsyncIterator[ScriptedWorker]:
    """Serve where this socket listens, or on a free port of this machine, while the block runs."""

    @web.middleware
    async def identify(request: web.Request, handler: Handler) -> web.StreamResponse:
        if worker.signed_in:
            request[PRINCIPAL] = Principal(UUID(int=1), "test", frozenset(), "session")
        elif request.path.startswith("/v1/"):
            return _error(401, "Invalid credentials.", {})
        return await handler(request)

    app = web.Application(middlewares=[identify])
    app.add_routes(worker.routes())
    runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.1)
    await runner.setup()
    try:
        listener = place.dup() if place else socket.create_server(("127.0.0.1", 0))
        await web.SockSite(runner, listener).start()
        host, port = runner.addresses[0][:2]
        worker.url = f"http://{host}:{port}"
        yield worker
    finally:
        await runner.cleanup()
