"""The official client reads stored answers again, stops them, and asks what they were asked."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import openai
import pytest
from openai import AsyncOpenAI, OpenAI
from openai.types.responses import ResponseFormatTextJSONSchemaConfigParam

from tests.clients.conftest import MODEL
from tests.serving import Worker

QUESTION = "What is the capital of France?"
STORY = {"type": "object", "properties": {"story": {"type": "string", "minLength": 8000}}, "required": ["story"]}
# An answer that cannot be over before its worker is killed, whatever the model would like to say.
LONG: ResponseFormatTextJSONSchemaConfigParam = {
    "type": "json_schema",
    "name": "story",
    "schema": {**STORY, "additionalProperties": False},
}


def test_a_stream_goes_on_where_it_was_left(client: OpenAI) -> None:
    told = list(client.responses.create(model=MODEL, input=QUESTION, stream=True))
    id = told[0].response.id  # type: ignore[union-attr]  # the first event is response.created
    again = list(client.responses.retrieve(id, stream=True, starting_after=3))
    assert [event.type for event in again] == [event.type for event in told[4:]]
    assert again[0].sequence_number == 4


def test_the_helper_for_streams_takes_a_response_that_is_stored(client: OpenAI) -> None:
    made = client.responses.create(model=MODEL, input=QUESTION)
    with client.responses.stream(response_id=made.id) as stream:
        assert stream.get_final_response().output_text == made.output_text


async def test_the_client_stops_an_answer(async_client: AsyncOpenAI) -> None:
    stream = await async_client.responses.create(model=MODEL, input="Count to a thousand.", stream=True, temperature=1)
    first = await anext(aiter(stream))
    stopped = await async_client.responses.cancel(first.response.id)  # type: ignore[union-attr]  # response.created
    assert stopped.status in ("cancelled", "completed")  # the small model may have been faster


def test_the_client_reads_what_was_asked_and_counts_it(client: OpenAI) -> None:
    made = client.responses.create(model=MODEL, input=QUESTION)
    (item,) = client.responses.input_items.list(made.id).data
    assert item.to_dict()["content"] == [{"type": "input_text", "text": QUESTION}]
    assert made.usage is not None
    assert client.responses.input_tokens.count(model=MODEL, input=QUESTION).input_tokens == made.usage.input_tokens


@pytest.mark.any_answer("how far it comes is chance")
def test_an_answer_of_a_worker_that_was_killed_has_failed_when_the_next_one_runs(make_home: Callable[[], Path]) -> None:
    home = make_home()
    killed = Worker(home, "--docs", "", name="killed")
    ready = killed.wait_until_ready()
    with OpenAI(base_url=f"{ready['url']}/v1", api_key=ready["api_key"], max_retries=0) as client:
        stream = client.responses.create(
            model=MODEL, input="Tell me a story.", stream=True, max_output_tokens=4000, text={"format": LONG}
        )
        id = next(stream).response.id  # type: ignore[union-attr]  # response.created
        killed.process.kill()
        killed.process.wait()
    heir = Worker(home, "--docs", "", name="heir")
    ready = heir.wait_until_ready()
    with OpenAI(base_url=f"{ready['url']}/v1", api_key=ready["api_key"], max_retries=0) as client:
        told = list(client.responses.retrieve(id, stream=True))
        with client.responses.stream(response_id=id) as stream_again:
            again = [event.type for event in stream_again]
        response = client.responses.retrieve(id)
    assert heir.stop() == 0
    assert (told[0].type, told[-1].type, response.status) == ("response.created", "response.failed", "failed")
    assert told[-1].to_dict()["firsttoken:gap"]["reason"] == "worker_stopped"  # type: ignore[index]  # not in its model
    assert again == [event.type for event in told]


def test_an_answer_in_the_background_is_promised_polled_and_followed(client: OpenAI) -> None:
    promised = client.responses.create(model=MODEL, input=QUESTION, background=True)
    assert (promised.status, promised.background) == ("queued", True)
    told = list(client.responses.retrieve(promised.id, stream=True))
    made = client.responses.retrieve(promised.id)
    assert [event.type for event in told[:3]] == ["response.created", "response.queued", "response.in_progress"]
    assert (made.status, told[-1].type) == ("completed", "response.completed")
    with client.responses.stream(response_id=promised.id) as stream:
        assert stream.get_final_response().output_text == made.output_text


def test_the_helper_for_streams_follows_an_answer_in_the_background(client: OpenAI) -> None:
    with client.responses.stream(model=MODEL, input=QUESTION, background=True) as stream:
        assert stream.get_final_response().output_text


def test_a_worker_that_is_killed_takes_none_of_the_queue_along(make_home: Callable[[], Path]) -> None:
    home = make_home()
    killed, heir = [Worker(home, "--docs", "", "--background", "1", name=name) for name in ("killed", "heir")]
    killed.wait_until_ready()
    ready = heir.wait_until_ready()
    with OpenAI(base_url=f"{ready['url']}/v1", api_key=ready["api_key"], max_retries=0) as client:
        ids = [
            client.responses.create(model=MODEL, input=f"Count from {n}.", background=True, max_output_tokens=60).id
            for n in range(10)
        ]
        killed.process.kill()
        killed.process.wait()
        last = [list(client.responses.retrieve(id, stream=True))[-1].type for id in ids]
        made = [client.responses.retrieve(id).status for id in ids]
    assert heir.stop() == 0
    assert [f"response.{status}" for status in made] == last
    assert sum(status not in ("completed", "incomplete") for status in made) <= 1  # the one that was half told


def test_a_request_with_a_key_is_answered_once(client: OpenAI) -> None:
    headers = {"Idempotency-Key": "the client's own"}
    made, again = [client.responses.create(model=MODEL, input=QUESTION, extra_headers=headers) for _ in range(2)]
    assert made.id == again.id
    with pytest.raises(openai.UnprocessableEntityError, match="another request"):
        client.responses.create(model=MODEL, input="x", extra_headers=headers)


def test_the_helper_for_streams_ends_with_an_answer_that_is_stopped(client: OpenAI) -> None:
    sampling = {"max_output_tokens": 4000, "temperature": 2}
    with client.responses.stream(model=MODEL, input="Tell me a story.", extra_body=sampling) as stream:
        first = next(iter(stream))
        assert first.type == "response.created"
        status = client.responses.cancel(first.response.id).status
        types = [event.type for event in stream]
    assert ("response.completed" in types) == (status == "completed")  # the small model may have been faster
