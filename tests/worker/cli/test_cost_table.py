"""The table of `firsttoken cost`."""

from __future__ import annotations

from worker.cli.cost_table import table


def row(name: str, cost: float) -> dict[str, object]:
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
    head, chat = table("surface", [row("chat", 3.0)])
    assert head.split()[:4] == ["SURFACE", "ANSWERS", "ENGINE", "S"]
    assert chat.split() == ["chat", "200", "40.0", "10.0%", "5.0%", "0.5", "3", "15"]


def test_where_nothing_has_a_price_it_says_how_to_set_one() -> None:
    assert "engine_second" in table("key", [row("", 0.0)])[-1]
