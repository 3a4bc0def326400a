"""Tables as text (CSV, TSV): one line per row, each value preceded by the name of its column."""

from __future__ import annotations

import csv
from io import StringIO

from retrieval.errors import UnreadableFile
from retrieval.loaders.document import Document, clipped, sections
from retrieval.loaders.source import decode

COLUMNS_MAX = 200  # names are repeated in every line
COLUMN_CHARS_MAX = 60
SNIFF_CHARS = 16_384
DELIMITERS = ",;\t|"


def load(data: bytes, name: str) -> Document:
    """The first row names the columns. Raises UnreadableFile."""
    source = decode(data)
    try:
        rows = csv.reader(StringIO(source, newline=""), delimiter=_delimiter(source), strict=True)
        columns = [clipped(column, COLUMN_CHARS_MAX) for column in next(rows)]
        if len(columns) > COLUMNS_MAX:
            raise UnreadableFile(f"has more than {COLUMNS_MAX} columns")
        lines = [_line(columns, row) for row in filter(None, rows)]
    except (csv.Error, StopIteration) as error:
        raise UnreadableFile(f"is not a table that can be read: {error}") from error
    text = "\n".join(line for line in lines if line)
    if not text:
        raise UnreadableFile("contains no rows below the header")
    return Document(name, "text/csv", text, sections([], title=name, start=0, end=len(text)))


def _delimiter(source: str) -> str:
    """The most frequent delimiter in the first line: sniffing more of a file guesses wrong more often."""
    first = source[:SNIFF_CHARS].lstrip("\n").partition("\n")[0]
    return max(DELIMITERS, key=first.count)


def _line(columns: list[str], row: list[str]) -> str:
    named = ((columns[i] if i < len(columns) else "", " ".join(value.split())) for i, value in enumerate(row))
    return "; ".join(f"{column}: {value}" if column else value for column, value in named if value)
