"""Grades an answer: a score from 0 to 1 by each grader that its case names. Pure, except for the judge.

The score of an answer is the lowest of them: one with the right value and the wrong citation is not right.
"""

from __future__ import annotations

from collections.abc import Mapping

from agents.text_similarity import overlap
from inference.grammar.validation import Checked, Pattern
from worker.evals.answer import Answer
from worker.evals.call_tree import matched
from worker.evals.case import Case
from worker.evals.citation_grader import cites, rank


def grade(case: Case, answer: Answer, judged: float | None = None) -> dict[str, float]:
    """The score by each grader; `judged` is the judge's score. A missing answer scores 0."""
    if answer.error is not None:
        return dict.fromkeys(case.expect.graders, 0.0)
    return {name: _score(name, case, answer, judged) for name in case.expect.graders}


def score(grades: Mapping[str, float]) -> float:
    return min(grades.values())


def _score(grader: str, case: Case, answer: Answer, judged: float | None) -> float:
    expect, text = case.expect, answer.text.strip()
    match grader:
        case "exact":
            return float(not answer.calls and text in [each.strip() for each in expect.texts])
        case "pattern":
            return float(Pattern(expect.pattern or "").occurs_in(text))
        case "schema":
            return float(Checked(expect.json_schema or {}).unmet(text) is None)
        case "calls":
            return matched(expect.calls or (), answer.calls, case.tools or (), expect.ordered)
        case "cites":
            return cites(expect.cites or (), answer)
        case "finds":
            return rank(expect.finds or (), answer.found)
        case "like":
            return overlap(expect.like or "", text)
    return judged or 0.0
