"""Each piece is tokenised once."""

from __future__ import annotations

from inference.core import Segment
from inference.tokenizer import CACHE_CHARS_MAX, Tokenizer


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


def test_the_beginning_of_sequence_is_added_once() -> None:
    tokenizer = Tokenizer(Letters(bos=-1))
    assert tokenizer.encode([Segment("a", True)]) == [-1, 97]
    assert tokenizer.encode([Segment("#a", True)]) == [-1, 97]


def test_memory_is_bounded() -> None:
    letters = Letters()
    tokenizer = Tokenizer(letters)
    tokenizer.count("first")
    tokenizer.count("x" * CACHE_CHARS_MAX)
    tokenizer.count("first")
    assert [len(text) for text in letters.asked] == [5, CACHE_CHARS_MAX, 5]
