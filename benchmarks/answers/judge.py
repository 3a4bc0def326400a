"""Judges an answer by its text and its citations. Pure."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.answers.handbook import Case

Z = 1.96  # of a 95 % interval

# How the bundled model declines, and how others do.
_DECLINES = re.compile(
    r"(could|can|do|does|did|was|is|are)(n[’']t| not|not) "
    r"(find|found|know|mention|say|state|specif|provide|contain|in the)"
    r"|no (information|mention|passage|answer)|not (mentioned|stated|specified|provided|available|in the)|unknown"
)
_MARK = re.compile(r"\[\d{1,3}\]")


@dataclass(frozen=True, slots=True)
class Answer:
    text: str
    cited: tuple[str, ...]  # names of files
    given: tuple[tuple[str, str], ...]  # the passages: name of the file and text


@dataclass(frozen=True, slots=True)
class Verdict:
    given: bool  # the model had the passage that states it
    value: bool
    cited: bool  # the thing's own document, and no other
    declined: bool
    unknown: int  # citations of passages that were not given


def judge(case: Case, answer: Answer) -> Verdict:
    text = answer.text.casefold()
    return Verdict(
        given=any(file == case.file and _holds(passage, case.value) for file, passage in answer.given),
        value=_holds(answer.text, case.value),
        cited=set(answer.cited) == {case.file},
        declined=_DECLINES.search(text) is not None,
        unknown=max(0, len(_MARK.findall(text)) - len(answer.cited)),
    )


@dataclass(frozen=True, slots=True)
class Share:
    count: int
    of: int

    @property
    def interval(self) -> tuple[float, float]:
        """The 95 % Wilson score interval."""
        share, spread = self.count / self.of, Z * Z / self.of
        middle = share + spread / 2
        half = Z * math.sqrt(share * (1 - share) / self.of + spread / (4 * self.of))
        return max(0.0, (middle - half) / (1 + spread)), min(1.0, (middle + half) / (1 + spread))

    def __str__(self) -> str:
        low, high = self.interval
        return f"{self.count / self.of:.0%} ({low:.0%} to {high:.0%})"


def shares(answerable: Sequence[Verdict], unanswerable: Sequence[Verdict]) -> dict[str, Share]:
    both = [*answerable, *unanswerable]
    return {
        "the passage that tells it was given": _share([v.given for v in answerable]),
        "right value": _share([v.value for v in answerable]),
        "right citation": _share([v.cited for v in answerable]),
        "right value and citation": _share([v.value and v.cited for v in answerable]),
        "right value, where the passage was given": _share([v.value for v in answerable if v.given]),
        "declined although there is an answer": _share([v.declined and not v.value for v in answerable]),
        "declined where there is none": _share([v.declined for v in unanswerable]),
        "cites what was not given": _share([v.unknown > 0 for v in both]),
    }


def _share(verdicts: Sequence[bool]) -> Share:
    return Share(sum(verdicts), max(len(verdicts), 1))


def _holds(text: str, value: str | None) -> bool:
    """Whether the text contains the value as whole words: 12 is not in 125."""
    return value is not None and re.search(rf"(?<!\w){re.escape(value)}(?!\w)", text, re.IGNORECASE) is not None
