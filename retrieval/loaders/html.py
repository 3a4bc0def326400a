"""HTML: the readable text of the page's main content, one block per paragraph."""

from __future__ import annotations

import re
from collections.abc import Iterator

from selectolax.lexbor import LexborHTMLParser, LexborNode

from retrieval.errors import UnreadableFile
from retrieval.loaders.document import Document, Heading, clipped, sections
from retrieval.loaders.source import decode

_NOT_CONTENT = re.compile("script|style|noscript|template|nav|footer|aside|svg|iframe|form|button|dialog|title")
# What a landmark's role says of a `div`, its tag says of a `nav`, `search`, `aside` or `footer`.
_NOT_CONTENT_ROLES = {"navigation", "search", "complementary", "contentinfo"}
# So does the class that generators of manuals give it: DocBook's header and footer name the pages around this one.
_NOT_CONTENT_CLASS = re.compile("nav(?:bar|header|footer|igation)?|breadcrumbs?")
_HEADINGS = {f"h{level}": level for level in range(1, 7)}
_BLOCK = re.compile(
    "address|article|blockquote|body|dd|details|div|dl|dt|fieldset|figcaption|figure|h[1-6]|header|hgroup|hr|li|main|ol|p|"
    "pre|section|summary|table|tbody|tfoot|thead|tr|ul"
)
_BREAKS = {"br": "\n", "li": "- ", "td": " | ", "th": " | "}


def load(data: bytes, name: str) -> Document:
    """`name` is the title if the page has none. Raises UnreadableFile."""
    page = LexborHTMLParser(decode(data))
    declared = page.css_first("title")
    page_title = declared.text() if declared else ""
    root = page.css_first("main") or page.css_first("[role=main]") or page.css_first("article") or page.body
    writer = _Writer()
    for node, entering in _walk(root) if root else ():
        writer.visit(node, entering)
    text = writer.text()
    if not text:
        raise UnreadableFile("contains no text (pages that scripts fill in must be saved after they ran)")
    title = clipped(page_title) or next((h.title for h in writer.headings if h.title), "") or name
    return Document(title, "text/html", text, sections(writer.headings, title=title, start=0, end=len(text)))


def _walk(root: LexborNode) -> Iterator[tuple[LexborNode, bool]]:
    """Every node on the way in (True) and out (False), without recursion: the author controls the nesting."""
    depth, node, entering = 0, root, True
    while True:
        yield node, entering
        if entering and node.first_child and not _skipped(node):
            depth, node = depth + 1, node.first_child
        elif entering:
            entering = False
        elif depth == 0:
            return
        elif node.next:
            node, entering = node.next, True
        elif node.parent:
            depth, node = depth - 1, node.parent


def _skipped(node: LexborNode) -> bool:
    tag, attributes = node.tag or "", node.attributes
    if _NOT_CONTENT.fullmatch(tag) or "hidden" in attributes or attributes.get("role") in _NOT_CONTENT_ROLES:
        return True
    if any(map(_NOT_CONTENT_CLASS.fullmatch, (attributes.get("class") or "").split())):
        return True
    return tag == "a" and _is_permalink(node, attributes.get("href") or "")


def _is_permalink(node: LexborNode, href: str) -> bool:
    """Whether a link is the mark beside a heading or a definition, such as "¶" or "#", which says nothing."""
    return href.startswith("#") and not any(map(str.isalnum, node.text()))


class _Writer:
    """Collects blocks of text, and headings with their offsets."""

    def __init__(self) -> None:
        self.headings: list[Heading] = []
        self._blocks: list[str] = []  # all but the first with the white space before it
        self._length = 0  # of all blocks
        self._after_term = False
        self._inline: list[str] = []
        self._preformatted = 0

    def visit(self, node: LexborNode, entering: bool) -> None:
        tag = node.tag or ""
        if node.is_text_node:
            if entering:
                text = node.text_content or ""
                self._inline.append(text if self._preformatted else text.replace("\n", " "))
            return
        if _BLOCK.fullmatch(tag):
            self._end_block(_HEADINGS.get(tag) if not entering else None)
            self._after_term |= tag == "dt" and not entering
        if tag == "pre":
            self._preformatted += 1 if entering else -1
        if entering and tag in _BREAKS:
            self._inline.append(_BREAKS[tag])

    def text(self) -> str:
        self._end_block(None)
        return "".join(self._blocks)

    def _end_block(self, heading_level: int | None) -> None:
        raw = "".join(self._inline)
        self._inline.clear()
        block = raw.strip("\n").rstrip() if self._preformatted else "\n".join(_folded(raw))
        if not block.strip(" -|"):
            return
        # A term and what follows stay together wherever a text is cut at its empty lines.
        space = "" if not self._blocks else "\n" if self._after_term else "\n\n"
        self._after_term = False
        start = self._length + len(space)
        self._blocks.append(space + block)
        self._length = start + len(block)
        if heading_level is not None:
            self.headings.append(Heading(heading_level, clipped(block), start, self._length))


def _folded(raw: str) -> list[str]:
    """Lines with their white space collapsed, as a browser shows them; only <br> and <pre> start new lines."""
    return [line for line in (" ".join(part.split()) for part in raw.split("\n")) if line]
