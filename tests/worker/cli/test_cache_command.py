"""`firsttoken eval cache` with the bundled embedding model."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from tests.worker.cli.test_main import complaint, firsttoken
from tests.worker.cli.test_suite_command import SUM, cases

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
