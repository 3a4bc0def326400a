"""`firsttoken goodput`: the share of responses in time, as a table with a sparkline for each row."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import orjson

from worker.cli.command_actor import EVERYBODY
from worker.config import Config
from worker.database import open_database
from worker.home import Home
from worker.traces import Grouping, Traces

SLICES = 24  # characters of a sparkline
BLOCKS = "▁▂▃▄▅▆▇█"
COUNTS = ("requests", "judged", "in_time", "refused", "failed", "cancelled", "invalid")
COLUMNS: Mapping[str, Grouping] = {"surface": "surface", "tenant": "tenant_id", "model": "model", "cache": "cache"}


async def show_goodput(config: Config, *, by: str, hours: float, as_json: bool) -> None:
    Home(config.home).prepare()
    async with open_database(config) as database:
        counted = await Traces(database).goodput(EVERYBODY, COLUMNS[by], window_s=hours * 3600, slices=SLICES)
    if as_json:
        for row in counted:
            print(orjson.dumps(row).decode())
        return
    print("\n".join(table(by, counted)) if counted else f"no answers in the last {hours:g} hours")


def table(by: str, counted: Sequence[Mapping[str, Any]]) -> list[str]:
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
