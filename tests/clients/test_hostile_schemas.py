"""Schemas that were made to stop a worker, sent to a real one: others are answered meanwhile."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping
from typing import Any

import httpx
import openai
import pytest
from openai import AsyncOpenAI

from tests.clients.conftest import MODEL
from tests.inference.test_hostile_schemas import many_references, objects_of_constants

LOOK_S = 0.02
ANSWER_S = 60.0  # a worker that works answers in milliseconds, and on a machine that swaps in seconds
# Each may be too much once it is followed, or too long a prompt.
ATTACKS: dict[str, Any] = {
    "nullable groups 2,000 times": {"type": "string", "pattern": "(.?){2000}"},
    "20 kB of constants": objects_of_constants(60, 14),
    "references to one place by many names": many_references(300),
}


@pytest.mark.parametrize("schema", ATTACKS.values(), ids=ATTACKS)
async def test_others_go_on_while_a_schema_is_compiled_and_followed(
    async_client: AsyncOpenAI, server: Mapping[str, Any], schema: Any
) -> None:
    written = 0

    async def write() -> None:
        nonlocal written
        stream = await async_client.chat.completions.create(
            model=MODEL,
            messages=[{"role": "user", "content": "Tell me about Ada."}],
            max_tokens=200,
            temperature=1,
            stream=True,
        )
        async for _ in stream:
            written += 1

    async def attack() -> None:
        format: Any = {"type": "json_schema", "name": "odd", "schema": schema}
        await async_client.responses.create(
            model=MODEL, input="hello", text={"format": format}, temperature=1, max_output_tokens=120, timeout=ANSWER_S
        )

    other, attacks = asyncio.create_task(write()), [asyncio.create_task(attack()) for _ in range(3)]
    async with httpx.AsyncClient(base_url=server["url"], timeout=ANSWER_S) as visitor:
        while not all(each.done() for each in attacks):
            assert (await visitor.get("/healthz")).status_code == 200
            await asyncio.sleep(LOOK_S)
    for each in attacks:
        try:
            await each
        except openai.APIStatusError as error:
            assert re.search("too many ways|tokens", error.message), error.message
    await other
    assert written > 1
