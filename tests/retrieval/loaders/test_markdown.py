from __future__ import annotations

import pytest

from retrieval.loaders.document import Document
from retrieval.loaders.markdown import HEADING_CHARS_READ, load


def sections(document: Document) -> list[tuple[str, str]]:
    return [(section.heading, document.text[section.start : section.end].strip()) for section in document.sections]


def test_headings_make_a_path() -> None:
    document = load(b"intro\n# One\na\n## Two\nb\n### Three\nc\n## Four\nd\n# Five\ne\n", "name")
    assert document.title == "One"
    assert sections(document) == [
        ("", "intro"),
        ("", "a"),  # the title is not repeated
        ("Two", "b"),
        ("Two > Three", "c"),
        ("Four", "d"),
        ("Five", "e"),
    ]


def test_underlined_headings_count() -> None:
    assert sections(load(b"Title\n=====\na\n\nPart\n---\nb\n", "name")) == [("", "a"), ("Part", "b")]


@pytest.mark.parametrize("above", ["- item", "> quote", "    code", "| a | b |", "1. first", ""])
def test_a_line_below_something_else_is_no_heading(above: str) -> None:
    document = load(f"text\n\n{above}\n---\nmore\n".encode(), "name")
    assert [heading for heading, _ in sections(document)] == [""]


@pytest.mark.parametrize(("opening", "closing"), [("```", "```"), ("~~~", "~~~"), ("````", "````"), ("```sh", "`````")])
def test_comments_in_code_are_no_headings(opening: str, closing: str) -> None:
    document = load(f"# A\n{opening}\n# no\n{closing}\n## B\nb\n".encode(), "name")
    assert [heading for heading, _ in sections(document)] == ["", "B"]


def test_a_fence_is_closed_by_its_own_kind_and_length_only() -> None:
    document = load(b"# A\n````\n```\n~~~~\n# no\n````\n## B\nb\n", "name")
    assert [heading for heading, _ in sections(document)] == ["", "B"]


def test_marks_and_links_in_a_heading_are_taken_off() -> None:
    assert load(b"# The `serve` *command* and [its options](options.md) #\ntext", "name").title == (
        "The serve command and its options"
    )


def test_of_a_heading_that_has_no_end_the_beginning_is_read() -> None:
    """What is taken off it takes time for each of its characters, and a line may have megabytes."""
    link = "[" + "a" * HEADING_CHARS_READ + "](options.md)"
    assert load(f"# {link}".encode(), "name").title.startswith("[aaa")
    assert load(f"{link}\n===\n".encode(), "name").title.startswith("[aaa")
    assert load(b"# [a](options.md) " + b"x" * HEADING_CHARS_READ, "name").title.startswith("a xxx")


def test_front_matter_gives_the_title_and_is_no_text() -> None:
    document = load(b"---\ntitle: 'From the front'\ntags: [a]\n---\n# Heading\nbody\n", "name")
    assert document.title == "From the front"
    assert sections(document) == [("Heading", "body")]


def test_a_file_without_any_heading_is_named_by_its_file() -> None:
    document = load(b"only text\n", "my notes")
    assert (document.title, sections(document)) == ("my notes", [("", "only text")])


def test_a_fence_that_never_closes_ends_with_the_file() -> None:
    assert sections(load(b"# A\n```\n# no\n# no\n", "name")) == [("", "```\n# no\n# no")]
