"""Recording never waits and never raises; what reaches Postgres can be asked for by whom it concerns."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Sequence
from statistics import quantiles
from typing import Any
from uuid import UUID, uuid4

import pytest

from inference.trace import Trace
from migrations.pool import Database
from worker.auth.principal import Principal
from worker.auth.scope import Scope
from worker.http.middleware import join_trace
from worker.lifecycle.supervisor import Supervisor
from worker.runs.record import SPAN_NAMES_MAX, TurnRecord, mark_first_answer
from worker.telemetry import prometheus
from worker.telemetry.latency.answer_list import Search
from worker.telemetry.latency.measures import Slice
from worker.telemetry.latency.queries import LatencyQuery
from worker.telemetry.prometheus import TENANTS_MAX, Metrics
from worker.telemetry.telemetry import Telemetry, Traces, server_timing

HOUR_S = 3600.0


@pytest.fixture
async def telemetry(database: Database) -> AsyncIterator[Telemetry]:
    telemetry = make_telemetry(database)
    telemetry.start(Supervisor())
    yield telemetry
    await telemetry.close()


def make_telemetry(database: Database, *, trace_days: float = 7, tenant_traces: int = 1000) -> Telemetry:
    metrics = Metrics(dict, Supervisor())
    return Telemetry(Traces(database), metrics, trace_days=trace_days, tenant_traces=tenant_traces)


def recent(**conditions: Any) -> Search:
    return Search(**{"start": time.time() - HOUR_S, "end": time.time() + HOUR_S, "limit": 200, **conditions})


async def summary_of(telemetry: Telemetry, tenant_id: UUID) -> dict[str, Any]:
    return await telemetry.traces.views.summary(member(tenant_id), LatencyQuery(HOUR_S, Slice()))


def member(tenant_id: UUID) -> Principal:
    return Principal(tenant_id, "key_1", frozenset(), "api_key")


def operator(tenant_id: UUID) -> Principal:
    return Principal(tenant_id, "key_1", frozenset({Scope.OPS}), "api_key")


def make_trace(**spans_ms: float) -> Trace:
    """A finished trace whose spans follow each other."""
    trace = Trace()
    at = trace.start_ns
    for name, duration_ms in spans_ms.items():
        trace.add(name, at, at + int(duration_ms * 1e6))
        at += int(duration_ms * 1e6)
    trace.end_ns = at
    return trace


def record(telemetry: Telemetry, trace: Trace, tenant_id: UUID, **facts: Any) -> None:
    telemetry.record(turn(trace, tenant_id, **facts))


def turn(trace: Trace, tenant_id: UUID, **facts: Any) -> TurnRecord:
    known: dict[str, Any] = {"status": "completed", "surface": "responses", "model": "demo", "response_id": "r"}
    return TurnRecord(trace, tenant_id, **known | facts)


def test_what_the_engine_counts_by_position_has_a_label() -> None:
    stats = {"model": "demo", "running": 2, "accepted_by_position_total": {"1": 5, "2": 3}}
    lines = Metrics(lambda: stats, Supervisor()).render().decode().splitlines()
    assert "firsttoken_engine_running 2.0" in lines
    assert 'firsttoken_engine_accepted_by_position_total{position="1"} 5.0' in lines
    assert 'firsttoken_engine_accepted_by_position_total{position="2"} 3.0' in lines


def test_each_of_several_models_has_numbers_and_times_of_its_own(tenant_id: UUID) -> None:
    metrics = Metrics(dict, Supervisor())
    each: dict[str, dict[str, Any]] = {
        "small": {"loaded": True, "running": 2, "generated_tokens_total": 7, "model": "x"},
        "large": {"loaded": False},
    }
    metrics.watch_models(lambda: each)
    trace = make_trace(prefill=12)
    mark_first_answer(trace, after_others=True)
    metrics.observe(turn(trace, tenant_id, model="small", ttft_ms=12.0, tpot_ms=3.0))
    lines = metrics.render().decode().splitlines()
    assert (
        'firsttoken_model_loaded{model="small"} 1.0' in lines and 'firsttoken_model_loaded{model="large"} 0.0' in lines
    )
    assert 'firsttoken_model_running{model="small"} 2.0' in lines
    assert 'firsttoken_model_generated_tokens_total{model="small"} 7.0' in lines
    assert 'firsttoken_model_first_token_seconds_count{model="small"} 1.0' in lines
    assert 'firsttoken_first_answer_seconds_count{surface="responses"} 1.0' in lines
    assert 'firsttoken_model_token_seconds_count{model="small"} 1.0' in lines


def test_the_newest_start_is_told_by_part_and_phase_to_metrics_and_to_collectors(database: Database) -> None:
    exported: list[TurnRecord] = []
    metrics = Metrics(dict, Supervisor())
    telemetry = Telemetry(Traces(database), metrics, trace_days=1, tenant_traces=1, export=exported.append)
    worker, large = Trace(), Trace()
    worker.add("models", 0, 1_500_000_000)
    large.add("weights", 0, 250_000_000)
    starts = {"large": large}
    telemetry.started(worker, starts)
    again = Trace()
    again.add("weights", 0, 750_000_000)
    starts["large"] = again
    lines = metrics.render().decode().splitlines()
    assert 'firsttoken_start_seconds{part="worker",phase="models"} 1.5' in lines
    assert 'firsttoken_start_seconds{part="large",phase="weights"} 0.75' in lines
    assert [(record.surface, record.model) for record in exported] == [("start", "worker"), ("start", "large")]


async def test_a_recorded_turn_comes_back_span_by_span(telemetry: Telemetry, tenant_id: UUID) -> None:
    trace = make_trace(edge=0.25, auth=0.5, prefill=12)
    trace.add("search", trace.start_ns, trace.start_ns + 2_000_000, lane="retrieval", parent=1, rows=50)
    facts = {
        "ttft_ms": 13.5,
        "tpot_ms": 4.25,
        "within_target": True,
        "response_id": "resp_1",
        "conversation_id": "conv_1",
    }
    record(telemetry, trace, tenant_id, **facts)
    await telemetry.flush()
    stored = await telemetry.traces.get(member(tenant_id), trace.id)
    expected = turn(trace, tenant_id, **facts).payload()
    assert stored is not None
    assert abs(stored.pop("started_at") - expected.pop("started_at")) < 0.001
    assert stored == expected
    by_response = await telemetry.traces.get(member(tenant_id), "resp_1")
    assert by_response is not None and by_response["id"] == trace.id


async def test_tenants_see_their_own_turns_and_operators_all(
    telemetry: Telemetry, tenant_id: UUID, other_tenant_id: UUID
) -> None:
    mine, theirs = make_trace(edge=1), make_trace(edge=1)
    record(telemetry, mine, tenant_id)
    record(telemetry, theirs, other_tenant_id)
    await telemetry.flush()
    seen = await telemetry.traces.list(member(tenant_id), recent())
    assert [turn["id"] for turn in seen] == [mine.id]
    assert await telemetry.traces.get(member(tenant_id), theirs.id) is None
    everything = await telemetry.traces.list(operator(tenant_id), recent())
    assert {mine.id, theirs.id} <= {turn["id"] for turn in everything}
    assert await telemetry.traces.get(operator(tenant_id), theirs.id) is not None


async def test_percentiles_are_of_whole_turns(telemetry: Telemetry, tenant_id: UUID) -> None:
    for ms in range(1, 101):
        trace = make_trace(prefill=ms)
        trace.add("prefill", trace.end_ns, trace.end_ns + ms * 1_000_000)  # a second step of the same turn
        record(telemetry, trace, tenant_id, ttft_ms=float(ms), status="failed" if ms > 95 else "completed")
    await telemetry.flush()
    summary = await summary_of(telemetry, tenant_id)
    cuts = quantiles(range(1, 101), n=100, method="inclusive")
    expected = {"p50": cuts[49], "p95": cuts[94], "p99": cuts[98]}
    assert summary["ttft_ms"] == pytest.approx(expected, rel=0.02)
    assert (summary["requests"], summary["failed"]) == (100, 5)
    assert summary["tpot_ms"] == {"p50": None, "p95": None, "p99": None}
    [prefill] = summary["spans"]
    assert (prefill["name"], prefill["turns"]) == ("prefill", 100)
    assert prefill["p95"] == pytest.approx(2 * expected["p95"], rel=0.02)


async def test_goodput_is_counted_by_surface(telemetry: Telemetry, tenant_id: UUID) -> None:
    for surface, within in [("chat", True), ("chat", True), ("chat", False), ("voice", False), ("batch", None)]:
        record(telemetry, make_trace(edge=1), tenant_id, surface=surface, within_target=within, ttft_ms=7.0)
    await telemetry.flush()
    summary = await summary_of(telemetry, tenant_id)
    assert [summary[name] for name in ("requests", "judged", "within_target")] == [5, 4, 2]
    counted = [(row["surface"], row["requests"], row["judged"], row["within_target"]) for row in summary["surfaces"]]
    assert counted == [("chat", 3, 3, 2), ("batch", 1, 0, 0), ("voice", 1, 1, 0)]
    assert summary["surfaces"][0]["ttft_ms"]["p95"] == pytest.approx(7.0, rel=0.01)
    metrics = telemetry.metrics.render().decode().splitlines()
    assert 'firsttoken_turns_judged_total{surface="chat",within_target="yes"} 2.0' in metrics
    assert not [line for line in metrics if line.startswith('firsttoken_turns_judged_total{surface="batch"')]


async def test_every_turn_that_was_asked_for_is_counted_once_by_what_came_of_it(
    telemetry: Telemetry, tenant_id: UUID
) -> None:
    asked = [("completed", True), ("completed", False), ("refused", False), ("failed", False), ("cancelled", None)]
    for status, within in [*asked, ("invalid", None)]:
        trace = make_trace()
        trace.add("prefill", trace.start_ns, trace.start_ns, cached_tokens=95, new_tokens=5)
        record(telemetry, trace, tenant_id, status=status, within_target=within)
    record(telemetry, make_trace(), tenant_id, within_target=None, surface="batch")
    await telemetry.flush()
    rows = await telemetry.traces.goodput(member(tenant_id), "cache", window_s=HOUR_S, slices=4)
    assert {row["slice"] for row in rows} == {3}
    [hit, none] = rows
    assert (hit["name"], none["name"], none["requests"], none["judged"]) == ("hit", "none", 1, 0)
    counts = [hit[name] for name in ("requests", "judged", "in_time", "refused", "failed", "cancelled", "invalid")]
    assert counts == [6, 4, 1, 1, 1, 1, 1]
    metrics = telemetry.metrics.render().decode()
    for outcome in ("in_time", "late", "refused", "failed", "cancelled", "invalid"):
        labels = f'cache="hit",model="demo",outcome="{outcome}",surface="responses",tenant="{tenant_id}"'
        assert f"firsttoken_turn_outcomes_total{{{labels}}} 1.0" in metrics
    assert 'outcome="not_judged",surface="batch"' in metrics
    assert 'firsttoken_goodput_burn_rate{surface="responses",window="1h"} 15.0' in metrics


async def test_the_tenants_among_the_labels_are_bounded(telemetry: Telemetry) -> None:
    for _ in range(2 * TENANTS_MAX):
        telemetry.metrics.observe(turn(make_trace(), uuid4()))
    lines = [line for line in telemetry.metrics.render().decode().splitlines() if "turn_outcomes_total{" in line]
    assert len(lines) == TENANTS_MAX + 1
    assert any('tenant="other"' in line and line.endswith(f" {TENANTS_MAX}.0") for line in lines)


async def test_turns_are_not_counted_on_the_event_loop(
    telemetry: Telemetry, tenant_id: UUID, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: list[threading.Thread] = []
    monkeypatch.setattr(Metrics, "_count", lambda metrics, record: threads.append(threading.current_thread()))
    record(telemetry, make_trace(edge=100), tenant_id)
    await telemetry.flush()
    assert len(threads) == 1 and threading.main_thread() not in threads


async def test_turns_that_nobody_reads_or_stores_are_counted_all_the_same(
    telemetry: Telemetry, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prometheus, "UNCOUNTED_MAX", 3)
    for _ in range(10):
        telemetry.metrics.observe(turn(make_trace(), uuid4()))
    [counted] = telemetry.metrics.turns.collect()
    assert [sample.value for sample in counted.samples] == [7.0]


async def test_embeddings_are_no_answers(telemetry: Telemetry, tenant_id: UUID) -> None:
    record(telemetry, make_trace(edge=100), tenant_id, surface="chat")
    for _ in range(3):
        record(telemetry, make_trace(embed=1), tenant_id, surface="embeddings", response_id=None)
    await telemetry.flush()
    summary = await summary_of(telemetry, tenant_id)
    assert (summary["requests"], summary["duration_ms"]["p50"]) == (1, pytest.approx(100, rel=0.01))
    assert [(row["surface"], row["requests"]) for row in summary["surfaces"]] == [("embeddings", 3), ("chat", 1)]


async def test_an_empty_window_has_no_percentiles(telemetry: Telemetry, tenant_id: UUID) -> None:
    summary = await summary_of(telemetry, tenant_id)
    assert (summary["requests"], summary["judged"], summary["surfaces"], summary["spans"]) == (0, 0, [], [])
    assert summary["ttft_ms"]["p50"] is None


async def test_turns_are_listed_latest_or_slowest_first_and_by_status(telemetry: Telemetry, tenant_id: UUID) -> None:
    traces = {ms: make_trace(edge=ms) for ms in (5, 50, 20)}
    for age_s, (ms, trace) in enumerate(reversed(traces.items())):
        trace.started_at = time.time() - age_s
        record(telemetry, trace, tenant_id, status="failed" if ms == 50 else "completed")
    await telemetry.flush()

    async def ids(**query: Any) -> list[str]:
        found = await telemetry.traces.list(member(tenant_id), recent(**query))
        return [turn["id"] for turn in found]

    assert await ids(limit=9) == [traces[20].id, traces[50].id, traces[5].id]
    assert await ids(limit=2, order="slowest") == [traces[50].id, traces[20].id]
    assert await ids(limit=9, slice=Slice(status="failed")) == [traces[50].id]


async def test_several_turns_of_one_outer_trace_are_all_kept(telemetry: Telemetry, tenant_id: UUID) -> None:
    traces = [join_trace("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01") for _ in range(2)]
    for trace in traces:
        record(telemetry, trace, tenant_id)
    await telemetry.flush()
    assert telemetry.dropped == 0
    assert len(await telemetry.traces.list(member(tenant_id), recent())) == 2
    found = await telemetry.traces.get(member(tenant_id), traces[0].id)
    assert found is not None and found["id"].startswith(traces[0].id)


async def test_the_writer_stores_without_being_asked(telemetry: Telemetry, tenant_id: UUID) -> None:
    trace = make_trace(edge=1)
    record(telemetry, trace, tenant_id)
    while await telemetry.traces.get(member(tenant_id), trace.id) is None:
        pass  # the test's own time limit ends this
    assert telemetry.dropped == 0


def slow_writes(monkeypatch: pytest.MonkeyPatch) -> tuple[asyncio.Event, asyncio.Event]:
    """What tells that turns are being stored, and what lets that go on."""
    write, writing, goes_on = Traces.write, asyncio.Event(), asyncio.Event()

    async def slow(traces: Traces, tenant_id: UUID, records: Sequence[TurnRecord]) -> None:
        writing.set()
        await goes_on.wait()
        await write(traces, tenant_id, records)

    monkeypatch.setattr(Traces, "write", slow)
    return writing, goes_on


async def test_turns_that_are_being_stored_when_the_worker_stops_are_stored(
    database: Database, tenant_id: UUID, monkeypatch: pytest.MonkeyPatch
) -> None:
    telemetry, (writing, goes_on) = make_telemetry(database), slow_writes(monkeypatch)
    telemetry.start(Supervisor())
    record(telemetry, make_trace(prefill=1), tenant_id)
    await writing.wait()
    closing = asyncio.create_task(telemetry.close())
    await asyncio.sleep(0)
    goes_on.set()
    await closing
    assert len(await telemetry.traces.list(member(tenant_id), recent())) == 1


async def test_a_reader_who_leaves_while_turns_are_being_stored_takes_none_along(
    database: Database, tenant_id: UUID, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who asks for traces has them stored first."""
    telemetry, (writing, goes_on) = make_telemetry(database), slow_writes(monkeypatch)
    record(telemetry, make_trace(prefill=1), tenant_id)
    reader = asyncio.create_task(telemetry.flush())
    await writing.wait()
    reader.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reader
    goes_on.set()
    await telemetry.flush()
    assert len(await telemetry.traces.list(member(tenant_id), recent())) == 1
    await telemetry.close()


