"""What clients send by habit: the official one, LangChain, and the bodies of some that are not installed here."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import httpx
import openai
import pytest
from langchain_openai import OpenAIEmbeddings
from openai import OpenAI
from pydantic import BaseModel, Field

from tests.clients.conftest import MODEL

EMBEDDER = "minilm-l6-v2"
IGNORED = "x-firsttoken-ignored"


class Weather(BaseModel):
    city: str = Field(max_length=20)


@pytest.mark.any_answer("what comes back is accepted, whichever city it names")
def test_a_parsed_answer_goes_back_as_it_is(client: OpenAI) -> None:
    """The client adds what it parsed to the message and to its items, and sends it back."""
    asked: Any = {"role": "user", "content": "Weather in Oslo, please."}
    message = (
        client.chat.completions.parse(
            model=MODEL, messages=[asked], response_format=Weather, max_tokens=60, temperature=0
        )
        .choices[0]
        .message
    )
    said: Any = message.to_dict(warnings=False) | {"provider_specific_fields": {"refusal": None}}
    assert client.chat.completions.create(model=MODEL, messages=[asked, said, asked], max_tokens=8).choices
    answer = client.responses.parse(
        model=MODEL, input=[asked], text_format=Weather, max_output_tokens=60, temperature=0, store=False
    )
    items: Any = [item.to_dict(warnings=False) for item in answer.output]
    assert client.responses.create(model=MODEL, input=[asked, *items, asked], max_output_tokens=8, store=False).output


@pytest.mark.parametrize("base", ["/v1/", "//v1", "/v1//"])
def test_an_address_may_be_put_together_carelessly(server: Mapping[str, Any], base: str) -> None:
    with OpenAI(base_url=server["url"] + base, api_key=server["api_key"], max_retries=0) as client:
        assert MODEL in [model.id for model in client.models.list()]
        assert client.post("/responses/", body={"input": "hello", "store": False}, cast_to=httpx.Response)


def test_what_has_no_effect_is_named_in_a_header(client: OpenAI) -> None:
    raw = client.responses.with_raw_response.create(
        model=MODEL,
        input="hello",
        reasoning={"effort": "low", "summary": "auto"},
        text={"verbosity": "low"},
        tools=[{"type": "web_search"}],
        extra_body={"client_metadata": {"x-codex-installation-id": "7"}},
        max_output_tokens=8,
        store=False,
    )
    assert set(raw.headers[IGNORED].split(",")) == {
        "reasoning.effort",
        "reasoning.summary",
        "text.verbosity",
        "tools.web_search",
        "client_metadata",
    }
    assert raw.parse().tools == []
    plain = client.responses.with_raw_response.create(model=MODEL, input="hello", max_output_tokens=8, store=False)
    assert IGNORED not in plain.headers


def test_samplers_of_model_cards_are_taken(client: OpenAI) -> None:
    samplers = {"top_k": 1, "min_p": 0.05, "repetition_penalty": 1.05}
    hello: Any = [{"role": "user", "content": "hello"}]
    for extra in (*({name: value} for name, value in samplers.items()), samplers):
        assert client.chat.completions.create(model=MODEL, messages=hello, max_tokens=4, extra_body=extra).choices
    greedy = client.chat.completions.create(model=MODEL, messages=hello, max_tokens=8, temperature=0)
    first = client.chat.completions.create(model=MODEL, messages=hello, max_tokens=8, extra_body={"top_k": 1})
    assert first.choices[0].message.content == greedy.choices[0].message.content
    with pytest.raises(openai.BadRequestError) as refused:
        client.chat.completions.create(model=MODEL, messages=hello, extra_body={"min_p": 2})
    assert refused.value.param == "min_p"


def test_the_body_of_a_benchmark_is_taken(server: Mapping[str, Any]) -> None:
    """As `vllm bench serve` and guidellm send it."""
    assert httpx.get(f"{server['url']}/health").status_code == 200
    body = {
        "model": MODEL,
        "messages": [{"role": "user", "content": [{"type": "text", "text": "hello"}]}],
        "max_completion_tokens": 24,  # more than an answer to this has by itself
        "temperature": 1,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True, "continuous_usage_stats": True},
    }
    headers = {"Authorization": f"Bearer {server['api_key']}"}
    answer = httpx.post(f"{server['url']}/v1/chat/completions", json=body, headers=headers, timeout=60)
    assert answer.status_code == 200 and answer.text.endswith("data: [DONE]\n\n")
    assert answer.headers[IGNORED] == "stream_options.continuous_usage_stats"
    assert '"completion_tokens":24' in answer.text


@pytest.mark.any_answer("here the question is how long it is")
@pytest.mark.parametrize("path", ["chat/completions", "responses", "messages", "completions"])
def test_an_answer_that_ignores_its_end_is_as_long_as_it_may_be(server: Mapping[str, Any], path: str) -> None:
    hello = [{"role": "user", "content": "hello"}]
    asked: Mapping[str, dict[str, Any]] = {
        "chat/completions": {"messages": hello, "max_tokens": 24},
        "responses": {"input": hello, "max_output_tokens": 24, "store": False},
        "messages": {"messages": hello, "max_tokens": 24},
        "completions": {"prompt": "hello", "max_tokens": 24},
    }
    body = {"model": MODEL, "ignore_eos": True, "temperature": 0, **asked[path]}
    headers = {"Authorization": f"Bearer {server['api_key']}"}
    answer = httpx.post(f"{server['url']}/v1/{path}", json=body, headers=headers, timeout=60)
    usage = answer.json()["usage"]
    assert IGNORED not in answer.headers
    assert usage.get("completion_tokens", usage.get("output_tokens")) == 24


def test_a_turn_may_consist_of_references_to_what_is_stored(client: OpenAI) -> None:
    first = client.responses.create(model=MODEL, input="hello", temperature=0, max_output_tokens=16)
    said: Any = [
        {"role": "user", "content": "hello"},
        {"type": "item_reference", "id": first.output[0].id},
        {"role": "user", "content": "thanks"},
    ]
    second = client.responses.create(model=MODEL, input=said, temperature=0, max_output_tokens=16)
    chained = client.responses.create(
        model=MODEL, input="thanks", previous_response_id=first.id, temperature=0, max_output_tokens=16
    )
    assert second.output_text == chained.output_text


def test_two_stores_may_have_one_name(client: OpenAI) -> None:
    first, second = (client.vector_stores.create(name="handbook") for _ in range(2))
    try:
        assert first.id != second.id
        assert client.vector_stores.update(second.id, name="handbook").name == "handbook"
    finally:
        for store in (first, second):
            client.vector_stores.delete(store.id)


def test_a_framework_embeds_a_thousand_texts_at_a_time(server: Mapping[str, Any]) -> None:
    with httpx.Client(timeout=60) as http:  # its own one is closed when it is collected, in the middle of another test
        model = OpenAIEmbeddings(
            model=EMBEDDER,
            base_url=f"{server['url']}/v1",
            api_key=server["api_key"],
            chunk_size=1000,
            check_embedding_ctx_length=False,  # otherwise it counts tokens with another model's vocabulary
            http_client=http,
        )
        vectors = model.embed_documents([f"text {number}" for number in range(1000)])
    assert (len(vectors), len(vectors[0])) == (1000, 384)
