"""The agent loops that are compared: the server's own, and a client-side loop around a model."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any, Protocol

from openai import AsyncOpenAI
from openai.types.chat import ChatCompletionMessageParam, ChatCompletionToolParam

from benchmarks.agent_loop.task import DESCRIPTION, PARAMETERS, QUESTION, RESULT, STEPS, SYSTEM, TOOL, TOOL_S

FUNCTION: ChatCompletionToolParam = {
    "type": "function",
    "function": {"name": TOOL, "description": DESCRIPTION, "parameters": PARAMETERS},
}
TOKENS_MAX = 256  # per step; more than any step needs
ONE_AFTER_ANOTHER, TOGETHER = "one call after another", "calls together"

Ran = dict[str, float]
Run = Callable[[Sequence[Awaitable[str]]], Awaitable[list[str]]]


class Loop(Protocol):
    @property
    def name(self) -> str: ...

    async def run(self, number: int) -> Ran:
        """Run the task for the customer of that number. Returns milliseconds and tokens by name.

        Raises RuntimeError if the task was not completed.
        """
        ...


@dataclass(slots=True)
class Watch:
    """Records the times of one run of the task."""

    began_s: float = field(default_factory=perf_counter)
    answer_s: float | None = None
    prefilled: list[int] = field(default_factory=list)  # by step

    def word(self) -> None:
        """Record that a piece of the answer has arrived."""
        if self.answer_s is None:
            self.answer_s = perf_counter()

    def told(self) -> Ran:
        """The measurements by name. Raises RuntimeError if the task was not completed."""
        if self.answer_s is None or len(self.prefilled) != STEPS + 1:
            raise RuntimeError(f"the task went wrong: {len(self.prefilled)} steps")
        steps = {f"prefilled, step {i + 1}": float(tokens) for i, tokens in enumerate(self.prefilled)}
        answered_ms = (self.answer_s - self.began_s) * 1e3
        return {
            "wall clock ms": (perf_counter() - self.began_s) * 1e3,
            "first word of the answer ms": answered_ms,
            **steps,
        }


@dataclass(frozen=True, slots=True)
class Served:
    """The server-side loop: one request, and the worker runs the tools."""

    name: str
    client: AsyncOpenAI
    model: str

    async def run(self, number: int) -> Ran:
        watch = Watch()
        tools: Any = [{"type": f"firsttoken:{TOOL}"}]  # the client's types do not know a server's own tools
        told: Any = ["firsttoken:trace"]
        stream = await self.client.responses.create(
            model=self.model,
            instructions=SYSTEM,
            input=asked(number),
            tools=tools,
            include=told,
            temperature=0,
            stream=True,
        )
        async for event in stream:
            if event.type == "response.output_text.delta":
                watch.word()
            elif str(event.type) == "firsttoken:trace":
                watch.prefilled = prefilled(event.to_dict())
        return watch.told()


@dataclass(frozen=True, slots=True)
class Programmed:
    """The client-side loop: one streamed request per step; the program runs the tools and sends the next request."""

    name: str
    client: AsyncOpenAI
    model: str
    run_calls: Run

    async def run(self, number: int) -> Ran:
        watch = Watch()
        messages: list[ChatCompletionMessageParam] = [
            {"role": "system", "content": SYSTEM},
            {"role": "user", "content": asked(number)},
        ]
        while len(watch.prefilled) <= STEPS:
            calls = await self._step(messages, watch)
            if not calls:
                break
            results = await self.run_calls([find() for _ in calls])
            messages.append({"role": "assistant", "tool_calls": calls})  # type: ignore[typeddict-item]
            messages += [
                {"role": "tool", "tool_call_id": call["id"], "content": result}
                for call, result in zip(calls, results, strict=True)
            ]
        return watch.told()

    async def _step(self, messages: list[ChatCompletionMessageParam], watch: Watch) -> list[dict[str, Any]]:
        stream = await self.client.chat.completions.create(
            model=self.model,
            messages=messages,
            tools=[FUNCTION],
            temperature=0,
            max_tokens=TOKENS_MAX,
            stream=True,
            stream_options={"include_usage": True},
        )
        calls: dict[int, dict[str, Any]] = {}
        async for chunk in stream:
            if chunk.usage is not None:
                details = chunk.usage.prompt_tokens_details
                watch.prefilled.append(chunk.usage.prompt_tokens - ((details and details.cached_tokens) or 0))
            for choice in chunk.choices:
                if choice.delta.content:
                    watch.word()
                for piece in choice.delta.tool_calls or ():
                    call = calls.setdefault(
                        piece.index, {"id": "", "type": "function", "function": {"name": "", "arguments": ""}}
                    )
                    call["id"] += piece.id or ""
                    if piece.function is not None:
                        call["function"]["name"] += piece.function.name or ""
                        call["function"]["arguments"] += piece.function.arguments or ""
        return [calls[index] for index in sorted(calls)]


def asked(number: int) -> str:
    return f"I am customer {number}. {QUESTION}"


async def find() -> str:
    """The tool, as a function of the program."""
    await asyncio.sleep(TOOL_S)
    return RESULT


async def one_after_another(calls: Sequence[Awaitable[str]]) -> list[str]:
    """Await the calls one after another, as in the client's documentation."""
    return [await call for call in calls]


async def together(calls: Sequence[Awaitable[str]]) -> list[str]:
    """Await the calls concurrently, as an optimized program does."""
    return list(await asyncio.gather(*calls))


def prefilled(event: dict[str, Any]) -> list[int]:
    """Prefilled tokens by step, from the trace at the end of a turn."""
    return [span["attributes"]["new_tokens"] for span in event["trace"]["spans"] if span["name"] == "prefill"]
