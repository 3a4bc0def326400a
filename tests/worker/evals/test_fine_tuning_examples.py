"""Accepted answers, as lines to fine-tune on."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.worker.evals.test_stored_cases import said, stored
from worker.evals.fine_tuning_examples import example_of

TOOL = {"type": "function", "name": "weather", "description": "Of a city.", "parameters": {"type": "object"}}


def test_an_answer_is_a_conversation_that_ends_with_it_redacted() -> None:
    said_back = said("assistant", "Ask ada@example.org.")
    answer = stored(said_back, asked="Who knows? Call 0301234567.", instructions="Brief.")
    assert example_of(answer) == {
        "messages": [
            {"role": "system", "content": "Brief."},
            {"role": "user", "content": "Who knows? Call [number]."},
            {"role": "assistant", "content": "Ask [email]."},
        ]
    }


def test_a_call_of_the_callers_function_is_learnt_with_its_tools() -> None:
    call = {"type": "function_call", "name": "weather", "arguments": '{"city": "Lima"}', "call_id": "call_x"}
    example = example_of(stored(call, tools=[TOOL]))
    assert example is not None
    function = example["messages"][-1]["tool_calls"][0]["function"]
    assert (function["name"], json.loads(function["arguments"])) == ("weather", {"city": "Lima"})
    assert example["messages"][-1]["content"] is None
    assert example["tools"][0]["function"]["name"] == "weather"


@pytest.mark.parametrize(
    ("output", "body"),
    [
        ([{"type": "function_call", "name": "clock", "arguments": "{}"}, said("assistant", "Noon.")], {}),
        ([{"type": "function_call", "name": "clock", "arguments": "{}"}], {"tools": [TOOL]}),
        ([said("assistant", "It is [1].")], {"tools": [{"type": "file_search", "vector_store_ids": ["vs_1"]}]}),
        ([], {}),
    ],
    ids=["tool of the server", "beside a function", "passages", "nothing"],
)
def test_what_does_not_follow_from_its_messages_is_left_out(output: list[Any], body: dict[str, Any]) -> None:
    assert example_of(stored(*output, **body)) is None
