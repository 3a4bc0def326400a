from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from retrieval.candidate import Candidate, Scored
from retrieval.compress import compress, neighbours

Make = Callable[..., Candidate]


def test_the_best_come_first_and_no_more_than_asked(make_candidate: Make) -> None:
    ranked = [Scored(0.9 - n / 10, make_candidate(n)) for n in range(5)]
    selection = compress(ranked, limit=3, score_threshold=0.0, tokens_max=1000)
    assert [score for score, _ in selection.chosen] == [0.9, 0.8, 0.7]


def test_what_scores_below_the_threshold_stays_out(make_candidate: Make) -> None:
    ranked = [Scored(0.5, make_candidate(0)), Scored(0.42, make_candidate(1)), Scored(0.41, make_candidate(2))]
    selection = compress(ranked, limit=9, score_threshold=0.42, tokens_max=1000)
    assert [score for score, _ in selection.chosen] == [0.5, 0.42]
    assert selection.below_threshold == 1


def test_what_is_far_behind_the_best_of_its_own_model_stays_out(make_candidate: Make) -> None:
    scores = {"one": (0.9, 0.6, 0.5), "other": (0.5, 0.4, 0.2)}
    ranked = [
        Scored(score, replace(make_candidate(n, text=f"{model} {n}", file_id=model), model=model))
        for model, of_model in scores.items()
        for n, score in enumerate(of_model)
    ]
    selection = compress(ranked, limit=9, score_threshold=0.0, share_min=0.65, tokens_max=1000)
    assert [score for score, _ in selection.chosen] == [0.9, 0.6, 0.5, 0.4]
    assert selection.below_threshold == 2


def test_the_same_words_are_given_once(make_candidate: Make) -> None:
    ranked = [
        Scored(0.9, make_candidate(0, text="Same  words\nhere", file_id="one")),
        Scored(0.8, make_candidate(1, text="same words here", file_id="another")),
    ]
    selection = compress(ranked, limit=9, score_threshold=0.0, tokens_max=1000)
    assert [candidate.key.file_id for _, candidate in selection.chosen] == ["one"]
    assert selection.repeated == 1


def test_spans_of_a_file_that_overlap_are_given_once(make_candidate: Make) -> None:
    ranked = [
        Scored(0.9, make_candidate(0, text="a" * 50, start=100)),
        Scored(0.8, make_candidate(1, text="b" * 50, start=149)),
        Scored(0.7, make_candidate(2, text="c" * 50, start=150)),
        Scored(0.6, make_candidate(3, text="d" * 50, start=120, file_id="another")),
    ]
    selection = compress(ranked, limit=9, score_threshold=0.0, tokens_max=1000)
    assert [candidate.text[0] for _, candidate in selection.chosen] == ["a", "c", "d"]


def test_a_shorter_passage_may_fit_where_a_longer_one_did_not(make_candidate: Make) -> None:
    ranked = [Scored(0.9, make_candidate(n, tokens=tokens)) for n, tokens in enumerate([60, 60, 40])]
    selection = compress(ranked, limit=9, score_threshold=0.0, tokens_max=100)
    assert [candidate.tokens for _, candidate in selection.chosen] == [60, 40]
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
    chosen = compress(ranked, limit=limit, score_threshold=threshold, tokens_max=tokens_max).chosen
    assert len(chosen) <= limit
    assert sum(candidate.tokens for _, candidate in chosen) <= tokens_max
    assert all(score >= threshold for score, _ in chosen)
    assert [score for score, _ in chosen] == sorted((score for score, _ in chosen), reverse=True)


def test_one_that_can_be_cut_to_what_is_left_is_kept(make_candidate: Make) -> None:
    def cut(candidate: Candidate, tokens_max: int) -> Candidate | None:
        return candidate if candidate.tokens <= tokens_max else replace(candidate, tokens=tokens_max)

    ranked = [Scored(0.9, make_candidate(n, tokens=60)) for n in range(2)]
    selection = compress(ranked, limit=9, score_threshold=0.0, tokens_max=100, cut=cut)
    assert ([candidate.tokens for _, candidate in selection.chosen], selection.cut) == ([60, 40], 1)


def test_what_follows_each_other_in_a_section_is_one(make_candidate: Make) -> None:
    def at(ordinal: int, start: int, **rest: str) -> Scored[Candidate]:
        return Scored(1 - ordinal / 10, make_candidate(ordinal, text="x" * 98, start=start, **rest))

    one, two, three = at(1, 100), at(2, 200), at(3, 300)
    assert neighbours([two, one, three]) == [[one, two, three]]
    assert neighbours([one, three, two]) == [[one, two, three]]
    apart = [one, at(2, 203), at(2, 200, file_id="other"), at(3, 200), Scored(0.5, replace(two.candidate, heading="B"))]
    assert neighbours(apart) == [[scored] for scored in apart]


def test_a_group_stands_where_its_best_does(make_candidate: Make) -> None:
    far = Scored(0.8, make_candidate(7))
    one, two = (Scored(score, make_candidate(n, text="x" * 98)) for n, score in ((1, 0.7), (2, 0.9)))
    assert neighbours([two, far, one]) == [[one, two], [far]]
