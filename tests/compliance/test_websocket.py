"""The cases of the Open Responses compliance suite over a WebSocket, each on connections of its own, all at once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, TypeAlias

import aiohttp
import orjson

from tests.compliance.conftest import GREEDY, MODEL, Wire
from tests.compliance.specification import TERMINAL, SocketError, made, told

Json: TypeAlias = dict[str, Any]


class Lane:
    """Sends one request at a time and reads to the end of its answer."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._socket = socket

    async def ask(self, input: Any, **more: Any) -> Json:
        """The last message: an event with the final response, or an error."""
        body = {"type": "response.create", **GREEDY, "store": False, "input": input, **more}
        await self._socket.send_bytes(orjson.dumps(body))
        number = 0
        async for message in self._socket:
            assert message.type is aiohttp.WSMsgType.TEXT
            event: Json = orjson.loads(message.data)
            if event["type"] == "error":
                SocketError.model_validate(event)
                return event
            assert told(event)["sequence_number"] == number
            number += 1
            if event["type"] in TERMINAL:
                return event
        raise AssertionError("the connection was closed before the answer had ended")

    async def completed(self, input: Any, **more: Any) -> Json:
        event = await self.ask(input, **more)
        assert event["type"] == "response.completed", event
        return made(event["response"])


@asynccontextmanager
async def connected(wire: Wire) -> AsyncIterator[Lane]:
    async with wire.http.ws_connect("/v1/responses") as socket:
        yield Lane(socket)


async def one_response(wire: Wire) -> None:
    async with connected(wire) as lane:
        await lane.completed([{"type": "message", "role": "user", "content": "Count from 1 to 3."}], store=True)


async def sequential_responses(wire: Wire) -> None:
    async with connected(wire) as lane:
        first = await lane.completed("Reply with exactly: first")
        second = await lane.completed("Reply with exactly: second")
    assert first["id"] != second["id"]


async def continuation(wire: Wire) -> None:
    async with connected(wire) as lane:
        first = await lane.completed("Remember the code word: river. Reply with OK.")
        second = await lane.completed("What is the code word?", previous_response_id=first["id"])
    assert second["previous_response_id"] == first["id"]
    assert second["usage"]["input_tokens"] > first["usage"]["input_tokens"] + first["usage"]["output_tokens"]


async def recovery_on_a_new_connection(wire: Wire) -> None:
    async with connected(wire) as lane:
        first = await lane.completed("Remember the code word: copper. Reply with OK.")
    async with connected(wire) as lane:
        error = await lane.ask("Try to continue.", previous_response_id=first["id"])
        assert error["error"]["code"] == "previous_response_not_found"
        await lane.completed("Start a new response.")


async def missing_previous_response(wire: Wire) -> None:
    async with connected(wire) as lane:
        error = await lane.ask("This should fail.", previous_response_id="resp_openresponses_missing")
    assert (error["status"], error["error"]["code"]) == (404, "previous_response_not_found")


async def failed_continuation_evicts(wire: Wire) -> None:
    output = {"type": "function_call_output", "call_id": "call_missing", "output": "There is no such call."}
    async with connected(wire) as lane:
        first = await lane.completed("Remember the code word: ember. Reply with OK.")
        assert (await lane.ask([output], previous_response_id=first["id"]))["type"] == "error"
        error = await lane.ask("Try again.", previous_response_id=first["id"])
    assert error["error"]["code"] == "previous_response_not_found"


async def compact_new_chain(wire: Wire) -> None:
    said = [
        {"type": "message", "role": "user", "content": "Remember the compaction code word: slate."},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "OK."}]},
        {"type": "message", "role": "user", "content": "Compress this conversation for later continuation."},
    ]
    compacted = await wire.post("responses/compact", {"model": MODEL, "input": said})
    question = {"type": "message", "role": "user", "content": "Continue from here. Reply with exactly: compacted"}
    async with connected(wire) as lane:
        await lane.completed([*compacted["output"], question], tools=[])


CASES: list[Callable[[Wire], Awaitable[None]]] = [
    one_response,
    sequential_responses,
    continuation,
    recovery_on_a_new_connection,
    missing_previous_response,
    failed_continuation_evicts,
    compact_new_chain,
]


async def test_all_cases_at_once(wire: Wire) -> None:
    outcomes = await asyncio.gather(*(case(wire) for case in CASES), return_exceptions=True)
    failed = {case.__name__: outcome for case, outcome in zip(CASES, outcomes, strict=True) if outcome is not None}
    assert failed == {}
