"""The prompt cache under every template: it changes no token, and a second turn prefills only what is new."""

from __future__ import annotations

from typing import Any

import pytest
from openai import OpenAI

from tests.real_weights.behaviours import asking
from tests.real_weights.test_tools import WORDS, calls_of

NAMED: Any = {"type": "function", "function": {"name": "look_up"}}
SYSTEM = "You are the guide of a small museum in the town of Penrose, which has a lighthouse."
# The start of a turn is rendered again after what the client sent of it: some templates leave reasoning out, or put it
# into other words.
RENDERED_ANEW_TOKENS = 12
RESULT_TOKENS = 30  # with its marks and the beginning of the answer


def ask(client: OpenAI, model: str, messages: list[Any], **asked: Any) -> Any:
    asked = {"temperature": 0, "max_tokens": 12, **asked}
    return client.chat.completions.create(model=model, messages=messages, **asked)


def begun(model: str, kind: str) -> list[Any]:
    """A conversation that no other test has."""
    return [
        {"role": "system", "content": f"{SYSTEM} Your name is {model} {kind}."},
        {"role": "user", "content": "Who are you?"},
    ]


@asking("own", "hermes", "alternating", "thinking")
def test_a_cached_prompt_changes_no_token(client: OpenAI, model: str) -> None:
    exact: Any = {"extra_headers": {"x-firsttoken-deterministic": "true"}}
    cold, warm = (ask(client, model, begun(model, "cold"), **exact) for _ in range(2))
    assert cold.usage.prompt_tokens_details.cached_tokens < warm.usage.prompt_tokens_details.cached_tokens
    assert cold.choices[0].message == warm.choices[0].message


@asking("hermes", "coder", "thinking")
def test_a_second_turn_prefills_only_what_is_new(client: OpenAI, model: str) -> None:
    """Where the template shows the model that it has not reasoned, and later does not, the answer is new as well."""
    assert_only_what_is_new(client, model, [])


@asking("own", "strict", "alternating")  # the others take it there
def test_nor_does_a_system_message_between_its_turns_make_it_read_more(client: OpenAI, model: str) -> None:
    """Some templates take it only in other words."""
    assert_only_what_is_new(client, model, [{"role": "system", "content": "The user is in a hurry."}])


def assert_only_what_is_new(client: OpenAI, model: str, between: list[Any]) -> None:
    messages = begun(model, f"second {len(between)}")
    first = ask(client, model, messages, reasoning_effort="none")
    said = {"role": "assistant", "content": first.choices[0].message.content}
    messages += [said, *between, {"role": "user", "content": "When was it built?"}]
    second = ask(client, model, messages, reasoning_effort="none")
    known = first.usage.prompt_tokens if model == "thinking" else first.usage.total_tokens
    assert second.usage.prompt_tokens_details.cached_tokens >= known - RENDERED_ANEW_TOKENS


@pytest.mark.parametrize(
    ("model", "choice"),
    [
        ("alternating", NAMED),
        ("hermes", "required"),
        *(pytest.param(model, NAMED, marks=pytest.mark.long) for model in ("own", "strict")),
    ],
)
def test_a_result_is_added_to_what_is_cached(client: OpenAI, model: str, choice: Any) -> None:
    """Where a call may not be repeated, also the tokens of the one that counts."""
    messages = begun(model, f"tools {choice == NAMED}")
    first = ask(client, model, messages, tools=[WORDS], tool_choice=choice, max_tokens=100)
    calls = first.choices[0].message.tool_calls
    assert calls_of(first.choices[0])
    results = [{"role": "tool", "tool_call_id": call.id, "content": "It is red."} for call in calls]
    messages += [first.choices[0].message.to_dict(), *results]
    second = ask(client, model, messages, tools=[WORDS], tool_choice=choice, max_tokens=1)
    new = second.usage.prompt_tokens - second.usage.prompt_tokens_details.cached_tokens
    assert new <= len(results) * RESULT_TOKENS + RENDERED_ANEW_TOKENS


@asking("hermes", "alternating", of=("own", "hermes", "alternating"))
def test_a_stored_response_goes_on_from_its_cache(client: OpenAI, model: str) -> None:
    asked: Any = {"model": model, "instructions": SYSTEM, "temperature": 0, "max_output_tokens": 12}
    first: Any = client.responses.create(input=f"Hello from {model}.", **asked)
    second: Any = client.responses.create(input="When was it built?", previous_response_id=first.id, **asked)
    assert second.usage.input_tokens_details.cached_tokens >= first.usage.total_tokens - RENDERED_ANEW_TOKENS
