"""One list out of those that different embedding models put in order. Pure.

Cosines of different models are on different scales, so their lists are merged by rank and not by score.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import zip_longest

from retrieval.candidate import Hit, Scored


def in_turns(lists: Sequence[Sequence[Scored[Hit]]]) -> list[Scored[Hit]]:
    """The first of each list, then the second of each, and so on.

    Of one rank, who holds more of the query's words comes first: they weigh the same for all models.
    """
    return [scored for rank in zip_longest(*lists) for scored in sorted(filter(None, rank), key=_by_words)]


def _by_words(scored: Scored[Hit]) -> tuple[float, object]:
    return -scored.candidate.coverage, scored.candidate.key
