from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inference.embedding.embedder import TOKENS_MAX, Embedder
from retrieval.chunking import (
    CHUNK_CHARS_MAX,
    CHUNK_CHARS_MIN,
    CHUNK_TOKENS_MAX,
    Chunk,
    embedded_text,
    fitted,
    passage_title,
    pieces,
)
from retrieval.loaders import markdown, source
from retrieval.loaders.document import HEADING_CHARS_MAX, TITLE_CHARS_MAX, Document

PAGE = """# Guide

Welcome to the guide.

## Install

Run the command.

### Linux

Use the package.

## Use

```sh
# not a heading
firsttoken serve
```
"""


def split(document: Document, count: Callable[[str], int]) -> list[Chunk]:
    return fitted(document, pieces(document), count)


def count_words(text: str) -> int:
    return len(text.split())


def count_characters(text: str) -> int:
    return len(text)


def check(document: Document) -> None:
    end = 0
    for chunk in split(document, count_words):
        assert document.text[chunk.start : chunk.end] == chunk.text
        assert chunk.text.strip()
        assert chunk.start >= end
        end = chunk.end


def test_a_chunk_stands_under_one_heading_and_knows_which() -> None:
    chunks = split(markdown.load(PAGE.encode(), "page"), count_words)
    assert [(chunk.heading, chunk.text.split("\n")[0]) for chunk in chunks] == [
        ("", "Welcome to the guide."),
        ("Install", "Run the command."),
        ("Install > Linux", "Use the package."),
        ("Use", "```sh"),
    ]


def test_offsets_are_those_of_the_text_in_characters() -> None:
    check(markdown.load(PAGE.encode(), "page"))
    check(source.load(("Größe — naïve 🚀 façade. " * 300).encode(), "page"))


def test_nothing_of_a_long_text_is_lost() -> None:
    body = " ".join(f"word{n}" for n in range(3000))
    chunks = split(source.load(body.encode(), "page"), count_words)
    assert " ".join(chunk.text for chunk in chunks) == body
    assert max(len(chunk.text) for chunk in chunks) <= CHUNK_CHARS_MAX


def test_dense_text_is_split_until_the_embedder_sees_all_of_it(embedder: Embedder) -> None:
    numbers = " ".join(f"{n * 7919 % 100003}" for n in range(1500))
    chunks = split(source.load(numbers.encode(), "page"), embedder.count)
    assert max(chunk.tokens for chunk in chunks) <= CHUNK_TOKENS_MAX
    assert " ".join(chunk.text for chunk in chunks) == numbers
    assert max(embedder.count(embedded_text("a title", chunk)) for chunk in chunks) <= TOKENS_MAX


@pytest.mark.parametrize(
    ("title", "heading", "embedded"),
    [
        ("9.27. System Functions", "9.27.9. File Access > 1. Notes", "System Functions > File Access > Notes"),
        ("F.21. isn", "F.21.3. Functions", "isn > Functions"),
        ("isn", "", "isn"),
        (
            "What's new in 3.11",
            "3.11 changes > Up to 2.7. and back",
            "What's new in 3.11 > 3.11 changes > Up to 2.7. and back",
        ),
    ],
)
def test_the_numbers_of_sections_are_not_embedded(title: str, heading: str, embedded: str) -> None:
    assert embedded_text(title, Chunk(heading, "the text", 0, 8, 2)) == f"{embedded}\nthe text"


def test_a_dense_table_is_split_between_its_rows(embedder: Embedder) -> None:
    rows = "".join(
        f"| `--flag-{n}-s` | `FLAG_{n}_S` | `{n}` | seconds that the {n}th answer gets. At most |\n" for n in range(40)
    )
    document = markdown.load(
        f"# Settings\n\n| flag | variable | default | meaning |\n|---|---|---|---|\n{rows}".encode(), "settings"
    )
    chunks = split(document, embedder.count)
    assert len(chunks) > 2
    assert all(chunk.text.startswith("| ") and chunk.text.endswith(" |") for chunk in chunks)


def test_text_that_stays_dense_is_not_split_for_ever() -> None:
    chunks = split(source.load(("x" * 900).encode(), "page"), lambda text: 1000)
    assert all(len(chunk.text) <= CHUNK_CHARS_MIN for chunk in chunks)
    assert "".join(chunk.text for chunk in chunks) == "x" * 900


def test_lines_without_a_word_make_no_chunk() -> None:
    assert split(markdown.load(b"# A\n\n---\n\n***\n\n|  |  |\n", "page"), count_words) == []


def test_the_title_of_a_passage_names_document_and_heading() -> None:
    assert passage_title("Guide", "Install > Linux") == "Guide > Install > Linux"
    assert passage_title("Guide", "") == "Guide"


@given(st.text(min_size=1, max_size=3000).filter(lambda drawn: drawn.strip() and "\0" not in drawn))
def test_any_text_is_split_into_exact_spans(drawn: str) -> None:
    for load in (markdown.load, source.load):
        document = load(drawn.encode(), "page")
        check(document)
        assert len(document.title) <= TITLE_CHARS_MAX
        assert all(len(section.heading) <= HEADING_CHARS_MAX for section in document.sections)
        for chunk in split(document, count_characters):
            assert chunk.tokens <= CHUNK_TOKENS_MAX
            assert document.text[chunk.start : chunk.end] == chunk.text


@given(st.text("#=-`~ \na>*1.", max_size=400).filter(lambda drawn: drawn.strip()))
def test_any_arrangement_of_marks_leaves_sections_in_order(drawn: str) -> None:
    document = markdown.load(drawn.encode(), "page")
    end = 0
    for section in document.sections:
        assert end <= section.start < section.end <= len(document.text)
        end = section.end
    check(document)
