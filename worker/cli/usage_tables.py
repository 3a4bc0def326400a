"""`firsttoken cost` and `firsttoken goodput`: costs of responses, and the share that was on time, as tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import orjson

from worker.cli.tenant import EVERYBODY, open_home
from worker.config import Config
from worker.telemetry.latency.spending import By, Spending, per_thousand
from worker.telemetry.telemetry import Grouping, Traces


async def show_cost(config: Config, *, by: By, hours: float, as_json: bool) -> None:
    async with open_home(config) as (database, _):
        rows = await Spending(database).by(EVERYBODY, by, window_s=hours * 3600)
    if as_json:
        for row in rows:
            print(orjson.dumps({**row, **per_thousand(row)}).decode())
        return
    print("\n".join(cost_table(by, rows)) if rows else f"no answers in the last {hours:g} hours")


def cost_table(by: str, rows: Sequence[Mapping[str, Any]]) -> list[str]:
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


SLICES = 24  # characters of a sparkline
BLOCKS = "▁▂▃▄▅▆▇█"
COUNTS = ("requests", "judged", "in_time", "refused", "failed", "cancelled", "invalid")
COLUMNS: Mapping[str, Grouping] = {"surface": "surface", "tenant": "tenant_id", "model": "model", "cache": "cache"}


async def show_goodput(config: Config, *, by: str, hours: float, as_json: bool) -> None:
    async with open_home(config) as (database, _):
        counted = await Traces(database).goodput(EVERYBODY, COLUMNS[by], window_s=hours * 3600, slices=SLICES)
    if as_json:
        for row in counted:
            print(orjson.dumps(row).decode())
        return
    print("\n".join(goodput_table(by, counted)) if counted else f"no answers in the last {hours:g} hours")


def goodput_table(by: str, counted: Sequence[Mapping[str, Any]]) -> list[str]:
    """One line for each group, after a line of headings. `counted` are counts by `name` and `slice`."""
    names = list(dict.fromkeys(row["name"] for row in counted))
    width = max(map(len, [by, *names]))
    lines = [f"{by.upper():<{width}}  GOODPUT  REQUESTS  LATE  REFUSED  FAILED  CANCELLED  INVALID  OLDEST TO NEWEST"]
    for name in names:
        rows = [row for row in counted if row["name"] == name]
        total = {each: sum(row[each] for row in rows) for each in COUNTS}
        late = total["judged"] - total["in_time"] - total["refused"] - total["failed"]
        share = f"{total['in_time'] / total['judged']:7.1%}" if total["judged"] else f"{'-':>7}"
        lines.append(
            f"{name:<{width}}  {share}  {total['requests']:8}  {late:4}  {total['refused']:7}  {total['failed']:6}  "
            f"{total['cancelled']:9}  {total['invalid']:7}  {sparkline(rows)}"
        )
    return lines


def sparkline(rows: Sequence[Mapping[str, Any]]) -> str:
    """The share in time in each slice: full blocks for all of them, a dot for a slice without judged turns."""
    shares = {row["slice"]: row["in_time"] / row["judged"] for row in rows if row["judged"]}
    return "".join(BLOCKS[round(shares[each] * (len(BLOCKS) - 1))] if each in shares else "·" for each in range(SLICES))
