"""Chat completions, embeddings and models through the official client."""

from __future__ import annotations

import json
from typing import Any

import openai
import pytest
from openai import AsyncOpenAI, OpenAI
from openai.types.chat import ChatCompletion, ChatCompletionMessageParam, ChatCompletionToolParam

from tests.clients.conftest import MODEL

HELLO: list[ChatCompletionMessageParam] = [{"role": "user", "content": "hello"}]
VARIED: Any = {"temperature": 2, "top_p": 1, "extra_body": {"top_k": 0, "min_p": 0}}  # of the whole vocabulary
ASK: ChatCompletionMessageParam = {"role": "user", "content": "Get the weather for Oslo."}
WEATHER: ChatCompletionToolParam = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Get the weather for a city.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string", "description": "The city"}},
            "required": ["city"],
        },
    },
}


def test_a_completion_says_the_same_whole_and_streamed(client: OpenAI) -> None:
    whole = client.chat.completions.create(model=MODEL, messages=HELLO, temperature=0)
    chunks = list(client.chat.completions.create(model=MODEL, messages=HELLO, temperature=0, stream=True))
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
    assert whole.choices[0].message.content == text
    assert whole.choices[0].finish_reason == chunks[-1].choices[0].finish_reason == "stop"
    assert chunks[0].choices[0].delta.role == "assistant"


def test_usage_comes_at_the_end_of_a_stream_and_knows_the_cache(client: OpenAI) -> None:
    first = client.chat.completions.create(model=MODEL, messages=HELLO, temperature=0)
    *chunks, last = client.chat.completions.create(
        model=MODEL, messages=HELLO, temperature=0, stream=True, stream_options={"include_usage": True}
    )
    assert all(chunk.usage is None for chunk in chunks)
    assert last.choices == [] and last.usage is not None and first.usage is not None
    assert last.usage.prompt_tokens == first.usage.prompt_tokens
    assert last.usage.prompt_tokens_details is not None
    assert last.usage.prompt_tokens_details.cached_tokens == last.usage.prompt_tokens


def test_a_prediction_saves_steps_and_changes_no_answer(client: OpenAI) -> None:
    """How many tokens are drafted depends on what that saves."""
    plain = client.chat.completions.create(model=MODEL, messages=HELLO, temperature=0)
    said = plain.choices[0].message.content
    assert said
    raw = client.chat.completions.with_raw_response.create(
        model=MODEL, messages=HELLO, temperature=0, prediction={"type": "content", "content": said}
    )
    predicted = raw.parse()
    assert predicted.choices[0].message.content == said and "X-Firsttoken-Ignored" not in raw.headers
    assert predicted.usage is not None and predicted.usage.completion_tokens_details is not None
    details = predicted.usage.completion_tokens_details
    assert details.rejected_prediction_tokens == 0
    assert 0 <= (details.accepted_prediction_tokens or 0) < predicted.usage.completion_tokens


def test_a_function_makes_the_round_trip(client: OpenAI) -> None:
    first = client.chat.completions.create(model=MODEL, messages=[ASK], temperature=0, tools=[WEATHER])
    message = first.choices[0].message
    assert first.choices[0].finish_reason == "tool_calls" and message.tool_calls
    (call,) = message.tool_calls
    assert call.type == "function"
    assert (call.function.name, json.loads(call.function.arguments)) == ("get_weather", {"city": "Oslo"})
    messages: list[ChatCompletionMessageParam] = [
        ASK,
        message.to_dict(),  # type: ignore[list-item]  # as the client's own documentation does it
        {"role": "tool", "tool_call_id": call.id, "content": '{"weather": "rain"}'},
    ]
    second = client.chat.completions.create(model=MODEL, messages=messages, temperature=0, tools=[WEATHER])
    assert second.choices[0].finish_reason == "stop"
    assert second.choices[0].message.content


def test_the_streaming_helper_adds_a_text_up(client: OpenAI) -> None:
    with client.chat.completions.stream(model=MODEL, messages=HELLO, temperature=0) as stream:
        text = "".join(event.delta for event in stream if event.type == "content.delta")
        final = stream.get_final_completion()
    assert final.choices[0].message.content == text
    assert final.choices[0].finish_reason == "stop"


async def test_the_streaming_helper_puts_a_call_together(async_client: AsyncOpenAI) -> None:
    async with async_client.chat.completions.stream(
        model=MODEL, messages=[ASK], temperature=0, tools=[WEATHER]
    ) as stream:
        final = await stream.get_final_completion()
    assert final.choices[0].message.tool_calls is not None
    assert json.loads(final.choices[0].message.tool_calls[0].function.arguments) == {"city": "Oslo"}


