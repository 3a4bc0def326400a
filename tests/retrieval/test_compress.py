from __future__ import annotations

from collections.abc import Callable

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from retrieval.candidate import Candidate
from retrieval.compress import Scored, compress

Make = Callable[..., Candidate]


def test_the_best_come_first_and_no_more_than_asked(make_candidate: Make) -> None:
    ranked = [Scored(0.9 - n / 10, make_candidate(n)) for n in range(5)]
    selection = compress(ranked, limit=3, score_threshold=0.0, tokens_max=1000)
    assert [passage.score for passage in selection.passages] == [0.9, 0.8, 0.7]


def test_what_scores_below_the_threshold_stays_out(make_candidate: Make) -> None:
    ranked = [Scored(0.5, make_candidate(0)), Scored(0.42, make_candidate(1)), Scored(0.41, make_candidate(2))]
    selection = compress(ranked, limit=9, score_threshold=0.42, tokens_max=1000)
    assert [passage.score for passage in selection.passages] == [0.5, 0.42]
    assert selection.below_threshold == 1


def test_the_same_words_are_given_once(make_candidate: Make) -> None:
    ranked = [
        Scored(0.9, make_candidate(0, text="Same  words\nhere", file_id="one")),
        Scored(0.8, make_candidate(1, text="same words here", file_id="another")),
    ]
    selection = compress(ranked, limit=9, score_threshold=0.0, tokens_max=1000)
    assert [passage.file_id for passage in selection.passages] == ["one"]
    assert selection.repeated == 1


def test_spans_of_a_file_that_overlap_are_given_once(make_candidate: Make) -> None:
    ranked = [
        Scored(0.9, make_candidate(0, text="a" * 50, start=100)),
        Scored(0.8, make_candidate(1, text="b" * 50, start=149)),
        Scored(0.7, make_candidate(2, text="c" * 50, start=150)),
        Scored(0.6, make_candidate(3, text="d" * 50, start=120, file_id="another")),
    ]
    selection = compress(ranked, limit=9, score_threshold=0.0, tokens_max=1000)
    assert [passage.text[0] for passage in selection.passages] == ["a", "c", "d"]


def test_a_shorter_passage_may_fit_where_a_longer_one_did_not(make_candidate: Make) -> None:
    ranked = [Scored(0.9, make_candidate(n, tokens=tokens)) for n, tokens in enumerate([60, 60, 40])]
    selection = compress(ranked, limit=9, score_threshold=0.0, tokens_max=100)
    assert [passage.tokens for passage in selection.passages] == [60, 40]
    assert selection.over_tokens == 1


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(st.tuples(st.floats(0, 1), st.integers(1, 200)), max_size=40),
    st.integers(0, 10),
    st.floats(0, 1),
    st.integers(0, 1000),
)
def test_every_limit_holds(
    make_candidate: Make, found: list[tuple[float, int]], limit: int, threshold: float, tokens_max: int
) -> None:
    scored = [Scored(score, make_candidate(n, tokens=t)) for n, (score, t) in enumerate(found)]
    ranked = sorted(scored, key=lambda one: -one.score)
    passages = compress(ranked, limit=limit, score_threshold=threshold, tokens_max=tokens_max).passages
    assert len(passages) <= limit
    assert sum(passage.tokens for passage in passages) <= tokens_max
    assert all(passage.score >= threshold for passage in passages)
    assert [p.score for p in passages] == sorted((p.score for p in passages), reverse=True)
