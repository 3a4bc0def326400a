"""The official client, pointed at a real worker with the bundled model."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Mapping
from typing import Any

import pytest
from openai import AsyncOpenAI, OpenAI

MODEL = "demo-chat"


@pytest.fixture
def client(server: Mapping[str, Any]) -> Iterator[OpenAI]:
    with OpenAI(base_url=f"{server['url']}/v1", api_key=server["api_key"], max_retries=0) as client:
        yield client


@pytest.fixture
async def async_client(server: Mapping[str, Any]) -> AsyncIterator[AsyncOpenAI]:
    async with AsyncOpenAI(base_url=f"{server['url']}/v1", api_key=server["api_key"], max_retries=0) as client:
        yield client
