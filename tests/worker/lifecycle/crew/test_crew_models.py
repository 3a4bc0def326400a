"""Several models behind several workers: an engine for each, and another model at work without a stop."""

from __future__ import annotations

import shutil
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from inference.bundled import CHAT_MODEL, DRAFT_MODEL
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


@dataclass(frozen=True)
class Asked:
    ready: dict[str, Any]

    def __call__(self, method: str, path: str, **rest: Any) -> httpx.Response:
        """By a connection of its own, so that any worker may answer. One whose worker closes its socket is tried again,
        as clients do."""
        headers = {"Authorization": f"Bearer {self.ready['api_key']}"}
        for number in range(TRIES):
            try:
                return httpx.request(method, self.ready["url"] + path, headers=headers, timeout=60, **rest)
            except httpx.TransportError:
                if number == TRIES - 1:
                    raise
        raise AssertionError

    def answer(self, **rest: Any) -> None:
        answer = self("POST", "/v1/responses", json={"input": "Hello!", "max_output_tokens": 4, **rest})
        assert answer.status_code == 200, answer.text

    def parameters(self) -> int:
        """Of the default model."""
        return int(self("GET", "/v1/models").json()["data"][0]["firsttoken_parameters"])

    def until_larger(self, before: int, log: Path) -> None:
        """Ask until both workers have it."""
        give_up_at, same = time.monotonic() + PATIENCE_S, 0
        while same < 6:
            self.answer()
            same = same + 1 if self.parameters() > before else 0
            assert time.monotonic() < give_up_at, log.read_text()


@pytest.mark.timeout(300)
def test_workers_share_an_engine_for_each_model_and_one_is_exchanged_at_work(crew: Worker) -> None:
    asked, home = Asked(crew.wait_until_ready()), crew.log.parent
    for model in ("small", "large"):
        asked.answer(model=model)
    assert {path.name for path in (home / "kv" / "models").iterdir()} == {"small", "large"}
    processes = asked("GET", "/metrics").text
    assert 'process="engine-' in processes or 'process="worker-2"' in processes
    before = asked.parameters()
    (home / "models.toml").write_text(TWO.replace("demo-draft", "demo-chat"))
    told = firsttoken("reload", "--home", str(home))
    assert told.returncode == 0, told.stderr
    asked.until_larger(before, crew.log)


@pytest.mark.timeout(300)
def test_an_only_model_whose_file_was_replaced_is_exchanged_at_work(make_home: Callable[[], Path]) -> None:
    home = make_home()
    file = home / "models" / "chat.gguf"
    file.parent.mkdir()
    shutil.copyfile(DRAFT_MODEL, file)
    little = ("--streams", "2", "--context", "1024", "--docs", "", "--background", "0")
    crew = Worker(home, "--workers", "2", "--model", "chat.gguf", *little, name="crew")
    asked = Asked(crew.wait_until_ready())
    before = asked.parameters()
    shutil.copyfile(CHAT_MODEL, file.with_suffix(".new"))
    file.with_suffix(".new").replace(file)
    crew.process.send_signal(signal.SIGUSR1)
    asked.until_larger(before, crew.log)
    assert crew.stop() == 0
