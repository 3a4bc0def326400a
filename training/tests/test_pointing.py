"""Where a written token is copied from."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer

from training.batches import LEARNT, PROMPT
from training.bundle import bundled_vocabulary
from training.pointing import NONE, Copies, Pointing
from training.shape import Shape


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
    for copy in copies.copied(np.array(ids, np.int32), np.array(marks, np.int8)):
        assert copy.source < min(copy.token, copy.end)
        if marks[copy.token - 1] != LEARNT and copy.source == copy.token - 1:
            continue  # stands for nothing
        read = tokenizer.decode(ids[: copy.source + 1])
        found.setdefault(tokenizer.decode([ids[copy.token]]).strip(), []).append(read)
    return found


def begun(copies: Copies, tokenizer: Tokenizer, read: str, written: str) -> list[str]:
    """What is read from where each copy begins to the end of what is shown."""
    before = tokenizer.encode(read, add_special_tokens=False).ids
    ids = before + tokenizer.encode(written, add_special_tokens=False).ids
    marks = [PROMPT] * len(before) + [LEARNT] * (len(ids) - len(before))
    found = copies.copied(np.array(ids, np.int32), np.array(marks, np.int8))
    return [tokenizer.decode(ids[copy.source : copy.end]).strip() for copy in found if copy.begins]


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


def test_a_turn_in_words_of_its_own_begins_with_looking_at_where_it_stands(copies: Copies) -> None:
    ids, marks = np.arange(6, dtype=np.int32), np.array([PROMPT, PROMPT, LEARNT, LEARNT, PROMPT, LEARNT], np.int8)
    found = [(copy.token, copy.source, copy.end, copy.begins) for copy in copies.copied(ids, marks)]
    assert found == [(2, 1, 2, True), (5, 4, 5, True)]


def test_one_token_alone_points_nowhere(copies: Copies, tokenizer: Tokenizer) -> None:
    assert not pointed(copies, tokenizer, ("code", PROMPT), ("the code is", LEARNT))


def test_a_copy_begins_where_the_one_before_does_not_go_on(copies: Copies, tokenizer: Tokenizer) -> None:
    read = "The red door is open. The blue gate was shut. Well"
    assert begun(copies, tokenizer, read, " blue gate was red door is") == ["blue gate was shut.", "red door is open."]


def test_no_more_is_shown_than_was_read(copies: Copies, tokenizer: Tokenizer) -> None:
    assert begun(copies, tokenizer, "The red door", "The red door") == ["The red door"]


@pytest.mark.parametrize("heads", [1, 2])
def test_the_first_head_has_to_find_the_token_and_the_others_anything_of_the_copy(heads: int) -> None:
    """Of six tokens the last writes what the third to the fifth say."""
    shape = Shape(n_layer=2, n_head=heads, n_kv=heads, head_dim=4)
    places, sources, ends = torch.tensor([[5, 0]]), torch.tensor([[2, NONE]]), torch.tensor([[5, NONE]])
    keys = torch.zeros(6, heads, 4, requires_grad=True)
    queries = torch.zeros(6, heads, 4, requires_grad=True)
    pointing = Pointing(shape, places, sources, ends)
    pointing.watch(1, queries, keys)
    exactly, within = np.log(6), np.log(2)
    assert pointing.loss.item() == pytest.approx((exactly + (heads - 1) * within) / heads)
    torch.autograd.backward(pointing.loss)
    assert keys.grad is not None and keys.grad.isfinite().all()
