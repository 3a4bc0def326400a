"""The sides of the comparison: each takes messages and streams pieces of text."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from time import perf_counter
from typing import Any, Protocol

import aiohttp

from benchmarks.engine.measures import Reply
from benchmarks.engine.prompts import Message
from inference.generation import Sampling
from inference.model import ChatModel
from inference.prompt import ChatMessage

TIMEOUT_S = 300.0
BUSY = (429, 503)


class Refused(RuntimeError):
    """The server replied that it is too busy."""


class Target(Protocol):
    @property
    def name(self) -> str: ...

    def say(self, messages: Sequence[Message], max_tokens: int) -> AsyncIterator[str]:
        """Stream the non-empty pieces of the answer, sampled greedily. Closing the iterator cancels it."""
        ...


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A server with OpenAI's streamed chat completions."""

    name: str
    url: str
    http: aiohttp.ClientSession
    headers: Mapping[str, str] = field(default_factory=dict)

    async def say(self, messages: Sequence[Message], max_tokens: int) -> AsyncIterator[str]:
        body = {"stream": True, "temperature": 0, "max_tokens": max_tokens, "messages": list(map(asdict, messages))}
        url = f"{self.url}/v1/chat/completions"
        async with self.http.post(url, json=body, headers=self.headers) as answer:
            if answer.status != 200:
                error = Refused if answer.status in BUSY else RuntimeError
                raise error(f"{self.name} answered {answer.status}: {(await answer.text())[:300]}")
            async for line in answer.content:
                if line.startswith(b"data: {") and (text := _text(json.loads(line[6:]))):
                    yield text


@dataclass(frozen=True, slots=True)
class Bare:
    """Our engine without the worker around it, in this process."""

    name: str
    model: ChatModel

    async def say(self, messages: Sequence[Message], max_tokens: int) -> AsyncIterator[str]:
        segments = self.model.render([ChatMessage(m.role, m.content) for m in messages])
        generation = self.model.generate(self.model.encode(segments), Sampling(max_tokens=max_tokens, temperature=0))
        try:
            async for delta in generation:
                if delta.text:
                    yield delta.text
        finally:
            generation.cancel()


def session() -> aiohttp.ClientSession:
    """A session in which every request opens a connection: llama-server closes it after a stream, so all sides do."""
    connector = aiohttp.TCPConnector(limit=0, force_close=True)
    return aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout(total=TIMEOUT_S))


@dataclass(slots=True)
class Listener:
    """Records one answer: the time of the request, the text, and the times of its pieces."""

    asked_s: float = 0.0
    said: list[str] = field(default_factory=list)
    pieces_s: list[float] = field(default_factory=list)
    _more: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def reply(self) -> Reply:
        return Reply(self.asked_s, tuple(self.pieces_s))

    @property
    def text(self) -> str:
        return "".join(self.said)

    async def listen(self, target: Target, messages: Sequence[Message], max_tokens: int) -> Reply:
        """Request an answer and record it. Raises RuntimeError if it has no text."""
        self.asked_s = perf_counter()
        async for piece in target.say(messages, max_tokens):
            self.pieces_s.append(perf_counter())
            self.said.append(piece)
            self._more.set()
        if not self.said:
            raise RuntimeError(f"{target.name} said nothing")
        return self.reply

    async def heard(self, pieces: int) -> None:
        """Wait until that many pieces have arrived."""
        while len(self.said) < pieces:
            self._more.clear()
            await self._more.wait()


def _text(event: Mapping[str, Any]) -> str:
    if "error" in event:
        raise RuntimeError(str(event["error"])[:300])
    return "".join(choice["delta"].get("content") or "" for choice in event.get("choices", []))
