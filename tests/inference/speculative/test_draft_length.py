"""How many tokens are drafted follows from what steps cost and what was accepted."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from inference.attention import step_parts
from inference.config import DRAFT_TOKENS_MAX
from inference.engine.step import StepCost
from inference.generation import PRIOR, Acceptance
from inference.speculative.draft_length import REST_STEPS, DraftLength, Stream

DRAWN = [float(np.random.default_rng(seed).random()) for seed in range(200)]  # to make a generator is dear


def costs(row_s: float, more_s: float, draft_s: float) -> DraftLength:
    """A step costs `row_s` for its first row and `more_s` for each further one; the drafter `draft_s` a row."""
    length = DraftLength(DRAFT_TOKENS_MAX)
    for rows in (1, 2, 4, 8, 16, 32, 64):
        length.cost.observe(rows, row_s + (rows - 1) * more_s)
        length.draft_cost.observe(rows, draft_s)
    return length


def stream(per_token: float, generated: int = 1000, missing: int = 1, *, slot: int = 0, room: int = 16) -> Stream:
    acceptance = Acceptance()
    for drawn in DRAWN:
        acceptance.observe(1, int(drawn < per_token))
    return Stream(slot, acceptance, generated, missing, room)


def settled(length: DraftLength, streams: list[Stream]) -> Counter[int]:
    for _ in range(20):
        length.choose(streams)
    return Counter(length.choose(streams) for _ in range(200))


def test_long_drafts_where_rows_are_free_and_the_draft_is_good() -> None:
    assert settled(costs(1.0, 0.0, 0.01), [stream(0.95)]).most_common(1)[0][0] >= 6


def test_no_drafts_where_rows_cost_as_much_as_steps() -> None:
    chosen = settled(costs(1.0, 1.0, 0.1), [stream(0.7)])
    assert chosen[0] >= 195  # and a trial now and then


def test_what_is_known_without_drafts_is_tried_only_where_it_would_pay_off_by_far() -> None:
    assert settled(replace(costs(1.0, 1.0, 0.1), tries=False), [stream(0.7)]) == {0: 200}
    dear = replace(costs(1.0, 1.0, 0.1), tries=False)
    assert 0 < sum(dear.choose([stream(0.97)]) > 0 for _ in range(200)) < 10


@pytest.mark.parametrize(("more_s", "drafts"), [(0.43, False), (0.3, True)])
def test_a_gain_that_an_estimate_cannot_tell_from_a_loss_is_none(more_s: float, drafts: bool) -> None:
    length = replace(costs(1.0, more_s, 0.0), tries=False, longest=1)
    assert (length.choose([replace(stream(0.5), acceptance=Acceptance.believed(0.5))]) > 0) is drafts


def test_one_slow_step_does_not_end_drafts_for_good() -> None:
    """The first step of each size may be slow; no draft, no other step of that size."""
    length = DraftLength(8, tries=False)
    for _ in range(20):
        length.cost.observe(1, 1.0)
    length.cost.observe(3, 20.0)
    for _ in range(400):
        if drafted := length.choose([stream(0.97)]):
            length.cost.observe(1 + drafted, 1.0 + 0.1 * drafted)
    assert length.choose([stream(0.97)]) >= 3


def test_what_changes_with_any_token_is_reconsidered_at_every_step_of_few_streams() -> None:
    """A copy begins: a rest would miss its first tokens."""
    length = replace(costs(1.0, 0.1, 0.0), tries=False)
    assert length.choose([stream(0.01)]) == 0
    assert not length.rests()
    assert length.choose([stream(0.95)]) > 0
    assert length.choose([stream(0.01, slot=slot) for slot in range(32)]) == 0
    assert [length.rests() for _ in range(5)] == [True] * 4 + [False]


def test_shorter_drafts_for_a_worse_draft_model() -> None:
    good = settled(costs(1.0, 0.1, 0.05), [stream(0.95)]).most_common(1)[0][0]
    poor = settled(costs(1.0, 0.1, 0.05), [stream(0.5)]).most_common(1)[0][0]
    assert 0 < poor < good


def test_a_short_answer_is_not_worth_reading_a_long_prompt_for() -> None:
    length = costs(1.0, 0.05, 0.05)
    length.draft_cost.observe(1000, 50.0)
    assert settled(length, [stream(0.8, generated=5, missing=1000)])[0] == 200
    assert settled(length, [stream(0.8, generated=500, missing=1000)])[0] < 10


@pytest.mark.parametrize(("parted", "drafts"), [(False, True), (True, False)])
def test_one_of_many_streams_has_no_draft_that_would_be_computed_apart_from_the_others(
    parted: bool, drafts: bool
) -> None:
    """Eight rows, and three of one slot, are two readings of the model where slots have KV streams of their own."""
    length = replace(costs(1.0, 0.02, 0.0), parted=parted)
    streams = [stream(0.9, slot=slot, room=3 if slot == 2 else 0) for slot in range(8)]
    assert (settled(length, streams)[0] < 100) is drafts


def test_drafts_of_all_streams_are_one_part() -> None:
    length = replace(costs(1.0, 0.02, 0.0), parted=True)
    assert settled(length, [stream(0.9, slot=slot, room=3) for slot in range(8)])[3] > 190


def test_a_stream_without_luck_is_not_slowed_beyond_its_pace_for_the_others() -> None:
    streams = [*(stream(0.95, slot=slot) for slot in range(3)), stream(0.01, slot=3)]
    length = costs(1.0, 0.05, 0.05)
    longest = max(settled(length, streams))
    for _ in range(20):
        length.choose(streams, 2.0)
    paced = {length.choose(streams, 2.0) for _ in range(200)}
    assert longest >= 6
    assert 0 < max(paced) < longest


def test_a_pace_that_no_step_keeps_forbids_no_draft_that_helps_everybody() -> None:
    streams = [stream(0.95, slot=slot) for slot in range(2)]
    length = costs(1.0, 0.05, 0.05)
    assert max({length.choose(streams, 0.01) for _ in range(200)}) >= 6


def test_nothing_is_drafted_before_the_cost_of_a_step_is_known() -> None:
    length = DraftLength(8, cost=StepCost())
    assert length.choose([stream(0.9)]) == 0


def test_acceptance_starts_at_a_belief_and_follows_what_happens() -> None:
    acceptance = Acceptance()
    assert acceptance.per_token == pytest.approx(PRIOR)
    for _ in range(50):
        acceptance.observe(4, 1)
    assert acceptance.per_token == pytest.approx(0.5, abs=0.01)  # one right, one wrong each time
    assert (acceptance.drafted, acceptance.accepted) == (200, 50)


@pytest.mark.parametrize("longest", range(1, DRAFT_TOKENS_MAX + 1))
def test_the_longest_draft_that_is_allowed_is_made_where_it_pays(longest: int) -> None:
    length = replace(costs(1.0, 0.0, 0.0001), longest=longest)
    assert settled(length, [stream(1.0)]).most_common(1)[0][0] == longest


def test_a_stream_without_room_costs_its_row_and_promises_nothing() -> None:
    """Rows are as dear as they come: one good stream is worth its draft, and full ones beside it change nothing."""
    full = replace(stream(0.95), room=0)
    assert settled(costs(1.0, 0.2, 0.01), [full, full])[0] == 200
    alone = settled(costs(1.0, 0.2, 0.01), [stream(0.95)]).most_common(1)[0][0]
    beside = settled(costs(1.0, 0.2, 0.01), [stream(0.95), full, full]).most_common(1)[0][0]
    assert 0 < beside <= alone


def test_no_draft_is_longer_than_the_room_there_is() -> None:
    length = costs(1.0, 0.0, 0.01)
    assert max(settled(length, [replace(stream(0.95), room=3)])) == 3


def test_after_a_rest_the_question_is_asked_again() -> None:
    length = costs(1.0, 0.0, 0.01)
    length.rest(REST_STEPS)
    assert [length.rests() for _ in range(REST_STEPS + 1)] == [True] * REST_STEPS + [False]


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        ([], []),
        ([(3, 1)], [1]),
        ([(0, 1), (1, 1), (2, 1)], [3]),
        ([(0, 1), (2, 1), (3, 1)], [1, 2]),
        ([(0, 4), (1, 4)], [8]),
        ([(0, 1), (1, 4), (2, 1)], [3, 3]),
        ([(0, 4), (1, 1), (2, 4)], [3, 3, 3]),
        ([(0, 2), (1, 4), (2, 4)], [6, 4]),
    ],
)
def test_rows_of_neighbours_are_together_as_far_as_all_have_some(
    rows: list[tuple[int, int]], expected: list[int]
) -> None:
    assert [len(slots) * each for slots, each in step_parts(rows)] == expected
