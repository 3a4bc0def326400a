"""Patterns through the eyes of llguidance and of Python's own regular expressions."""

from __future__ import annotations

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inference.errors import InvalidSchema
from inference.grammar.pattern import SPACE
from inference.grammar.schema import json_grammar
from tests.inference.grammar.test_grammar import accepts

PATTERNS = [
    r"^abc$",
    r"^[A-Z]{2}-\d{1,4}$",
    r"^(foo|ba[rz])+$",
    r"^\w+@\w+\.(com|org)$",
    r"^a|b$",
    r"^$",
    r"needle",
    r"^[^a-z]*$",
    r"^[\w.-]+$",
    r"^\"quoted\" \\ [\"\\]$",
    r"^(?:x{2,}y?)*$",
    r"^.{3}$",
    r"^[ä-ü€😀]+$",
    r"^\u0041\x42$",
    r"^\S\s\D$",
    r"^(a(b(c)?)?)?$",
    r"^\d+?\.\d*?$",
    r"^[\]\-^]$",
    r"^[a&~[-]+$",
    r"^(?<name>x|y(z|$))",
    r"\<|\@\/",
]
TEXTS = st.one_of(
    st.text(st.sampled_from('abcxyzABZfor019._-@"\\ \n\té€😀needl'), max_size=8),
    st.sampled_from(
        ["abc", "AB-12", "foobar", "a@b.com", "a needle here", "AB", "xxy", '"quoted" \\ "', "1.", "]", "^"]
    ),
)


def in_python(pattern: str) -> re.Pattern[str]:
    """A dollar sign of ECMA 262 is the very end, `.` no line break, and classes are those of ASCII, but for spaces."""
    said = pattern.replace("$", r"\Z").replace("(?<", "(?P<")
    return re.compile(said.replace(r"\s", f"[{SPACE}]").replace(r"\S", f"[^{SPACE}]"), re.ASCII)


def held(pattern: str, text: str) -> bool:
    return accepts({"type": "string", "pattern": pattern}, text)


@settings(max_examples=200, deadline=None)
@given(st.sampled_from(PATTERNS), TEXTS)
def test_a_pattern_lets_through_what_it_matches(pattern: str, text: str) -> None:
    if in_python(pattern).search(text):
        assert held(pattern, text)
    else:
        assert not held(pattern, text)


@settings(max_examples=100, deadline=None)
@given(st.data(), st.sampled_from([pattern for pattern in PATTERNS if pattern.startswith("^") and "|b" not in pattern]))
def test_what_a_pattern_makes_is_let_through(data: st.DataObject, pattern: str) -> None:
    text = data.draw(st.from_regex(in_python(pattern)))
    # A dot of ECMA 262 is no end of a line of any kind.
    # DEL is written by its number in JSON that a grammar makes, and here as itself.
    if all(character in "\n\t" or (character >= " " and character not in "\x7f\u2028\u2029") for character in text):
        assert held(pattern, text)


@pytest.mark.parametrize("space", [" ", "\t", "\xa0", "\u2003", "\ufeff"])
def test_white_space_is_that_of_ecma_262(space: str) -> None:
    assert held(r"^\s$", space) and held(r"^[\s]$", space)
    assert not held(r"^\S$", space) and not held(r"^[^\s]$", space)


def test_a_next_line_is_no_white_space() -> None:
    assert held(r"^\S$", "\x85") and not held(r"^\s$", "\x85")


def test_what_means_something_in_rust_alone_is_taken_literally() -> None:
    assert held(r"^[a&&b]$", "&") and held(r"^[a&&b]$", "a") and held(r"^\<[[x]$", "<[")
    assert held(r"^[^\d]$", "x") and not held(r"^.$", "\r") and not held(r"^.$", "\u2028") and held(r"^\p{L}$", "ä")


@pytest.mark.parametrize(
    "pattern",
    ["(", ")", "a**", "[", "[]", "[z-a]", "[\\d-z]", "a{2,1}", "a{", "{2}", "[^]", "(?i)a", "(?P<n>a)", "(?=a)",
     "(?!a)", "\\1", "\\b", "a$b", "a^b", "\\", "\\u00", "\\x0", "\\ud800", "a{99999}", "\\cA", "a" * 3000],
)  # fmt: skip
def test_what_cannot_be_held_is_refused_with_its_place(pattern: str) -> None:
    with pytest.raises(InvalidSchema) as refused:
        json_grammar({"properties": {"a": {"type": "string", "pattern": pattern}}})
    assert refused.value.path == "properties.a.pattern"
