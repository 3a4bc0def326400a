from __future__ import annotations

import pytest

from agents.routing.policy import Speed


def test_before_anything_was_measured_a_larger_model_costs_more() -> None:
    small, large = Speed.of_size(1_000_000), Speed.of_size(10_000_000)
    assert (
        small.cost(400, 1.0, warm=False, is_loaded=True).price < large.cost(400, 1.0, warm=False, is_loaded=True).price
    )


def test_the_first_step_takes_the_place_of_the_guess_and_later_ones_a_tenth() -> None:
    speed = Speed.of_size(1_000_000_000)
    speed.learn(100, 1.0, 50, 5.0)
    assert (speed.prefill_token_s, speed.decode_token_s) == pytest.approx((0.01, 0.1))
    speed.learn(100, 2.0, 50, 5.0)
    assert speed.prefill_token_s == pytest.approx(0.011)


def test_a_few_tokens_teach_nothing_of_the_pace() -> None:
    speed = Speed.of_size(1_000_000)
    before = (speed.prefill_token_s, speed.decode_token_s)
    speed.learn(1, 5.0, 2, 5.0)
    assert (speed.prefill_token_s, speed.decode_token_s) == before


def test_what_is_cached_is_not_read_and_what_is_not_loaded_has_to_be() -> None:
    speed = Speed(prefill_token_s=0.01, decode_token_s=0.0, load_s=2.0)
    cold = speed.cost(4000, 3.0, warm=False, is_loaded=True, cached_chars=3600)
    warm = speed.cost(4000, 3.0, warm=True, is_loaded=True, cached_chars=3600)
    assert (cold.seconds, cold.price) == pytest.approx((10, 30))
    assert warm.seconds == pytest.approx(1) and warm.warm
    assert speed.cost(4000, 3.0, warm=True, is_loaded=False, cached_chars=3600).seconds == pytest.approx(3)
