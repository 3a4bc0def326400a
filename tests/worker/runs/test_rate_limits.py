"""Rates of keys, on a clock of their own and through the official headers."""

from __future__ import annotations

from typing import Any
from uuid import uuid4

import pytest
from hypothesis import given
from hypothesis import strategies as st

from migrations.pool import Database
from tests.scripted import ScriptedModel
from tests.worker.answering import MODEL, post, services_with
from tests.worker.harness import SECRET, serving
from worker.auth.keys import Keys
from worker.auth.principal import KeyLimits, Principal
from worker.errors import ApiError
from worker.runs.admission import KEYS_MAX, RateLimits, duration


def key(requests: int | None = None, tokens: int | None = None, name: str = "key_1") -> Principal:
    bounds = KeyLimits(requests_per_minute=requests, tokens_per_minute=tokens)
    return Principal(uuid4(), name, frozenset(), "api_key", bounds)


def test_a_minutes_worth_may_be_used_at_once_and_comes_back_evenly() -> None:
    rates, mine = RateLimits(), key(requests=6)
    for _ in range(6):
        rates.take(mine, 0.0)
    with pytest.raises(ApiError) as refused:
        rates.take(mine, 0.0)
    assert refused.value.status == 429
    assert refused.value.retry_after_s == pytest.approx(10)
    assert rates.headers(mine, 0.0) == {
        "X-RateLimit-Limit-Requests": "6",
        "X-RateLimit-Remaining-Requests": "0",
        "X-RateLimit-Reset-Requests": "1m0s",
    }
    rates.take(mine, 10.0)
    rates.take(key(requests=6, name="key_2"), 10.0)


def test_what_a_request_took_counts_when_it_is_over_and_its_mean_before() -> None:
    rates, mine = RateLimits(), key(tokens=1000)
    rates.give_back(mine, rates.take(mine, 0.0), 0.0)
    rates.charge(mine, 700, 0.0)
    assert rates.headers(mine, 0.0)["X-RateLimit-Remaining-Tokens"] == "300"
    rates.take(mine, 0.0)
    rates.take(mine, 0.0)
    with pytest.raises(ApiError, match="1000 tokens per minute") as refused:  # two are on their way
        rates.take(mine, 0.0)
    assert refused.value.retry_after_s is not None
    assert 0 < refused.value.retry_after_s < 60


def test_refusals_do_not_teach_that_requests_take_nothing() -> None:
    rates, mine = RateLimits(), key(tokens=1000)
    for _ in range(20):
        rates.charge(mine, 700, 0.0)
    minutes_later_s = 60.0 * 20
    for _ in range(20):
        rates.charge(mine, 0, minutes_later_s)
    rates.take(mine, minutes_later_s)
    with pytest.raises(ApiError):
        rates.take(mine, minutes_later_s)


@given(st.lists(st.tuples(st.floats(0, 5), st.integers(0, 400)), max_size=200))
def test_in_no_minute_more_is_let_in_than_two_minutes_worth(asked: list[tuple[float, int]]) -> None:
    """What was saved, and what came back meanwhile."""
    rates, mine, now_s, taken = RateLimits(), key(requests=10), 0.0, list[float]()
    for pause_s, _ in asked:
        now_s += pause_s
        try:
            rates.take(mine, now_s)
        except ApiError as refused:
            assert refused.retry_after_s
            rates.take(mine, now_s := now_s + refused.retry_after_s + 1e-6)
        taken.append(now_s)
    assert all(sum(at <= each < at + 60 for each in taken) <= 20 for at in taken)


def test_who_has_no_rates_is_not_counted_and_keys_are_bounded() -> None:
    rates = RateLimits()
    free = Principal(uuid4(), "key_0", frozenset(), "api_key", KeyLimits(steps=4))
    assert (rates.take(free, 0.0), rates.headers(free, 0.0)) == (0.0, {})
    for number in range(KEYS_MAX + 5):
        rates.take(key(requests=1, name=f"key_{number}"), 0.0)
    rates.take(key(requests=1, name="key_1"), 0.0)  # it was forgotten


@pytest.mark.parametrize(("seconds", "told"), [(0.12, "120ms"), (6.5, "6.5s"), (63.2, "1m3s"), (0, "0ms")])
def test_times_are_told_as_openai_tells_them(seconds: float, told: str) -> None:
    assert duration(seconds) == told


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/responses", {"input": "hi"}),
        ("/v1/responses", {"input": "hi", "background": True}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "hi"}]}),
    ],
)
async def test_a_key_is_told_what_is_left_and_refused_when_nothing_is(
    database: Database, path: str, body: dict[str, Any]
) -> None:
    keys = Keys(database, SECRET)
    bounds = KeyLimits(requests_per_minute=2, tokens_per_minute=10_000)
    secret = (await keys.create(await keys.tenant(f"test-{uuid4()}"), "test", bounds=bounds))[1]
    async with serving(services_with(database, ScriptedModel(["Hello."], name=MODEL))) as client:
        client.session.headers["Authorization"] = f"Bearer {secret}"
        await post(client, path, body)
        async with client.post(path, json=body) as answer:
            assert answer.status == 200
            assert answer.headers["x-ratelimit-remaining-requests"] == "0"
            assert 0 < int(answer.headers["x-ratelimit-remaining-tokens"]) <= 10_000
        async with client.post(path, json=body) as refused:
            assert refused.status == 429
            assert 20_000 < int(refused.headers["retry-after-ms"]) <= 30_000
