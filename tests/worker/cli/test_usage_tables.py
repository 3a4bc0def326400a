"""Costs and goodput as tables: one line for each group."""

from __future__ import annotations

from typing import Any

from worker.cli.usage_tables import BLOCKS, COUNTS, SLICES, cost_table, goodput_table, sparkline


def cost(name: str, cost: float) -> dict[str, object]:
    return {
        "name": name,
        "answers": 200,
        "cost": cost,
        "engine_ms": 40_000.0,
        "speculation_ms": 4_000.0,
        "tool_ms": 500.0,
        "cascade_ms": 2_000.0,
    }


def test_a_row_says_what_a_thousand_answers_cost_and_what_speculation_and_cascades_took() -> None:
    head, chat = cost_table("surface", [cost("chat", 3.0)])
    assert head.split()[:4] == ["SURFACE", "ANSWERS", "ENGINE", "S"]
    assert chat.split() == ["chat", "200", "40.0", "10.0%", "5.0%", "0.5", "3", "15"]


def test_where_nothing_has_a_price_it_says_how_to_set_one() -> None:
    assert "engine_second" in cost_table("key", [cost("", 0.0)])[-1]


def counts(name: str, slice: int, **counts: int) -> dict[str, Any]:
    return {"name": name, "slice": slice, **dict.fromkeys(COUNTS, 0), **counts}


def test_every_request_is_in_one_column_and_only_judged_ones_make_the_share() -> None:
    counted = [
        counts("chat", 0, requests=6, judged=4, in_time=1, refused=1, failed=1, cancelled=1, invalid=1),
        counts("chat", 23, requests=4, judged=4, in_time=4),
        counts("batch", 3, requests=2),
    ]
    head, chat, batch = goodput_table("surface", counted)
    assert head.split()[:8] == ["SURFACE", "GOODPUT", "REQUESTS", "LATE", "REFUSED", "FAILED", "CANCELLED", "INVALID"]
    assert chat.split()[:8] == ["chat", "62.5%", "10", "1", "1", "1", "1", "1"]
    assert batch.split()[:3] == ["batch", "-", "2"]


def test_a_sparkline_is_full_where_all_were_in_time_and_dotted_where_nobody_asked() -> None:
    line = sparkline(
        [counts("chat", 0, judged=2, in_time=2), counts("chat", 1, judged=2), counts("chat", 2, requests=1)]
    )
    assert line == BLOCKS[-1] + BLOCKS[0] + "·" * (SLICES - 2)
