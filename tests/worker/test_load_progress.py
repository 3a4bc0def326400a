"""What a worker answers while its model is loaded."""

from __future__ import annotations

from contextlib import closing

import aiohttp

from worker.config import Config
from worker.load_progress import LoadProgress
from worker.port import bind


async def test_health_tells_how_far_the_model_is_and_everything_else_is_asked_to_come_again() -> None:
    loading = LoadProgress()
    with closing(bind("127.0.0.1", 0)) as listener, loading.shown():
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        async with aiohttp.ClientSession(url) as client:
            async with loading.answered(Config(), listener):
                loading.tell(0.4242)
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
            async with loading.answered(Config(), listener), client.get("/healthz") as answer:
                assert answer.status == 200  # the socket itself stays open, and goes to whoever comes next
