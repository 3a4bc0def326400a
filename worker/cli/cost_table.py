"""`firsttoken cost`: what answers took and cost, as a table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any
from uuid import UUID

import orjson

from worker.auth.principal import Principal
from worker.auth.scope import Scope
from worker.config import Config
from worker.home import Home
from worker.latency.spending import By, Spending, per_thousand
from worker.start import open_database

EVERYBODY = Principal(UUID(int=0), "command", frozenset({Scope.OPS}), "api_key")


async def show_cost(config: Config, *, by: By, hours: float, as_json: bool) -> None:
    Home(config.home).prepare()
    async with open_database(config) as database:
        rows = await Spending(database).by(EVERYBODY, by, window_s=hours * 3600)
    if as_json:
        for row in rows:
            print(orjson.dumps({**row, **per_thousand(row)}).decode())
        return
    print("\n".join(table(by, rows)) if rows else f"no answers in the last {hours:g} hours")


def table(by: str, rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """One line for each group, after a line of headings, and a hint where nothing has a price."""
    names = [row["name"] or "-" for row in rows]
    width = max(map(len, [by, *names]))
    lines = [f"{by.upper():<{width}}  ANSWERS  ENGINE S  SPECULATION  TOOLS S        COST    PER 1000"]
    for name, row in zip(names, rows, strict=True):
        each = per_thousand(row)
        share = each["speculation_share"]
        wasted = "-" if share is None else f"{share:.1%}"
        thousand = each["cost_per_1000"]
        lines.append(
            f"{name:<{width}}  {row['answers']:7}  {row['engine_ms'] / 1e3:8.1f}  {wasted:>11}  "
            f"{row['tool_ms'] / 1e3:7.1f}  {row['cost']:10.4g}  {'-' if thousand is None else f'{thousand:.4g}':>10}"
        )
    if not any(row["cost"] for row in rows):
        lines += ["", "Nothing has a price yet: set engine_second and others in [prices] of agents.toml."]
    return lines
