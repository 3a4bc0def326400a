"""Answers that a worker has given in the past, for the latency page: some usual, some slow for a known reason."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any
from uuid import UUID

import orjson

from inference.trace import Trace
from worker.runs.record import TurnRecord
from worker.telemetry.telemetry import Traces

NS = 1_000_000  # per millisecond
# Milliseconds of each part of a usual answer, one after another.
USUAL = {
    "edge": 0.4,
    "auth": 0.3,
    "hydrate": 2.0,
    "assemble": 0.5,
    "tokenize": 0.6,
    "queue": 4.0,
    "prefill": 90.0,
    "first_token": 0.4,
    "decode": 900.0,
    "flush": 6.0,
}


def answer(
    tenant_id: UUID, *, age_s: float, number: int = 0, chance: random.Random | None = None, **parts: float
) -> TurnRecord:
    """A finished answer; `parts` are the milliseconds of parts that took another time than usual."""
    trace = Trace(started_at=time.time() - age_s)
    at, first_token_at = trace.start_ns, trace.start_ns
    for name, usual_ms in USUAL.items():
        wobble = chance.lognormvariate(0, 0.25) if chance else 1.0
        end = at + int(parts.get(name, usual_ms * wobble) * NS)
        span = trace.add(name, at, end)
        if name == "prefill":
            span.attributes |= {"new_tokens": 40, "cached_tokens": 900, "chunks": 1, "batch": 3.0}
        if name == "decode":
            span.attributes |= {"tokens": 60, "drafted": 30, "accepted": 21, "steps": 39, "batch": 2.4}
        if name == "first_token":
            first_token_at = end
        at = end
    trace.end_ns = at
    ttft_ms = (first_token_at - trace.start_ns) / NS
    return TurnRecord(
        *(trace, tenant_id, "completed", "chat", "demo-chat"),
        response_id=f"resp_{number}_{trace.id[:8]}",
        conversation_id=f"conv_{number // 3}",
        ttft_ms=ttft_ms,
        tpot_ms=parts.get("decode", USUAL["decode"]) / 59,
        within_target=ttft_ms <= 500,
    )


def with_tool(record: TurnRecord, *, failed: bool = False) -> TurnRecord:
    """The same with a call of a tool between two steps."""
    trace, at = record.trace, record.trace.end_ns
    parent = trace.add("tools", at, at + 220 * NS, calls=1)
    error = {"error.type": "TimeoutError"} if failed else {}
    tool = trace.add("tool:calculator", at, at + 215 * NS, lane="tools", parent=trace.index(parent), failed=failed)
    tool.attributes |= error
    trace.add("prefill", at + 220 * NS, at + 240 * NS, new_tokens=30, cached_tokens=1000, chunks=1, batch=1.0)
    trace.add("decode", at + 240 * NS, at + 500 * NS, tokens=20, drafted=0, accepted=0, steps=20, batch=1.0)
    trace.end_ns = at + 502 * NS
    return replace(record, status="failed" if failed else record.status)


def a_week(tenant_id: UUID) -> Iterator[TurnRecord]:
    """Always the same week."""
    chance = random.Random(11)
    for number in range(900):
        age_s = chance.expovariate(1 / 9000) % 604_000
        slow: dict[str, float] = {}
        if number % 23 == 0:
            slow = {"queue": 700 + 400 * chance.random()}
        elif number % 37 == 0:
            slow = {"hydrate": 84.0}
        elif number % 41 == 0:
            slow = {"prefill": 620.0}
        record = answer(tenant_id, age_s=age_s, number=number, chance=chance, **slow)
        if number % 9 == 0:
            record = with_tool(record, failed=number % 63 == 0)
        if number % 5 == 0:
            record = replace(record, surface="voice", agent="support", within_target=(record.ttft_ms or 0) <= 300)
        yield record


async def remember(traces: Traces, tenant_id: UUID, *records: TurnRecord) -> None:
    for start in range(0, len(records), 100):
        await traces.write(tenant_id, records[start : start + 100])


async def say(owner: Any, record: TurnRecord, question: str, *calls: tuple[str, str, str]) -> None:
    """Store what was asked, and the calls (name, arguments, output), as the worker stores a response."""
    asked = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": question}]}
    output: list[dict[str, Any]] = []
    for number, (name, arguments, result) in enumerate(calls):
        call = {"call_id": f"call_{number}", "name": name, "arguments": arguments}
        output += [{"type": "function_call", **call}]
        output += [{"type": "function_call_output", "call_id": f"call_{number}", "output": result}]
    await owner.execute(
        "insert into responses (tenant_id, id, status, input, body) values ($1, $2, 'completed', $3::jsonb, $4::jsonb)",
        *(record.tenant_id, record.response_id),
        *(orjson.dumps([asked]).decode(), orjson.dumps({"output": output}).decode()),
    )
