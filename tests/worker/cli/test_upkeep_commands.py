"""`firsttoken reload`: another model takes the place of one while a worker answers."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.serving import Worker
from tests.worker.cli.test_main import complaint, firsttoken

SMALL = '[models.chat]\nmodel = "demo-draft"\n'
LARGE = '[models.chat]\nmodel = "demo-chat"\n[aliases]\nbest = "chat"\n'
PATIENCE_S = 60


@pytest.fixture
def worker(make_home: Callable[[], Path]) -> Iterator[Worker]:
    home = make_home()
    (home / "models.toml").write_text(SMALL)
    worker = Worker(home, "--docs", "")
    worker.wait_until_ready()
    yield worker
    assert worker.stop() == 0


@pytest.mark.long
@pytest.mark.any_answer("which model answers is asked, not what it says")
def test_a_running_worker_gets_another_model_and_a_mistake_changes_nothing(worker: Worker) -> None:
    ready: dict[str, Any] = worker.wait_until_ready()
    home = worker.log.parent
    file = home / "models.toml"
    headers = {"Authorization": f"Bearer {ready['api_key']}"}
    with httpx.Client(base_url=ready["url"], headers=headers, timeout=60) as client:

        def parameters() -> int:
            return int(client.get("/v1/models/chat").raise_for_status().json()["firsttoken_parameters"])

        small = parameters()
        file.write_text("[models.chat]\nmodel = 5\n")
        assert "models.chat.model" in complaint("reload", "--home", str(home))
        assert parameters() == small
        file.write_text(LARGE)
        told = firsttoken("reload", "--home", str(home))
        assert told.returncode == 0 and "is reloading: chat" in told.stdout, told.stderr
        give_up_at = time.monotonic() + PATIENCE_S
        while parameters() == small:
            answer = client.post("/v1/responses", json={"input": "Hello!", "max_output_tokens": 4})
            assert answer.status_code == 200, answer.text
            assert time.monotonic() < give_up_at, worker.log.read_text()
        answer = client.post("/v1/responses", json={"input": "Hello!", "max_output_tokens": 4, "model": "best"})
        assert answer.status_code == 200, answer.text
    assert "models.toml was reloaded" in worker.log.read_text()


def test_without_a_file_or_a_worker_it_says_so(make_home: Callable[[], Path]) -> None:
    home = make_home()
    assert "there is no models.toml" in complaint("reload", "--home", str(home))
    (home / "models.toml").write_text(SMALL)
    assert "no worker is running with this home folder" in complaint("reload", "--home", str(home))


@pytest.mark.parametrize(
    ("models", "agents", "said"),
    [
        (SMALL, '[agents.support]\nmodel = "large"\n', "'large'"),
        (SMALL + '[aliases]\nbest = "large"\n', "", "The alias best"),
        (SMALL + '[models.large]\nmodel = "nowhere"\n', "", "models.large.model: no model nowhere"),
    ],
)
def test_who_names_a_model_that_would_not_be_there_is_told_before_a_worker_is_asked(
    tmp_path: Path, models: str, agents: str, said: str
) -> None:
    home = tmp_path
    (home / "models.toml").write_text(models)
    (home / "agents.toml").write_text(agents)
    for command in ("reload", "agents"):
        assert said in complaint(command, "--home", str(home))
