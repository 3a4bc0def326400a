"""A conversation that has outgrown the model's context, through the official client."""

from __future__ import annotations

from typing import Any

import openai
import pytest
from openai import OpenAI

from tests.clients.conftest import MODEL

REMARK = "The harbour of Norsund opens at seven, and the keeper of its lamp is called Ari Holt. "
CONTEXT = 2048


def said(turns: int) -> list[Any]:
    return [
        message
        for number in range(turns)
        for message in (
            {"role": "user", "content": f"Remark {number}: {REMARK * 2}"},
            {"role": "assistant", "content": "I see."},
        )
    ]


def test_the_oldest_turns_go_when_the_caller_allows_it_and_the_rest_stays_in_the_cache(client: OpenAI) -> None:
    history = said(60)
    ask: Any = {"role": "user", "content": "hello"}
    usages = []
    for _ in range(2):
        response = client.responses.create(
            model=MODEL, input=[*history, ask], truncation="auto", temperature=0, max_output_tokens=16
        )
        assert response.truncation == "auto" and response.usage is not None
        usages.append(response.usage)
        history += [ask, {"role": "assistant", "content": response.output_text}]
    first, second = usages
    assert CONTEXT // 4 < first.input_tokens < CONTEXT
    assert second.input_tokens_details.cached_tokens > first.input_tokens * 0.9
    counted = client.responses.input_tokens.count(model=MODEL, input=[*said(60), ask], truncation="auto")
    assert counted.input_tokens == first.input_tokens


def test_without_leave_the_request_is_refused(client: OpenAI) -> None:
    options: list[Any] = [None, "disabled"]
    for truncation in options:
        with pytest.raises(openai.BadRequestError) as refused:
            client.responses.create(model=MODEL, input=said(60), truncation=truncation)
        assert refused.value.code == "context_length_exceeded"
