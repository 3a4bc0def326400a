"""The simulation of the requests ahead of a new one, and the bound on its work."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from inference.engine.forecast import LOOKUPS_MAX, SAMPLES, AnswerLengths, Speed, simulate
from inference.engine.load import Ahead, RequestAhead
from inference.engine.step import StepCost

STEP_S, ROW_S = 0.01, 0.0005


def took_s(rows: int) -> float:
    return STEP_S + ROW_S * rows


def known_cost() -> StepCost:
    cost = StepCost()
    for rows in (1, 2, 4, 8, 16, 32, 64, 128, 256, 512):
        cost.observe(rows, took_s(rows))
    return cost


SPEED = Speed(known_cost(), places=2, streams=1, chunk=64)
CERTAIN = AnswerLengths()  # answers get as long as they may
CERTAIN.add(10_000, limited=True)


def unsure() -> AnswerLengths:
    lengths = AnswerLengths()
    for tokens in range(1, 65):
        lengths.add(tokens, limited=False)
    return lengths


def wait_s(ahead: Ahead, speed: Speed = SPEED, lengths: AnswerLengths = CERTAIN) -> float:
    return simulate(10, ahead, speed, lengths).wait_s(0.5)


def test_a_free_place_is_not_waited_for() -> None:
    assert wait_s(Ahead([RequestAhead(0, 50, 0)])) == 0
    assert wait_s(Ahead([], [RequestAhead(0, 50, 30)])) == 0


def test_the_next_place_is_that_of_the_answer_that_ends_first() -> None:
    assert wait_s(Ahead([RequestAhead(0, 50, 0), RequestAhead(10, 30, 0)])) == pytest.approx(20 * took_s(2))


def test_who_stands_before_takes_the_place_that_gets_free_first_and_reads_its_prompt_in_it() -> None:
    ahead = Ahead([RequestAhead(0, 50, 0), RequestAhead(0, 20, 0)], [RequestAhead(0, 5, 100)])
    # Two steps for the hundred tokens, the second with the first token of five: 20 + 2 + 4.
    assert wait_s(ahead) == pytest.approx(26 * took_s(2) + 100 * ROW_S)


def test_a_token_comes_with_the_step_under_way() -> None:
    ahead = Ahead([RequestAhead(0, 50, 0), RequestAhead(10, 30, 0)])
    assert wait_s(ahead, replace(SPEED, rest_s=0.004)) == pytest.approx(0.004 + 19 * took_s(2))


def test_what_passes_between_two_steps_is_waited_for_too() -> None:
    cost = known_cost()
    for _ in range(500):
        cost.observe_between(0.005)
    ahead, speed = Ahead([RequestAhead(0, 50, 0), RequestAhead(10, 30, 0)]), replace(SPEED, cost=cost)
    assert wait_s(ahead, speed) == pytest.approx(20 * (took_s(2) + 0.005), rel=0.01)


def test_drafts_shorten_the_wait() -> None:
    ahead = Ahead([RequestAhead(0, 50, 0), RequestAhead(10, 30, 0)])
    assert wait_s(ahead, replace(SPEED, tokens_per_step=2.0)) == pytest.approx(10 * took_s(2))


def test_a_place_that_goes_from_one_to_the_next_is_none_for_a_newcomer() -> None:
    assert wait_s(Ahead([RequestAhead(0, 40, 0)], held=1)) == pytest.approx(40 * took_s(2))


def test_a_prompt_takes_the_steps_that_it_needs_and_the_rest_of_the_one_under_way() -> None:
    assert simulate(1, Ahead([RequestAhead(0, 50, 0)]), SPEED, CERTAIN).prefill_s == pytest.approx(took_s(2))
    long = simulate(100, Ahead([RequestAhead(0, 50, 0)]), replace(SPEED, rest_s=0.003), CERTAIN)
    assert long.prefill_s == pytest.approx(0.003 + took_s(65) + took_s(37))


def test_a_short_prompt_is_delayed_by_a_long_one_by_no_more_than_its_own_length() -> None:
    beside = simulate(10, Ahead([RequestAhead(0, 50, 5000)]), SPEED, CERTAIN)
    assert beside.prefill_s == pytest.approx(took_s(65))  # the step is filled with what else there is to read
    assert simulate(40, Ahead([RequestAhead(0, 50, 5000)]), SPEED, CERTAIN).prefill_s == pytest.approx(2 * took_s(65))


def test_a_prompt_that_is_read_while_a_newcomer_waits_delays_it_no_more() -> None:
    simulated = simulate(10, Ahead([RequestAhead(0, 10, 64), RequestAhead(0, 30, 0)]), SPEED, CERTAIN)
    assert simulated.prefill_s == pytest.approx(took_s(11))


def test_many_short_waits_and_few_long_ones_are_told_apart() -> None:
    simulated = simulate(10, Ahead([RequestAhead(0, 1000, 0)] * 2), SPEED, unsure())
    usual, long = simulated.wait_s(0.5), simulated.wait_s(0.95)
    assert len(simulated.waits_s) == SAMPLES
    # Of two answers with one to 64 tokens each, the shorter one: 20 in the median, 50 in one of twenty.
    assert usual == pytest.approx(20 * took_s(2), rel=0.3)
    assert long == pytest.approx(50 * took_s(2), rel=0.3)


class Counted(AnswerLengths):
    looks = 0

    def left(
        self, generated: NDArray[np.int64], max_tokens: NDArray[np.int64], quantiles: NDArray[np.float64]
    ) -> NDArray[np.int64]:
        self.looks += quantiles.size
        return super().left(generated, max_tokens, quantiles)


@pytest.mark.parametrize(("running", "waiting"), [(8, 0), (8, 64), (64, 256), (64, 4096)])
def test_the_work_of_a_forecast_is_bounded_by_a_few_looks_at_each_request(running: int, waiting: int) -> None:
    lengths = Counted()
    lengths.add(10, limited=False)
    speed = replace(SPEED, places=running)
    simulate(10, Ahead([RequestAhead(0, 50, 0)] * running, [RequestAhead(0, 50, 9)] * waiting), speed, lengths)
    assert lengths.looks <= max(LOOKUPS_MAX, running + waiting)


places = st.lists(st.builds(RequestAhead, st.integers(0, 40), st.integers(41, 200), st.integers(0, 300)), max_size=12)


@given(places, places, st.integers(1, 500), st.booleans())
def test_whoever_comes_before_makes_a_wait_no_shorter(
    running: list[RequestAhead], waiting: list[RequestAhead], prompt: int, certain: bool
) -> None:
    lengths = CERTAIN if certain else unsure()
    speed = replace(SPEED, places=12)
    fewer, more = (simulate(prompt, Ahead(running, some), speed, lengths) for some in (waiting[:-1], waiting))
    for quantile in (0.5, 0.95):
        assert 0 <= fewer.wait_s(quantile) <= more.wait_s(quantile) + 1e-9
    assert more.wait_s(0.5) <= more.wait_s(0.95)
    assert more.prefill_s >= took_s(1)
