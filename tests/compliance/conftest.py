"""A plain HTTP client of a real worker with the bundled model: no library between the test and the wire."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from typing import Any

import aiohttp
import orjson
import pytest

from tests.compliance.specification import TERMINAL, made, told

MODEL = "demo-chat"
# The suite leaves the temperature open. At 1 the bundled model is right most of the time only, and a test has to be so
# always: what is greedy here is the model, while everything around it is what the suite sees.
GREEDY = {"model": MODEL, "temperature": 0}


class Wire:
    """Sends bodies as the compliance suite of the specification does, and validates whatever comes back."""

    def __init__(self, http: aiohttp.ClientSession) -> None:
        self.http = http

    async def post(self, path: str, body: Mapping[str, Any], status: int = 200) -> dict[str, Any]:
        async with self.http.post(f"/v1/{path}", json=body) as answer:
            content: dict[str, Any] = await answer.json()
            assert answer.status == status, content
            return content

    async def get(self, path: str) -> dict[str, Any]:
        async with self.http.get(f"/v1/{path}") as answer:
            content: dict[str, Any] = await answer.json()
            assert answer.status == 200, content
            return content

    async def respond(self, body: Mapping[str, Any]) -> dict[str, Any]:
        return made(await self.post("responses", {**GREEDY, **body}))

    async def stream(self, body: Mapping[str, Any]) -> list[dict[str, Any]]:
        """All events; the last one holds the final response."""
        sent = {**GREEDY, **body, "stream": True}
        async with self.http.post("/v1/responses", json=sent) as answer:
            assert answer.content_type == "text/event-stream"
            blocks = [block for block in (await answer.text()).split("\n\n") if not block.startswith(":")]
        assert blocks[-2:] == ["data: [DONE]", ""]
        events = []
        for block in blocks[:-2]:
            lines = dict(line.split(": ", 1) for line in block.split("\n"))
            assert lines.keys() == {"event", "data"}, "no ids"
            events.append(told(orjson.loads(lines["data"])))
            assert lines["event"] == events[-1]["type"]
        assert [event["sequence_number"] for event in events] == list(range(len(events)))
        assert events[-1]["type"] in TERMINAL
        made(events[-1]["response"])
        return events


@pytest.fixture
async def wire(server: Mapping[str, Any]) -> AsyncIterator[Wire]:
    headers = {"Authorization": f"Bearer {server['api_key']}"}
    async with aiohttp.ClientSession(server["url"], headers=headers) as http:
        yield Wire(http)
