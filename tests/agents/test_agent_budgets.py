"""Budgets of a turn: each one is told to the model, which then answers from what it has."""

from __future__ import annotations

from itertools import count
from typing import Any

import pytest

from agents.progress import NOTHING_LEFT
from agents.prompt import CONCLUDE
from agents.turn import CONCLUSION_S, TOKENS_MAX, Budget, Limits, Owner, Prices
from inference.generation import Sampling
from inference.trace import now_ns
from tests.agents.turns import asked, call, double, run
from tests.scripted import ScriptedModel

ENDLESS = Sampling(max_tokens=TOKENS_MAX)


async def circling(limits: Limits, **options: Any) -> Any:
    """A model that calls as long as it may, with other arguments every time."""
    replies = [call("double", x=number) for number in range(20)]
    model = ScriptedModel(replies)
    ran = await run(model, asked(server_tools=("double",), limits=limits, **options), [double])
    return model, ran


@pytest.mark.parametrize(
    ("limits", "budget", "steps"),
    [
        (Limits(steps=3), "steps", 3),
        (Limits(calls=2), "calls", 3),
        (Limits(seconds=0.0), "wall_clock", 1),
        (Limits(tokens=110), "tokens", 5),
    ],
)
async def test_a_spent_budget_is_told_and_ends_the_turn(limits: Limits, budget: str, steps: int) -> None:
    model, ran = await circling(limits)
    assert (ran.finished.status, ran.finished.budget) == ("completed", budget)
    assert len(model.prompts) == steps
    assert CONCLUDE in model.prompts[-1]
    assert CONCLUDE not in "".join(model.prompts[:-1])
    assert len(ran.results) == steps - 1
    assert ran.answer == NOTHING_LEFT


async def test_the_answer_after_a_spent_budget_is_the_models_own() -> None:
    model = ScriptedModel([call("double", x=1), f"It is 2.{call('double', x=9)}"])
    ran = await run(model, asked(server_tools=("double",), limits=Limits(steps=2)), [double])
    assert (ran.answer, ran.finished.budget, ran.results) == ("It is 2.", "steps", ["2"])


async def test_the_wall_clock_cuts_an_answer_that_is_being_written(monkeypatch: pytest.MonkeyPatch) -> None:
    seconds = count()  # at least one goes by for each token
    monkeypatch.setattr("tests.scripted.now_ns", lambda: now_ns() + next(seconds) * 10**9)
    model = ScriptedModel(["word " * 1000])
    limits = Limits(answer_s=300, seconds_by=Owner.KEY)
    finished = (ran := await run(model, asked(limits=limits, sampling=ENDLESS))).finished
    assert (finished.status, finished.cut, finished.budget) == ("incomplete", "key.seconds", "wall_clock")
    assert ran.trace.attributes["firsttoken.cut"] == "key.seconds"
    assert ran.answer.startswith("word word")
    assert ran.output[-1].status == "incomplete"


async def test_the_last_answer_may_take_a_little_longer_than_the_wall_clock() -> None:
    budget = Budget(Limits(seconds=2.0, answer_s=2.0), started_ns=0)
    assert budget.deadline_ns(concluding=False) == 2_000_000_000
    assert budget.deadline_ns(concluding=True) == int((2.0 + CONCLUSION_S) * 1e9)


@pytest.mark.parametrize("concluding", [False, True])
def test_the_budget_of_the_loop_is_no_deadline(*, concluding: bool) -> None:
    assert Budget(Limits(seconds=2.0), started_ns=0).deadline_ns(concluding=concluding) is None
    assert Budget(Limits(seconds=2.0, answer_s=60), 0).deadline_ns(concluding=concluding) == 60_000_000_000


async def test_an_answer_without_tools_is_as_long_as_asked() -> None:
    model = ScriptedModel(["word " * 2000], piece_chars=1)
    ran = await run(model, asked(limits=Limits(tokens=100, seconds=0.0), sampling=ENDLESS))
    assert (ran.finished.status, ran.finished.budget, len(ran.answer)) == ("completed", None, 10_000 - 1)


