"""Answers that were given, as cases."""

from __future__ import annotations

import json
from dataclasses import replace
from time import thread_time
from typing import Any
from uuid import UUID

import pytest

from agents.store.responses import Answered, ResponseRecord, answered
from migrations.pool import Database
from tests.agents.store.test_stores import record, save
from worker.cli.evals.stored_cases import case_of, example_of, redacted
from worker.cli.evals.suite import Case
from worker.runs.running_store import RunningStore


def said(role: str, text: str) -> dict[str, Any]:
    kind = "output_text" if role == "assistant" else "input_text"
    return {"type": "message", "role": role, "content": [{"type": kind, "text": text}]}


def stored(*output: dict[str, Any], asked: str = "What is it?", **body: Any) -> Answered:
    return Answered("resp_" + "0" * 48, [said("user", asked)], {"output": list(output), **body})


@pytest.mark.parametrize(
    ("text", "left"),
    [
        ("Write to ada.l@example.co.uk, please.", "Write to [email], please."),
        ("Call +49 (30) 1234 567 now", "Call [number] now"),
        ("Call 0301234567.", "Call [number]."),
        ("Card 4111 1111 1111 1111.", "Card [number]."),
        ("See https://user:pass@there/x?y", "See [url]"),
        ("It is sk-abcdefgh12345678.", "It is [key]."),
        ("IBAN DE89 3704 0044 0532 0130 00", "IBAN [account]"),
        ("from 192.168.0.17", "from [address]"),
        ("1f0c2f5e-7c3b-4c9a-9d3e-0a1b2c3d4e5f", "[id]"),
        ("It costs 1250 and ends on 2026-11-23.", "It costs 1250 and ends on 2026-11-23."),
        ("What is 127 * 49?", "What is 127 * 49?"),
    ],
)
def test_what_names_somebody_by_its_form_is_taken_out(text: str, left: str) -> None:
    assert redacted(text) == left


@pytest.mark.parametrize(
    "text",
    [
        "1" * 100_000,
        "1111111111111111111111111x " * 4000,
        "a@" * 50_000,
        "a" * 100_000,
        "1 " * 50_000,
        "DE89 " * 20_000,
    ],
)
def test_hostile_text_takes_no_longer_than_it_is(text: str) -> None:
    began = thread_time()
    redacted(text)
    assert thread_time() - began < 10  # it takes milliseconds


def test_an_answer_becomes_a_case_that_expects_the_like_of_it() -> None:
    answer = stored(said("assistant", "It is red, ada@example.org."), instructions="Be brief.")
    case = case_of(answer, judged=False)
    assert case is not None
    assert (case["instructions"], case["expect"]) == ("Be brief.", {"like": "It is red, [email]."})
    assert case["messages"] == [{"role": "user", "content": "What is it?"}]
    Case.model_validate(case)
    judged = case_of(answer, judged=True)
    assert judged is not None
    assert "It is red" in judged["expect"]["judge"]


def test_calls_for_the_caller_are_expected_again() -> None:
    function = {"type": "function", "name": "f", "parameters": {"type": "object"}}
    call = {"type": "function_call", "name": "f", "arguments": '{"to": "ada@example.org", "n": 2}'}
    case = case_of(stored(call, tools=[function]), judged=False)
    assert case is not None
    assert case["expect"] == {"calls": [{"name": "f", "arguments": {"to": "[email]", "n": 2}}]}
    assert Case.model_validate(case).tools


def test_what_cannot_be_asked_again_is_no_case() -> None:
    assert case_of(stored(), judged=False) is None
    with_file = stored(said("assistant", "Yes."))
    with_file.input.append({"type": "message", "role": "user", "content": [{"type": "input_file"}]})
    assert case_of(with_file, judged=False) is None


async def test_first_answers_of_one_tenant_are_found_by_their_rating(
    database: Database, tenant_id: UUID, other_tenant_id: UUID
) -> None:
    running = RunningStore(database)

    def rated(text: str, rating: str | None, **facts: Any) -> ResponseRecord:
        made = record(text, **facts)
        return replace(made, body={**made.body, "metadata": {"firsttoken:rating": rating} if rating else None})

    good = rated("good", "up")
    for each in (good, rated("bad", "down"), rated("plain", None), rated("later", "up", after=good)):
        await save(running, tenant_id, each)
    await save(running, other_tenant_id, rated("foreign", "up"))
    assert [each.id for each in await answered(database, tenant_id, "up", 10)] == [good.id]
    assert len(await answered(database, tenant_id, None, 10)) == 3
    (found,) = await answered(database, tenant_id, "up", 10)
    case = case_of(found, judged=False)
    assert case is not None
    assert case["messages"] == [{"role": "user", "content": "ask good"}]


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
