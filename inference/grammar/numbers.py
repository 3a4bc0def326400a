"""Grammars of numbers between bounds. The text of a number is its digits, so a range is a handful of digit patterns."""

from __future__ import annotations

from inference.grammar.rules import either

LARGEST = 10**15 - 1  # whole numbers up to here are exact in every reader of JSON
FRACTION = '("." [0-9]{1,15})?'
ZEROES = '("." "0"{1,15})?'
ABOVE = '"." "0"{0,7} [1-9] [0-9]{0,7}'  # a fraction that is not zero


def integers(least: int, most: int) -> str:
    """Whole numbers from `least` to `most`, both within LARGEST."""
    parts = []
    if least < 0:
        parts.append(f'"-" {_magnitudes(max(1, -most), -least)}')
    if most >= 0:
        parts.append(_magnitudes(max(0, least), most))
    return either(parts)


def decimals(least: int, most: int, *, above: bool = False, below: bool = False) -> str:
    """Numbers from `least` to `most`; with `above` and `below` without the bound itself."""
    parts = []
    if least < 0:
        # Zero stands on the other side, without a sign.
        nearest, beyond = (0, True) if most >= 0 else (-most, below)
        parts = [f'"-" {part}' for part in _decimals(nearest, -least, above=beyond, below=above)]
    if most >= 0:
        parts += _decimals(max(0, least), most, above=above and least >= 0, below=below)
    return either(parts)


def _decimals(low: int, high: int, *, above: bool, below: bool) -> list[str]:
    """The same without sign, in ranges that do not overlap; none when nothing is left."""
    parts = []
    if low < high:
        parts.append(f"{_magnitudes(low, low)} {ABOVE if above else FRACTION}")
    if low + 1 < high:
        parts.append(f"{_magnitudes(low + 1, high - 1)} {FRACTION}")
    if not below and (low < high or not above):
        parts.append(f"{_magnitudes(high, high)} {ZEROES}")
    return parts


def _magnitudes(low: int, high: int) -> str:
    """Whole numbers without sign: for each number of digits one range."""
    parts = []
    for digits in range(len(str(low)), len(str(high)) + 1):
        shortest = 0 if digits == 1 else 10 ** (digits - 1)
        parts.append(_range(str(max(low, shortest)), str(min(high, 10**digits - 1))))
    return either(parts)


def _range(low: str, high: str) -> str:
    """Digit strings of one length from `low` to `high`."""
    if low == high:
        return f'"{low}"'
    if low[0] == high[0]:
        return f'"{low[0]}" {_range(low[1:], high[1:])}'
    rest = len(low) - 1
    if not rest:
        return f"[{low}-{high}]"
    first, last = int(low[0]), int(high[0])
    parts = []
    if int(low[1:]):
        parts.append(f'"{first}" {_range(low[1:], "9" * rest)}')
        first += 1
    if int(high[1:]) != 10**rest - 1:
        parts.append(f'"{last}" {_range("0" * rest, high[1:])}')
        last -= 1
    if first <= last:
        parts.append(f"[{first}-{last}] [0-9]{{{rest}}}")
    return either(parts)
