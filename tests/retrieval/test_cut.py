from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from inference.embedding.windows import Windows
from retrieval.candidate import Candidate
from retrieval.compress import CUT_TOKENS_MIN, Cutter, sentence_scores, sentences, window_scores, word_shares

Make = Callable[..., Candidate]
TEXT = "The harbour opens at six. A berth costs 40 euros. Dogs are welcome here. Swimming is not allowed at all."


def cutter(candidate: Candidate, query: str, *, share_min: float = 0.8) -> Cutter:
    """Knows nothing of meaning: all windows of the candidate are alike, so the words decide."""
    windows = Windows(np.zeros((4, 2), np.int8), np.ones(4, np.float16))
    return Cutter(query, np.ones((1, 2), np.float32), {candidate.key: windows}, lambda t: len(t.split()), share_min)


def test_what_the_question_is_about_is_kept(make_candidate: Make) -> None:
    candidate = make_candidate(2, text=TEXT, tokens=CUT_TOKENS_MIN)
    part = cutter(candidate, "What does a berth cost?")(candidate, 1000)
    assert part is not None
    assert part.text == "A berth costs 40 euros."
    assert part.tokens == 5
    assert part.text == TEXT[part.start - candidate.start : part.end - candidate.start]


def test_what_stands_between_two_good_sentences_is_kept(make_candidate: Make) -> None:
    candidate = make_candidate(text=TEXT, tokens=CUT_TOKENS_MIN)
    part = cutter(candidate, "berth swimming", share_min=0.5)(candidate, 1000)
    assert part is not None
    assert part.text == TEXT[TEXT.index("A berth") :]


def test_where_all_sentences_are_alike_nothing_is_cut(make_candidate: Make) -> None:
    candidate = make_candidate(text=TEXT, tokens=CUT_TOKENS_MIN)
    assert cutter(candidate, "photosynthesis")(candidate, 1000) is candidate


def test_a_short_passage_is_cut_only_when_it_does_not_fit(make_candidate: Make) -> None:
    candidate = make_candidate(text=TEXT, tokens=20)
    cut = cutter(candidate, "berth")
    assert cut(candidate, 20) is candidate
    part = cut(candidate, 19)
    assert part is not None and part.text == "A berth costs 40 euros."
    assert cut(candidate, 4) is None


def test_to_fit_the_worst_sentence_at_an_end_goes_first(make_candidate: Make) -> None:
    candidate = make_candidate(text=TEXT, tokens=CUT_TOKENS_MIN)
    part = cutter(candidate, "dogs welcome, berth", share_min=0.0)(candidate, 10)
    assert part is not None
    assert part.text == "A berth costs 40 euros. Dogs are welcome here."


def test_a_passage_without_windows_is_left_as_it_is(make_candidate: Make) -> None:
    known, other = make_candidate(1), make_candidate(2, text=TEXT, tokens=60)
    assert cutter(known, "berth")(other, 60) is other
    assert cutter(known, "berth")(other, 59) is None


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.text(alphabet="aB. \n|", max_size=120), st.integers(0, 60), st.integers(0, 60))
def test_a_part_is_a_span_of_its_passage_and_fits(
    make_candidate: Make, text: str, tokens: int, tokens_max: int
) -> None:
    candidate = make_candidate(3, text=text or "x", tokens=tokens)
    part = cutter(candidate, "aB")(candidate, tokens_max)
    if part is not None:
        assert part.tokens <= tokens_max
        assert part.text == candidate.text[part.start - candidate.start : part.end - candidate.start]


def test_a_sentence_is_scored_by_the_windows_in_its_middle() -> None:
    text = "a" * 50 + ". " + "B" * 50 + "."
    spans = sentences(text)
    title_chars = 20  # the first windows are of the title, and tell of no sentence
    windows = np.array([0.9, 0.1, 0.2, 0.3, 0.8, 0.4], np.float32)
    assert sentence_scores(windows, title_chars, len(text), spans) == pytest.approx([0.3, 0.8])


def test_a_sentence_shorter_than_the_way_between_windows_takes_the_nearest() -> None:
    spans = sentences("A. B. C. " + "d" * 90)
    scores = sentence_scores(np.array([0.5, 0.1], np.float32), 0, 99, spans)
    assert scores == pytest.approx([0.5, 0.5, 0.5])


def test_a_window_scores_its_mean_cosine_with_the_question() -> None:
    windows = Windows(np.array([[127, 0], [0, 127]], np.int8), np.array([1 / 127, 0.5 / 127], np.float16))
    tokens = np.array([[1, 0], [0.6, 0.8]], np.float32)
    assert window_scores(tokens, windows) == pytest.approx([0.8, 0.2], abs=1e-3)


def test_a_word_counts_the_more_the_fewer_sentences_hold_it() -> None:
    texts = ["the berth is here", "the dog is there", "the end"]
    shares = word_shares("Is the berths' price unknown?", texts)  # "is" is too short, "price" is nowhere
    assert shares == pytest.approx([(1 + 1 / 3) / (1 + 1 / 3), (1 / 3) / (4 / 3), (1 / 3) / (4 / 3)])
    assert word_shares("nothing of that", ["a", "b"]).tolist() == [0.0, 0.0]


def parts(text: str) -> list[str]:
    return [text[start:end] for start, end in sentences(text)]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("One is here. Two is there! Is three?", ["One is here.", "Two is there!", "Is three?"]),
        ("Version 1.5 of e.g. this stays whole.", ["Version 1.5 of e.g. this stays whole."]),
        ('He said "go." Then left.', ['He said "go."', "Then left."]),
        ("A line\nbroken here. Next\none.", ["A line\nbroken here.", "Next\none."]),
        ("A paragraph\n\n  another one\n", ["A paragraph", "another one"]),
        ("Options:\n- first. Really.\n- second\n2. third", ["Options:", "- first.", "Really.", "- second", "2. third"]),
        ("Look:\n\n```sh\na. B\n\nc. D\n```\n\nDone.", ["Look:", "```sh\na. B\n\nc. D\n```", "Done."]),
        ("| a. B | c |\n|---|---|\n| d. E | f |\n\nAfter.", ["| a. B | c |\n|---|---|\n| d. E | f |", "After."]),
        ("| a | One. Two. |\n| d | e |\n\nAfter.", ["| a | One. Two. |", "| d | e |", "After."]),
        ("```\nnever. Closed", ["```\nnever. Closed"]),
        ("", []),
        (" \n\n ", []),
    ],
)
def test_a_text_is_cut_where_a_reader_would(text: str, expected: list[str]) -> None:
    assert parts(text) == expected


@given(st.text(alphabet="aB1.!? \n|`-~", max_size=200))
def test_only_white_space_is_lost(text: str) -> None:
    spans = sentences(text)
    assert "".join("".join(text[start:end].split()) for start, end in spans) == "".join(text.split())
    assert all(one.end <= other.start for one, other in pairwise(spans))
