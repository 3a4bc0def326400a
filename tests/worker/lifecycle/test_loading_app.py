"""What a worker answers while its model is loaded."""

from __future__ import annotations

import re
from contextlib import closing

import aiohttp

from worker.config import Config
from worker.lifecycle.address import bind
from worker.lifecycle.loading_app import serving_progress
from worker.lifecycle.process import LoadProgress


async def test_health_tells_how_far_the_model_is_and_everything_else_is_asked_to_come_again() -> None:
    loading = LoadProgress()
    with closing(bind("127.0.0.1", 0)) as listener, loading.shown():
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        async with aiohttp.ClientSession(url) as client:
            async with serving_progress(loading, Config(), listener):
                loading.report(0.4242)
                async with client.get("/readyz") as answer:
                    ready = await answer.json()
                    assert answer.status == 503 and ready["loaded"] == 0.424
                    assert ready["parts"] == {"worker": "starting", "engine": "loading"}
                async with client.get("/healthz") as answer:
                    assert answer.status == 200
                async with client.post("/v1/responses", json={"input": "Hello"}) as answer:
                    refused = await answer.json()
                    assert (answer.status, answer.headers["Retry-After"]) == (503, "1")
                    assert refused["error"]["code"] == "loading"
            async with serving_progress(loading, Config(), listener), client.get("/healthz") as answer:
                assert answer.status == 200  # the socket itself stays open, and goes to whoever comes next


async def test_a_browser_gets_a_page_that_tells_how_far_the_model_is_and_opens_the_same_address_again() -> None:
    loading = LoadProgress()
    with closing(bind("127.0.0.1", 0)) as listener:
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        async with aiohttp.ClientSession(url) as client, serving_progress(loading, Config(), listener):
            loading.report(0.4242)
            async with client.get("/?token=secret", headers={"Accept": "text/html,*/*;q=0.8"}) as answer:
                page = await answer.text()
                assert (answer.status, answer.headers["Refresh"], answer.content_type) == (503, "1", "text/html")
                assert "require-trusted-types-for" in answer.headers["Content-Security-Policy"]
                assert answer.headers["Cache-Control"] == "no-store" and "secret" not in page
                assert 'value="42"' in page and ">42<" in page
            addresses = re.findall(r'(?:href|src)="(/static/[^"]+)"', page)
            assert len(addresses) >= 5
            for address in addresses:
                async with client.get(address) as answer:
                    assert answer.status == 200, address
            async with client.get("/v1/models", headers={"Accept": "application/json"}) as answer:
                assert (answer.status, answer.headers["X-Content-Type-Options"]) == (503, "nosniff")
                assert (await answer.json())["error"]["code"] == "loading"