async def test_a_spent_loop_never_cuts_a_step_nor_the_last_answer() -> None:
    thought = "<think>" + "so " * 500 + "</think>"
    model = ScriptedModel([thought + call("double", x=1), "word " * 500], piece_chars=1)
    limits = Limits(tokens=100, answer_tokens=8000)
    ran = await run(model, asked(server_tools=("double",), limits=limits, sampling=ENDLESS), [double])
    assert (ran.finished.status, ran.finished.budget, ran.results) == ("completed", "tokens", ["2"])
    assert len(ran.answer) == 2500 - 1


@pytest.mark.parametrize(
    ("limits", "cut"),
    [
        (Limits(answer_tokens=40, tokens_by=Owner.REQUEST), None),
        (Limits(answer_tokens=40, tokens_by=Owner.SURFACE), "surface.tokens"),
        (Limits(answer_tokens=40, tokens_by=Owner.SERVER), "server.tokens"),
        (Limits(), "context"),
    ],
)
async def test_what_cuts_an_answer_is_told(limits: Limits, cut: str | None) -> None:
    model = ScriptedModel(["word " * 100], piece_chars=1)
    ran = await run(model, asked(limits=limits, sampling=Sampling(max_tokens=60 if cut == "context" else 400)))
    assert (ran.finished.status, ran.finished.cut) == ("incomplete", cut)
    assert ran.trace.attributes.get("firsttoken.cut") == cut


async def test_a_turn_costs_what_it_read_wrote_and_called() -> None:
    model = ScriptedModel([call("double", x=1), "It is 2."])
    prices = Prices(input=1000, cached=100, output=10_000, tools={"double": 7})
    ran = await run(model, asked(server_tools=("double",)), [double], prices=prices)
    usage = ran.finished.usage
    computed = usage.input_tokens - usage.cached_tokens
    cost = computed + 0.1 * usage.cached_tokens + 10 * usage.output_tokens + 7
    assert ran.trace.attributes["firsttoken.cost"] == pytest.approx(cost)


async def test_what_a_turn_may_cost_is_a_budget() -> None:
    model = ScriptedModel([call("double", x=number) for number in range(20)])
    limits = Limits(cost=15)
    ran = await run(model, asked(server_tools=("double",), limits=limits), [double], prices=Prices(tools={"double": 7}))
    assert ran.results == ["0", "2", "4"]
    assert (ran.answer, ran.finished.budget) == (NOTHING_LEFT, "cost")


async def test_calls_over_the_budget_are_not_run() -> None:
    many = "".join(call("double", x=number) for number in range(4))
    model = ScriptedModel([many, "Enough."])
    ran = await run(model, asked(server_tools=("double",), limits=Limits(calls=2)), [double])
    refused = "Error: not run, the tool budget is exhausted"
    assert ran.results == ["0", "2", refused, refused]
    assert (ran.answer, ran.finished.budget) == ("Enough.", "calls")


async def test_the_same_call_over_and_over_is_stopped() -> None:
    model = ScriptedModel([call("double", x=1)])
    ran = await run(model, asked(server_tools=("double",)), [double])
    assert ran.finished.budget == "repeated_call"
    assert [result.startswith("Error") for result in ran.results] == [False, False, True]


async def test_a_turn_may_not_write_more_than_its_tokens() -> None:
    _, ran = await circling(Limits(tokens=10, answer_tokens=10))
    assert ran.finished.status == "incomplete"
    assert ran.finished.usage.output_tokens == 10


async def test_without_a_token_left_for_the_answer_the_turn_is_incomplete() -> None:
    model = ScriptedModel([call("double", x=1), "Two."], piece_chars=1)
    limits = Limits(answer_tokens=len(call("double", x=1)), tokens_by=Owner.AGENT)
    ran = await run(model, asked(server_tools=("double",), limits=limits), [double])
    assert (ran.finished.status, ran.finished.cut) == ("incomplete", "agent.tokens")
    assert ran.results == ["2"]
