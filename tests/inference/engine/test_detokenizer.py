"""Text comes out whole."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from inference.tokenizer import TextStream

BYTES = [bytes([value]) for value in range(256)]


@given(st.text())
def test_no_character_is_ever_cut(text: str) -> None:
    stream = TextStream(BYTES)
    pieces = [*map(stream.push, text.encode()), stream.flush()]
    assert "".join(pieces) == text
    assert "\ufffd" not in "".join(pieces) or "\ufffd" in text


def test_a_character_that_never_becomes_whole_is_replaced() -> None:
    stream = TextStream(BYTES)
    assert stream.push(0xE2) == ""
    assert stream.flush() == "\ufffd"
