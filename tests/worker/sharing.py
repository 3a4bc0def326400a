"""Two workers of one database, and one caller who reaches both."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from uuid import uuid4

from migrations.pool import Database
from tests.scripted import ScriptedModel
from tests.worker.answering import services_with
from tests.worker.harness import SECRET, Client, serving
from worker.auth.keys import Keys
from worker.services import Services


@asynccontextmanager
async def colleagues(database: Database, model: ScriptedModel) -> AsyncIterator[tuple[Client, Client]]:
    """Clients of two workers with the same key."""
    async with (
        signed_in(database, services_with(database, model)) as maker,
        serving(services_with(database, model)) as other,
    ):
        other.session.headers["Authorization"] = maker.session.headers["Authorization"]
        yield maker, other


@asynccontextmanager
async def signed_in(database: Database, services: Services) -> AsyncIterator[Client]:
    """A client of a new tenant."""
    keys = Keys(database, SECRET)
    async with serving(services) as client:
        key = (await keys.create(await keys.tenant(f"test-{uuid4()}"), "test"))[1]
        client.session.headers["Authorization"] = f"Bearer {key}"
        yield client


def response_id_of(stream: bytes) -> str:
    found = re.search(rb'"id":"(resp_[0-9a-f]+)"', stream)
    assert found, stream
    return found[1].decode()
