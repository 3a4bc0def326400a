"""The statistics of the benchmarks."""

from __future__ import annotations

import pytest

from benchmarks.engine.measures import (
    GAP_P95,
    THROUGHPUT,
    TPOT,
    TTFT,
    Reply,
    measure,
    medians,
    percentile,
    ratios,
)
from benchmarks.engine.rounds import Result, goal
from benchmarks.engine.today import table
from benchmarks.fanout.floor import Answers


def test_a_reply_tells_its_times() -> None:
    reply = Reply(asked_s=10.0, pieces_s=(10.5, 10.6, 11.0))
    assert reply.ttft_s == 0.5
    assert reply.tpot_s == pytest.approx(0.25)
    assert reply.gaps_s == pytest.approx([0.1, 0.4])


def test_a_reply_of_one_token_has_no_pace() -> None:
    assert Reply(0.0, (1.0,)).tpot_s is None
    assert TPOT not in measure([Reply(0.0, (1.0,))])


def test_gaps_within_a_span_are_those_that_overlap_it() -> None:
    reply = Reply(0.0, (1.0, 2.0, 4.0, 7.0, 11.0))
    assert reply.gaps_within(3.0, 5.0) == [2.0, 3.0]
    assert reply.gaps_within(1.5, 1.6) == [1.0]


@pytest.mark.parametrize(("percent", "value"), [(0, 1.0), (50, 2.0), (75, 3.0), (95, 4.0), (100, 4.0)])
def test_percentiles_are_values_that_occurred(percent: float, value: float) -> None:
    assert percentile([4.0, 1.0, 3.0, 2.0], percent) == value


def test_nothing_has_no_percentile() -> None:
    with pytest.raises(ValueError, match="no values"):
        percentile([], 50)


def test_throughput_counts_from_the_first_request_to_the_last_token() -> None:
    numbers = measure([Reply(0.0, (1.0, 2.0)), Reply(1.0, (2.0, 4.0))])
    assert numbers[THROUGHPUT] == 1.0
    assert numbers[TTFT] == 1000.0
    assert numbers[GAP_P95] == 2000.0


def test_one_disturbed_round_does_not_count() -> None:
    rounds = [{TTFT: 10.0}, {TTFT: 900.0}, {TTFT: 12.0}]
    assert medians(rounds) == {TTFT: 12.0}


def test_ratios_compare_within_a_round() -> None:
    ours, theirs = [{TTFT: 5.0}, {TTFT: 50.0}, {TTFT: 6.0}], [{TTFT: 10.0}, {TTFT: 100.0}, {TTFT: 10.0}]
    assert ratios(ours, theirs) == {TTFT: 0.5}


def test_goals_bound_rates_from_below_and_times_from_above() -> None:
    rate, time = goal("warm, 8 clients", THROUGHPUT), goal("warm, 8 clients", TTFT)
    assert rate and rate.met(1.1) and not rate.met(0.9)
    assert time and time.met(0.4) and not time.met(0.6)
    assert goal("warm, 8 clients", GAP_P95) is None
    one, sixteen = goal("warm, 1 client", TTFT), goal("warm, 16 clients", TTFT)
    assert one and sixteen and one.bound == 1.0 and sixteen.bound == 0.3


def test_the_table_says_whether_a_goal_was_reached() -> None:
    result = Result("0.1B", "cold, 8 clients at once", "-fa off", ours=[{TTFT: 4.0}], theirs=[{TTFT: 10.0}])
    assert result.lines() == ["| 0.1B | cold, 8 clients at once | -fa off | TTFT p50 | 10.0 | 4.0 | 0.40 | ≤ 0.5 ✓ |"]


def test_the_table_of_today_has_a_row_for_each_workload() -> None:
    rounds = [{TTFT: 40.0, THROUGHPUT: 90.0}, {TTFT: 60.0, THROUGHPUT: 110.0}]
    theirs = [{TTFT: 80.0, THROUGHPUT: 100.0}, {TTFT: 100.0, THROUGHPUT: 100.0}]
    _, _, row = table([Result("0.1B", "warm, 1 client", "-fa off", rounds, theirs)])
    assert row == "| warm, 1 client | 90, 50 | 0.55 | 100, 100 | 1.00 |"


def test_a_bare_server_sends_the_events_of_the_worker() -> None:
    events = [
        b'data: {"delta":{"content":""}}\n\n',
        *(b'data: {"delta":{"content":"%b"}}\n\n' % t for t in (b"a", b"b")),
    ]
    end = b"data: [DONE]\n\n"
    packets = [events[0] + events[1], events[2], end]
    chunks = b"".join(b"%x\r\n%b\r\n" % (len(packet), packet) for packet in packets)
    sent = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + chunks + b"0\r\n\r\n"
    assert Answers(sent, tokens=2, steps_per_s=1.0).parts() == (events[0], events[2], end)