def test_stop_seed_and_bias_reach_the_sampler(client: OpenAI) -> None:
    plain = client.chat.completions.create(model=MODEL, messages=HELLO, temperature=0).choices[0].message.content
    assert plain
    word = plain.split()[1]
    stopped = client.chat.completions.create(model=MODEL, messages=HELLO, temperature=0, stop=[word])
    assert stopped.choices[0].message.content == plain[: plain.index(word)]
    seeded = [
        client.chat.completions.create(model=MODEL, messages=HELLO, seed=-7, **VARIED).choices[0].message.content
        for _ in range(2)
    ]
    assert seeded[0] == seeded[1]
    biased = client.chat.completions.create(
        model=MODEL, messages=HELLO, temperature=0, max_tokens=3, logit_bias={"700": 100}
    )
    assert biased.choices[0].finish_reason == "length"
    assert biased.choices[0].message.content != plain[: len(biased.choices[0].message.content or "")]
    with pytest.raises(openai.BadRequestError) as unknown:
        client.chat.completions.create(model=MODEL, messages=HELLO, logit_bias={"9999999": 100})
    assert unknown.value.param == "logit_bias"


def test_choices_differ_by_their_seed_and_share_their_prompt(client: OpenAI) -> None:
    whole = client.chat.completions.create(model=MODEL, messages=HELLO, seed=3, n=3, max_tokens=16, **VARIED)
    assert [choice.index for choice in whole.choices] == [0, 1, 2]
    texts = [choice.message.content for choice in whole.choices]
    assert len(set(texts)) > 1
    one = client.chat.completions.create(model=MODEL, messages=HELLO, seed=4, max_tokens=16, **VARIED)
    assert one.choices[0].message.content == texts[1]
    assert one.usage is not None and whole.usage is not None
    assert whole.usage.prompt_tokens == one.usage.prompt_tokens
    streamed = ["", "", ""]
    for chunk in client.chat.completions.create(
        model=MODEL, messages=HELLO, seed=3, n=3, max_tokens=16, stream=True, **VARIED
    ):
        for piece in chunk.choices:
            streamed[piece.index] += piece.delta.content or ""
    assert streamed == texts


def test_a_header_makes_an_answer_deterministic(client: OpenAI) -> None:
    def said(**headers: str) -> str | None:
        told: ChatCompletion = client.chat.completions.create(
            model=MODEL, messages=HELLO, max_tokens=12, extra_headers=headers, **VARIED
        )
        return told.choices[0].message.content

    same = {"x-firsttoken-deterministic": "true"}
    assert said(**same) == said(**same)
    with pytest.raises(openai.BadRequestError) as wrong:
        said(**{"x-firsttoken-deterministic": "perhaps"})
    assert wrong.value.param == "X-Firsttoken-Deterministic"


def test_a_limit_ends_an_answer(client: OpenAI) -> None:
    short = client.chat.completions.create(model=MODEL, messages=HELLO, temperature=0, max_completion_tokens=2)
    assert short.choices[0].finish_reason == "length"
    assert short.usage is not None and short.usage.completion_tokens == 2


def test_errors_are_the_types_that_the_client_knows(client: OpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as many:
        client.chat.completions.create(model=MODEL, messages=HELLO, modalities=["audio"])
    assert (many.value.param, many.value.code) == ("modalities", "unsupported_parameter")
    with pytest.raises(openai.NotFoundError):
        client.chat.completions.create(model="gpt-9", messages=HELLO)


def test_models_are_listed_and_found(client: OpenAI) -> None:
    names = [model.id for model in client.models.list()]
    assert MODEL in names
    assert client.models.retrieve(MODEL).object == "model"
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("gpt-9")


async def test_embeddings_are_unit_vectors_that_know_what_is_alike(lenient_async_client: AsyncOpenAI) -> None:
    model = next(m.id for m in (await lenient_async_client.models.list()).data if m.id != MODEL)
    result = await lenient_async_client.embeddings.create(model=model, input=["a cat", "a kitten", "tax law"])
    cat, kitten, law = (entry.embedding for entry in result.data)
    assert sum(x * x for x in cat) == pytest.approx(1, abs=1e-3)
    assert sum(map(float.__mul__, cat, kitten)) > sum(map(float.__mul__, cat, law))
    assert result.usage.prompt_tokens > 0
