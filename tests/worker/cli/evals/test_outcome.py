"""The verdict, and how it is told."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from xml.etree import ElementTree

import orjson
import pytest

from worker.cli.eval_commands import notes
from worker.cli.evals.eval_runner import fingerprint
from worker.cli.evals.outcome import GradedAnswer, Outcome, Result
from worker.cli.evals.report import as_json, markdown, picture, read_recorded, table
from worker.cli.evals.suite import Answer, Case, Defaults, Usage
from worker.errors import StartError


def results(scores: Sequence[float], first_ms: float = 100.0, text: str = "Red.") -> list[Result]:
    return [
        Result.of(
            *(f"case-{i}", "colours" if i % 2 else None, "f"),
            [GradedAnswer(Answer(text, took=Usage(first_ms + i, 200.0, 10, 0, 5)), {"exact": score})],
        )
        for i, score in enumerate(scores)
    ]


def outcome(one: Sequence[float], other: Sequence[float], slower: float | None = None, ms: float = 100.0) -> Outcome:
    return Outcome(("new", "old"), results(one, ms), results(other), 0.05, slower)


def test_what_is_the_same_is_not_worse() -> None:
    assert outcome([1, 0] * 20, [1, 0] * 20).verdict == "not worse"
    assert "scored the same on both sides" in table(outcome([1], [1]))[-1]


def test_a_case_without_an_answer_is_told_with_its_reason() -> None:
    lost = Result.of("a", None, "f", [GradedAnswer(Answer(error="status 404: no store handbook"), {"exact": 0.0})])
    assert notes([lost], None, 1) == [
        "1 of 1 cases got no answer from --model: they score 0. The first of them: status 404: no store handbook"
    ]


def test_what_loses_a_third_of_the_cases_is_worse() -> None:
    assert outcome([1, 1, 0] * 20, [1, 1, 1] * 20).verdict == "worse"


def test_a_gain_passes() -> None:
    assert outcome([1, 1, 1] * 20, [1, 1, 0] * 20).verdict == "not worse"


def test_cases_that_went_both_ways_leave_it_unsure() -> None:
    found = outcome([1, 0] * 5, [0, 1] * 5)
    assert found.verdict == "unsure"
    assert "is not ruled out" in table(found)[-1]


def test_who_is_as_good_and_much_slower_passes_unless_that_was_excluded() -> None:
    assert outcome([1] * 20, [1] * 20, ms=200.0).verdict == "not worse"
    late = outcome([1] * 20, [1] * 20, slower=0.2, ms=200.0)
    assert (late.verdict, late.is_slower) == ("worse", True)
    assert outcome([1] * 20, [1] * 20, slower=0.2, ms=101.0).verdict == "not worse"


def test_times_of_two_runs_are_not_compared() -> None:
    found = Outcome(("new", "old"), results([1] * 5, 900.0), results([1] * 5), 0.05, 0.2, timed=False)
    assert found.verdict == "not worse"
    assert {cost.name: cost.times is None for cost in found.costs}["first_ms"]
    assert any("not of one run" in line for line in table(found))


def test_repetitions_of_a_case_are_one_case() -> None:
    given = [GradedAnswer(Answer("a"), {"exact": 1.0}), GradedAnswer(Answer("b"), {"exact": 0.0})]
    assert Result.of("x", None, "f", given).score == 0.5


def test_a_report_quotes_answers_as_text_and_its_picture_is_whole() -> None:
    found = Outcome(
        ("new", "old"), results([0, 1], text="# <b>Red</b> ![x](y)\n| a |"), results([1, 1]), 0.05, notes=["A note."]
    )
    report = markdown(found, "report.svg")
    assert "![Differences of the scores with their intervals](report.svg)" in report
    assert "\\# \\<b\\>Red\\</b\\> \\!\\[x\\](y) \\| a \\|" in report
    assert "A note." in report
    image = ElementTree.fromstring(picture(found))
    assert image.tag.endswith("svg")
    assert "colours" in [text.text for text in image.iter("{http://www.w3.org/2000/svg}text")]


def test_a_run_that_was_written_is_compared_with_only_while_its_cases_are_the_same(tmp_path: Path) -> None:
    case = Case.model_validate({"input": "a", "expect": {"exact": "b"}}).with_defaults(Defaults(), "x")
    result = Result.of("x", None, fingerprint(case), [GradedAnswer(Answer("b"), {"exact": 1.0})])
    path = tmp_path / "run.json"
    path.write_bytes(orjson.dumps(as_json(Outcome(("old", None), [result], None, 0.05))))
    assert read_recorded(path, [case]) == ("old", [result])
    changed = case.model_copy(update={"input": "c"})
    for cases in ([changed], [case.model_copy(update={"id": "y"})]):
        with pytest.raises(StartError, match="new or have changed"):
            read_recorded(path, cases)


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"format": 0}', '{"format": 1, "model": "m", "cases": [1]}'])
def test_what_is_no_run_is_said_in_a_line(tmp_path: Path, text: str) -> None:
    path = tmp_path / "run.json"
    path.write_text(text)
    with pytest.raises(StartError, match=r"run\.json"):
        read_recorded(path, [])
