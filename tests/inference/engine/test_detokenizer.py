"""Text comes out whole."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from inference.engine.detokenizer import TextStream

BYTES = [bytes([value]) for value in range(256)]


def run(text: str, stop: tuple[str, ...] = ()) -> tuple[list[str], TextStream]:
    stream = TextStream(BYTES, stop)
    pieces = []
    for value in text.encode():
        pieces.append(stream.push(value))
        if stream.stopped:
            break
    return [*pieces, stream.flush()], stream


@given(st.text())
def test_no_character_is_ever_cut(text: str) -> None:
    pieces, _ = run(text)
    assert "".join(pieces) == text
    assert "\ufffd" not in "".join(pieces) or "\ufffd" in text


@given(st.text(alphabet="abc", max_size=30), st.lists(st.text(alphabet="abc", min_size=1, max_size=4), max_size=3))
def test_text_ends_before_the_first_stop_string_and_shows_no_part_of_it(text: str, stop: list[str]) -> None:
    pieces, stream = run(text, tuple(stop))
    ends = [text.find(s) + len(s) for s in stop if s in text]
    if not ends:
        assert "".join(pieces) == text and not stream.stopped
        return
    shown = text[: min(ends)]  # one character is one token: the first stop string to be complete ends it
    starts = [shown.find(s) for s in stop if s in shown]
    assert "".join(pieces) == shown[: min(starts)] and stream.stopped


def test_a_character_that_never_becomes_whole_is_replaced() -> None:
    stream = TextStream(BYTES)
    assert stream.push(0xE2) == ""
    assert stream.flush() == "\ufffd"


def test_what_might_become_a_stop_string_is_held_back_until_it_does_not() -> None:
    stream = TextStream(BYTES, ("END",))
    assert [stream.push(ord(c)) for c in "xENy"] == ["x", "", "", "ENy"]


def test_the_stop_string_that_was_met_is_told() -> None:
    for text, met in (("a STOP b", "STOP"), ("a END b", "END"), ("a b", None)):
        assert run(text, ("END", "STOP"))[1].stop_string == met
