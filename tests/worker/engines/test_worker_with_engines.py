"""`firsttoken serve --engines`: a worker whose tokens are computed elsewhere, from before its engine is there."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.engines import EngineProcess
from tests.serving import Worker
from worker.edge.health_probes import LOOKS_KEPT

TOKEN = "another-token-of-the-tests"


async def status_of(http: aiohttp.ClientSession, path: str) -> tuple[int, Any]:
    async with http.get(path) as answer:
        return answer.status, await answer.json()


async def trace_of(http: aiohttp.ClientSession, trace_id: str) -> Any:
    """It is stored behind the answer."""
    async with asyncio.timeout(60):
        while True:
            status, trace = await status_of(http, f"/ops/api/traces/{trace_id}")
            if status == 200:
                return trace
            await asyncio.sleep(0.05)


@pytest.mark.any_answer("it is about whether there is an answer, whatever it says")
async def test_a_worker_refuses_turns_until_its_engine_is_there_and_again_when_it_is_gone(
    make_home: Callable[[], Path],
) -> None:
    home = make_home()
    token = home / "engines.token"
    token.write_text(f"{TOKEN}\n")
    where = ("--listen", f"unix:{home}/engine.sock", "--token-file", str(token))
    worker = Worker(home, "--engines", f"unix:{home}/engine.sock", "--token-file", str(token), "--docs", "")
    ready = await asyncio.to_thread(worker.wait_until_ready)
    headers = {"Authorization": f"Bearer {ready['api_key']}"}
    asked = {"input": "hello", "max_output_tokens": 16, "temperature": 0, "stream": True}
    async with aiohttp.ClientSession(ready["url"], headers=headers) as http:
        status, state = await status_of(http, "/readyz")
        assert (status, state["parts"]["engine"]) == (503, "failed")
        async with http.post("/v1/responses", json=asked) as refused:  # before its first event
            assert (refused.status, refused.headers["Retry-After"]) == (503, "1")

        engine = EngineProcess(home, *where)
        try:
            await asyncio.to_thread(engine.wait_until_ready)
            async with asyncio.timeout(60):
                while True:
                    if (await status_of(http, "/readyz"))[0] == 200:
                        break
                    await asyncio.sleep(0.05)
            for _ in range(LOOKS_KEPT):  # at once, as no balancer does: the worker's stop would wait for its next look
                await status_of(http, "/readyz")
            async with http.post("/v1/responses", json=asked) as answer:
                assert answer.status == 200
                told = await answer.text()
            assert "response.output_text.delta" in told and "response.completed" in told
            trace_id = answer.headers["Traceparent"].split("-")[1]
            spans = {span["name"]: span["attributes"] for span in (await trace_of(http, trace_id))["spans"]}
            assert spans["connect"] == {"retries": 0} and spans["engine"]["engine"] == f"unix:{home}/engine.sock"
            assert spans["engine"]["tokens"] > 0 and spans["engine"]["engine_ms"] >= spans["engine"]["prefill_ms"]
        finally:
            await asyncio.to_thread(engine.stop)
        async with http.post("/v1/responses", json=asked) as refused:
            assert refused.status == 503
    assert await asyncio.to_thread(worker.stop) == 0
