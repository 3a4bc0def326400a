"""Word documents: paragraphs, headings according to their styles, and tables row by row."""

from __future__ import annotations

import re
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from io import BytesIO
from xml.etree.ElementTree import Element, ParseError, iterparse

from retrieval.errors import UnreadableFile
from retrieval.loaders.document import Document, Heading, clipped, sections

_HEADING = re.compile(r"heading ([1-9])$")
_BREAKS = {"tab": "\t", "br": "\n", "cr": "\n", "noBreakHyphen": "-"}


def load(data: bytes, name: str) -> Document:
    """`name` is the title if the document has none. Raises UnreadableFile."""
    try:
        with zipfile.ZipFile(BytesIO(data)) as archive:
            body = _Body(_heading_levels(_part(archive, "word/styles.xml")))
            for event, tag, element in _elements(_part(archive, "word/document.xml", needed=True)):
                body.take(event, tag, element)
            core = _elements(_part(archive, "docProps/core.xml"))
            stated = [element.text or "" for event, tag, element in core if (event, tag) == ("end", "title")]
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError) as error:
        raise UnreadableFile("is not a Word document that can be read (damaged or encrypted)") from error
    except ParseError as error:
        raise UnreadableFile(f"is a damaged Word document: {error}") from error
    text = body.text()
    if not text.strip():
        raise UnreadableFile("contains no text")
    title = clipped(" ".join(stated)) or next((h.title for h in body.headings if h.title), "") or name
    media_type = "application/vnd.openxmlformats-officedocument.wordprocessingml.document"
    return Document(title, media_type, text, sections(body.headings, title=title, start=0, end=len(text)))


def _part(archive: zipfile.ZipFile, name: str, *, needed: bool = False) -> bytes:
    try:
        return archive.read(name)
    except KeyError:
        if needed:
            raise UnreadableFile("is not a Word document") from None
        return b""


def _elements(xml: bytes) -> Iterator[tuple[str, str, Element]]:
    """The start and the end of each element, with its name without a namespace; its text is known at the end. A
    document type, which is where entities are declared, is refused."""
    if b"<!DOCTYPE" in xml.replace(b"\0", b""):  # in any encoding that the parser knows
        raise UnreadableFile("declares a document type, which no Word document does")
    opened: list[Element] = []
    for event, element in iterparse(BytesIO(xml), ("start", "end")) if xml else ():
        if event == "start":
            opened.append(element)
        yield event, _local(element.tag), element
        if event == "end":
            opened.pop()
            if opened:
                opened[-1].remove(element)  # otherwise all of them stay in memory


def _local(name: str) -> str:
    return name.rpartition("}")[2]


def _value(element: Element, name: str) -> str:
    """Of an attribute, whatever its namespace."""
    return next((value for key, value in element.items() if _local(key) == name), "")


def _heading_levels(xml: bytes) -> dict[str, int]:
    """Which styles are headings, and of which level: ids are in the author's language, names in English."""
    levels: dict[str, int] = {}
    id = ""
    for event, tag, element in _elements(xml):
        if (event, tag) == ("start", "style"):
            id = _value(element, "styleId")
        elif (event, tag) == ("start", "name") and id:
            style = _value(element, "val").lower()
            heading = _HEADING.match(style)
            if heading or style == "title":
                levels[id] = int(heading[1]) + 1 if heading else 1
    return levels


class _Body:
    """Collects paragraphs, table rows, and headings with their offsets."""

    def __init__(self, levels: Mapping[str, int]) -> None:
        self.headings: list[Heading] = []
        self._levels = levels
        self._blocks: list[str] = []
        self._length = 0  # of the joined blocks, separators included
        self._inline: list[str] = []
        self._level: int | None = None
        self._rows = 0  # nesting depth: the rows of nested tables are part of the outer row

    def take(self, event: str, tag: str, element: Element) -> None:
        if event == "start":
            self._start(tag, element)
        else:
            self._end(tag, element)

    def _start(self, tag: str, element: Element) -> None:
        if tag == "tr":
            self._rows += 1
        elif tag == "pStyle":
            self._level = self._levels.get(_value(element, "val"))
        elif tag in _BREAKS:
            self._inline.append(_BREAKS[tag])

    def _end(self, tag: str, element: Element) -> None:
        if tag == "tr":
            self._rows -= 1
        if tag == "t":
            self._inline.append(element.text or "")
        elif tag == "tc":
            self._inline.append(" | ")
        elif (tag == "p" or tag == "tr") and not self._rows:
            self._end_block()
        elif tag == "p":
            self._inline.append(" ")

    def text(self) -> str:
        return "\n\n".join(self._blocks)

    def _end_block(self) -> None:
        lines = (" ".join(line.split()) for line in "".join(self._inline).split("\n"))
        block = "\n".join(line for line in lines if line).removesuffix(" |")
        level, self._level = self._level, None
        self._inline.clear()
        if not block:
            return
        start = self._length + 2 if self._blocks else 0
        self._blocks.append(block)
        self._length = start + len(block)
        if level is not None:
            self.headings.append(Heading(level, clipped(block), start, self._length))
