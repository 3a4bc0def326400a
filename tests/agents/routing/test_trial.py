"""What a model begins to say is judged within tokens and milliseconds. The clock is the test's."""

from __future__ import annotations

from math import log
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agents.routing.policy import Decision, Doubt, Hold
from agents.routing.trial import Trial, Verdict, wanted
from inference.generation import TokenLogprob

MS = 1_000_000
SURE, LIKELY, UNLIKELY = 0.0, log(0.4), log(0.01)


def token(logprob: float, second: float = -20.0) -> TokenLogprob:
    return TokenLogprob(b"x", logprob, ((b"x", logprob), (b"y", second)))


def cascade(until_ns: int | None = None, **doubt: Any) -> Trial:
    return Trial(Decision("small", "cascade", "large", Hold(), Doubt(**doubt)), until_ns)


def by_step() -> Trial:
    return Trial(Decision("small", "a step with tools", "large"))


def fed(trial: Trial, *logprobs: float, text: str = " word", every_ms: float = 1.0) -> Verdict | None:
    verdict = None
    for at, logprob in enumerate(logprobs):
        verdict = verdict or trial.feed(text, 1, [token(logprob)], 1 + int(at * every_ms * MS))
    return verdict


def test_a_sure_answer_is_kept_after_eight_tokens() -> None:
    trial = cascade()
    assert fed(trial, *[SURE] * 7) is None
    assert trial.feed(" word", 1, [token(SURE)], 8 * MS) == Verdict(True, "sure enough")
    assert trial.held_ms == pytest.approx(8, abs=0.01)


def test_one_guessed_word_is_enough_for_the_other_model() -> None:
    assert fed(cascade(), SURE, SURE, UNLIKELY) == Verdict(False, "an unlikely token")


def test_an_answer_that_is_unlikely_in_the_mean_is_given_up_at_the_end_of_the_trial() -> None:
    assert fed(cascade(), *[LIKELY] * 8) == Verdict(False, "unlikely in the mean")


def test_a_narrow_choice_is_one_between_two_likely_tokens() -> None:
    trial = cascade(margin=0.2)
    assert trial.feed("x", 1, [token(log(0.5), log(0.45))], 1) == Verdict(False, "a narrow choice")
    assert cascade(margin=0.2).feed("x", 1, [token(log(0.6), log(0.3))], 1) is None


@pytest.mark.parametrize("text", ["I cannot tell", " I’m sorry, but", "Ich weiß nicht, ob", "SORRY"])
def test_who_refuses_is_not_sure(text: str) -> None:
    assert cascade().feed(text, 3, [token(SURE)] * 3, 1) == Verdict(False, "refuses")
    assert cascade().feed(f"Paul said: {text}", 3, [token(SURE)] * 3, 1) is None


def test_words_that_count_as_a_refusal_are_the_operators_choice() -> None:
    assert cascade(refusals=[]).feed("I cannot tell", 3, [], 1) is None


def test_a_slow_model_is_waited_for_no_longer_than_80_ms_from_its_first_token_on() -> None:
    trial = cascade()
    assert trial.feed("Well", 1, [token(SURE)], 5 * MS) is None
    assert trial.ends_ns == 85 * MS
    assert trial.feed(",", 1, [token(SURE)], 85 * MS) == Verdict(True, "sure enough")


def test_the_target_of_the_surface_ends_a_trial_before_its_time() -> None:
    trial = cascade(until_ns=20 * MS)
    assert trial.feed("Well", 1, [token(SURE)], 5 * MS) is None
    assert trial.ends_ns == 20 * MS
    late = cascade(until_ns=2 * MS)
    assert late.feed("Well", 1, [token(SURE)], 5 * MS) == Verdict(True, "sure enough")


def test_by_step_calls_are_the_small_models_and_answers_are_the_large_ones() -> None:
    assert by_step().called(1) == Verdict(True, "calls a tool")
    assert by_step().said(1) == Verdict(False, "an answer")
    assert by_step().broke(1) == Verdict(False, "breaks its format")
    assert cascade().called(1) is None and cascade().said(1) is None


def test_nobody_to_take_over_means_that_the_first_model_goes_on() -> None:
    trial = cascade()
    fed(trial, UNLIKELY)
    assert trial.keep("no large: QueueFull", 9 * MS).keeps
    assert trial.attributes["trial.kept"] is True
    assert trial.attributes["trial.reason"] == "no large: QueueFull"


@given(
    st.lists(st.tuples(st.floats(-12, 0), st.integers(0, 3), st.integers(0, 30 * MS)), min_size=1, max_size=40),
    st.one_of(st.none(), st.integers(0, 100 * MS)),
)
def test_every_trial_is_over_within_its_tokens_and_its_time_and_says_so_once(
    deltas: list[tuple[float, int, int]], until_ns: int | None
) -> None:
    trial, now = cascade(until_ns), 1
    verdict: Verdict | None = None
    for logprob, tokens, later_ns in deltas:
        told = trial.feed("x", tokens, [token(logprob)] * tokens, now)
        if verdict is not None:
            assert trial.verdict == verdict
        verdict = trial.verdict
        assert told == verdict
        assert verdict is not None or (trial.tokens < 8 and now < trial.ends_ns <= trial.began_ns + 80 * MS)
        now += later_ns
    assert trial.over(now) == trial.verdict
    assert trial.attributes["trial.tokens"] == trial.tokens


def test_a_client_gets_as_many_alternatives_as_it_asked_for() -> None:
    told = (token(SURE),)
    assert wanted(told, None) == ()
    assert wanted(told, 0) == (TokenLogprob(b"x", SURE),)
    assert wanted(told, 1) == (TokenLogprob(b"x", SURE, ((b"x", SURE),)),)
    assert wanted(told, 5) == told
