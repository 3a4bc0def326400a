"""Anything at all as a query of the latency page: an answer or a refusal, never a 500."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from yarl import URL

from migrations.pool import Database
from tests.worker.answering import answering
from tests.worker.harness import Client
from worker.routes.ops import SECONDS_MAX, WINDOW_S_MAX

VALUES = ("%00", "%ED%A0%80", "-1", "nan", "inf", "9" * 400, "x" * 201, "resp_%00", "1")
NAMES = ("start", "surface", "tenant", "key", "worker", "status", "against_key", "q", "after", "slower_ms", "limit")
STRETCHES = (
    (0, 0.001),
    (0, WINDOW_S_MAX),
    (SECONDS_MAX - WINDOW_S_MAX, SECONDS_MAX),
    (SECONDS_MAX - 1, SECONDS_MAX),
    (SECONDS_MAX - 1, SECONDS_MAX + 1),
)


@pytest.fixture(scope="module")
async def client(database: Database) -> AsyncIterator[Client]:
    async with answering(database, "Hello.") as client:
        yield client


@pytest.mark.parametrize("view", ["summary", "series", "comparison", "traces"])
async def test_whatever_is_asked_for_is_told_or_refused(client: Client, view: str) -> None:
    asked = [f"{name}={value}" for name in NAMES for value in VALUES]
    for start, end in STRETCHES:
        asked += [f"start={start}&end={end}", f"start=0&end=60&against_start={start}&against_end={end}"]
    for query in asked:
        async with client.get(URL(f"/ops/api/{view}?{query}", encoded=True)) as answer:
            assert answer.status in (200, 400), (query, await answer.text())
