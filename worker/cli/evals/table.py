"""Tables for people: in a terminal, and in Markdown."""

from __future__ import annotations

from collections.abc import Collection, Sequence

CELL_CHARS_MAX = 300


def aligned(rows: Sequence[Sequence[str]], *, texts: Collection[int] = (0,)) -> list[str]:
    """One line for each row, usually with one of headings before them. Columns are of numbers, except the `texts`."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(
            cell.ljust(width) if number in texts else cell.rjust(width)
            for number, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]


def in_markdown(rows: Sequence[Sequence[str]]) -> str:
    head, *body = (f"| {' | '.join(plain(cell) for cell in row)} |" for row in rows)
    return "\n".join([head, "|" + "---|" * len(rows[0]), *body])


def plain(text: str) -> str:
    """A model's text as one line without markup."""
    text = " ".join(text.split())
    cut = text[:CELL_CHARS_MAX] + ("…" if len(text) > CELL_CHARS_MAX else "")
    return "".join(f"\\{char}" if char in "\\`*_[]<>|#!&" else char for char in cut)
