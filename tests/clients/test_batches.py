"""Batches through the official client: sent as a file, answered in the background, read as files."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Literal

import openai
import pytest
from openai import OpenAI
from openai.types import Batch

from tests.clients.conftest import MODEL
from tests.serving import Worker

Endpoint = Literal["/v1/responses", "/v1/chat/completions", "/v1/embeddings"]
COMPLETIONS: Endpoint = "/v1/chat/completions"
PATIENCE_S = 100.0
# Answers of a length that does not depend on what the model would like to say.
STORY = {"type": "object", "properties": {"story": {"type": "string", "minLength": 8000}}, "required": ["story"]}
LONG = {"type": "json_schema", "json_schema": {"name": "story", "schema": {**STORY, "additionalProperties": False}}}


def line(custom_id: str, url: str = COMPLETIONS, **body: Any) -> dict[str, Any]:
    return {"custom_id": custom_id, "method": "POST", "url": url, "body": body}


def asks(custom_id: str, **more: Any) -> dict[str, Any]:
    question = [{"role": "user", "content": f"Say something about {custom_id}."}]
    return line(
        custom_id, **{"model": MODEL, "messages": question, "max_completion_tokens": 8, "temperature": 1, **more}
    )


def send(client: OpenAI, lines: Iterable[dict[str, Any] | str], endpoint: Endpoint = COMPLETIONS) -> Batch:
    text = "\n".join(each if isinstance(each, str) else json.dumps(each) for each in lines)
    file = client.files.create(file=("batch.jsonl", text.encode()), purpose="batch")
    return client.batches.create(input_file_id=file.id, endpoint=endpoint, completion_window="24h")


def wait(client: OpenAI, batch: Batch, *, until: Callable[[Batch], bool]) -> Batch:
    give_up_at = time.monotonic() + PATIENCE_S
    while not until(batch):
        assert time.monotonic() < give_up_at, batch
        time.sleep(0.05)
        batch = client.batches.retrieve(batch.id)
    return batch


def is_over(batch: Batch) -> bool:
    return batch.status in ("completed", "failed", "expired", "cancelled")


def read(client: OpenAI, file_id: str | None) -> list[dict[str, Any]]:
    if file_id is None:
        return []
    return [json.loads(each) for each in client.files.content(file_id).text.splitlines()]


def test_completions_are_answered_line_by_line(client: OpenAI) -> None:
    batch = wait(client, send(client, [asks("rain"), asks("snow")]), until=is_over)
    assert (batch.status, batch.errors, batch.error_file_id, batch.model) == ("completed", None, None, MODEL)
    assert batch.request_counts is not None and batch.usage is not None
    assert batch.request_counts.to_dict() == {"total": 2, "completed": 2, "failed": 0}
    told = read(client, batch.output_file_id)
    assert [each["custom_id"] for each in told] == ["rain", "snow"]
    for each in told:
        assert (each["error"], each["response"]["status_code"]) == (None, 200)
        assert each["response"]["body"]["choices"][0]["message"]["content"]
    assert batch.usage.output_tokens == sum(each["response"]["body"]["usage"]["completion_tokens"] for each in told)


def test_responses_are_answered_and_not_stored(client: OpenAI) -> None:
    lines = [line(str(n), "/v1/responses", input=f"Count to {n}.", max_output_tokens=16) for n in (1, 2)]
    batch = wait(client, send(client, lines, "/v1/responses"), until=is_over)
    told = [each["response"]["body"] for each in read(client, batch.output_file_id)]
    assert [(body["object"], body["store"]) for body in told] == [("response", False)] * 2
    assert batch.usage is not None and batch.usage.input_tokens > 0
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(told[0]["id"])


def test_texts_are_embedded_as_they_are_when_asked_at_once(client: OpenAI) -> None:
    texts = [f"text number {n}" for n in range(20)]
    asked = line("all", "/v1/embeddings", model="minilm-l6-v2", input=texts, encoding_format="float")
    batch = wait(client, send(client, [asked], "/v1/embeddings"), until=is_over)
    (told,) = read(client, batch.output_file_id)
    vectors = [each["embedding"] for each in told["response"]["body"]["data"]]
    at_once = client.embeddings.create(model="minilm-l6-v2", input=texts, encoding_format="float").data
    assert len(vectors) == 20
    for vector, same in zip(vectors, at_once, strict=True):
        assert vector == pytest.approx(same.embedding, abs=0.01)


def test_a_line_that_is_refused_is_told_in_the_file_of_errors(client: OpenAI) -> None:
    lines = [asks("good"), asks("hot", temperature=9), asks("live", stream=True), line("silent", model=MODEL)]
    batch = wait(client, send(client, lines), until=is_over)
    assert batch.request_counts is not None
    assert batch.request_counts.to_dict() == {"total": 4, "completed": 1, "failed": 3}
    assert [each["custom_id"] for each in read(client, batch.output_file_id)] == ["good"]
    wrong = {each["custom_id"]: each["response"] for each in read(client, batch.error_file_id)}
    assert {name: (each["status_code"], each["body"]["error"]["param"]) for name, each in wrong.items()} == {
        "hot": (400, "temperature"),
        "live": (400, "stream"),
        "silent": (400, "messages"),
    }


def test_what_is_wrong_with_the_file_is_told_line_by_line(client: OpenAI) -> None:
    lines: list[dict[str, Any] | str] = [
        asks("one"),
        "{not json",
        "",
        asks("one"),
        asks("two", model="nobody"),
        {**asks("three"), "url": "/v1/responses"},
        {**asks("four"), "method": "GET"},
        {"method": "POST", "url": COMPLETIONS, "body": {}},
    ]
    batch = wait(client, send(client, lines), until=is_over)
    assert (batch.status, batch.output_file_id) == ("failed", None)
    assert batch.errors is not None and batch.errors.data is not None and batch.failed_at is not None
    assert [(each.line, each.code, each.param) for each in batch.errors.data] == [
        (2, "invalid_json_line", None),
        (4, "duplicate_custom_id", "custom_id"),
        (5, "model_not_found", "body.model"),
        (6, "invalid_url", "url"),
        (7, "invalid_method", "method"),
        (8, "missing_required_parameter", "custom_id"),
    ]


def test_an_empty_file_is_no_batch(client: OpenAI) -> None:
    batch = wait(client, send(client, ["", "  "]), until=is_over)
    assert batch.errors is not None and batch.errors.data is not None
    assert [each.code for each in batch.errors.data] == ["empty_file"]


def test_a_batch_that_is_cancelled_tells_what_was_not_answered(client: OpenAI) -> None:
    quick, slow = asks("quick"), [asks(f"slow {n}", max_completion_tokens=4000, response_format=LONG) for n in range(6)]
    batch = wait(
        client, send(client, [quick, *slow]), until=lambda b: bool(b.request_counts and b.request_counts.completed)
    )
    assert client.batches.cancel(batch.id).status == "cancelling"
    batch = wait(client, batch, until=is_over)
    assert batch.status == "cancelled" and batch.cancelled_at is not None
    answered = [each["custom_id"] for each in read(client, batch.output_file_id)]
    left = {each["custom_id"]: each["error"]["code"] for each in read(client, batch.error_file_id)}
    assert "quick" in answered
    assert sorted([*answered, *left]) == sorted(each["custom_id"] for each in [quick, *slow])
    assert set(left.values()) == {"batch_cancelled"}
    assert client.batches.cancel(batch.id).status == "cancelled"


def test_what_is_over_cannot_be_cancelled(client: OpenAI) -> None:
    batch = wait(client, send(client, [asks("rain")]), until=is_over)
    with pytest.raises(openai.ConflictError):
        client.batches.cancel(batch.id)


def test_batches_come_in_pages_with_their_metadata(client: OpenAI) -> None:
    file = client.files.create(file=("batch.jsonl", json.dumps(asks("rain")).encode()), purpose="batch")
    made = [
        client.batches.create(
            input_file_id=file.id, endpoint=COMPLETIONS, completion_window="24h", metadata={"number": str(n)}
        )
        for n in range(3)
    ]
    page = client.batches.list(limit=2)
    assert [batch.metadata for batch in page.data] == [{"number": "2"}, {"number": "1"}]
    assert page.get_next_page().data[0].id == made[0].id
    for batch in made:
        wait(client, batch, until=is_over)


@pytest.mark.parametrize(
    ("changes", "param"),
    [
        ({"completion_window": "1 fortnight"}, "completion_window"),
        ({"endpoint": "/v1/moderations"}, "endpoint"),
        ({"input_file_id": "file_none"}, "input_file_id"),
    ],
)
def test_what_is_wrong_with_a_batch_is_named(client: OpenAI, changes: dict[str, Any], param: str) -> None:
    file = client.files.create(file=("notes.jsonl", b"{}"), purpose="user_data")
    asked: dict[str, Any] = {"input_file_id": file.id, "endpoint": COMPLETIONS, "completion_window": "24h", **changes}
    with pytest.raises((openai.BadRequestError, openai.NotFoundError)) as wrong:
        client.batches.create(**asked)
    assert wrong.value.body["param"] == param  # type: ignore[index]  # the error of the contract


def test_a_file_of_another_purpose_is_no_batch(client: OpenAI) -> None:
    file = client.files.create(file=("notes.jsonl", b"{}"), purpose="user_data")
    with pytest.raises(openai.BadRequestError, match="purpose"):
        client.batches.create(input_file_id=file.id, endpoint=COMPLETIONS, completion_window="24h")


def test_a_worker_that_is_killed_in_the_middle_costs_no_line_and_doubles_none(make_home: Callable[[], Path]) -> None:
    home = make_home()
    killed, heir = [Worker(home, "--docs", "", "--batch-lines", "2", name=name) for name in ("killed", "heir")]
    killed.wait_until_ready()
    ready = heir.wait_until_ready()
    ids = [f"line {n}" for n in range(24)]
    with OpenAI(base_url=f"{ready['url']}/v1", api_key=ready["api_key"], max_retries=0) as client:
        batch = send(client, [asks(id, max_completion_tokens=40) for id in ids])
        wait(client, batch, until=lambda b: bool(b.request_counts and b.request_counts.completed >= 4))
        killed.process.kill()
        killed.process.wait()
        batch = wait(client, batch, until=is_over)
        assert [each["custom_id"] for each in read(client, batch.output_file_id)] == ids
        assert (batch.status, batch.error_file_id) == ("completed", None)
        assert batch.request_counts is not None and batch.request_counts.completed == len(ids)
    assert heir.stop() == 0
