"""Word documents: paragraphs, headings according to their styles, and tables row by row."""

from __future__ import annotations

import re
import zipfile
import zlib
from collections.abc import Callable, Mapping
from io import BytesIO
from xml.parsers import expat

from retrieval.errors import UnreadableFile
from retrieval.loaders.document import Document, Heading, clipped, sections

PART_BYTES_MAX = 64 * 1024 * 1024  # of one unpacked part: a book has three megabytes; more is a zip bomb
CHARS_MAX = 20_000_000
DEPTH_MAX = 500  # of nested elements: three nested tables reach 30, and expat keeps all of them in memory
ELEMENTS_MAX = 4_000_000  # per part: a book has a hundred thousand
TITLE_CHARS_READ = 1000
_HEADING = re.compile(r"heading ([1-9])$")
_BREAKS = {"tab": "\t", "br": "\n", "cr": "\n", "noBreakHyphen": "-"}

Attributes = Mapping[str, str]


def load(data: bytes, name: str) -> Document:
    """`name` is the title if the document has none. Raises UnreadableFile."""
    try:
        with zipfile.ZipFile(BytesIO(data)) as archive:
            styles = _Styles()
            _parse(_part(archive, "word/styles.xml"), styles.start)
            body = _Body(styles.levels)
            _parse(_part(archive, "word/document.xml", needed=True), body.start, body.end, body.characters)
            properties = _Properties()
            _parse(_part(archive, "docProps/core.xml"), properties.start, properties.end, properties.characters)
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError) as error:
        raise UnreadableFile("is not a Word document that can be read (damaged or encrypted)") from error
    except expat.ExpatError as error:
        raise UnreadableFile(f"is a damaged Word document: {error}") from error
    text = body.text()
    if not text.strip():
        raise UnreadableFile("contains no text")
    title = clipped(properties.title) or next((h.title for h in body.headings if h.title), "") or name
    media_type = "application/vnd.openxmlformats-officedocument.wordprocessingml.document"
    return Document(title, media_type, text, sections(body.headings, title=title, start=0, end=len(text)))


def _part(archive: zipfile.ZipFile, name: str, *, needed: bool = False) -> bytes:
    """The unpacked part, never more than the limit, whatever size the archive claims."""
    try:
        with archive.open(name) as part:
            data = part.read(PART_BYTES_MAX + 1)
    except KeyError:
        if needed:
            raise UnreadableFile("is not a Word document") from None
        return b""
    if len(data) > PART_BYTES_MAX:
        raise UnreadableFile(f"unpacks to more than {PART_BYTES_MAX // 1024**2} MB")
    return data


def _parse(
    xml: bytes,
    start: Callable[[str, Attributes], None],
    end: Callable[[str], None] = lambda _: None,
    characters: Callable[[str], None] = lambda _: None,
) -> None:
    """Names are passed without their prefix. A document type, which is where entities are declared, is refused."""
    if not xml:
        return
    limits = _Limits()

    def opened(name: str, attributes: Attributes) -> None:
        limits.open()
        start(_local(name), {_local(key): value for key, value in attributes.items()})

    def closed(name: str) -> None:
        limits.close()
        end(_local(name))

    parser = expat.ParserCreate()
    parser.buffer_text = True
    parser.StartElementHandler = opened
    parser.EndElementHandler = closed
    parser.CharacterDataHandler = characters
    parser.StartDoctypeDeclHandler = _refuse
    parser.Parse(xml, True)


def _local(name: str) -> str:
    return name.rpartition(":")[2]


def _refuse(*_: object) -> None:
    raise UnreadableFile("declares a document type, which no Word document does")


class _Limits:
    def __init__(self) -> None:
        self._depth = 0
        self._elements = 0

    def open(self) -> None:
        self._depth += 1
        self._elements += 1
        if self._depth > DEPTH_MAX:
            raise UnreadableFile(f"nests more than {DEPTH_MAX} elements in each other")
        if self._elements > ELEMENTS_MAX:
            raise UnreadableFile(f"holds more than {ELEMENTS_MAX // 1_000_000} million elements; split it")

    def close(self) -> None:
        self._depth -= 1


class _Styles:
    """Which styles are headings, and of which level: ids are in the author's language, names in English."""

    def __init__(self) -> None:
        self.levels: dict[str, int] = {}
        self._id = ""

    def start(self, name: str, attributes: Attributes) -> None:
        if name == "style":
            self._id = attributes.get("styleId", "")
        elif name == "name" and self._id:
            style = attributes.get("val", "").lower()
            heading = _HEADING.match(style)
            if heading or style == "title":
                self.levels[self._id] = int(heading[1]) + 1 if heading else 1


class _Properties:
    def __init__(self) -> None:
        self.title = ""
        self._inside = False

    def start(self, name: str, attributes: Attributes) -> None:
        self._inside = name == "title"

    def end(self, name: str) -> None:
        self._inside = False

    def characters(self, text: str) -> None:
        if self._inside and len(self.title) < TITLE_CHARS_READ:
            self.title += text


class _Body:
    """Collects paragraphs, table rows, and headings with their offsets."""

    def __init__(self, levels: Mapping[str, int]) -> None:
        self.headings: list[Heading] = []
        self._levels = levels
        self._blocks: list[str] = []
        self._length = 0  # of the joined blocks, separators included
        self._inline: list[str] = []
        self._level: int | None = None
        self._in_text = False
        self._rows = 0  # nesting depth: the rows of nested tables are part of the outer row

    def start(self, name: str, attributes: Attributes) -> None:
        self._in_text = name == "t"
        if name == "tr":
            self._rows += 1
        elif name == "pStyle":
            self._level = self._levels.get(attributes.get("val", ""))
        elif name in _BREAKS:
            self._inline.append(_BREAKS[name])

    def characters(self, text: str) -> None:
        if self._in_text:
            self._inline.append(text)

    def end(self, name: str) -> None:
        self._in_text = False
        if name == "tr":
            self._rows -= 1
        if name == "tc":
            self._inline.append(" | ")
        elif (name == "p" or name == "tr") and not self._rows:
            self._end_block()
        elif name == "p":
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
        if self._length > CHARS_MAX:
            raise UnreadableFile(f"holds more than {CHARS_MAX // 1_000_000} million characters")
        if level is not None:
            self.headings.append(Heading(level, clipped(block), start, self._length))
