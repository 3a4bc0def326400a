"""From which similarity an answer may be given again, on questions whose vectors are known."""

from __future__ import annotations

import numpy as np
import pytest

from worker.cli.evals.similarity_threshold import Hits, Question, fit_threshold


def question(about: int, way: float, text: str = "What is it?", context: str = "") -> Question:
    """Two ways to ask the same are as similar as `way` says; questions about something else by a half."""
    vector = np.zeros(200, np.float32)
    vector[about], vector[100 + hash((about, way)) % 90], vector[199] = 1.0, way, 1.0
    return Question(text, context, f"answer {about}", vector / np.float32(np.linalg.norm(vector)))


def suite(near: float = 0.3, count: int = 20) -> list[Question]:
    return [question(about, way) for about in range(count) for way in (near, near + 0.01)]


def test_a_threshold_between_the_same_and_others_is_found_and_holds_for_the_other_half() -> None:
    found = fit_threshold(suite(), wrong_max=0.0)
    assert found.value is not None and found.value > 0.7
    assert found.fitted == Hits(20, 20, 20, 0) and found.held_out == Hits(20, 20, 20, 0)
    assert found.held_out.found_share == 1 and found.held_out.wrong_share == 0


def test_where_others_sound_as_alike_as_the_same_there_is_none() -> None:
    alike = np.full(4, 0.5, np.float32)
    same = [Question(f"What is {word}?", "", word, alike) for word in ("a", "b", "c", "d") for _ in range(2)]
    found = fit_threshold([*same[::2], *same[1::2]], wrong_max=0.0)
    assert found.value is None and found.held_out.hits == 0


@pytest.mark.parametrize("other", [{"text": "What is it in 2020?"}, {"context": "after something else"}])
def test_what_could_not_be_given_anyway_does_not_count(other: dict[str, str]) -> None:
    apart = [question(about, 0.3, **(other if way else {})) for about in range(8) for way in range(2)]
    assert fit_threshold(apart, wrong_max=0.5).fitted.hits == 0


def test_without_cases_nothing_is_found() -> None:
    assert fit_threshold([], wrong_max=0.1).value is None
    assert Hits(0, 0, 0, 0).found_share == Hits(0, 0, 0, 0).wrong_share == 0
