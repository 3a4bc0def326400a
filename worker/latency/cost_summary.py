"""The cost of responses and their time to first token, by surface, model and agent."""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from migrations.pool import Database
from worker.auth.principal import Principal
from worker.latency import rollups
from worker.latency.histogram import Tally
from worker.latency.queries import LatencyQuery
from worker.latency.rollups import Group
from worker.latency.spending import Spending, per_thousand
from worker.latency.visibility import Visibility

QUANTILES = (0.5, 0.95)


async def cost_summary(database: Database, principal: Principal, asked: LatencyQuery) -> list[dict[str, Any]]:
    """The groups with the most responses first; empty for slices without stored costs. Costs are stored per hour, so
    the hours at both ends count in full."""
    if not asked.slice.has_costs:
        return []
    time_range = asked.time_range(time.time())
    async with Visibility.of(principal).open(database) as connection:
        groups = await rollups.groups(connection, time_range, asked.slice)
    spent = await Spending(database).board(principal, asked.slice, start=time_range.start, end=time_range.end)
    return await asyncio.to_thread(board, spent, groups)


def board(spent: Sequence[Mapping[str, Any]], groups: Sequence[Group]) -> list[dict[str, Any]]:
    """Pure."""
    pieces: dict[tuple[str, str, str], list[bytes]] = defaultdict(list)
    for group in groups:
        pieces[group.surface, group.model, group.agent].append(group.measures)
    rows = []
    for row in spent:
        tally = Tally(b"".join(pieces[row["surface"], row["model"], row["agent"]]))
        p50, p95 = tally.percentiles(QUANTILES, "ttft")
        rows.append({**row, **per_thousand(row), "ttft_ms": {"p50": p50, "p95": p95}})
    return rows
