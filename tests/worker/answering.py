"""The whole application answering with a scripted model: real routes, agent, stores and Postgres, over real sockets."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from math import inf
from typing import Any
from uuid import uuid4

import orjson

from agents.agent import Agent
from agents.router import ModelRegistry
from agents.store import ConversationStore, ResponseStore
from agents.tool import tool
from agents.toolbox import Toolbox
from inference.generation import ANY_TERMS, Delta, Finish, Sampling, Terms
from inference.trace import Trace
from migrations.pool import Database
from retrieval.errors import StoreNotFound
from retrieval.passage import Passage
from retrieval.query import Query
from retrieval.store import PassageStore
from tests.scripted import ScriptedGeneration, ScriptedModel
from tests.worker.harness import SECRET, Client, make_services, serving
from tests.worker.reader import Event
from worker.auth.keys import Keys
from worker.config import Config
from worker.runs.attachments import Attachments
from worker.runs.record import Targets
from worker.services import Services

MODEL = "scripted"
PASSAGE = Passage("vs_1", "file_1", "docs/port.md", "Port", "The default port is 8080.", 100, 125, 7, 0.9)


@tool
def double(number: int) -> int:
    """Double a number.

    Args:
        number: What to double
    """
    return 2 * number


class ShelfRetriever:
    """Finds one passage in the store `docs`, whatever is asked."""

    async def retrieve(self, query: Query, trace: Trace, budget_ms: float = inf) -> list[Passage]:
        for store in query.stores:
            if store != "docs":
                raise StoreNotFound(store)
        with trace.span("retrieve"):
            return [PASSAGE] if PASSAGE.score >= query.score_threshold else []


class StallingGeneration(ScriptedGeneration):
    """Says its text and then stands still, until it is released or cancelled."""

    def __init__(
        self, text: str, prompt_tokens: int, sampling: Sampling, piece_chars: int, written: Sequence[int] = ()
    ) -> None:
        super().__init__(text, prompt_tokens, sampling, piece_chars, written=written)
        self.released = asyncio.Event()
        self.stopped = asyncio.Event()

    def cancel(self) -> None:
        super().cancel()
        self.stopped.set()
        self.released.set()

    async def __aiter__(self) -> AsyncIterator[Delta]:
        async for delta in super().__aiter__():
            yield delta
        finish, self.finish = self.finish, None
        await self.released.wait()
        self.finish = Finish.CANCELLED if self.stopped.is_set() else finish


@dataclass
class StallingModel(ScriptedModel):
    """`running` are its generations, all of which say the first reply."""

    running: list[StallingGeneration] = field(default_factory=list)
    started: asyncio.Event = field(default_factory=asyncio.Event)

    def generate(self, prompt: Sequence[int], sampling: Sampling, terms: Terms = ANY_TERMS) -> ScriptedGeneration:
        self.prompts.append("".join(map(chr, prompt)))
        self.running.append(StallingGeneration(self.replies[0], len(prompt), sampling, self.piece_chars, terms.written))
        self.started.set()
        return self.running[-1]


def stalling(text: str = "Half an answer, and the rest.") -> StallingModel:
    return StallingModel([text], name=MODEL)


def services_with(database: Database, model: ScriptedModel | ModelRegistry, config: Config | None = None) -> Services:
    services, passages = make_services(database, config), PassageStore(database)
    model_registry = model if isinstance(model, ModelRegistry) else ModelRegistry.of(model)
    return replace(
        services,
        model_registry=model_registry,
        agent=Agent(model_registry, ShelfRetriever(), Toolbox([double])),
        conversations=ConversationStore(database),
        responses=ResponseStore(database),
        passages=passages,
        attachments=Attachments(
            ConversationStore(database), services.uploads, passages, services.loaders, services.seals
        ),
    )


@asynccontextmanager
async def answering(
    database: Database,
    *replies: str,
    model: ScriptedModel | None = None,
    config: Config | None = None,
    targets: Targets | None = None,
) -> AsyncIterator[Client]:
    """A signed-in client of a new tenant. The model gives the replies in order."""
    model = model or ScriptedModel(list(replies), name=MODEL)
    keys = Keys(database, SECRET)
    services = services_with(database, model, config)
    async with serving(replace(services, targets=targets or services.targets)) as client:
        key = (await keys.create(await keys.tenant(f"test-{uuid4()}"), "test"))[1]
        client.session.headers["Authorization"] = f"Bearer {key}"
        yield client


async def post(client: Client, path: str, body: Any, status: int = 200) -> Any:
    async with client.post(path, json=body) as answer:
        content = await answer.json()
        assert answer.status == status, content
        return content


async def get(client: Client, path: str, status: int = 200) -> Any:
    async with client.get(path) as answer:
        content = await answer.json()
        assert answer.status == status, content
        return content


async def stream(client: Client, path: str, body: Any) -> list[Event]:
    """All events of a streamed answer; the end mark is checked and left out."""
    async with client.post(path, json={**body, "stream": True}) as answer:
        text = await answer.text()
        assert answer.status == 200, text
        assert answer.content_type == "text/event-stream"
    return events_of(text)


def events_of(text: str) -> list[Event]:
    blocks = [block for block in text.split("\n\n") if block and not block.startswith(":")]
    assert blocks.pop() == "data: [DONE]"
    events: list[Event] = []
    for block in blocks:
        lines = dict(line.split(": ", 1) for line in block.split("\n"))
        events.append(orjson.loads(lines["data"]))
        assert lines.get("event", events[-1].get("type")) == events[-1].get("type")
    return events


async def replay(client: Client, id: str, query: str = "") -> list[Event]:
    """The events of a stored response, told again."""
    async with client.get(f"/v1/responses/{id}?stream=true{query}") as answer:
        text = await answer.text()
        assert answer.status == 200, text
    return events_of(text)
