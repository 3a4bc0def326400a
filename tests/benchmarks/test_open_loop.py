"""Sessions that arrive whether or not the server keeps up: the traces, how they are played and judged."""

from __future__ import annotations

import asyncio
import math
import statistics
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import replace
from itertools import pairwise

import pytest

from benchmarks.engine.open_loop.goodput import Ending, Goodput, Outcome, Targets, judge
from benchmarks.engine.open_loop.report import Row, head, median
from benchmarks.engine.open_loop.sessions import (
    ANSWER_TOKENS,
    CONTEXT,
    PROMPT_TOKENS,
    SYSTEM_TOKENS,
    TURNS_MAX,
    Plan,
    Session,
    Texts,
    Trace,
    Turn,
    replay,
    trace,
)
from benchmarks.engine.prompts import Message
from benchmarks.engine.target import Refused

TEMPLATE_TOKENS = 24  # around a question and its answer, or a system prompt: roles are spelt out
TARGETS = Targets(ttft_s=0.5, tpot_s=0.05)
TEXTS = Texts("systems", "questions")


def drawn(rate: float, seed: str = "any", window_s: float = 2000.0) -> Trace:
    return trace(seed, rate, lead_s=0.0, window_s=window_s, tail_s=0.0)


# --- traces ---


def test_a_seed_gives_the_same_trace_to_both_sides() -> None:
    assert drawn(1.0) == drawn(1.0) != drawn(1.0, seed="other")


def test_another_rate_is_the_same_sessions_on_another_clock() -> None:
    slow, fast = drawn(0.5), drawn(2.0)
    for one, other in zip(slow.sessions, fast.sessions, strict=False):
        assert one == replace(other, start_s=one.start_s)
        assert one.start_s == pytest.approx(4 * other.start_s)


def test_sessions_arrive_at_the_rate_and_without_memory() -> None:
    starts = [session.start_s for session in drawn(2.0).sessions]
    gaps = [after - before for before, after in pairwise(starts)]
    assert len(starts) == pytest.approx(4000, rel=0.1)
    # Exponential: as much spread as mean, and a third of the gaps longer than the mean.
    mean_s = statistics.mean(gaps)
    assert statistics.stdev(gaps) == pytest.approx(mean_s, rel=0.1)
    assert sum(gap > mean_s for gap in gaps) / len(gaps) == pytest.approx(1 / math.e, abs=0.05)


def test_sessions_have_all_system_prompts_and_one_to_four_turns() -> None:
    sessions = drawn(1.0).sessions
    assert {session.system for session in sessions} == set(range(len(SYSTEM_TOKENS)))
    assert {len(session.turns) for session in sessions} == set(range(1, TURNS_MAX + 1))
    assert all(session.turns[0].think_s == 0 for session in sessions)
    assert all(turn.think_s > 0 for session in sessions for turn in session.turns[1:])


def test_lengths_are_lognormal_within_their_bounds() -> None:
    turns = [turn for session in drawn(1.0).sessions for turn in session.turns]
    prompts, answers = [turn.prompt_tokens for turn in turns], [turn.answer_tokens for turn in turns]
    assert statistics.median(prompts) == pytest.approx(PROMPT_TOKENS.median, rel=0.15)
    assert statistics.median(answers) == pytest.approx(ANSWER_TOKENS.median, rel=0.15)
    assert statistics.mean(prompts) > statistics.median(prompts)
    assert PROMPT_TOKENS.low <= min(prompts) and max(prompts) <= PROMPT_TOKENS.high
    assert ANSWER_TOKENS.low <= min(answers) and max(answers) <= ANSWER_TOKENS.high


def test_the_longest_conversation_fits_the_context() -> None:
    turn = PROMPT_TOKENS.high + ANSWER_TOKENS.high + TEMPLATE_TOKENS
    assert max(SYSTEM_TOKENS) + TEMPLATE_TOKENS + TURNS_MAX * turn <= CONTEXT


def test_sessions_of_the_window_are_judged_and_those_around_it_are_load() -> None:
    played = trace("any", 2.0, lead_s=10.0, window_s=30.0, tail_s=20.0)
    judged = [session.start_s for session in played.sessions if played.judges(session)]
    assert 10 <= min(judged) <= max(judged) < 40
    assert min(session.start_s for session in played.sessions) < 10
    assert 40 < max(session.start_s for session in played.sessions) < 60


def test_a_window_holds_the_sessions_asked_for_within_its_bounds() -> None:
    plan = Plan(TARGETS, rounds=3, sessions=24, seed="any")
    assert [plan.window_s(rate) for rate in (0.01, 0.4, 0.8, 100.0)] == [120.0, 60.0, 30.0, 20.0]


