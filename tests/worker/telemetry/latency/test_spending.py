"""What answers cost: summed up once, by whatever is asked for, and for whom it concerns."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import pytest

from migrations.pool import Database
from tests.worker.telemetry.latency.test_rollups import principal, turn
from worker.auth.scope import Scope
from worker.runs.record import TurnRecord
from worker.telemetry.latency.measures import HOUR_S, Slice
from worker.telemetry.latency.queries import LatencyQuery, cost_summary
from worker.telemetry.latency.spending import Spending, cells, per_thousand
from worker.telemetry.telemetry import Traces


def answer(tenant_id: UUID, *, cost: float = 0.5, age_s: float = 0, **facts: Any) -> TurnRecord:
    record = turn(tenant_id, age_s=age_s, **facts)
    record.trace.attributes |= {
        "firsttoken.cost": cost,
        "firsttoken.engine_ms": 200.0,
        "firsttoken.speculation_ms": 50.0,
        "firsttoken.tool_ms": 30.0,
        "firsttoken.cascade_ms": 20.0,
    }
    return record


async def test_costs_are_summed_by_what_is_asked_for(database: Database, tenant_id: UUID) -> None:
    traces, who = Traces(database), principal(tenant_id)
    await traces.write(
        tenant_id,
        [
            answer(tenant_id, key="key_1", conversation_id="conv_1"),
            answer(tenant_id, key="key_1", conversation_id="conv_1", cost=1.5, agent="desk"),
            turn(tenant_id, response_id=None),  # no answer
            turn(tenant_id, status="refused"),
        ],
    )
    await traces.write(tenant_id, [answer(tenant_id, surface="voice")])
    spending = Spending(database)
    assert {row["name"]: row["cost"] for row in await spending.by(who, "surface", window_s=3600)} == {
        "chat": 2.0,
        "voice": 0.5,
    }
    assert {row["name"]: row["answers"] for row in await spending.by(who, "key", window_s=3600)} == {"key_1": 2, "": 1}
    (conversation, other) = await spending.by(who, "conversation", window_s=3600)
    assert (conversation["name"], conversation["cost"], other["name"]) == ("conv_1", 2.0, "")
    (all_answers,) = await spending.by(who, "all", window_s=3600)
    assert (all_answers["engine_ms"], all_answers["speculation_ms"], all_answers["tool_ms"]) == (600, 150, 90)
    assert all_answers["cascade_ms"] == 60 and per_thousand(all_answers)["cascade_share"] == 0.1
    (today,) = await spending.by(who, "day", window_s=60)
    assert today["name"] == datetime.now(UTC).strftime("%Y-%m-%d")
    midnight = datetime.now(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
    assert await spending.of_key(tenant_id, "key_1", midnight) == 2.0


async def test_nobody_sees_what_others_spend_but_operators(
    database: Database, tenant_id: UUID, other_tenant_id: UUID
) -> None:
    traces, spending = Traces(database), Spending(database)
    for tenant in (tenant_id, other_tenant_id):
        await traces.write(tenant, [answer(tenant)])
    assert [row["name"] for row in await spending.by(principal(tenant_id), "tenant", window_s=60)] == [str(tenant_id)]
    everybody = {row["name"] for row in await spending.by(principal(tenant_id, Scope.OPS), "tenant", window_s=60)}
    assert {str(tenant_id), str(other_tenant_id)} <= everybody
    assert await spending.of_key(other_tenant_id, "key_1", datetime.fromtimestamp(0, UTC)) == 0


async def test_the_board_has_the_first_token_beside_the_price(database: Database, tenant_id: UUID) -> None:
    await Traces(database).write(tenant_id, [answer(tenant_id, ms=40), answer(tenant_id, agent="desk", ms=80)])
    asked = LatencyQuery(3600, Slice())
    rows = await cost_summary(database, principal(tenant_id), asked)
    found = {row["agent"]: (row["cost_per_1000"], row["ttft_ms"]["p95"]) for row in rows}
    assert found[""] == (500, pytest.approx(40, rel=0.01))
    assert found["desk"] == (500, pytest.approx(80, rel=0.01))
    (row,) = await cost_summary(database, principal(tenant_id), LatencyQuery(3600, Slice(agent="desk")))
    assert row["agent"] == "desk"


async def test_after_a_year_it_is_forgotten(database: Database, tenant_id: UUID) -> None:
    await Traces(database).write(tenant_id, [answer(tenant_id), answer(tenant_id, age_s=401 * 86400)])
    spending = Spending(database)
    await spending.forget()
    (row,) = await spending.by(principal(tenant_id), "all", window_s=500 * 86400)
    assert row["answers"] == 1


def test_answers_of_one_hour_are_one_row(tenant_id: UUID) -> None:
    hour = time.time() // HOUR_S * HOUR_S
    rows = cells([answer(tenant_id, age_s=time.time() - hour - second) for second in (1, 3500, 3601)])
    assert [row[5] for row in rows] == [2, 1]


def test_nothing_is_divided_by_nothing() -> None:
    nothing = {"answers": 0, "cost": 0.0, "engine_ms": 0.0, "speculation_ms": 0.0, "tool_ms": 0.0, "cascade_ms": 0.0}
    assert set(per_thousand(nothing).values()) == {None}
