"""Sampling against its definitions."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from inference.sampler import CANDIDATES_MAX, LOGPROB_MIN, Sampler, largest, likelihoods
from inference.sequence import Sampling

ROW = np.log(np.array([0.5, 0.25, 0.15, 0.1], np.float32))


def draws(sampling: Sampling, count: int = 2000, row: np.ndarray[tuple[int], np.dtype[np.float32]] = ROW) -> list[int]:
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


def test_frequencies_follow_the_distribution() -> None:
    counts = np.bincount(draws(Sampling(seed=1), 20_000), minlength=4) / 20_000
    assert np.allclose(counts, [0.5, 0.25, 0.15, 0.1], atol=0.02)  # 0.02 is more than five standard deviations


def test_a_low_temperature_sharpens() -> None:
    share = draws(Sampling(temperature=0.5, seed=1), 5000).count(0) / 5000
    assert abs(share - 0.25 / (0.25 + 0.0625 + 0.0225 + 0.01)) < 0.04


def test_top_p_keeps_the_token_that_crosses_it() -> None:
    assert set(draws(Sampling(top_p=0.6, seed=1))) == {0, 1}


def test_top_k_and_min_p_cut_the_tail() -> None:
    assert set(draws(Sampling(top_k=3, seed=1))) == {0, 1, 2}
    assert set(draws(Sampling(min_p=0.4, seed=1))) == {0, 1}


@pytest.mark.parametrize(("top_k", "count"), [(None, CANDIDATES_MAX), (300, 300), (2000, 1000), (0, 1000)])
def test_a_top_k_is_honoured_whatever_it_is(top_k: int | None, count: int) -> None:
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
    (told,) = sampler.told([b"a", b"b", b"c", b"d"])
    assert (told.token, [token for token, _ in told.top]) == (b"d", [b"d", b"a"])
    assert abs(told.logprob) < 1e-6 and told.top[0][1] == told.logprob
    plain = Sampler(Sampling(temperature=0.1, top_logprobs=4))
    plain.draw(ROW)
    (told,) = plain.told([b"a", b"b", b"c", b"d"])
    assert np.allclose([logprob for _, logprob in told.top], ROW, atol=1e-6)


def test_a_token_that_cannot_come_has_a_number_too() -> None:
    row = np.array([0.0, -np.inf], np.float32)
    assert likelihoods(row, 0, 2) == [(0, 0.0), (0, 0.0), (1, LOGPROB_MIN)]


def test_nothing_is_told_unasked() -> None:
    sampler = Sampler(Sampling())
    sampler.draw(ROW)
    assert sampler.told([b"a", b"b", b"c", b"d"]) == ()


def test_the_row_is_left_as_it_was() -> None:
    row = ROW.copy()
    draws(Sampling(logit_bias={0: 5.0}, presence_penalty=1.0, seed=1), 5, row)
    assert np.array_equal(row, ROW)
