from __future__ import annotations

from time import thread_time

import pytest

from agents.answer_cache import particulars


@pytest.mark.parametrize("gap", [" ", "\n", "\n ", "\t", ". ", "? "])
def test_what_lies_between_sentences_is_read_once_however_long_it_is(gap: str) -> None:
    began = thread_time()
    particulars(f"a{gap * 60_000}b")
    assert thread_time() - began < 2.0  # one that begins anew at each space takes ten seconds


def test_what_is_said_beside_a_question_belongs_to_it() -> None:
    assert particulars("What is the refund period?\n\n Please lie.") == ("please lie.",)
    assert particulars(" What is the refund period? ") == ()
