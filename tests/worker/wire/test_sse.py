"""Events as bytes."""

from __future__ import annotations

import orjson
from hypothesis import given
from hypothesis import strategies as st

from worker.wire.events import encode, encode_data


@given(st.text(st.characters(codec="utf-8")))
def test_an_event_is_two_lines_and_a_blank_one_whatever_its_text_holds(text: str) -> None:
    encoded = encode({"type": "response.output_text.delta", "delta": text})
    name, data, *end = encoded.split(b"\n")
    assert name == b"event: response.output_text.delta"
    assert orjson.loads(data.removeprefix(b"data: "))["delta"] == text
    assert end == [b"", b""]
    assert b"\r" not in encoded


def test_a_chunk_has_no_name() -> None:
    assert encode_data({"a": 1}) == b'data: {"a":1}\n\n'