def test_no_session_is_cut_off_whose_turns_are_all_in_time() -> None:
    plan = Plan(TARGETS, rounds=3, sessions=24, seed="any")
    for session in drawn(1.0).sessions:
        answers_s = sum(TARGETS.ttft_s + turn.answer_tokens * TARGETS.tpot_s for turn in session.turns)
        assert answers_s + sum(turn.think_s for turn in session.turns) <= plan.cut_off_s


# --- playing ---


class Server:
    """Says as many words as it is asked for, after as long as `first_s` says for each request."""

    name = "server"

    def __init__(self, first_s: Callable[[int], float] = lambda number: 0.0) -> None:
        self.told: list[list[Message]] = []
        self.asked_s: list[float] = []
        self.hung_up = 0
        self._first_s = first_s

    async def say(self, messages: Sequence[Message], max_tokens: int) -> AsyncIterator[str]:
        number = len(self.told)
        self.told.append(list(messages))
        self.asked_s.append(asyncio.get_running_loop().time())
        try:
            await asyncio.sleep(self._first_s(number))
        except asyncio.CancelledError:
            self.hung_up += 1
            raise
        yield " bada" * (max_tokens - max_tokens // 2)
        if max_tokens > 1:
            yield " bada" * (max_tokens // 2)


class Busy(Server):
    """Refuses its second request."""

    async def say(self, messages: Sequence[Message], max_tokens: int) -> AsyncIterator[str]:
        if len(self.told) == 1:
            raise Refused("come back later")
        async for piece in super().say(messages, max_tokens):
            yield piece


class Curt(Server):
    async def say(self, messages: Sequence[Message], max_tokens: int) -> AsyncIterator[str]:
        async for piece in super().say(messages, max_tokens - 1):
            yield piece


class Broken(Server):
    async def say(self, messages: Sequence[Message], max_tokens: int) -> AsyncIterator[str]:
        async for piece in super().say(messages, max_tokens):
            yield piece
            raise RuntimeError("the device is gone")


def one_session(*turns: Turn, start_s: float = 0.0) -> Trace:
    return Trace((Session(0, start_s, 0, turns),), lead_s=0.0, window_s=1.0)


async def test_a_session_goes_on_with_all_that_was_said() -> None:
    server = Server()
    outcomes = await replay(server, one_session(Turn(0, 8, 4), Turn(0, 9, 4)), TEXTS, cut_off_s=5.0)
    assert [outcome.ending for outcome in outcomes] == [Ending.COMPLETE, Ending.COMPLETE]
    assert [outcome.tokens for outcome in outcomes] == [4, 4]
    first, second = server.told
    assert [message.role for message in second] == ["system", "user", "assistant", "user"]
    assert second[:2] == first
    assert second[2].content.split() == ["bada"] * 4
    assert len(first[0].content.split()) == SYSTEM_TOKENS[0] and len(second[3].content.split()) == 9


async def test_thinking_begins_when_the_answer_ended() -> None:
    server = Server(first_s=lambda number: 0.05)
    outcomes = await replay(server, one_session(Turn(0, 8, 4), Turn(0.1, 8, 4)), TEXTS, cut_off_s=5.0)
    first, second = outcomes
    assert first.last_s is not None and second.due_s - first.last_s >= 0.1
    assert server.asked_s[1] - server.asked_s[0] >= 0.15


async def test_the_clock_of_a_turn_begins_when_it_is_due_and_not_when_it_is_asked() -> None:
    class Stalled(Server):
        async def say(self, messages: Sequence[Message], max_tokens: int) -> AsyncIterator[str]:
            if not self.told:
                loop = asyncio.get_running_loop()
                until = loop.time() + 0.2
                while loop.time() < until:  # nothing else is sent meanwhile
                    pass
            async for piece in super().say(messages, max_tokens):
                yield piece

    sessions = tuple(Session(number, 0.01 * number, 0, (Turn(0, 8, 4),)) for number in range(2))
    _, second = await replay(Stalled(), Trace(sessions, 0.0, 1.0), TEXTS, cut_off_s=5.0)
    assert second.ttft_s >= 0.15


async def test_arrivals_do_not_wait_for_answers() -> None:
    answered = asyncio.Event()

    class Holding(Server):
        async def say(self, messages: Sequence[Message], max_tokens: int) -> AsyncIterator[str]:
            self.told.append(list(messages))
            if len(self.told) == 3:  # nobody is answered before all have asked
                answered.set()
            await answered.wait()
            yield " bada" * max_tokens

    sessions = tuple(Session(number, 0.01 * number, 0, (Turn(0, 8, 4),)) for number in range(3))
    outcomes = await replay(Holding(), Trace(sessions, 0.0, 1.0), TEXTS, cut_off_s=5.0)
    assert [outcome.ending for outcome in outcomes] == [Ending.COMPLETE] * 3


async def test_whoever_is_refused_leaves_and_the_turns_left_count() -> None:
    server = Busy()
    outcomes = await replay(server, one_session(*[Turn(0, 8, 4)] * 4), TEXTS, cut_off_s=5.0)
    endings = [outcome.ending for outcome in outcomes]
    assert endings == [Ending.COMPLETE, Ending.REFUSED, Ending.UNASKED, Ending.UNASKED]
    assert len(server.told) == 1


@pytest.mark.parametrize("server", [Curt(), Broken()], ids=["too few tokens", "an error"])
async def test_an_answer_that_is_not_whole_has_failed(server: Server) -> None:
    (outcome,) = await replay(server, one_session(Turn(0, 8, 4)), TEXTS, cut_off_s=5.0)
    assert outcome.ending is Ending.FAILED


async def test_what_still_runs_at_the_end_is_hung_up_on_and_counts() -> None:
    server = Server(first_s=lambda number: 60.0)
    played = Trace((Session(0, 0.0, 0, (Turn(0, 8, 4), Turn(0, 8, 4))),), lead_s=0.0, window_s=0.05)
    outcomes = await replay(server, played, TEXTS, cut_off_s=0.05)
    assert [outcome.ending for outcome in outcomes] == [Ending.CUT_OFF, Ending.UNASKED]
    assert server.hung_up == 1


async def test_a_run_ends_with_the_last_judged_session() -> None:
    server = Server(first_s=lambda number: 0.0 if number == 0 else 60.0)
    sessions = tuple(Session(number, 0.1 * number, 0, (Turn(0, 8, 4),)) for number in range(2))
    played = Trace(sessions, lead_s=0.0, window_s=0.05)
    outcomes = await replay(server, played, TEXTS, cut_off_s=30.0)
    assert [outcome.ending for outcome in outcomes] == [Ending.COMPLETE]


async def test_a_fault_of_the_benchmark_is_no_outcome() -> None:
    class Faulty(Server):
        async def say(self, messages: Sequence[Message], max_tokens: int) -> AsyncIterator[str]:
            async for _ in super().say(messages, max_tokens):
                raise KeyError("choices")
            yield ""

    with pytest.raises(KeyError):
        await replay(Faulty(), one_session(Turn(0, 8, 4)), TEXTS, cut_off_s=5.0)


# --- judging ---


def complete(ttft_s: float, tpot_s: float, tokens: int = 11) -> Outcome:
    first_s = 100.0 + ttft_s
    return Outcome(Ending.COMPLETE, 100.0, first_s, first_s + tpot_s * (tokens - 1), tokens)


def test_a_turn_is_in_time_if_it_meets_both_targets() -> None:
    assert complete(0.4, 0.04).in_time(TARGETS)
    assert not complete(0.6, 0.04).in_time(TARGETS)
    assert not complete(0.4, 0.06).in_time(TARGETS)


def test_a_turn_that_did_not_complete_is_not_in_time_however_fast_it_was() -> None:
    for ending in set(Ending) - {Ending.COMPLETE}:
        assert not replace(complete(0.1, 0.01), ending=ending).in_time(TARGETS)


def test_an_answer_of_one_token_has_its_first_token_alone() -> None:
    assert complete(0.4, 9.0, tokens=1).in_time(TARGETS)


def test_late_refused_failed_and_unasked_turns_all_count() -> None:
    outcomes = [complete(0.1, 0.01), complete(0.1, 0.01), complete(9.0, 0.01)]
    outcomes += [Outcome(ending) for ending in Ending if ending is not Ending.COMPLETE]
    told = judge(outcomes, TARGETS, window_s=4.0)
    assert (told.turns, told.in_time, told.late) == (7, 2, 1)
    assert told.refused == told.failed == told.cut_off == told.unasked == 1
    assert told.share == pytest.approx(2 / 7)
    assert told.good_turns_per_s == 0.5


def test_a_turn_without_a_token_has_waited_for_ever() -> None:
    told = judge([complete(0.1, 0.01), Outcome(Ending.REFUSED)], TARGETS, window_s=1.0)
    assert told.ttft_p50_ms == pytest.approx(100.0)
    assert told.ttft_p95_ms is None


def test_a_run_without_turns_is_not_good() -> None:
    assert judge([], TARGETS, window_s=1.0).share == 0.0


# --- reporting ---


def run(in_time: int, turns: int = 100) -> Goodput:
    outcomes = [complete(0.1, 0.01)] * in_time + [complete(1.0, 0.01)] * (turns - in_time)
    return judge(outcomes, TARGETS, window_s=10.0)


def test_one_disturbed_round_does_not_make_a_rate_bad() -> None:
    assert median([run(97), run(20), run(96)], "share") == 0.96


def test_the_table_has_a_cell_for_every_column() -> None:
    line = Row(0.5, [run(96)], [judge([Outcome(Ending.REFUSED)], TARGETS, 1.0)]).line("0.1B")
    assert line.count("|") == head().splitlines()[0].count("|") == head().splitlines()[1].count("|")
    assert line.startswith("| 0.1B | 0.5 | 100 | 0.00 / 0.96 |") and "∞ / 100" in line
