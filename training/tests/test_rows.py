"""Rows of tokens: full, within their length, and marked for what they are."""

from __future__ import annotations

import pytest
from tokenizers import Tokenizer

from training.batches import LEARNT, PROMPT, PROSE
from training.tests.conftest import generator


@pytest.mark.parametrize("length", [512, 1024])
def test_a_row_is_nearly_full_and_never_too_long(tokenizer: Tokenizer, length: int) -> None:
    rows = [generator(str(seed)).row(tokenizer, length) for seed in range(30)]
    assert all(len(ids) == len(marks) <= length for ids, marks in rows)
    assert sum(len(ids) for ids, _ in rows) > 0.85 * length * len(rows)


def test_what_the_model_is_to_write_is_marked_with_its_end(tokenizer: Tokenizer) -> None:
    ids, marks = generator("talk").row(tokenizer, 1024)
    assert set(marks) <= {PROMPT, LEARNT, PROSE}
    text = tokenizer.decode(
        [i for i, mark in zip(ids, marks, strict=True) if mark == LEARNT], skip_special_tokens=False
    )
    assert "<|im_end|>" in text
    assert "<|im_start|>" not in text
