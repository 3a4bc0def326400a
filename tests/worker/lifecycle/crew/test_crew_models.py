"""Several models behind several workers: an engine for each, and another model at work without a stop."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.serving import Worker
from tests.worker.cli.test_main import firsttoken

TWO = """
[models.small]
model = "demo-draft"
streams = 2
context = 1024

[models.large]
model = "demo-chat"
streams = 2
context = 1024
"""
PATIENCE_S = 120
TRIES = 5

pytestmark = [pytest.mark.long, pytest.mark.any_answer("which model answers is asked, not what it says")]


@pytest.fixture
def crew(make_home: Callable[[], Path]) -> Iterator[Worker]:
    home = make_home()
    (home / "models.toml").write_text(TWO)
    crew = Worker(home, "--workers", "2", "--docs", "", "--background", "0", name="crew")
    crew.wait_until_ready()
    yield crew
    assert crew.stop() == 0


@pytest.mark.timeout(300)
def test_workers_share_an_engine_for_each_model_and_one_is_exchanged_at_work(crew: Worker) -> None:
    ready: dict[str, Any] = crew.wait_until_ready()
    headers = {"Authorization": f"Bearer {ready['api_key']}"}

    def asked(method: str, path: str, **rest: Any) -> httpx.Response:
        """By a connection of its own, so that any worker may answer. One whose worker closes its socket is tried again,
        as clients do."""
        for number in range(TRIES):
            try:
                return httpx.request(method, ready["url"] + path, headers=headers, timeout=60, **rest)
            except httpx.TransportError:
                if number == TRIES - 1:
                    raise
        raise AssertionError

    def parameters() -> int:
        return int(asked("GET", "/v1/models/small").json()["firsttoken_parameters"])

    for model in ("small", "large"):
        answer = asked("POST", "/v1/responses", json={"input": "Hello!", "max_output_tokens": 4, "model": model})
        assert answer.status_code == 200, answer.text
    assert {path.name for path in (crew.log.parent / "kv" / "models").iterdir()} == {"small", "large"}
    processes = asked("GET", "/metrics").text
    assert 'process="engine-' in processes or 'process="worker-2"' in processes
    before = parameters()
    home = crew.log.parent
    (home / "models.toml").write_text(TWO.replace("demo-draft", "demo-chat"))
    told = firsttoken("reload", "--home", str(home))
    assert told.returncode == 0, told.stderr
    give_up_at, same = time.monotonic() + PATIENCE_S, 0
    while same < 6:  # both workers have it
        answer = asked("POST", "/v1/responses", json={"input": "Hello!", "max_output_tokens": 4, "model": "small"})
        assert answer.status_code == 200, answer.text
        same = same + 1 if parameters() > before else 0
        assert time.monotonic() < give_up_at, crew.log.read_text()
