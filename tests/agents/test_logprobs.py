"""The log probabilities of an answer are those of the tokens that it shows."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from agents.message import Message
from agents.turn import Limits
from inference.generation import Delta, Sampling, joined
from tests.agents.turns import asked, call, double, run
from tests.scripted import ScriptedGeneration, ScriptedModel

CALL = call("double", x=4)


async def stream_at_once(generation: ScriptedGeneration, receive: Callable[[Delta], None]) -> None:
    """As where the event loop is late: all tokens are one delta."""
    receive(joined(*[delta async for delta in generation]))


def squeezed(text: str) -> str:
    return "".join(text.split())


@pytest.mark.parametrize("at_once", [False, True])
@pytest.mark.parametrize(
    "answer",
    [
        "Paris </tool_call> it is.",
        "Paris</tool_call>, of course.",
        f"I look. {CALL}",
        f"I look.{CALL}\nDone, and {CALL}",
        f"{CALL}\n</tool_call>\nDone.",
        "<tool_call>\nno call</tool_call>\nHello.",
    ],
)
async def test_no_mark_and_no_token_of_a_call_is_among_them(
    answer: str, at_once: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if at_once:
        monkeypatch.setattr(ScriptedGeneration, "stream", stream_at_once)
    model = ScriptedModel([answer, "It is 8."], piece_chars=1)
    ran = await run(model, asked(server_tools=("double",), sampling=Sampling(top_logprobs=0)), [double])
    messages = [item for item in ran.output if isinstance(item, Message)]
    assert messages[-1].text
    for message in messages:
        told = b"".join(each.token for each in message.logprobs).decode()
        assert squeezed(told) == squeezed(message.text)


async def test_an_answer_that_the_model_did_not_write_has_none() -> None:
    limits, sampling = Limits(steps=2), Sampling(top_logprobs=0)
    ran = await run(ScriptedModel([CALL]), asked(server_tools=("double",), limits=limits, sampling=sampling), [double])
    answer = ran.output[-1]
    assert isinstance(answer, Message) and answer.text and not answer.logprobs
