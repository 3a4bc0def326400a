"""Thresholds are chosen from cases, or it is said that there are too few of them."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.serving import ROOT
from tests.worker.cli.test_main import complaint, firsttoken
from tests.worker.cli.test_suite_command import SUM, cases
from worker.cli.main import main

ASKED = {
    "14 days": ("How long do I have to send something back?", "How much time do I have to return an item?"),
    "Lima": ("What is the capital of Peru?", "Which city is the capital of Peru?"),
    "blue": ("What colour is the cover of the manual?", "Which colour does the manual's cover have?"),
    "9 am": ("When does the office open in the morning?", "At what time does the office open?"),
    "Ada": ("Who wrote the first program?", "Who was the author of the first program?"),
    "no": ("Is there a fee for late payment?", "Do I pay a fee when my payment is late?"),
}


def suite(tmp_path: Path, ways: int) -> str:
    lines = [
        {"id": f"{answer}-{way}", "input": question, "expect": {"pattern": answer}}
        for answer, questions in ASKED.items()
        for way, question in enumerate(questions[:ways])
    ]
    return cases(tmp_path, *lines)


def test_a_similarity_is_chosen_at_which_the_same_question_is_known_in_other_words(
    tmp_path: Path, make_home: Callable[[], Path]
) -> None:
    home = str(make_home())
    done = firsttoken("eval", "cache", suite(tmp_path, 2), "--json", "--wrong", "0", "--home", home)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert 0.7 <= told["threshold"] < 1
    assert told["fitted"]["wrong"] == 0 < told["fitted"]["hits"]
    assert told["held_out"]["questions"] == 6


def test_cases_that_nobody_asks_in_other_words_tell_nothing(tmp_path: Path, make_home: Callable[[], Path]) -> None:
    home = str(make_home())
    assert "cases ask the same question in other words" in complaint(
        "eval", "cache", suite(tmp_path, 1), "--home", home
    )
    assert "too few" in complaint("eval", "cache", cases(tmp_path, SUM), "--home", home)


MODELS = """
[models.small]
model = "demo-draft"
price = { engine_second = 0.2 }

[models.large]
model = "demo-chat"

[routes.auto]
policy = "cascade"
first = "small"
then = "large"
"""


@pytest.fixture
def home(make_home: Callable[[], Path]) -> Path:
    home = make_home()
    (home / "models.toml").write_text(MODELS)
    return home


@pytest.mark.long
@pytest.mark.any_answer("thresholds are chosen, whichever they are")
def test_thresholds_are_chosen_and_written_with_a_report(home: Path, tmp_path: Path, capsys: object) -> None:
    report, policy, told = tmp_path / "route.md", tmp_path / "route.toml", tmp_path / "route.json"
    files = ["--report", str(report), "--policy", str(policy), "--json", str(told)]
    suite = str(ROOT / "benchmarks" / "suites" / "bundled.jsonl")
    assert main(["eval", "route", suite, "--home", str(home), "--at-once", "2", *files]) == 0
    route = tomllib.loads(policy.read_text())["routes"]["auto"]
    assert (route["policy"], route["first"], route["then"]) == ("cascade", "small", "large")
    found = json.loads(told.read_text())
    assert sum(found["cases"].values()) >= 30 and found["points"]["then"]["cost"] > 0
    assert "## The policy" in report.read_text() and report.with_suffix(".svg").read_text().startswith("<svg")


def test_without_a_cascade_there_is_nothing_to_choose(home: Path, tmp_path: Path) -> None:
    path = cases(tmp_path, SUM)
    assert "there is no cascade other: models.toml has auto" in complaint(
        "eval", "route", path, "--home", str(home), "--route", "other"
    )
    (home / "models.toml").unlink()
    assert "there is no models.toml in the home folder" in complaint("eval", "route", path, "--home", str(home))
