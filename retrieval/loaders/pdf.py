"""PDF: the text of its pages, each a section. Read in a process apart, so a hostile file harms nothing but itself."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from retrieval.errors import UnreadableFile
from retrieval.loaders.document import Document, Section, clipped


@dataclass(frozen=True, slots=True)
class Limits:
    memory_bytes: int = 1024 * 1024 * 1024  # address space; ordinary files need a tenth of it
    seconds: int = 60  # a page takes a millisecond


_HYPHENATED = re.compile(r"[\ufffe\u0002]\n?")  # pdfium's mark for a hyphen that only broke a line
_SPACES = re.compile(r"[ \t]+\n")


def load(data: bytes, name: str, limits: Limits = Limits()) -> Document:
    """`name` is the title when the file has none. Raises UnreadableFile."""
    read = _read(data, limits)
    pages = [_clean(page) for page in read["pages"]]
    text = "\n\n".join(pages).rstrip()
    if not text.strip():
        raise UnreadableFile("contains no text; if it is a scan, let a text recognition read it first")
    title = clipped(str(read["title"] or "").replace("\0", "")) or name
    return Document(title, "application/pdf", text, tuple(_sections(pages, len(text))))


def _read(data: bytes, limits: Limits) -> dict[str, Any]:
    command = [sys.executable, "-I", "-m", "retrieval.loaders.pdf_reader"]
    try:
        done = subprocess.run(
            [*command, str(limits.memory_bytes), str(limits.seconds)],
            input=data,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            timeout=limits.seconds,
            env={},  # nothing of ours, neither secrets nor preloaded libraries
            cwd="/",
        )
    except subprocess.TimeoutExpired:
        raise UnreadableFile(f"takes longer than {limits.seconds} s to read") from None
    if done.returncode != 0:
        raise UnreadableFile("is damaged, or needs more memory than a document should")
    answer: dict[str, Any] = orjson.loads(done.stdout)
    if "error" in answer:
        raise UnreadableFile(answer["error"])
    return answer


def _clean(page: str) -> str:
    text = page.replace("\r\n", "\n").replace("\r", "\n").replace("\0", "")
    text = text.encode("utf-8", "replace").decode()  # halves of characters
    return _SPACES.sub("\n", _HYPHENATED.sub("", text)).strip()


def _sections(pages: Sequence[str], length: int) -> list[Section]:
    found: list[Section] = []
    start = 0
    for number, page in enumerate(pages, 1):
        if page:
            found.append(Section(f"Page {number}", start, min(start + len(page), length)))
        start += len(page) + 2
    return found
