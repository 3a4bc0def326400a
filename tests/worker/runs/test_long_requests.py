"""Others wait for tokens while thousands of messages or tools of a request become a turn."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from tests.worker.answering import MODEL
from tests.worker.harness import Client
from tests.worker.loop_blocks import blocks

HELD_MS = 75  # of the event loop at once; 100 to 350 when all of it is made there
TURNS, TOOLS = 4_999, 5_000
SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"}}}
SAID = [each for i in range(TURNS) for each in (("user", f"q{i}"), ("assistant", f"a{i}"))]
ASKED = [{"role": role, "content": text} for role, text in [*SAID, ("user", "And now?")]]
CALLED = [
    message
    for i in range(TURNS)
    for message in (
        {"role": "assistant", "content": [{"type": "tool_use", "id": f"c{i}", "name": "f", "input": {"city": "Oslo"}}]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": f"c{i}", "content": "cold"}]},
    )
]
FUNCTIONS = [{"type": "function", "function": {"name": f"f{i}", "parameters": SCHEMA}} for i in range(TOOLS)]


@pytest.mark.parametrize(
    ("url", "body"),
    [
        ("/v1/chat/completions", {"messages": ASKED}),
        ("/v1/messages", {"messages": ASKED, "max_tokens": 9}),
        ("/v1/messages", {"messages": [ASKED[0], *CALLED], "max_tokens": 9}),
        ("/v1/responses", {"input": ASKED, "store": False}),
        ("/v1/chat/completions", {"messages": ASKED[:1], "tools": FUNCTIONS}),
    ],
)
async def test_a_long_request_does_not_hold_the_event_loop(client: Client, url: str, body: dict[str, Any]) -> None:
    sent = orjson.dumps({"model": MODEL, **body})
    async with blocks() as held, client.post(url, data=sent, headers={"Content-Type": "application/json"}) as response:
        told = await response.text()
    assert response.status in (200, 400), told
    assert held.longest_ms < HELD_MS
