from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from retrieval.sentences import sentences


def parts(text: str) -> list[str]:
    return [text[start:end] for start, end in sentences(text)]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("One is here. Two is there! Is three?", ["One is here.", "Two is there!", "Is three?"]),
        ("Version 1.5 of e.g. this stays whole.", ["Version 1.5 of e.g. this stays whole."]),
        ('He said "go." Then left.', ['He said "go."', "Then left."]),
        ("A line\nbroken here. Next\none.", ["A line\nbroken here.", "Next\none."]),
        ("A paragraph\n\n  another one\n", ["A paragraph", "another one"]),
        ("Options:\n- first. Really.\n- second\n2. third", ["Options:", "- first.", "Really.", "- second", "2. third"]),
        ("Look:\n\n```sh\na. B\n\nc. D\n```\n\nDone.", ["Look:", "```sh\na. B\n\nc. D\n```", "Done."]),
        ("| a. B | c |\n|---|---|\n| d. E | f |\n\nAfter.", ["| a. B | c |\n|---|---|\n| d. E | f |", "After."]),
        ("```\nnever. Closed", ["```\nnever. Closed"]),
        ("", []),
        (" \n\n ", []),
    ],
)
def test_a_text_is_cut_where_a_reader_would(text: str, expected: list[str]) -> None:
    assert parts(text) == expected


@given(st.text(alphabet="aB1.!? \n|`-~", max_size=200))
def test_only_white_space_is_lost(text: str) -> None:
    spans = sentences(text)
    assert "".join("".join(text[start:end].split()) for start, end in spans) == "".join(text.split())
    assert all(one.end <= other.start for one, other in pairwise(spans))
