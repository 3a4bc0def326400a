from __future__ import annotations

from agents.message import CITATIONS_MAX, count_unknown, find_citations
from tests.agents.turns import passage

SOURCES = [passage(1), passage(2)]


def marks(text: str) -> list[str]:
    return [text[found.start_index : found.end_index] for found in find_citations(text, SOURCES)]


def test_a_citation_leads_from_the_mark_to_the_span_of_its_source() -> None:
    (found,) = find_citations("Fact 2 [2].", SOURCES)
    assert (found.number, found.start_index, found.end_index) == (2, 7, 10)
    assert (found.file_id, found.filename, found.title) == ("file_2", "2.md", "Title 2")
    assert (found.start_char, found.end_char) == (20, 29)


def test_neighbours_and_repetitions_all_count() -> None:
    assert marks("A [1][2]. B[1], \N{GRINNING FACE} [2].") == ["[1]", "[2]", "[1]", "[2]"]


def test_unknown_numbers_are_left_out() -> None:
    assert marks("[0] [3] [99] [1000] [x] []") == []


def test_what_was_cited_without_being_given_is_counted() -> None:
    assert count_unknown("A [1][3]. B[0], [7](https://example.org) `row[9]`, [2] [3].", SOURCES) == 3
    assert count_unknown("The list is [1] or [2].", []) == 0


def test_links_and_code_are_no_citations() -> None:
    assert marks("[1](https://example.org) `row[1]` and\n```\nrow[2]\n```\nbut [1]") == ["[1]"]


def test_an_answer_has_a_limit_of_citations() -> None:
    assert len(marks("[1]" * 500)) == CITATIONS_MAX
