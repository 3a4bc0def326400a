"""Where a written token is copied from."""

from __future__ import annotations

import numpy as np
import pytest
from tokenizers import Tokenizer

from training.batches import LEARNT, PROMPT
from training.bundle import bundled_vocabulary
from training.pointing import Copies


@pytest.fixture(scope="module")
def copies() -> Copies:
    return Copies(bundled_vocabulary())


def pointed(copies: Copies, tokenizer: Tokenizer, *parts: tuple[str, int]) -> dict[str, list[str]]:
    """What is written, token by token, each with what was read up to the place that it is copied from."""
    ids: list[int] = []
    marks: list[int] = []
    for text, mark in parts:
        more = tokenizer.encode(text, add_special_tokens=False).ids
        ids += more
        marks += [mark] * len(more)
    found: dict[str, list[str]] = {}
    for token, source in copies.copied(np.array(ids, np.int32), np.array(marks, np.int8)):
        assert source < token
        found.setdefault(tokenizer.decode([ids[token]]).strip(), []).append(tokenizer.decode(ids[: source + 1]))
    return found


def test_of_like_words_those_count_that_go_on_alike(copies: Copies, tokenizer: Tokenizer) -> None:
    read = "[1] The port of Alpha is 17.\n[2] The port of Beta is 28.\n"
    found = pointed(copies, tokenizer, (read, PROMPT), ("The port of Beta is 28 [2].", LEARNT))
    assert found["port"] == ["[1] The port of Alpha is 17.\n[2] The port"]
    assert found["8"] == ["[1] The port of Alpha is 17.\n[2] The port of Beta is 28"]


def test_a_citation_is_copied_from_the_number_before_the_passage(copies: Copies, tokenizer: Tokenizer) -> None:
    found = pointed(copies, tokenizer, ("[1] One.\n[2] Two.\n", PROMPT), ("Two [2].", LEARNT))
    assert found["2"] == ["[1] One.\n[2"]


def test_the_latest_of_equals_counts(copies: Copies, tokenizer: Tokenizer) -> None:
    found = pointed(copies, tokenizer, ("time is red, time is red", PROMPT), ("\ntime is red", LEARNT))
    assert found["red"] == ["time is red, time is red"]


def test_what_the_model_wrote_itself_is_no_source(copies: Copies, tokenizer: Tokenizer) -> None:
    once = ("The time is red.", LEARNT)
    assert not pointed(copies, tokenizer, ("Well?", PROMPT), once, ("Again?", PROMPT), once)


def test_one_token_alone_points_nowhere(copies: Copies, tokenizer: Tokenizer) -> None:
    assert not pointed(copies, tokenizer, ("code", PROMPT), ("the code is", LEARNT))
