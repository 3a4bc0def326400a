"""Sets of characters, and how a JSON text writes one of them."""

from __future__ import annotations

from typing import TypeAlias

from inference.grammar.rules import either

Ranges: TypeAlias = list[tuple[int, int]]  # first and last code point of each, in any order

LAST = 0x10FFFF
# No characters, and control characters without an escape of their own: no expression means them.
NEVER: Ranges = [(0x00, 0x08), (0x0B, 0x0B), (0x0E, 0x1F), (0xD800, 0xDFFF)]
LINE_BREAKS: Ranges = [(0x0A, 0x0A), (0x0D, 0x0D), (0x2028, 0x2029)]
DIGITS: Ranges = [(0x30, 0x39)]
WORD: Ranges = [*DIGITS, (0x41, 0x5A), (0x5F, 0x5F), (0x61, 0x7A)]
SPACES: Ranges = [(0x09, 0x0A), (0x0C, 0x0D), (0x20, 0x20)]
NAMED = {"n": "\n", "r": "\r", "t": "\t", "f": "\f"}
ESCAPED = {0x22: '"', 0x5C: "\\", **{ord(character): name for name, character in NAMED.items()}}  # behind a backslash


def single(character: str) -> Ranges:
    return [(ord(character), ord(character))]


def inverted(ranges: Ranges) -> Ranges:
    """All characters but for these."""
    left: Ranges = []
    begin = 0
    for first, last in sorted([*ranges, *NEVER]):
        if first > begin:
            left.append((begin, first - 1))
        begin = max(begin, last + 1)
    return [*left, (begin, LAST)] if begin <= LAST else left


ANY = inverted(LINE_BREAKS)  # what a dot stands for


def terminal(ranges: Ranges) -> str:
    """One character of the set, as JSON writes it: control characters, quotes and backslashes are escaped."""
    plain = [part for first, last in ranges for part in _plain(first, last)]
    escaped = [name for code, name in ESCAPED.items() if any(first <= code <= last for first, last in ranges)]
    parts = [f"[{''.join(_range(first, last) for first, last in plain)}]"] if plain else []
    parts += [f'"\\\\" [{"".join(_range(ord(name), ord(name)) for name in escaped)}]'] if escaped else []
    return either(parts)


def _plain(first: int, last: int) -> Ranges:
    """The part of a range that needs no escape."""
    pieces = [(max(first, 0x20), last)]
    for code in (0x22, 0x5C):
        pieces = [piece for low, high in pieces for piece in ((low, min(high, code - 1)), (max(low, code + 1), high))]
    return [(low, high) for low, high in dict.fromkeys(pieces) if low <= high]


def _range(first: int, last: int) -> str:
    return _code(first) if first == last else f"{_code(first)}-{_code(last)}"


def _code(point: int) -> str:
    return f"\\U{point:08X}" if point > 0xFFFF else f"\\u{point:04X}"
