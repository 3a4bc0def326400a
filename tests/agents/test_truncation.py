"""Which turns go when a context is full, and which never do."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agents.message import FunctionCall, FunctionCallOutput, Item, Message
from agents.prompt import shortened
from agents.turn import Turn
from inference.errors import PromptTooLong
from inference.prompt import PromptTokens, Segment
from tests.agents.turns import TENANT, asked, run, user
from tests.scripted import ScriptedModel

CONTEXT = 400
LONG = "very " * 12


def answered(number: int) -> list[Item]:
    return [user(f"question {number}"), Message("assistant", f"answer {number}")]


def after(*history: Item, question: str = "now") -> Turn:
    return Turn(TENANT, (user(question),), history)


def texts(turn: Turn) -> list[str]:
    return [item.text for item in turn.input if isinstance(item, Message)]


def test_the_oldest_turns_go_whole() -> None:
    turn, gone = shortened(after(*answered(1), *answered(2)), 1, 4 * 20, len) or (None, 0)
    assert turn is not None
    assert (gone, texts(turn)) == (1, ["question 2", "answer 2", "now"])


def test_the_newest_turn_stays_whatever_it_is_worth() -> None:
    turn, gone = shortened(after(*answered(1)), 10_000, CONTEXT, len) or (None, 0)
    assert turn is not None
    assert (gone, texts(turn)) == (1, ["now"])
    assert shortened(turn, 10_000, CONTEXT, len) is None


@pytest.mark.parametrize("off", [0.8, 1.0, 1.3])
def test_of_what_is_far_too_long_about_half_a_context_stays_however_wrong_the_estimate(off: float) -> None:
    """And the same for many turns that follow."""
    kept = []
    for turns in range(5_000, 5_010):
        history = [item for number in range(turns) for item in answered(number)]
        excess = int(off * sum(4 + len(item.text) for item in history if isinstance(item, Message))) - CONTEXT
        turn, _ = shortened(after(*history), excess, CONTEXT, len) or (None, 0)
        assert turn is not None
        assert CONTEXT / 3 <= sum(4 + len(text) for text in texts(turn)) <= CONTEXT
        kept.append(texts(turn)[0])
    assert len(set(kept)) <= 4  # ten turns have four strides


def test_system_messages_stay() -> None:
    rules, note = Message("system", "rules"), Message("developer", "note")
    turn, _ = shortened(after(rules, *answered(1), note, *answered(2)), 10_000, CONTEXT, len) or (None, 0)
    assert turn is not None
    assert texts(turn) == ["rules", "note", "now"]


def test_a_result_goes_with_its_call() -> None:
    history = (user("one"), FunctionCall("c", "f", "{}"), user("two"), FunctionCallOutput("c", "3"))
    turn, _ = shortened(after(*history), 1, 4, len) or (None, 0)
    assert turn is not None
    assert [item for item in turn.input if not isinstance(item, Message)] == []


@given(st.integers(3, 60), st.integers(1, 300))
def test_what_goes_stays_the_same_for_a_while_as_the_conversation_grows(turns: int, excess: int) -> None:
    """So the next prompts begin with the same turn, and find it in the cache."""
    history = [item for number in range(turns) for item in answered(number)]
    cut = shortened(after(*history), excess, CONTEXT, len)
    grown = shortened(after(*history, *answered(turns)), excess + 1, CONTEXT, len)
    assert cut is not None and grown is not None
    room_left = -excess % (CONTEXT // 4) > 0
    assert not room_left or cut[1] == grown[1] or cut[1] == turns


async def test_a_conversation_that_is_too_long_goes_on_without_its_beginning() -> None:
    model = ScriptedModel(["Yes."], context_length=CONTEXT)
    history = tuple(user(f"question {number} is {LONG} long") for number in range(30))
    turn = replace(asked("and now?"), history=history, instructions="Be brief.", truncates=True)
    ran = await run(model, turn)
    assert ran.answer == "Yes."
    assert model.prompts[0].startswith("<system>Be brief.\n<user>question ")
    assert "question 29" in model.prompts[0] and "question 0 " not in model.prompts[0]
    kept = model.prompts[0].count("question")
    assert ran.trace.attributes["firsttoken.turns_dropped"] == 30 - kept


async def test_without_leave_nothing_goes() -> None:
    history = tuple(item for number in range(30) for item in answered(number))
    with pytest.raises(PromptTooLong):
        await run(ScriptedModel(["Yes."], context_length=CONTEXT), replace(asked("and now?"), history=history))


async def test_one_question_that_is_too_long_is_refused_all_the_same() -> None:
    turn = replace(asked("why " * CONTEXT), truncates=True)
    with pytest.raises(PromptTooLong):
        await run(ScriptedModel(["Yes."], context_length=CONTEXT), turn)


@dataclass
class Counting(ScriptedModel):
    """Adds up what it tokenises, counting included."""

    tokenised: int = 0

    def encode(self, segments: Sequence[Segment], *, salt: str = "") -> PromptTokens:
        ids = super().encode(segments, salt=salt)
        self.tokenised += len(ids)
        return ids

    def count(self, text: str, *, salt: str = "") -> int:
        tokens = super().count(text, salt=salt)
        self.tokenised += min(tokens, len(text))
        return tokens


def far_too_long(turns: int, text: str = LONG * 20) -> tuple[Item, ...]:
    return tuple(user(f"question {number} is {text} long") for number in range(turns))


async def test_what_is_far_too_long_is_refused_without_being_tokenised() -> None:
    model = Counting(["Yes."], context_length=CONTEXT)
    turn = replace(asked("why?"), history=far_too_long(100))
    with pytest.raises(PromptTooLong, match="bytes"):
        await run(model, turn)
    assert model.tokenised == 0


async def test_of_what_is_far_too_long_only_what_may_fit_is_tokenised() -> None:
    model = Counting(["Yes."], context_length=10 * CONTEXT)
    turn = replace(asked("and now?"), history=far_too_long(1000), truncates=True)
    ran = await run(model, turn)
    assert ran.answer == "Yes."
    assert "question 999" in model.prompts[0] and "and now?" in model.prompts[0]
    assert model.tokenised < 10 * model.context_length < 1000 * len(LONG)


async def test_what_stays_of_it_stays_the_same_for_a_while() -> None:
    begins = set()
    for turns in range(300, 310):
        model = ScriptedModel(["Yes."], context_length=10 * CONTEXT)
        await run(model, replace(asked("and now?"), history=far_too_long(turns, LONG), truncates=True))
        begins.add(model.prompts[0][:100])
    assert len(begins) <= 4
