"""Stored turns beside what became of them when they were asked again."""

from __future__ import annotations

import pytest

from worker.cli.evals.stored_cases import ReplayedTurn, as_json, markdown, rows, summary, table, totals


def turn(id: str, before: dict[str, float], now: dict[str, float], said: str = "It is red.") -> ReplayedTurn:
    return ReplayedTurn(id, before, now, "It is red.", said)


TURNS = [
    turn("resp_1", {"queue": 1.0, "decode": 100.0}, {"queue": 2.0, "decode": 50.0}),
    turn("resp_2", {"queue": 3.0, "decode": 300.0}, {"queue": 2.0, "route": 0.1, "decode": 70.0}, "It is\nred."),
    turn("resp_3", {}, {"decode": 10.0}, "No | idea."),
]


def test_spans_of_a_name_are_one_and_medians_are_those_of_turns_that_are_known_on_both_sides() -> None:
    step = {"name": "decode", "duration_ms": 20.0}
    assert totals([step, step, {"name": "open", "duration_ms": None}]) == {"decode": 40.0, "open": 0.0}
    told = {row.span: (row.turns, row.before_ms, row.now_ms) for row in rows(TURNS)}
    assert told == {"queue": (2, 2.0, 2.0), "decode": (2, 200.0, 60.0), "route": (1, None, 0.1)}


def test_it_says_how_many_answers_are_the_same_and_shows_the_others() -> None:
    assert summary(TURNS).startswith("3 turns: 2 answers are the same, 1 share less than 90% of their words")
    assert table(TURNS)[0].split() == ["SPAN", "TURNS", "THEN", "NOW"]
    told = markdown(TURNS, "demo-chat --kv-type q8_0")
    assert "## resp_3" in told and "## resp_1" not in told
    assert "No \\| idea." in told, "what a model said is no markup"
    assert as_json(TURNS, "x")["turns"][2]["likeness"] == pytest.approx(0.0)


def test_a_turn_without_an_answer_is_counted_apart() -> None:
    failed = ReplayedTurn("resp_4", {}, {}, "It is red.", "", "status 503: busy")
    assert summary([*TURNS, failed]).endswith("1 more got no answer.")
    assert summary([failed]) == "None of 1 turns was answered."
    assert "status 503: busy" in markdown([failed], "x")
