"""The official client, pointed at a real worker with the bundled model.

There is one for all tests: to read the list of authorities takes longer than most of them.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Mapping
from typing import Any

import pytest
from openai import AsyncOpenAI, OpenAI

MODEL = "demo-chat"


def connection(server: Mapping[str, Any]) -> dict[str, Any]:
    return {"base_url": f"{server['url']}/v1", "api_key": server["api_key"], "max_retries": 0}


@pytest.fixture(scope="session")
def client(server: Mapping[str, Any]) -> Iterator[OpenAI]:
    """It raises an error for an object or an event that does not fit the client's own types."""
    with OpenAI(_strict_response_validation=True, **connection(server)) as client:
        yield client


@pytest.fixture(scope="session")
async def async_client(server: Mapping[str, Any]) -> AsyncIterator[AsyncOpenAI]:
    async with AsyncOpenAI(_strict_response_validation=True, **connection(server)) as client:
        yield client


@pytest.fixture(scope="session")
def lenient_client(server: Mapping[str, Any]) -> Iterator[OpenAI]:
    """As programs have it: for tools of our own types, and where the client's types do not say what OpenAI sends, as
    embeddings in base64."""
    with OpenAI(**connection(server)) as client:
        yield client


@pytest.fixture(scope="session")
async def lenient_async_client(server: Mapping[str, Any]) -> AsyncIterator[AsyncOpenAI]:
    async with AsyncOpenAI(**connection(server)) as client:
        yield client
