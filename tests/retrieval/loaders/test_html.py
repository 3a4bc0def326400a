from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from retrieval.errors import UnreadableFile
from retrieval.loaders.document import Document
from retrieval.loaders.html import load

PAGE = b"""<!doctype html><html><head><title>The  page</title><style>p { color: red }</style></head>
<body><nav>Menu<script>track()</script></nav><main><h1>The page</h1>
<p>Hello <b>wor</b>ld,
next &amp; last<br>line</p>loose<h2>Part <a href="x">two</a></h2><ul><li>one<li>two</ul>
<pre>
def f():
    pass
</pre><table><tr><th>a<th>b<tr><td>1<td>2</table><div hidden>secret</div><!-- note --></main><footer>Imprint</footer>"""


def sections(document: Document) -> list[tuple[str, str]]:
    return [(section.heading, document.text[section.start : section.end].strip()) for section in document.sections]


def test_only_what_a_reader_sees_of_the_main_part_is_text() -> None:
    document = load(PAGE, "name")
    assert document.title == "The page"
    for unseen in ("Menu", "track", "color", "secret", "note", "Imprint"):
        assert unseen not in document.text


def test_blocks_are_paragraphs_and_headings_make_sections() -> None:
    assert sections(load(PAGE, "name")) == [
        ("", "Hello world, next & last\nline\n\nloose"),
        ("Part two", "- one\n\n- two\n\ndef f():\n    pass\n\n| a | b\n\n| 1 | 2"),
    ]


def test_a_term_stays_with_the_first_paragraph_of_its_definition() -> None:
    page = b"<p>before<dl><dt>one<dt>uno<dd><p>first</p><p>more</p><dt>two<dd>second</dl><h2>next</h2>after"
    document = load(page, "name")
    terms = "before\n\none\nuno\nfirst\n\nmore\n\ntwo\nsecond"
    assert [part for _, part in sections(document)] == [terms, "after"]


def test_a_page_without_main_part_or_title_is_read_whole() -> None:
    document = load(b"<h3>First</h3>text", "name")
    assert (document.title, sections(document)) == ("First", [("", "text")])
    assert load(b"just text", "name").title == "name"


@pytest.mark.parametrize("role", ["navigation", "search", "complementary", "contentinfo"])
def test_a_landmark_is_left_out_whether_its_tag_or_its_role_says_so(role: str) -> None:
    document = load(f"<div role={role}>Menu <b>of pages</b></div><p role=note>text".encode(), "name")
    assert document.text == "text"


@pytest.mark.parametrize("name", ["nav", "navbar wide", "old navheader", "navfooter", "navigation", "breadcrumbs"])
def test_navigation_is_left_out_if_its_class_says_so(name: str) -> None:
    page = f'<body class="has-nav"><div class="{name}"><table><tr><td>Prev<td>Next</table></div><p class=navy>text'
    assert load(page.encode(), "name").text == "text"


def test_the_main_part_may_be_named_by_its_role() -> None:
    assert load(b"<div>around</div><div role=main><p>text</div><div>below</div>", "name").text == "text"


def test_the_mark_that_links_to_a_heading_or_definition_is_not_text() -> None:
    heading = b'<h2>Part two<a href="#two">&#182;</a></h2>'
    page = heading + b'<p>os.name<a href="#os.name">#</a> <a href="#1">[1]</a>'
    assert sections(load(page, "name")) == [("", "os.name [1]")]
    assert load(page, "name").title == "Part two"


@pytest.mark.parametrize(("title", "heading"), [("Page - Site", ""), ("Site: Page", ""), ("Pages", "Page")])
def test_a_top_heading_that_the_title_contains_is_not_repeated(title: str, heading: str) -> None:
    assert sections(load(f"<title>{title}</title><h1>Page</h1><p>text".encode(), "name")) == [(heading, "text")]


def test_a_page_that_only_scripts_fill_is_refused() -> None:
    with pytest.raises(UnreadableFile, match="contains no text"):
        load(b"<html><body><div id=app></div><script>render()</script></body></html>", "name")


SOUP = [
    "<p>",
    "</p>",
    "<div>",
    "</div>",
    "<h1>",
    "</h2>",
    "<pre>",
    "</pre>",
    "<li>",
    "<main>",
    "<nav>",
    "<!--",
    "\n",
    "x",
]


@given(st.lists(st.sampled_from(SOUP)))
def test_any_tag_soup_gives_sections_in_order_or_is_refused(pieces: list[str]) -> None:
    try:
        document = load("".join(pieces).encode(), "name")
    except UnreadableFile:
        return
    end = 0
    for section in document.sections:
        assert end <= section.start < section.end <= len(document.text)
        end = section.end
