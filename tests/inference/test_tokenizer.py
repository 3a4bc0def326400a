"""Each piece is tokenised once."""

from __future__ import annotations

from functools import cache

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inference import tokenizer as module
from inference.bundled import CHAT_MODEL
from inference.errors import TextTooLong
from inference.llama import LlamaModel
from inference.prompt import Segment
from inference.tokenizer import DESCRIBED, PIECE_BYTES, Room, Tokenizer, count_all, significant_tokens


class Letters:
    """A vocabulary of characters; `#` is special."""

    def __init__(self, bos: int | None = None) -> None:
        self.bos = bos
        self.asked: list[str] = []

    def tokenize(self, text: str, *, parse_special: bool) -> list[int]:
        self.asked.append(text)
        return [-1 if c == "#" and parse_special else ord(c) for c in text]


def test_a_piece_that_was_seen_is_not_tokenised_again() -> None:
    letters = Letters()
    tokenizer = Tokenizer(letters)
    tokenizer.encode([Segment("a", True), Segment("b", False)])
    assert tokenizer.encode([Segment("a", True), Segment("b", False), Segment("c", False)]) == [97, 98, 99]
    assert letters.asked == ["a", "b", "c"]


def test_the_same_text_is_kept_apart_by_trust() -> None:
    assert Tokenizer(Letters()).encode([Segment("#", True), Segment("#", False), Segment("#", True)]) == [-1, 35, -1]


def test_exact_ids_are_used_as_they_are() -> None:
    assert Tokenizer(Letters()).encode([Segment("a", False, ids=(1, 2))]) == [1, 2]


def test_other_prompts_go_on_behind_the_last_text_only_where_the_answer_is_opened_in_other_words_later() -> None:
    tokenizer = Tokenizer(Letters(), openings=frozenset({"ab"}))
    for end, boundaries in (("ab", (1,)), ("abc", (1, 3)), ("", (1, 3))):
        prompt = tokenizer.encode([Segment("s", True), Segment("??", False), Segment(end, True)])
        assert prompt.boundaries == boundaries
    assert tokenizer.encode([Segment("s", True), Segment("ab", False)]).boundaries == (1, 3), "nobody's text opens it"


def test_the_beginning_of_sequence_is_added_once() -> None:
    tokenizer = Tokenizer(Letters(bos=-1))
    assert tokenizer.encode([Segment("a", True)]) == [-1, 97]
    assert tokenizer.encode([Segment("#a", True)]) == [-1, 97]
    assert tokenizer.encode([Segment("", True, ids=(97, 98))]) == [97, 98]  # exact tokens begin as they are


@pytest.mark.parametrize("bos", [None, -1])
@pytest.mark.parametrize(
    "segments",
    [
        [Segment("a", True), Segment("#b", False)],
        [Segment("#a", True), Segment("b", False)],
        [Segment("", True, ids=(97, 98)), Segment("c", False)],
        [Segment("a", True), Segment("", True, ids=(97, 98))],
    ],
)
def test_the_tokens_of_a_prompt_that_no_context_holds_are_counted_like_others(
    bos: int | None, segments: list[Segment]
) -> None:
    def tokenize(text: str, *, add_special: bool, parse_special: bool) -> list[int]:
        return Letters().tokenize(text, parse_special=parse_special)

    whole = Tokenizer(Letters(bos)).encode(segments)
    assert count_all(segments, tokenize, Tokenizer(Letters(bos)).encode([Segment("", True)])) == len(whole)


def test_what_one_tenant_sent_is_tokenised_again_for_another() -> None:
    letters = Letters()
    tokenizer = Tokenizer(letters)
    for salt in ("a", "b", "a"):
        tokenizer.encode([Segment("secret", False)], salt=salt)
        tokenizer.count("secret", salt=salt)
    assert letters.asked == ["secret", "secret"]


def test_what_is_kept_has_a_size() -> None:
    tokenizer = Tokenizer(Letters())
    assert tokenizer.kept_bytes == 0
    tokenizer.encode([Segment("abc", False), Segment("abc", False)])
    assert tokenizer.kept_bytes == PIECE_BYTES + 3 * (4 + 36)


@pytest.mark.parametrize("text", ["x" * 100, ""], ids=["long", "empty"])
def test_memory_is_bounded_by_bytes_however_short_the_pieces_are(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CACHE_BYTES_MAX", 3 * (PIECE_BYTES + 40 * (len(text) + 1)))
    letters = Letters()
    tokenizer = Tokenizer(letters)
    for number in (1, 2, 3, 1, 4, 2):  # the first was used again when the fourth came, so the second had to go
        tokenizer.count(f"{text}{number}")
    assert [piece.removeprefix(text) for piece in letters.asked] == ["1", "2", "3", "4", "2"]


ROOM = Room(tokens=10, token_bytes=4)


@pytest.mark.parametrize("text", ["x" * 41, "ü" * 21, "\U0001f600" * 11, "x" * 10_000_000], ids=str.__len__)
def test_what_cannot_fit_is_not_tokenised_to_see_that(text: str) -> None:
    letters = Letters()
    tokenizer = Tokenizer(letters, ROOM)
    with pytest.raises(TextTooLong) as refused:
        tokenizer.encode([Segment("#", True), Segment(text[:5], False), Segment(text[5:], False)])
    assert refused.value.excess_bytes == len(text.encode()) - refused.value.room_bytes
    assert tokenizer.count(text) > ROOM.tokens
    assert letters.asked == []


def test_a_prompt_that_no_template_wrote_is_text_whatever_its_marks_mean() -> None:
    letters = Letters()
    with pytest.raises(TextTooLong):
        Tokenizer(letters, ROOM).encode([Segment("#" * 41, True)])
    assert letters.asked == []


@pytest.mark.parametrize("text", ["x" * 40, "ü" * 20, "\U0001f600" * 10])
def test_what_might_fit_is_tokenised(text: str) -> None:
    tokenizer = Tokenizer(Letters(), ROOM)
    markup, turn = Segment("#" * 100, True), Segment("y" * 100, False, ids=(1,))
    assert len(tokenizer.encode([markup, turn, Segment(text, False)])) == 101 + len(text)
    assert tokenizer.count(text) == len(text)


@given(st.text())
def test_no_text_of_the_bundled_model_spells_more_than_its_longest_tokens(text: str) -> None:
    weights, longest = bundled()
    assert weights.keeps_text
    assert len(text.encode()) <= longest * len(weights.tokenize(text, parse_special=False))


@cache
def bundled() -> tuple[LlamaModel, int]:
    """Its vocabulary, and the bytes of its longest token."""
    weights = LlamaModel.load(CHAT_MODEL, weights=False)
    return weights, max(map(len, weights.pieces()))


def test_both_marks_of_reasoning_keep_their_text_where_a_template_names_only_the_end() -> None:
    cut_off = "{{ message.content.split('</think>')[-1] }}"
    assert significant_tokens(cut_off) == DESCRIBED | {"<think>", "</think>"}
