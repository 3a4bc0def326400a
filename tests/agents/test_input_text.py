"""The input of a custom tool while its JSON is generated."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agents.message import InputText
from agents.payload import input_of


def read(arguments: str, size: int) -> str:
    text = InputText()
    pieces = [text.feed(arguments[at : at + size]) for at in range(0, len(arguments), size)]
    return "".join((*pieces, text.rest(input_of(arguments))))


@given(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0")), st.integers(1, 9), st.booleans())
def test_the_pieces_add_up_to_the_input(text: str, size: int, ascii: bool) -> None:
    assert read(json.dumps({"input": text}, ensure_ascii=ascii), size) == text


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ('{ "input" : "a" }', "a"),
        ('{"other": 1, "input": "a"}', "a"),
        ('{"input": "a\nb"}', "a\nb"),
        ('{"input": "\\ud83d"}', "?"),
        ('{"input": 5}', '{"input": 5}'),
        ("", ""),
    ],
)
def test_other_spellings_come_at_the_end_at_the_latest(arguments: str, text: str) -> None:
    assert {read(arguments, size) for size in (1, 3, 100)} == {text}


def test_an_input_that_is_cut_off_was_sent_as_far_as_it_came() -> None:
    text = InputText()
    assert text.feed('{"input": "abc\\') + text.feed("u00") == "abc"
    assert input_of('{"input": "abc\\u00') == "abc"
