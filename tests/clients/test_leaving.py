"""A client that leaves stops the engine at its next step."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import aiohttp
from openai import AsyncOpenAI

from tests.clients.conftest import MODEL

TOKENS_MAX = 3000
# What the engine may have computed when it hears that the client is gone: seconds before all that was asked for.
TOKENS_LEFT_MAX = 1500


async def engine(server: Mapping[str, Any]) -> dict[str, Any]:
    headers = {"Authorization": f"Bearer {server['api_key']}"}
    async with aiohttp.ClientSession(headers=headers) as http, http.get(f"{server['url']}/ops/api/state") as answer:
        stats: dict[str, Any] = (await answer.json())["engine"]
        return stats


async def test_leaving_in_the_middle_frees_the_engine(server: Mapping[str, Any], async_client: AsyncOpenAI) -> None:
    before = (await engine(server))["generated_tokens_total"]
    stream = await async_client.chat.completions.create(
        model=MODEL,
        messages=[{"role": "user", "content": "hello"}],
        logit_bias={"700": 100},  # the same word for ever: it would go on to the limit
        max_tokens=TOKENS_MAX,
        stream=True,
    )
    async for chunk in stream:
        if chunk.choices[0].delta.content:
            break
    assert (await engine(server))["running"]
    await stream.close()
    while (stats := await engine(server))["running"]:
        pass
    assert stats["generated_tokens_total"] - before < TOKENS_LEFT_MAX
