"""From ranked candidates to the few passages that are worth their prefill. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from retrieval.candidate import Candidate
from retrieval.passage import Passage


class Scored(NamedTuple):
    score: float
    candidate: Candidate


@dataclass(slots=True)
class Selection:
    """The passages, best first, and how many candidates were left out why."""

    passages: list[Passage] = field(default_factory=list)
    below_threshold: int = 0
    repeated: int = 0
    over_tokens: int = 0

    @property
    def tokens(self) -> int:
        return sum(passage.tokens for passage in self.passages)


def compress(ranked: Sequence[Scored], *, limit: int, score_threshold: float, tokens_max: int) -> Selection:
    """At most `limit` passages of at most `tokens_max` tokens together, none below the threshold, none twice.

    A passage that does not fit is left out, and a shorter one after it may still fit.
    """
    selection = Selection()
    texts: set[str] = set()
    for score, candidate in ranked:
        text = " ".join(candidate.text.split()).casefold()
        if score < score_threshold:
            selection.below_threshold += 1
        elif len(selection.passages) == limit:
            break
        elif text in texts or any(_overlap(candidate, passage) for passage in selection.passages):
            selection.repeated += 1
        elif selection.tokens + candidate.tokens > tokens_max:
            selection.over_tokens += 1
        else:
            selection.passages.append(candidate.passage(score))
            texts.add(text)
    return selection


def _overlap(candidate: Candidate, passage: Passage) -> bool:
    return (
        candidate.key.file_id == passage.file_id
        and candidate.start < passage.end_char
        and passage.start_char < candidate.end
    )
