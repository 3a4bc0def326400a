"""Latencies by key, worker, status, cache and length of the prompt, alone and together, and by ranges of time, however
much is rolled up."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from uuid import UUID

import pytest

from migrations.pool import Database
from tests.worker.telemetry.latency.test_rollups import AGES_S, MONTH_S, principal, seen, turn
from worker.auth.scope import Scope
from worker.runs.record import TurnRecord
from worker.telemetry.latency import answer_list
from worker.telemetry.latency.answer_list import Search
from worker.telemetry.latency.measures import DAY_S, HOUR_S, MINUTE_S, POINTS_MAX, Slice, TimeRange, length_of
from worker.telemetry.latency.queries import LatencyQueries, LatencyQuery
from worker.telemetry.telemetry import Traces

LATER = 4_000_000_000.0


def read(tenant_id: UUID, *, new: int, cached: int, **facts: Any) -> TurnRecord:
    """An answer whose prompt had so many tokens."""
    record = turn(tenant_id, **facts)
    record.trace.spans[0].attributes |= {"new_tokens": new, "cached_tokens": cached}
    return record


def answers(tenant_id: UUID) -> Sequence[TurnRecord]:
    return [
        read(tenant_id, new=20, cached=80, key="key_1", ms=10, within_target=True),
        read(tenant_id, new=900, cached=0, key="key_1", ms=900, within_target=False),
        read(tenant_id, new=2000, cached=1000, key="key_2", ms=500, status="failed", within_target=False),
        read(tenant_id, new=50, cached=9000, ms=40),
    ]


PARTS: Sequence[tuple[dict[str, Any], Sequence[int]]] = [
    ({"key": "key_1"}, [0, 1]),
    ({"key": "key_9"}, []),
    ({"worker": "edge-1"}, [0, 1, 2, 3]),
    ({"worker": "edge-2"}, []),
    ({"status": "completed"}, [0, 1, 3]),
    ({"status": "late"}, [1]),
    ({"status": "failed"}, [2]),
    ({"cache": "hit"}, [3]),
    ({"cache": "partial"}, [0, 2]),
    ({"cache": "miss"}, [1]),
    ({"length": "short"}, [0]),
    ({"length": "medium"}, [1]),
    ({"length": "long"}, [2]),
    ({"length": "huge"}, [3]),
    ({"key": "key_1", "cache": "miss", "status": "completed", "surface": "chat"}, [1]),
    ({"key": "key_2", "cache": "miss"}, []),
]


@pytest.mark.parametrize("rolled_up", [False, True])
async def test_a_part_of_the_answers_has_the_numbers_of_its_answers(
    database: Database, tenant_id: UUID, rolled_up: bool
) -> None:
    traces, records = Traces(database, worker="edge-1"), answers(tenant_id)
    await traces.write(tenant_id, records)
    if rolled_up:
        await traces.roll_up()
    for part, places in PARTS:
        found = await seen(database, principal(tenant_id), **part)
        assert found["requests"] == len(places), part
        assert found["prompt_tokens"] == sum(records[place].prompt.total for place in places), part
        async with database.tenant(tenant_id) as connection:
            rows = await answer_list.rows(connection, Search(0, LATER, slice=Slice(**part)))
        assert {row["id"] for row in rows} == {records[place].id for place in places}, part


async def test_parts_count_once_however_often_and_late_they_are_rolled_up(database: Database, tenant_id: UUID) -> None:
    traces, me = Traces(database, worker="edge-1"), principal(tenant_id)
    for number in range(3):
        await traces.write(tenant_id, [turn(tenant_id, age_s=age, key="key_1") for age in AGES_S])
        before = await seen(database, me, key="key_1")
        await traces.roll_up()
        after = await seen(database, me, key="key_1")
        assert before["requests"] == after["requests"] == len(AGES_S) * (number + 1)
        assert before["ttft_ms"] == after["ttft_ms"] and before["spans"] == after["spans"]
    series = await LatencyQueries(database).series(me, LatencyQuery(MONTH_S, Slice(key="key_1")))
    assert sum(series["requests"]) == 3 * len(AGES_S)


async def test_what_many_answers_had_in_a_day_is_kept_short(
    database: Database, tenant_id: UUID, owner_dsn: str
) -> None:
    traces = Traces(database)
    await traces.write(tenant_id, [turn(tenant_id, age_s=3 * 86400, key="key_1") for _ in range(100)])
    await traces.write(tenant_id, [turn(tenant_id, age_s=3 * 86400, key="key_1") for _ in range(100)])
    before = await seen(database, principal(tenant_id), key="key_1")
    await traces.roll_up()
    async with database.tenant(tenant_id) as connection:
        sizes = await connection.fetch("select max(length(measures)) from latency_slices where resolution_s = 86400")
    assert sizes[0][0] < 4000
    assert (await seen(database, principal(tenant_id), key="key_1"))["spans"] == before["spans"]


async def test_parts_are_compared(database: Database, tenant_id: UUID) -> None:
    records = [read(tenant_id, new=20, cached=0, ms=300 + n) for n in range(20)]
    records += [read(tenant_id, new=5, cached=95, ms=30 + n) for n in range(20)]
    await Traces(database).write(tenant_id, records)
    missed, hit = (LatencyQuery(HOUR_S, Slice(cache=cache)) for cache in ("miss", "hit"))
    rows = (await LatencyQueries(database).comparison(principal(tenant_id), missed, hit))["rows"]
    prefill = next(row for row in rows if row["name"] == "prefill")
    assert (prefill["turns"], prefill["turns_then"], prefill["p50"]["verdict"]) == (20, 20, "slower")


async def test_keys_are_offered_to_their_tenant_and_workers_to_operators(
    database: Database, tenant_id: UUID, other_tenant_id: UUID
) -> None:
    name = f"edge-{tenant_id.hex[:6]}"
    await Traces(database, worker=name).write(tenant_id, answers(tenant_id))
    mine = (await seen(database, principal(tenant_id)))["facets"]
    assert (set(mine["key"]), mine["worker"]) == ({"key_1", "key_2"}, [])
    theirs = (await seen(database, principal(other_tenant_id)))["facets"]
    assert (theirs["key"], theirs["worker"]) == ([], [])
    everybodys = (await seen(database, principal(other_tenant_id, Scope.OPS), window_s=HOUR_S))["facets"]
    assert name in everybodys["worker"]


async def test_no_tenant_sees_a_part_of_another(database: Database, tenant_id: UUID, other_tenant_id: UUID) -> None:
    await Traces(database).write(tenant_id, answers(tenant_id))
    assert (await seen(database, principal(other_tenant_id), status="completed"))["requests"] == 0


async def test_who_sees_a_row_is_found_out_once_for_a_statement(database: Database, tenant_id: UUID) -> None:
    """For each row it took half of the time of a view over a month, and plans were made for a few hundred rows."""
    async with database.tenant(tenant_id) as connection:
        for table in ("latency", "latency_slices", "spending", "traces"):
            plan = "\n".join(row[0] for row in await connection.fetch(f"explain select * from {table}"))
            assert "InitPlan" in plan and "current_setting" not in plan.split("InitPlan")[0], plan


async def test_what_there_is_to_choose_does_not_depend_on_what_is_chosen(database: Database, tenant_id: UUID) -> None:
    await Traces(database).write(tenant_id, answers(tenant_id))
    everything, part = [await seen(database, principal(tenant_id), key=key) for key in (None, "key_9")]
    assert part["requests"] == 0 and part["facets"] == everything["facets"]


def test_every_prompt_has_one_length() -> None:
    lengths = [length_of(tokens) for tokens in (0, 1, 511, 512, 2047, 2048, 8191, 8192, 10**6)]
    assert lengths == [None, "short", "short", "medium", "medium", "long", "long", "huge", "huge"]


NOW = 1_800_000_000.0


@pytest.mark.parametrize(
    ("window_s", "step_s"),
    [(900, 60), (HOUR_S, 60), (6 * HOUR_S, 300), (DAY_S, 900), (7 * DAY_S, HOUR_S), (30 * DAY_S, 6 * HOUR_S)],
)
def test_the_steps_are_the_finest_that_can_be_drawn(window_s: int, step_s: int) -> None:
    time_range = TimeRange.of(NOW - window_s, NOW, NOW)
    assert time_range.step_s == step_s
    assert (
        time_range.start <= NOW - window_s < time_range.start + step_s
        and time_range.end - step_s < NOW <= time_range.end
    )
    assert (time_range.end - time_range.start) / step_s <= POINTS_MAX + 1


def test_minutes_that_are_gone_are_not_asked_for() -> None:
    assert TimeRange.of(NOW - 10 * DAY_S, NOW - 10 * DAY_S + HOUR_S, NOW).step_s == HOUR_S
    assert TimeRange.of(NOW - 100 * DAY_S, NOW - 99 * DAY_S, NOW).step_s == DAY_S


def test_a_sum_takes_whole_days_and_hours_a_chart_only_what_fits_its_steps() -> None:
    time_range = TimeRange.of(NOW - 7 * DAY_S, NOW, NOW)
    hours, days = time_range.parts(whole=True)
    assert time_range.start <= hours[0] <= days[0] < days[1] <= hours[1] <= time_range.end
    assert all(moment % DAY_S == 0 for moment in days) and all(moment % HOUR_S == 0 for moment in hours)
    assert time_range.parts(whole=False)[1] == (time_range.end, time_range.end)
    short = TimeRange(start=0, end=30 * MINUTE_S, step_s=MINUTE_S)
    assert short.parts(whole=True) == ((short.end, short.end), (short.end, short.end))
