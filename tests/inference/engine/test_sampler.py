"""Sampling against its definitions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import sqrt
from typing import Any, TypeAlias

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from inference.engine.sampler import LOGPROB_MIN, Sampler, draw, largest, likelihoods
from inference.generation import Sampling

ROW = np.log(np.array([0.5, 0.25, 0.15, 0.1], np.float32))


Row: TypeAlias = NDArray[np.floating[Any]]


def draws(sampling: Sampling, count: int = 2000, row: Row = ROW) -> list[int]:
    sampler = Sampler(sampling)
    return [sampler.draw(row) for _ in range(count)]


@given(st.integers(1, 20_000), st.integers(1, 300), st.integers(0, 2**32 - 1), st.integers(0, 6))
def test_largest_finds_the_largest_in_order(size: int, count: int, seed: int, decimals: int) -> None:
    row = np.random.default_rng(seed).normal(size=size).round(decimals).astype(np.float32)
    count = min(count, size)
    assert largest(row, count).tolist() == np.argsort(-row, kind="stable")[:count].tolist()


def test_the_largest_of_what_a_mask_left_are_found() -> None:
    row = np.full(10_000, -np.inf, np.float32)
    row[[7, 5000, 9999]] = 1.0, 3.0, 2.0
    assert largest(row, 20)[:3].tolist() == [5000, 9999, 7]


def test_temperature_zero_takes_the_most_likely() -> None:
    assert set(draws(Sampling(temperature=0), 20)) == {0}


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({}, True),
        ({"temperature": 1.0}, False),
        ({"logit_bias": {1: 1.0}}, False),
        ({"logit_bias": {1: -100.0}}, True),  # looked at where it is drawn
        ({"logit_bias": {1: -100.0, 2: 1.0}}, False),
        ({"presence_penalty": 0.5}, False),
        ({"frequency_penalty": 0.5}, False),
        ({"repeat_penalty": 1.1}, False),
        ({"top_logprobs": 0}, False),
        ({"top_k": 3, "top_p": 0.5, "seed": 4}, True),
    ],
)
def test_only_what_asks_for_no_more_than_the_likeliest_token_takes_it_unseen(
    change: dict[str, Any], expected: bool
) -> None:
    assert Sampler(replace(Sampling(temperature=0), **change)).takes_most_likely is expected


@pytest.mark.parametrize("more", [{}, {"top_k": 4}, {"top_p": 0.999}, {"logit_bias": {0: -100.0, 9: 0.0}}])
def test_a_token_out_of_reach_leaves_its_odds_to_the_others(more: dict[str, Any]) -> None:
    row = np.append(ROW, np.full(6, -50, np.float32))
    sampling = replace(Sampling(seed=1, logit_bias={0: -100.0}), **more)
    counts = np.bincount(draws(sampling, 5000, row), minlength=4) / 5000
    assert np.allclose(counts[:4], [0, 0.5, 0.3, 0.2], atol=0.03) and not counts[0]
    assert set(draws(replace(sampling, temperature=0), 20, row)) == {1}
    assert np.array_equal(row[: len(ROW)], ROW)


def test_where_nothing_else_is_in_reach_a_token_is_drawn_all_the_same() -> None:
    assert set(draws(Sampling(temperature=0, logit_bias=dict.fromkeys(range(4), -100.0)))) == {0}


def test_frequencies_follow_the_distribution() -> None:
    counts = np.bincount(draws(Sampling(seed=1), 20_000), minlength=4) / 20_000
    assert np.allclose(counts, [0.5, 0.25, 0.15, 0.1], atol=0.02)  # 0.02 is more than five standard deviations


def softmax(row: Row, temperature: float = 1.0) -> Row:
    weights: Row = np.exp((row.astype(np.float64) - row.max()) / temperature)
    weights /= weights.sum()
    return weights


def fits(drawn: Sequence[int], expected: Row, groups: int = 20) -> bool:
    """Chi-square of draws against a distribution, tokens grouped in order of their likelihood; true for a sampler that
    is right but for one time in a million (five standard deviations, mean f and variance 2f, and some)."""
    order = np.argsort(-expected, kind="stable")
    before = np.cumsum(expected[order]) - expected[order]
    group = np.empty(len(expected), np.intp)
    group[order] = np.minimum(groups * before, groups - 1).astype(np.intp)
    wanted = len(drawn) * np.bincount(group, expected, groups)
    seen = np.bincount(group[drawn], minlength=groups)[wanted > 0]
    wanted = wanted[wanted > 0]
    freedom = len(wanted) - 1
    chi_square = float(((seen - wanted) ** 2 / wanted).sum())
    return chi_square < freedom + 5 * sqrt(2 * freedom) + 10


@pytest.mark.parametrize("temperature", [0.7, 1.0, 1.5])
@pytest.mark.parametrize("deviation", [1.0, 3.0])
@pytest.mark.parametrize("size", [50, 600, 5000])
def test_a_draw_has_the_distribution_of_the_whole_row(size: int, deviation: float, temperature: float) -> None:
    row = np.random.default_rng(size).normal(0, deviation, size).astype(np.float32)
    drawn = draws(Sampling(temperature=temperature, seed=1), 5000, row)
    assert fits(drawn, softmax(row, temperature))
    assert not fits(drawn, softmax(row, 1.3 * temperature)), "the test tells one distribution from another"


def test_a_row_of_equal_values_is_drawn_from_evenly() -> None:
    drawn = draws(Sampling(seed=1), 20_000, np.zeros(1000, np.float32))
    assert fits(drawn, np.full(1000, 1 / 1000), groups=1000)


@pytest.mark.parametrize("temperature", [1e-30, 1e-6])
def test_a_temperature_of_nearly_zero_takes_the_most_likely(temperature: float) -> None:
    row = np.random.default_rng(0).normal(0, 3, 5000).astype(np.float32)
    assert set(draws(Sampling(temperature=temperature), 20, row)) == {int(row.argmax())}


class Counting(np.random.Generator):
    """Counts the random numbers that are asked for."""

    def __init__(self) -> None:
        super().__init__(np.random.PCG64(0))
        self.numbers = 0

    def random(self, size: int) -> Row:  # type: ignore[override] # as it is asked
        self.numbers += size
        return super().random(size)

    def standard_exponential(self, size: int, dtype: type = np.float64) -> Row:  # type: ignore[override] # as above
        self.numbers += size
        return super().standard_exponential(size, dtype)


@pytest.mark.parametrize("deviation", [1.0, 3.0, 6.0])
def test_few_tokens_of_a_large_vocabulary_get_noise(deviation: float) -> None:
    row = np.random.default_rng(0).normal(0, deviation, 128_000).astype(np.float32)
    random = Counting()
    for _ in range(50):
        draw(row, 1.0, random)
    assert random.numbers / 50 < len(row) / 50


def test_without_a_top_k_no_candidates_are_made(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(row: Row, count: int) -> NDArray[np.intp]:
        raise AssertionError("a part of the row was put in order")

    monkeypatch.setattr("inference.engine.sampler.largest", refuse)
    row = np.random.default_rng(0).normal(0, 3, 5000).astype(np.float32)
    for sampling in (Sampling(), Sampling(temperature=0.7, top_p=0.9), Sampling(temperature=0.7, min_p=0.1)):
        draws(sampling, 50, row)


@pytest.mark.parametrize("temperature", [0.7, 1.0, 2.0])
@pytest.mark.parametrize("sampling", [Sampling(top_p=0.9), Sampling(min_p=0.02), Sampling(top_p=0.8, min_p=0.005)])
@pytest.mark.parametrize("top_k", [0, 50])
def test_what_is_left_is_drawn_from_as_the_definitions_say(top_k: int, sampling: Sampling, temperature: float) -> None:
    row = np.random.default_rng(0).normal(0, 2, 3000).astype(np.float32)
    order = np.argsort(-row)[: top_k or len(row)]
    p = softmax(row[order])
    keep = (np.cumsum(p) - p < sampling.top_p) & (p >= sampling.min_p * p[0])
    expected = np.zeros(len(row))
    expected[order[keep]] = softmax(row[order[keep]], temperature)
    drawn = draws(replace(sampling, top_k=top_k, temperature=temperature, seed=1), 2000, row)
    assert expected[drawn].min() > 0
    assert fits(drawn, expected)


@pytest.mark.parametrize(("top_p", "min_p"), [(0.0, 0.0), (1.0, 1.0), (0.0, 1.0), (1e-9, 0.0)])
def test_the_most_likely_token_is_always_left(top_p: float, min_p: float) -> None:
    assert set(draws(Sampling(top_p=top_p, min_p=min_p), 50)) == {0}


def test_a_low_temperature_sharpens() -> None:
    share = draws(Sampling(temperature=0.5, seed=1), 5000).count(0) / 5000
    assert abs(share - 0.25 / (0.25 + 0.0625 + 0.0225 + 0.01)) < 0.04


def test_top_p_keeps_the_token_that_crosses_it() -> None:
    assert set(draws(Sampling(top_p=0.6, seed=1))) == {0, 1}


def test_top_k_and_min_p_cut_the_tail() -> None:
    assert set(draws(Sampling(top_k=3, seed=1))) == {0, 1, 2}
    assert set(draws(Sampling(min_p=0.4, seed=1))) == {0, 1}


@pytest.mark.parametrize(("top_k", "count"), [(300, 300), (2000, 1000), (0, 1000)])
def test_a_top_k_is_honoured_whatever_it_is(top_k: int, count: int) -> None:
    flat = -np.arange(1000, dtype=np.float32) / 1e6
    drawn = draws(Sampling(top_k=top_k, seed=1), 10_000, flat)
    assert max(drawn) < count <= 1.05 * max(drawn)


def test_the_same_seed_draws_the_same() -> None:
    assert draws(Sampling(seed=5), 50) == draws(Sampling(seed=5), 50)
    assert draws(Sampling(seed=5), 50) != draws(Sampling(seed=6), 50)


def test_logit_bias_forbids_and_forces() -> None:
    assert 0 not in draws(Sampling(logit_bias={0: -100.0}, seed=1))
    assert set(draws(Sampling(logit_bias={3: 100.0}, temperature=0), 5)) == {3}


def test_penalties_count_what_was_drawn() -> None:
    assert draws(Sampling(temperature=0, presence_penalty=1.0), 3) == [0, 1, 0]
    assert draws(Sampling(temperature=0, frequency_penalty=2.0), 4) == [0, 1, 2, 3]
    assert draws(Sampling(temperature=0, repeat_penalty=3.0), 2) == [0, 1]


def test_likelihoods_are_told_after_bias_and_before_temperature() -> None:
    sampler = Sampler(Sampling(temperature=0, top_logprobs=2, logit_bias={3: 100.0}))
    assert sampler.draw(ROW) == 3
    (told,) = sampler.logprobs_of([b"a", b"b", b"c", b"d"])
    assert (told.token, [token for token, _ in told.top]) == (b"d", [b"d", b"a"])
    assert abs(told.logprob) < 1e-6 and told.top[0][1] == told.logprob
    plain = Sampler(Sampling(temperature=0.1, top_logprobs=4))
    plain.draw(ROW)
    (told,) = plain.logprobs_of([b"a", b"b", b"c", b"d"])
    assert np.allclose([logprob for _, logprob in told.top], ROW, atol=1e-6)


def test_a_token_that_cannot_come_has_a_number_too() -> None:
    row = np.array([0.0, -np.inf], np.float32)
    assert likelihoods(row, 0, 2) == [(0, 0.0), (0, 0.0), (1, LOGPROB_MIN)]


def test_nothing_is_told_unasked() -> None:
    sampler = Sampler(Sampling())
    sampler.draw(ROW)
    assert sampler.logprobs_of([b"a", b"b", b"c", b"d"]) == ()


def test_the_row_is_left_as_it_was() -> None:
    row = ROW.copy()
    draws(Sampling(logit_bias={0: 5.0}, presence_penalty=1.0, seed=1), 5, row)
    assert np.array_equal(row, ROW)


@pytest.mark.parametrize("change", [{}, {"top_p": 0.9}, {"top_k": 100}, {"presence_penalty": 0.5}])
def test_with_a_seed_the_rest_of_an_answer_is_drawn_as_it_was_behind_the_tokens_so_far(change: dict[str, Any]) -> None:
    sampling, random = Sampling(seed=11, **change), np.random.default_rng(0)
    rows = [random.normal(0, 2, 3000).astype(np.float32) for _ in range(12)]
    sampler = Sampler(sampling)
    drawn = [sampler.draw(row) for row in rows]
    for place in (1, 6, 11):
        again = Sampler(sampling, written=drawn[:place])
        assert [again.draw(row) for row in rows[place:]] == drawn[place:]
    assert len({Sampler(replace(sampling, seed=seed)).draw(rows[0]) for seed in range(30)}) > 5
    assert len(set(draws(sampling, 50, rows[0]))) > 5  # its places differ
