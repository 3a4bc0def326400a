"""How likely the tokens of an answer were, through the official client."""

from __future__ import annotations

from typing import Any

import pytest
from openai import OpenAI

from tests.clients.conftest import MODEL

HELLO: Any = [{"role": "user", "content": "hello"}]
GREEDY: Any = {"model": MODEL, "temperature": 0}


def test_a_completion_tells_the_likelihood_of_each_token(client: OpenAI) -> None:
    choice = client.chat.completions.create(messages=HELLO, logprobs=True, top_logprobs=3, **GREEDY).choices[0]
    assert choice.logprobs is not None and choice.logprobs.content
    told = choice.logprobs.content
    assert "".join(token.token for token in told).strip() == choice.message.content
    for token in told:
        assert len(token.top_logprobs) == 3 and bytes(token.bytes or ()).decode() == token.token
        assert token.top_logprobs[0].token == token.token  # the likeliest was drawn
        assert token.logprob == token.top_logprobs[0].logprob <= 0


def test_a_streamed_completion_tells_the_same(client: OpenAI) -> None:
    whole = client.chat.completions.create(messages=HELLO, logprobs=True, **GREEDY).choices[0].logprobs
    chunks = client.chat.completions.create(messages=HELLO, logprobs=True, stream=True, **GREEDY)
    told = [t for chunk in chunks for lp in [chunk.choices[0].logprobs] if lp for t in lp.content or ()]
    assert whole is not None and [t.token for t in told] == [t.token for t in whole.content or ()]
    assert [t.logprob for t in told] == pytest.approx([t.logprob for t in whole.content or ()], abs=1e-3)


def test_a_response_tells_likelihoods_where_they_are_included(client: OpenAI) -> None:
    include: Any = ["message.output_text.logprobs"]
    response = client.responses.create(input="hello", include=include, top_logprobs=2, **GREEDY)
    part = response.output[0].to_dict()["content"][0]
    assert "".join(token["token"] for token in part["logprobs"]).strip() == response.output_text
    assert response.top_logprobs == 2 and {len(token["top_logprobs"]) for token in part["logprobs"]} == {2}
    assert client.responses.retrieve(response.id).to_dict() == response.to_dict()
    plain = client.responses.create(input="hello", **GREEDY)
    assert plain.output[0].to_dict()["content"][0]["logprobs"] == []


def test_a_streamed_response_tells_them_with_each_piece_of_text(client: OpenAI) -> None:
    stream = client.responses.create(input="hello", top_logprobs=1, stream=True, **GREEDY)
    deltas = [event for event in stream if event.type == "response.output_text.delta"]
    assert all(token.top_logprobs for event in deltas for token in event.logprobs)
    told = "".join(token.token for event in deltas for token in event.logprobs)
    assert told.strip() == "".join(event.delta for event in deltas)
