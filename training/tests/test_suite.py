"""The evaluation as cases for the gate."""

from __future__ import annotations

from pathlib import Path

from tests.serving import ROOT
from training.cases import CATEGORIES
from training.suite import lines
from training.tests.conftest import generator
from worker.cli.evals.suite import read_suites

FILE = ROOT / "benchmarks" / "suites" / "bundled.jsonl"


def test_every_sort_of_case_can_be_asked_by_the_gate(tmp_path: Path) -> None:
    path = tmp_path / "cases.jsonl"
    path.write_text("\n".join(lines(generator(split="test"), 1)), "utf-8")
    suite = read_suites([path])
    assert {case.group for case in suite.cases} == {category.name for category in CATEGORIES}
    for case in suite.cases:
        results = [message for message in case.said if message["role"] == "tool"]
        calls = [call["id"] for message in case.said for call in message.get("tool_calls", ())]
        assert [message["tool_call_id"] for message in results] == calls


def test_the_file_of_the_project_is_what_would_be_written_today() -> None:
    """Else: `python -m training.tests.test_suite` writes it, and recorded.json goes with it."""
    assert FILE.read_text("utf-8") == _written()


def _written() -> str:
    return "".join(f"{line}\n" for line in lines(generator("suite", split="test"), 2))


if __name__ == "__main__":
    FILE.write_text(_written(), "utf-8")
