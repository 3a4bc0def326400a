"""PDF: the text of its pages, each a section."""

from __future__ import annotations

import re
from collections.abc import Sequence

import pypdfium2
from pypdfium2 import raw

from retrieval.errors import UnreadableFile
from retrieval.loaders.document import Document, Section, clipped

PAGES_MAX = 5000
_HYPHENATED = re.compile(r"[\ufffe\u0002]\n?")  # pdfium's mark for a hyphen that only breaks a line


def load(data: bytes, name: str) -> Document:
    """`name` is the title if the file has none. Raises UnreadableFile."""
    try:
        with pypdfium2.PdfDocument(data) as document:
            pages = [_clean(_text(document, number)) for number in range(min(len(document), PAGES_MAX))]
            declared = document.get_metadata_value("Title")
    except pypdfium2.PdfiumError as error:
        if error.err_code == raw.FPDF_ERR_PASSWORD:
            raise UnreadableFile("is encrypted; save it without a password") from error
        raise UnreadableFile(f"is not a PDF that can be read: {error}") from error
    text = "\n\n".join(pages).rstrip()
    if not text.strip():
        raise UnreadableFile("contains no text; if it is a scan, run text recognition (OCR) on it first")
    title = clipped(str(declared or "").replace("\0", "")) or name
    return Document(title, "application/pdf", text, tuple(_sections(pages, len(text))))


def _text(document: pypdfium2.PdfDocument, number: int) -> str:
    """The text of a page; a broken page is empty, since the others may well be readable."""
    try:
        page = document[number].get_textpage()
        return str(page.get_text_bounded())
    except pypdfium2.PdfiumError:
        return ""


def _clean(page: str) -> str:
    text = page.replace("\r\n", "\n").replace("\r", "\n").replace("\0", "")
    text = text.encode("utf-8", "replace").decode()  # replaces lone surrogates
    return "\n".join(line.rstrip(" \t") for line in _HYPHENATED.sub("", text).split("\n")).strip()


def _sections(pages: Sequence[str], length: int) -> list[Section]:
    found: list[Section] = []
    start = 0
    for number, page in enumerate(pages, 1):
        if page:
            found.append(Section(f"Page {number}", start, min(start + len(page), length)))
        start += len(page) + 2
    return found
