"""The table of `firsttoken goodput`."""

from __future__ import annotations

from typing import Any

from worker.cli.goodput_table import BLOCKS, COUNTS, SLICES, sparkline, table


def row(name: str, slice: int, **counts: int) -> dict[str, Any]:
    return {"name": name, "slice": slice, **dict.fromkeys(COUNTS, 0), **counts}


def test_every_request_is_in_one_column_and_only_judged_ones_make_the_share() -> None:
    counted = [
        row("chat", 0, requests=6, judged=4, in_time=1, refused=1, failed=1, cancelled=1, invalid=1),
        row("chat", 23, requests=4, judged=4, in_time=4),
        row("batch", 3, requests=2),
    ]
    head, chat, batch = table("surface", counted)
    assert head.split()[:8] == ["SURFACE", "GOODPUT", "REQUESTS", "LATE", "REFUSED", "FAILED", "CANCELLED", "INVALID"]
    assert chat.split()[:8] == ["chat", "62.5%", "10", "1", "1", "1", "1", "1"]
    assert batch.split()[:3] == ["batch", "-", "2"]


def test_a_sparkline_is_full_where_all_were_in_time_and_dotted_where_nobody_asked() -> None:
    line = sparkline([row("chat", 0, judged=2, in_time=2), row("chat", 1, judged=2), row("chat", 2, requests=1)])
    assert line == BLOCKS[-1] + BLOCKS[0] + "·" * (SLICES - 2)
