"""Each event is told once, in order, with its own number; where some may be missing the next one says so."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from worker.runs.continuation import GAP, NOT_STORED, UNSTORED_EVENTS_MAX, WORKER_STOPPED, closing_events, events_after

BODY = {"id": "resp_1", "status": "in_progress", "output": []}


def events(*numbers: int) -> list[dict[str, Any]]:
    return [{"type": "x", "sequence_number": number} for number in numbers]


def numbers(told: tuple[dict[str, Any], ...]) -> list[int]:
    return [event["sequence_number"] for event in told]


@given(st.lists(st.tuples(st.integers(0, 20), st.integers(0, 20)), max_size=8), st.integers(-1, 20))
def test_batches_that_overlap_are_told_once(spans: list[tuple[int, int]], after: int) -> None:
    stored = [event for first, length in spans for event in events(*range(first, first + length))]
    told = numbers(events_after(stored, after, sealed=True))
    assert told == sorted({event["sequence_number"] for event in stored if event["sequence_number"] > after})


def test_what_may_still_come_is_waited_for() -> None:
    assert numbers(events_after(events(0, 1, 3), -1, sealed=False)) == [0, 1]
    assert numbers(events_after(events(3), 2, sealed=False)) == [3]


def test_what_will_not_come_any_more_is_marked_on_the_next_event() -> None:
    told = events_after(events(0, 1, 4, 5), -1, sealed=True)
    assert [event.get(GAP) for event in told] == [None, None, {"after": 1, "reason": NOT_STORED}, None]


def test_the_last_words_come_after_everything_that_can_have_been_told() -> None:
    ended = {**BODY, "status": "failed"}
    (last,) = closing_events(BODY, ended, events(0, 1, 2))
    assert (last["type"], last["response"], last["sequence_number"]) == (
        "response.failed",
        ended,
        2 + UNSTORED_EVENTS_MAX,
    )
    assert last[GAP] == {"after": 2, "reason": WORKER_STOPPED}
    assert events_after([*events(0, 1, 2), last], 99, sealed=True) == (last,)


def test_an_answer_of_which_nothing_is_stored_has_a_beginning_all_the_same() -> None:
    told = closing_events(BODY, {**BODY, "status": "failed"}, ())
    assert [event["type"] for event in told] == ["response.created", "response.in_progress", "response.failed"]
    assert [event["sequence_number"] for event in told] == [0, 1, 1 + UNSTORED_EVENTS_MAX]
    assert told[0]["response"] == BODY
