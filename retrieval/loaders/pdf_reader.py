"""Reads one PDF in a process of its own: `python -m retrieval.loaders.pdf_reader BYTES SECONDS`, the file on stdin.

A parser of PDF is half a million lines of C++, and a file may be made to break it. What breaks here is a process that
may neither write files nor start others, with a limit on its memory and its time. It answers with one JSON object:
{"title", "pages"} or {"error"}.
"""

from __future__ import annotations

import json
import resource
import sys
from typing import Any

import pypdfium2
from pypdfium2 import raw

PAGES_MAX = 5000
CHARS_MAX = 20_000_000  # of all pages: a book has one million


def main() -> None:
    memory_bytes, seconds = int(sys.argv[1]), int(sys.argv[2])
    resource.setrlimit(resource.RLIMIT_AS, (memory_bytes, memory_bytes))
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))  # pipes are no files
    resource.setrlimit(resource.RLIMIT_NPROC, (0, 0))
    print(json.dumps(_read(sys.stdin.buffer.read())))


def _read(data: bytes) -> dict[str, Any]:
    try:
        with pypdfium2.PdfDocument(data) as document:
            pages: list[str] = []
            chars = 0
            for number in range(min(len(document), PAGES_MAX)):
                pages.append(_text(document, number))
                chars += len(pages[-1])
                if chars > CHARS_MAX:
                    return {"error": f"holds more than {CHARS_MAX // 1_000_000} million characters"}
            return {"title": document.get_metadata_value("Title"), "pages": pages}
    except pypdfium2.PdfiumError as error:
        if error.err_code == raw.FPDF_ERR_PASSWORD:
            return {"error": "is encrypted; save it without a password"}
        return {"error": f"is not a PDF that can be read: {error}"}


def _text(document: pypdfium2.PdfDocument, number: int) -> str:
    """A page that is broken is empty; the others may well be readable."""
    try:
        page = document[number].get_textpage()
        return str(page.get_text_bounded())
    except pypdfium2.PdfiumError:
        return ""


if __name__ == "__main__":
    main()
