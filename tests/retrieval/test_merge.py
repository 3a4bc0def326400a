from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from retrieval.candidate import Candidate, Scored
from retrieval.merge import in_turns

Make = Callable[..., Candidate]


def test_the_lists_take_turns_whatever_their_scores(make_candidate: Make) -> None:
    high = [Scored(score, make_candidate(n)) for n, score in enumerate((0.9, 0.8, 0.7))]
    low = [Scored(0.3, make_candidate(9))]
    assert in_turns([low, high]) == [high[0], low[0], high[1], high[2]]
    assert in_turns([high]) == high
    assert in_turns([[], low]) == low
    assert in_turns([]) == in_turns([[], []]) == []


def test_of_one_rank_who_holds_more_of_the_words_comes_first(make_candidate: Make) -> None:
    some, more = (Scored(0.5, replace(make_candidate(n), coverage=c)) for n, c in ((0, 0.2), (1, 0.9)))
    assert in_turns([[some], [more]]) == [more, some]
