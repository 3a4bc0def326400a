"""`firsttoken cost`: tokens and costs of responses, as a table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import orjson

from worker.cli.command_actor import EVERYBODY
from worker.config import Config
from worker.database import open_database
from worker.home import Home
from worker.latency.spending import By, Spending, per_thousand


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
    """One line for each group, after a line of headings, and a hint if no prices are configured."""
    names = [row["name"] or "-" for row in rows]
    width = max(map(len, [by, *names]))
    lines = [f"{by.upper():<{width}}  ANSWERS  ENGINE S  SPECULATION  CASCADE  TOOLS S        COST    PER 1000"]
    for name, row in zip(names, rows, strict=True):
        each = per_thousand(row)
        speculation, cascade = (_share(each[name]) for name in ("speculation_share", "cascade_share"))
        thousand = each["cost_per_1000"]
        lines.append(
            f"{name:<{width}}  {row['answers']:7}  {row['engine_ms'] / 1e3:8.1f}  {speculation:>11}  {cascade:>7}  "
            f"{row['tool_ms'] / 1e3:7.1f}  {row['cost']:10.4g}  {'-' if thousand is None else f'{thousand:.4g}':>10}"
        )
    if not any(row["cost"] for row in rows):
        lines += ["", "Nothing has a price yet: set engine_second and others under [prices] in agents.toml."]
    return lines


def _share(value: float | None) -> str:
    return "-" if value is None else f"{value:.1%}"
