"""The official client, pointed at a real worker with the bundled model.

There is one for all tests: to read the list of authorities takes longer than most of them.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Mapping
from typing import Any

import pytest
from openai import AsyncOpenAI, OpenAI

MODEL = "demo-chat"


@pytest.fixture(scope="session")
def client(server: Mapping[str, Any]) -> Iterator[OpenAI]:
    with OpenAI(base_url=f"{server['url']}/v1", api_key=server["api_key"], max_retries=0) as client:
        yield client


@pytest.fixture(scope="session")
async def async_client(server: Mapping[str, Any]) -> AsyncIterator[AsyncOpenAI]:
    async with AsyncOpenAI(base_url=f"{server['url']}/v1", api_key=server["api_key"], max_retries=0) as client:
        yield client
