"""Why a prompt could not go on from an earlier one: which part changed, and what that cost."""

from __future__ import annotations

from dataclasses import replace
from typing import Any
from uuid import UUID, uuid4

import pytest

from agents.function_tool import FunctionTool
from agents.message import Compaction, Message
from agents.turn import AnswerFormat, Turn
from inference.prompt import TemplateOptions
from inference.trace import Trace
from migrations.pool import Database
from tests.scripted import ScriptedModel
from tests.worker.answering import MODEL, answering, post
from tests.worker.harness import SECRET
from worker.auth.keys import Keys
from worker.runs.cache_diagnostics import (
    DIGEST_BYTES,
    KEPT_BYTES_MAX,
    PROMPT_BYTES,
    MessageDiagnosis,
    PromptDigest,
    recent_prompts,
)
from worker.runs.record import Prompt, first_prompt

TENANT = UUID(int=7)
HELLO, YES, AGAIN = Message("user", "hello"), Message("assistant", "yes"), Message("user", "again")
TURN = Turn(TENANT, (HELLO,), instructions="Be terse.", functions=(FunctionTool("f", "F", {"type": "object"}),))


def read(tokens: int, cached: int, ahead: int = 0) -> Trace:
    """The trace of a prompt of so many tokens, of which the turn itself read some ahead."""
    trace = Trace()
    if ahead:
        trace.add("prefill_prefix", 1, 2, lane="prefix", new_tokens=ahead)
    trace.add("prefill", 3, 4, new_tokens=tokens - cached, cached_tokens=cached)
    return trace


@pytest.mark.parametrize(
    ("now", "model", "change"),
    [
        (TURN, "m", None),
        (replace(TURN, input=(HELLO, YES, AGAIN)), "m", None),
        (replace(TURN, hints=False), "m", None),
        (TURN, "n", "model"),
        (replace(TURN, instructions="Be kind."), "m", "system"),
        (replace(TURN, input=(Message("developer", "Now."), HELLO)), "m", "system"),
        (replace(TURN, functions=()), "m", "tools"),
        (replace(TURN, server_tools=("calculator",)), "m", "tools"),
        (replace(TURN, answer_format=AnswerFormat({"type": "object"}, "text.format")), "m", "format"),
        (replace(TURN, switches=TemplateOptions(effort="low")), "m", "effort"),
        (replace(TURN, switches=TemplateOptions(verbosity="low")), "m", "verbosity"),
        (replace(TURN, tool_choice="required"), "m", "rest"),
        (replace(TURN, input=(AGAIN,)), "m", "messages"),
        (replace(TURN, input=()), "m", "messages"),
        (replace(TURN, instructions="Be kind.", input=(AGAIN,)), "m", "system"),
    ],
)
def test_the_first_part_that_differs_is_named(now: Turn, model: str, change: str | None) -> None:
    assert PromptDigest.of(now, model).change_since(PromptDigest.of(TURN, "m")) == change


def test_a_compaction_is_known_as_such() -> None:
    compacted = replace(TURN, input=(Compaction("sealed", "short"), AGAIN))
    assert (PromptDigest.of(compacted, "m").compactions, PromptDigest.of(TURN, "m").compactions) == (1, 0)


def test_what_the_turn_read_ahead_was_not_in_the_cache_before_it() -> None:
    assert first_prompt(read(100, 90, ahead=70)) == Prompt(total=100, cached=20)
    assert first_prompt(Trace()) is None


@pytest.mark.parametrize(
    ("now", "trace", "reason"),
    [
        (TURN, read(200, 199), None),
        (replace(TURN, instructions="Be kind."), read(200, 195), None),  # no more than the end was computed
        (replace(TURN, instructions="Be kind."), read(300, 3), {"type": "system_changed", "missed": 197}),
        (replace(TURN, functions=()), read(120, 20), {"type": "tools_changed", "missed": 100}),
        (replace(TURN, tool_choice="required"), read(200, 3), {"type": "unavailable"}),
        (TURN, read(200, 0), {"type": "unavailable"}),  # evicted
        (TURN, Trace(), {"type": "unavailable"}),
    ],
)
def test_a_message_is_told_why_and_how_much(now: Turn, trace: Trace, reason: dict[str, Any] | None) -> None:
    recent = recent_prompts()
    MessageDiagnosis(recent, TENANT, read(200, 0), "msg_1", PromptDigest.of(TURN, "m"), None).diagnose()
    told = MessageDiagnosis(recent, TENANT, trace, "msg_2", PromptDigest.of(now, "m"), "msg_1").diagnose()
    if reason and "missed" in reason:
        reason = {"type": reason["type"], "cache_missed_input_tokens": reason["missed"]}
    assert told == (reason and {"cache_miss_reason": reason})


def test_few_prompts_are_kept_and_each_for_its_tenant() -> None:
    recent, prompt = recent_prompts(), PromptDigest.of(TURN, "m")
    long = replace(prompt, messages=bytes(DIGEST_BYTES) * 1000)
    kept = KEPT_BYTES_MAX // (PROMPT_BYTES + len(long.messages))
    for number in range(kept + 1):
        recent.put((TENANT, f"msg_{number}"), long)
    assert recent.get((TENANT, "msg_0")) is None
    assert recent.get((TENANT, "msg_1")) == recent.get((TENANT, f"msg_{kept}")) == long
    assert recent.get((UUID(int=8), "msg_1")) is None


async def test_ids_of_other_tenants_are_not_found(database: Database) -> None:
    model = ScriptedModel(["Yes."], name=MODEL)
    message = {"max_tokens": 9, "messages": [{"role": "user", "content": "hello"}]}
    async with answering(database, model=model) as client:
        response_id = (await post(client, "/v1/responses", {"input": "hello"}))["id"]
        first = await post(client, "/v1/messages", {**message, "diagnostics": {}})
        keys = Keys(database, SECRET)
        key = (await keys.create(await keys.tenant(f"test-{uuid4()}"), "other"))[1]
        stranger = {"Authorization": f"Bearer {key}"}
        compared = {"input": "hello", "prompt_cache_options": {"comparison_response_id": response_id}}
        async with client.post("/v1/responses", json=compared, headers=stranger) as answer:
            told = (await answer.json())["prompt_cache_diagnostics"]
        named = {**message, "diagnostics": {"previous_message_id": first["id"]}}
        async with client.post("/v1/messages", json=named, headers=stranger) as answer:
            said = (await answer.json())["diagnostics"]
    assert told == {"type": "comparison_response_not_found"}
    assert said == {"cache_miss_reason": {"type": "previous_message_not_found"}}
