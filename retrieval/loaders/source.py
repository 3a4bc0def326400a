"""From bytes on disk to clean text: every loader's input passes through here, and plain text is nothing more."""

from __future__ import annotations

import codecs
from pathlib import Path

from retrieval.errors import UnreadableFile
from retrieval.loaders.document import Document, sections

FILE_BYTES_MAX = 10 * 1024 * 1024  # a book has one megabyte; more is a dump, and would occupy the embedder for hours
DETECT_BYTES_MAX = 64 * 1024  # guessing an encoding takes time per byte

_BOMS = (
    (codecs.BOM_UTF8, "utf-8-sig"),
    (codecs.BOM_UTF32_LE, "utf-32"),  # before UTF-16, whose mark is a prefix of it
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)


def read_bytes(path: Path, bytes_max: int = FILE_BYTES_MAX) -> bytes:
    """Raises UnreadableFile if the file does not exist, is not accessible, is empty or too large."""
    try:
        if not path.is_file():
            raise UnreadableFile("is not a file" if path.exists() else "there is no such file")
        with path.open("rb") as file:
            data = file.read(bytes_max + 1)
    except OSError as error:
        raise UnreadableFile(f"cannot be read: {error.strerror or error}") from error
    return checked(data, bytes_max)


def checked(data: bytes, bytes_max: int) -> bytes:
    """Raises UnreadableFile if the data is empty or larger than the limit."""
    if len(data) > bytes_max:
        raise UnreadableFile(f"is larger than {bytes_max // 1024**2} MB; split it into smaller files")
    if not data or data.isspace():
        raise UnreadableFile("is empty")
    return data


def decode(data: bytes) -> str:
    """Text with "\\n" line ends. UTF-8 unless a byte order mark or the bytes themselves indicate another encoding."""
    text = _decoded(data).replace("\r\n", "\n").replace("\r", "\n")
    if "\0" in text:
        raise UnreadableFile("is not text (it contains zero bytes)")
    if not text.strip():
        raise UnreadableFile("contains no text")
    return text


def load(data: bytes, name: str) -> Document:
    """Plain text: one section. `name` is the title. Raises UnreadableFile."""
    text = decode(data)
    return Document(name, "text/plain", text, sections([], title=name, start=0, end=len(text)))


def _decoded(data: bytes) -> str:
    encoding = next((name for mark, name in _BOMS if data.startswith(mark)), "utf-8")
    try:
        return data.decode(encoding)
    except UnicodeDecodeError:
        if b"\0" in data[:DETECT_BYTES_MAX]:
            raise UnreadableFile("is not text (it contains zero bytes)") from None
    from charset_normalizer import from_bytes  # slow to import, and the worker itself decodes nothing

    guess = from_bytes(data[:DETECT_BYTES_MAX]).best()
    if guess is None:
        raise UnreadableFile("is not text in any known encoding")
    return data.decode(guess.encoding, "replace")
