"""Stored answers of a tenant, exported and asked again, beside the worker that gave them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx
import pytest

from tests.serving import Worker
from tests.worker.cli.test_main import complaint, firsttoken

GREETING = "Hello! I am ada@example.org."


@pytest.mark.any_answer("what was answered is asked again of the same model")
def test_what_was_rated_up_is_exported_and_everything_can_be_asked_again(
    server: dict[str, Any], server_worker: Worker, tmp_path: Path
) -> None:
    home, tenant = str(server_worker.log.parent), f"test-{uuid4()}"
    assert "has no accepted answers" in complaint("eval", "export", "--home", home)
    key = firsttoken("keys", "create", "replay", "--tenant", tenant, "--home", home).stdout.split("\n")[0]
    key_file, cases = tmp_path / "key", tmp_path / "cases.jsonl"
    key_file.write_text(key)
    with httpx.Client(base_url=server["url"], headers={"Authorization": f"Bearer {key}"}, timeout=60) as client:
        for question, rating in ((GREETING, "up"), (GREETING, "up"), ("What can you do?", None)):
            body = {"input": question, "max_output_tokens": 24, "temperature": 0}
            made = client.post("/v1/responses", json=body).raise_for_status().json()
            rated = client.post(f"/v1/responses/{made['id']}/feedback", json={"rating": rating})
            rated.raise_for_status()
    (line,) = firsttoken("eval", "export", "--tenant", tenant, "--home", home).stdout.splitlines()
    asked, answer = json.loads(line)["messages"]
    assert asked == {"role": "user", "content": "Hello! I am [email]."}
    assert answer["role"] == "assistant" and answer["content"]
    cases.write_text(firsttoken("eval", "cases", "--rated", "any", "--tenant", tenant, "--home", home).stdout)
    again = ["--model", f"demo-chat@{server['url']}", "--model-key-file", str(key_file)]
    done = firsttoken("eval", "suite", str(cases), "--home", home, *again)
    assert done.returncode == 0, done.stderr
    assert "3 cases, mean score " in done.stdout


def test_a_tenant_that_is_not_there_is_one_line(server_worker: Worker) -> None:
    home = str(server_worker.log.parent)
    assert "there is no tenant nobody" in complaint("eval", "cases", "--tenant", "nobody", "--home", home)
