"""`firsttoken cost` and `firsttoken goodput`: costs of responses, and the share that was on time, as tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import orjson

from worker.cli.evals.table import aligned
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
    head = (by.upper(), "ANSWERS", "ENGINE S", "SPECULATION", "CASCADE", "TOOLS S", "COST", "PER 1000")
    lines = aligned([head, *map(_costs, rows)])
    if not any(row["cost"] for row in rows):
        lines += ["", "Nothing has a price yet: set engine_second and others under [prices] in agents.toml."]
    return lines


def _costs(row: Mapping[str, Any]) -> Sequence[str]:
    each = per_thousand(row)
    return (
        row["name"] or "-",
        str(row["answers"]),
        f"{row['engine_ms'] / 1e3:.1f}",
        _number(each["speculation_share"], ".1%"),
        _number(each["cascade_share"], ".1%"),
        f"{row['tool_ms'] / 1e3:.1f}",
        f"{row['cost']:.4g}",
        _number(each["cost_per_1000"], ".4g"),
    )


def _number(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)


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
    shown = ("requests", "late", "refused", "failed", "cancelled", "invalid")
    lines = [(by.upper(), "GOODPUT", *map(str.upper, shown), "OLDEST TO NEWEST")]
    for name in dict.fromkeys(row["name"] for row in counted):
        rows = [row for row in counted if row["name"] == name]
        total = {each: sum(row[each] for row in rows) for each in COUNTS}
        total["late"] = total["judged"] - total["in_time"] - total["refused"] - total["failed"]
        share = _number(total["in_time"] / total["judged"] if total["judged"] else None, ".1%")
        lines.append((name, share, *(str(total[each]) for each in shown), sparkline(rows)))
    return aligned(lines, texts=(0, len(lines[0]) - 1))


def sparkline(rows: Sequence[Mapping[str, Any]]) -> str:
    """The share in time in each slice: full blocks for all of them, a dot for a slice without judged turns."""
    shares = {row["slice"]: row["in_time"] / row["judged"] for row in rows if row["judged"]}
    return "".join(BLOCKS[round(shares[each] * (len(BLOCKS) - 1))] if each in shares else "·" for each in range(SLICES))