async def test_turns_that_end_while_others_are_being_stored_are_gathered_for_the_next_time(
    database: Database, tenant_id: UUID, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise a flood that is refused would cost many small transactions."""
    telemetry, write, sizes = make_telemetry(database), Traces.write, list[int]()

    async def write_while_another_ends(traces: Traces, tenant_id: UUID, records: Sequence[TurnRecord]) -> None:
        sizes.append(len(records))
        record(telemetry, make_trace(edge=1), tenant_id)
        await write(traces, tenant_id, records)

    monkeypatch.setattr(Traces, "write", write_while_another_ends)
    for _ in range(130):
        record(telemetry, make_trace(edge=1), tenant_id)
    await telemetry.flush()
    assert sizes == [128, 2]
    monkeypatch.setattr(Traces, "write", write)
    await telemetry.flush()
    assert len(await telemetry.traces.list(member(tenant_id), recent())) == 132


async def test_turns_are_stored_less_often_than_events(
    database: Database, tenant_id: UUID, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody waits for a trace, and small transactions would take the cores from the model."""
    monkeypatch.setattr("worker.database.GATHER_S", 0.0)
    monkeypatch.setattr("worker.telemetry.telemetry.GATHER_S", 3600.0)
    telemetry, write, sizes = make_telemetry(database), Traces.write, list[int]()

    async def counted(traces: Traces, tenant_id: UUID, records: Sequence[TurnRecord]) -> None:
        sizes.append(len(records))
        await write(traces, tenant_id, records)

    monkeypatch.setattr(Traces, "write", counted)
    telemetry.start(Supervisor())
    for _ in range(3):
        record(telemetry, make_trace(edge=1), tenant_id)
        for _ in range(10):  # a writer that does not wait stores after the first few
            await asyncio.sleep(0)
    await telemetry.close()
    assert sizes == [3]


async def test_a_full_queue_lets_the_oldest_go_and_counts_it(
    database: Database, tenant_id: UUID, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("worker.telemetry.telemetry.WAITING_MAX", 3)
    telemetry = make_telemetry(database)
    traces = [make_trace(edge=1) for _ in range(5)]
    for trace in traces:
        record(telemetry, trace, tenant_id)
    assert telemetry.dropped == 2
    assert b"firsttoken_traces_dropped_total 2.0" in telemetry.metrics.render()
    await telemetry.flush()
    kept = await telemetry.traces.list(member(tenant_id), recent())
    assert {turn["id"] for turn in kept} == {trace.id for trace in traces[2:]}


async def test_a_database_that_is_away_costs_traces_and_nothing_else(postgres: Any, tenant_id: UUID) -> None:
    gone = await Database.connect(postgres.app_dsn)
    await gone.close()
    telemetry = make_telemetry(gone)
    record(telemetry, make_trace(edge=1), tenant_id)
    await telemetry.flush()
    assert telemetry.dropped == 1


async def test_a_turn_of_a_tenant_that_is_gone_does_not_take_others_along(
    telemetry: Telemetry, tenant_id: UUID
) -> None:
    mine = make_trace(edge=1)
    record(telemetry, make_trace(edge=1), UUID(int=0))
    record(telemetry, mine, tenant_id)
    await telemetry.flush()
    assert telemetry.dropped == 1
    assert await telemetry.traces.get(member(tenant_id), mine.id) is not None


async def test_old_traces_are_forgotten(database: Database, tenant_id: UUID) -> None:
    telemetry = make_telemetry(database, trace_days=1)
    old, new = make_trace(edge=1), make_trace(edge=1)
    old.started_at -= 2 * 24 * HOUR_S
    for trace in (old, new):
        record(telemetry, trace, tenant_id)
    await telemetry.flush()
    assert await telemetry.traces.get(member(tenant_id), old.id) is None
    assert await telemetry.traces.get(member(tenant_id), new.id) is not None


def test_recording_takes_no_time_worth_mentioning(database: Database) -> None:
    telemetry = make_telemetry(database)
    traces = [make_trace(**{f"span{i}": 1.0 for i in range(12)}) for _ in range(200)]
    began = time.thread_time()
    for trace in traces:
        record(telemetry, trace, UUID(int=1))
    assert (time.thread_time() - began) / len(traces) < 0.001


def test_metrics_count_turns_tokens_and_spans(database: Database) -> None:
    telemetry = make_telemetry(database)
    trace = make_trace(edge=1)
    trace.add("prefill", 0, 8_000_000, new_tokens=30, cached_tokens=12)
    trace.add("decode", 0, 8_000_000, tokens=5)
    trace.attributes |= {"firsttoken.citations": 3, "firsttoken.citations_unknown": 1}
    record(telemetry, trace, UUID(int=1), ttft_ms=30.0, tpot_ms=8.0)
    text = telemetry.metrics.render().decode()
    for line in (
        'firsttoken_turns_total{status="completed",surface="responses"} 1.0',
        'firsttoken_tokens_total{kind="cached"} 12.0',
        'firsttoken_tokens_total{kind="prefilled"} 30.0',
        'firsttoken_tokens_total{kind="generated"} 5.0',
        'firsttoken_citations_total{kind="known"} 3.0',
        'firsttoken_citations_total{kind="unknown"} 1.0',
        'gen_ai_server_time_to_first_token_seconds_bucket{le="0.025",surface="responses"} 0.0',
        'gen_ai_server_time_to_first_token_seconds_bucket{le="0.05",surface="responses"} 1.0',
        'gen_ai_server_time_per_output_token_seconds_count{surface="responses"} 1.0',
        'firsttoken_span_duration_seconds_count{span="prefill"} 1.0',
    ):
        assert line in text


def test_what_came_of_a_forecast_is_counted_by_class_and_by_whether_a_place_was_waited_for(database: Database) -> None:
    telemetry = make_telemetry(database)
    for kind, took_ms in (("standard", 110.0), ("standard", 300.0), ("batch", 95.0)):
        trace = make_trace(queue=1)
        trace.spans[0].attributes |= {"class": kind, "expected_ms": 100.0, "took_ms": took_ms}
        trace.spans[0].attributes["expected_wait_ms"] = 50.0 if kind == "batch" else 0.0
        record(telemetry, trace, UUID(int=1))
    told = [line for line in telemetry.metrics.render().decode().splitlines() if "firsttoken_forecast_ratio" in line]
    within_20 = {kind: right(told, kind, "1.2") - right(told, kind, "0.8") for kind in ("standard", "batch")}
    assert within_20 == {"standard": 1.0, "batch": 1.0}
    assert right(told, "standard", "+Inf") == 2.0
    assert all(('queued="yes"' in line) == ('class="batch"' in line) for line in told if "class=" in line)


def right(lines: Sequence[str], kind: str, le: str) -> float:
    [line] = [each for each in lines if f'class="{kind}"' in each and f'le="{le}"' in each]
    return float(line.split()[-1])


def test_made_up_span_names_share_one_label(database: Database) -> None:
    telemetry = make_telemetry(database)
    for number in range(SPAN_NAMES_MAX + 50):
        record(telemetry, make_trace(**{f"tool:{number}": 1.0}), UUID(int=1))
    text = telemetry.metrics.render().decode()
    assert text.count("firsttoken_span_duration_seconds_count{") == SPAN_NAMES_MAX + 1
    assert 'firsttoken_span_duration_seconds_count{span="other"} 50.0' in text


def test_server_timing_sums_spans_of_a_name_and_leaves_open_ones_out() -> None:
    trace = make_trace(edge=1, auth=2)
    trace.add("edge", 0, 500_000)
    trace.add("tool:current_time", 0, 3_000_000)
    trace.add("queue", 0, 0)
    timing = server_timing(trace)
    assert timing.startswith("edge;dur=1.500, auth;dur=2.000, tool-current_time;dur=3.000, traceparent;desc=")
    assert trace.id in timing
