"""Whatever is rolled up, late or twice: every value counts once, and for whom it concerns."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Callable
from typing import Any
from uuid import UUID

import asyncpg
import pytest

from inference.trace import Trace
from migrations.pool import Database
from worker.auth.principal import Principal
from worker.auth.scope import Scope
from worker.runs.record import OTHER_SPAN, SPAN_NAMES_MAX, TurnRecord
from worker.telemetry.latency import spending
from worker.telemetry.latency.measures import DAY_S, HOUR_S, Facts, Measures, Slice, Tally
from worker.telemetry.latency.queries import LatencyQueries, LatencyQuery
from worker.telemetry.latency.rollups import LoadSampler, Peak
from worker.telemetry.telemetry import Traces

MONTH_S = 30 * DAY_S


def principal(tenant_id: UUID, *scopes: Scope) -> Principal:
    return Principal(tenant_id, "key_1", frozenset(scopes), "api_key")


def turn(tenant_id: UUID, *, age_s: float = 0, ms: float = 10, **facts: Any) -> TurnRecord:
    trace = Trace(started_at=time.time() - age_s)
    trace.add("prefill", trace.start_ns, trace.start_ns + int(ms * 1e6), new_tokens=20, cached_tokens=80)
    trace.end_ns = trace.start_ns + int(ms * 1e6)
    known = {"status": "completed", "surface": "chat", "model": "demo", "response_id": "resp_1", "ttft_ms": ms}
    return TurnRecord(trace, tenant_id, **{**known, **facts})


async def seen(database: Database, who: Principal, window_s: float = MONTH_S, **slice: Any) -> dict[str, Any]:
    return await LatencyQueries(database).summary(who, LatencyQuery(window_s, Slice(**slice)))


@pytest.fixture
async def traces(database: Database) -> AsyncIterator[Traces]:
    yield Traces(database)


@pytest.fixture
async def owner(owner_dsn: str) -> AsyncIterator[Any]:
    connection = await asyncpg.connect(owner_dsn)
    yield connection
    await connection.close()


async def test_workers_that_name_the_same_spans_at_once_wait_in_one_order(
    traces: Traces, database: Database, owner: Any, tenant_id: UUID
) -> None:
    """Otherwise two would wait for each other, and the traces of one would be lost."""
    blocked = "select exists (select from pg_stat_activity where $1 = any(pg_blocking_pids(pid)))"
    name = "insert into span_names select $1, * from unnest($2::text[])"
    finished = turn(tenant_id)
    for number in range(50):
        finished.trace.add(f"tool:{number:02}", finished.trace.start_ns, finished.trace.end_ns)
    first, *others = sorted({OTHER_SPAN, *(span.name for span in finished.trace.spans)})
    async with database.tenant(tenant_id) as another:
        await another.execute(name, tenant_id, [first])
        writing = asyncio.create_task(traces.write(tenant_id, [finished]))
        while not await owner.fetchval(blocked, another.get_server_pid()):
            pass
        await another.execute(name, tenant_id, others)
    await writing
    assert (await seen(database, principal(tenant_id)))["requests"] == 1


async def test_the_names_of_spans_are_stored_with_the_next_turn_when_that_failed(
    traces: Traces, database: Database, tenant_id: UUID, monkeypatch: pytest.MonkeyPatch
) -> None:
    add, failures = spending.add, [ConnectionResetError()]

    async def add_at_the_second_attempt(*turns: Any) -> None:
        if failures:
            raise failures.pop()
        await add(*turns)

    monkeypatch.setattr(spending, "add", add_at_the_second_attempt)
    with pytest.raises(ConnectionResetError):
        await traces.write(tenant_id, [turn(tenant_id)])
    await traces.write(tenant_id, [turn(tenant_id)])
    assert [span["name"] for span in (await seen(database, principal(tenant_id)))["spans"]] == ["prefill"]


AGES_S = [0, 70, 2 * HOUR_S, 2 * HOUR_S + 1, 30 * HOUR_S, 9 * DAY_S, 20 * DAY_S]


async def test_every_value_counts_once_however_often_and_late_it_is_rolled_up(
    traces: Traces, database: Database, tenant_id: UUID
) -> None:
    me = principal(tenant_id)
    for number in range(3):
        await traces.write(tenant_id, [turn(tenant_id, age_s=age, ms=10 + age % 7) for age in AGES_S])
        before = await seen(database, me)
        await traces.roll_up()
        after = await seen(database, me)
        assert before["requests"] == after["requests"] == len(AGES_S) * (number + 1)
        assert before["ttft_ms"] == after["ttft_ms"] and before["spans"] == after["spans"]
    for window_s, expected in ((HOUR_S, 2), (DAY_S, 4), (2 * DAY_S, 5), (10 * DAY_S, 6)):
        assert (await seen(database, me, window_s))["requests"] == 3 * expected
        series = await LatencyQueries(database).series(me, LatencyQuery(window_s, Slice()))
        assert sum(series["requests"]) == 3 * expected


async def test_what_is_rolled_up_and_old_is_forgotten_and_still_counts(
    traces: Traces, database: Database, owner: Any, tenant_id: UUID
) -> None:
    await traces.write(tenant_id, [turn(tenant_id, age_s=age) for age in AGES_S])
    await traces.roll_up()
    await traces.forget(days=7, per_tenant=100)
    rows = await owner.fetch(
        "select resolution_s, min(at) as first from latency where tenant_id = $1 group by 1", tenant_id
    )
    first = {row["resolution_s"]: time.time() - row["first"].timestamp() for row in rows}
    assert first[60] < 3 * DAY_S and first[3600] > 19 * DAY_S
    assert (await seen(database, principal(tenant_id)))["requests"] == len(AGES_S)


async def test_a_tenant_keeps_its_newest_traces(
    traces: Traces, tenant_id: UUID, other_tenant_id: UUID, owner: Any
) -> None:
    for tenant in (tenant_id, other_tenant_id):
        await traces.write(tenant, [turn(tenant, age_s=60 * age) for age in range(5)])
    await traces.forget(days=7, per_tenant=5)
    assert await owner.fetchval("select count(*) from traces where tenant_id = $1", tenant_id) == 5
    await traces.forget(days=7, per_tenant=2)
    kept = await owner.fetch("select now() - started_at < '2 min' as new from traces where tenant_id = $1", tenant_id)
    assert [row["new"] for row in kept] == [True, True]


async def test_no_tenant_compares_itself_with_another(
    traces: Traces, database: Database, tenant_id: UUID, other_tenant_id: UUID
) -> None:
    await traces.write(tenant_id, [turn(tenant_id) for _ in range(6)])
    await traces.write(other_tenant_id, [turn(other_tenant_id) for _ in range(7)])
    mine, theirs = LatencyQuery(HOUR_S, Slice(tenant=tenant_id)), LatencyQuery(HOUR_S, Slice(tenant=other_tenant_id))
    for who, known in ((principal(tenant_id), 0), (principal(tenant_id, Scope.OPS), 7)):
        for one, other, expected in ((mine, theirs, (6, known)), (theirs, mine, (known, 6))):
            rows = (await LatencyQueries(database).comparison(who, one, other))["rows"]
            assert {(row["turns"], row["turns_then"]) for row in rows} == {expected}


async def test_no_tenant_sees_the_latencies_of_another(
    traces: Traces, database: Database, tenant_id: UUID, other_tenant_id: UUID
) -> None:
    await traces.write(tenant_id, [turn(tenant_id)])
    await traces.write(other_tenant_id, [turn(other_tenant_id), turn(other_tenant_id)])
    for tenant in (None, other_tenant_id):
        mine = await seen(database, principal(tenant_id), tenant=tenant)
        assert mine["requests"] == (1 if tenant is None else 0)
        assert mine["facets"]["tenant"] == []
    operator = principal(tenant_id, Scope.OPS)
    theirs = await seen(database, operator, tenant=other_tenant_id)
    assert theirs["requests"] == 2
    assert {str(tenant_id), str(other_tenant_id)} <= set(theirs["facets"]["tenant"])


async def test_slices_are_told_apart(traces: Traces, database: Database, tenant_id: UUID) -> None:
    await traces.write(
        tenant_id,
        [
            turn(tenant_id, ms=10, within_target=True),
            turn(tenant_id, ms=1000, surface="voice", agent="support", within_target=False),
            turn(tenant_id, status="failed", ttft_ms=None, within_target=False),
        ],
    )
    me = principal(tenant_id)
    voice = await seen(database, me, surface="voice", agent="support", model="demo")
    assert (voice["requests"], voice["ttft_ms"]["p50"]) == (1, pytest.approx(1000, rel=0.01))
    everything = await seen(database, me)
    counted = [everything[name] for name in ("requests", "failed", "judged", "within_target", "cached_tokens")]
    assert counted == [3, 1, 3, 1, 240]
    facets = {
        "surface": ["chat", "voice"],
        "model": ["demo"],
        "agent": ["support"],
        "tenant": [],
        "key": [],
        "worker": [],
    }
    assert everything["facets"] == facets


async def test_what_was_turned_away_is_counted_and_is_in_no_time_of_answers(
    traces: Traces, database: Database, tenant_id: UUID
) -> None:
    away = [turn(tenant_id, ms=1, status=status, ttft_ms=None) for status in ("refused", "refused", "invalid")]
    await traces.write(tenant_id, [turn(tenant_id, ms=500), *away])
    me = principal(tenant_id)
    everything = await seen(database, me)
    assert [everything[name] for name in ("requests", "failed", "refused", "invalid")] == [4, 0, 2, 1]
    assert everything["duration_ms"]["p50"] == pytest.approx(500, rel=0.01)
    series = await LatencyQueries(database).series(me, LatencyQuery(HOUR_S, Slice()))
    assert sum(series["requests"]) == 4
    assert max(filter(None, series["duration_ms"]["p50"])) == pytest.approx(500, rel=0.01)
    assert (await seen(database, me, status="invalid"))["duration_ms"]["p50"] is None


async def test_what_is_usual_needs_more_than_a_few_turns(traces: Traces, database: Database, tenant_id: UUID) -> None:
    await traces.write(tenant_id, [turn(tenant_id, ms=10) for _ in range(4)])
    assert await LatencyQueries(database).usual(principal(tenant_id), "chat") == {}
    await traces.write(tenant_id, [turn(tenant_id, ms=10)])
    usual = await LatencyQueries(database).usual(principal(tenant_id), "chat")
    assert usual["prefill"]["p50_ms"] == pytest.approx(10, rel=0.01)


async def test_viewers_of_the_same_share_one_answer(traces: Traces, database: Database, tenant_id: UUID) -> None:
    views, me = LatencyQueries(database), principal(tenant_id)
    await traces.write(tenant_id, [turn(tenant_id)])
    first = await views.summary(me, LatencyQuery(HOUR_S, Slice()))
    await traces.write(tenant_id, [turn(tenant_id)])
    assert await views.summary(me, LatencyQuery(HOUR_S, Slice())) == first
    assert (await views.summary(me, LatencyQuery(HOUR_S + 1, Slice())))["requests"] == 2


async def test_drafts_and_the_causes_of_misses_are_counted_over_time(
    traces: Traces, database: Database, tenant_id: UUID
) -> None:
    record = turn(tenant_id)
    record.trace.spans[0].attributes["cache.cause"] = "edited"
    record.trace.add("decode", 0, 1_000_000, tokens=9, drafted=8, accepted=6)
    await traces.write(tenant_id, [record, turn(tenant_id)])
    series = await LatencyQueries(database).series(principal(tenant_id), LatencyQuery(HOUR_S, Slice()))
    assert (sum(series["drafted"]), sum(series["accepted"])) == (8, 6)
    assert {cause: sum(counts) for cause, counts in series["misses"].items() if sum(counts)} == {"edited": 1}


async def test_what_the_workers_did_is_for_operators(database: Database, tenant_id: UUID) -> None:
    await LoadSampler(database, tenant_id.int % 2**62, dict).store(
        Peak(running=3, waiting=9, loop_lag_ms=40, kv_use=0.5)
    )
    seen = await LatencyQueries(database).series(principal(tenant_id, Scope.OPS), LatencyQuery(HOUR_S, Slice()))
    assert max(filter(None, seen["waiting"])) >= 9 and max(filter(None, seen["kv_use"])) >= 0.5
    hidden = await LatencyQueries(database).series(principal(tenant_id), LatencyQuery(HOUR_S, Slice()))
    assert set(hidden["waiting"]) == {None}


def test_a_coarse_row_has_the_values_of_all_its_slices(tenant_id: UUID) -> None:
    rows = Measures().rows(
        [turn(tenant_id, ms=ms, status=status) for ms in (1, 9) for status in ("completed", "failed")]
    )
    assert (len(rows.whole), len(rows.slices)) == (1, 2)
    assert sorted(status for *_, status, _, _, _ in rows.slices) == ["completed", "failed"]
    for pieces, each in ((rows.whole, 4), (rows.slices, 2)):
        assert [Tally(piece[-1]).amount("ttft") for piece in pieces] == [each] * len(pieces)


async def test_the_rows_of_traces_are_not_made_on_the_event_loop(
    traces: Traces, tenant_id: UUID, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: set[threading.Thread] = set()

    def noting(make: Callable[[TurnRecord], Any]) -> Callable[[TurnRecord], Any]:
        def noted(record: TurnRecord) -> Any:
            threads.add(threading.current_thread())
            return make(record)

        return noted

    monkeypatch.setattr(TurnRecord, "row", noting(TurnRecord.row))
    monkeypatch.setattr(TurnRecord, "span_rows", noting(TurnRecord.span_rows))
    monkeypatch.setattr(Facts, "of", noting(Facts.of))
    await traces.write(tenant_id, [turn(tenant_id)])
    assert threads and threading.main_thread() not in threads


def test_made_up_span_names_share_one_measure(tenant_id: UUID) -> None:
    trace = Trace()
    for number in range(SPAN_NAMES_MAX + 5):
        trace.add(f"tool:{number}", 0, 1_000_000)
    rows = Measures().rows([TurnRecord(trace, tenant_id, "completed", "chat", "demo")])
    assert rows.whole[0][-1] == rows.slices[0][-1]
    tally = Tally(rows.whole[0][-1])
    assert len(rows.span_names) == SPAN_NAMES_MAX + 1
    assert tally.amount("span:tool:3") == tally.amount(f"span:{OTHER_SPAN}") == tally.amount("call") == 1
    assert tally.amount(f"span:tool:{SPAN_NAMES_MAX + 1}") == 0
