"""The types of option values, for argparse. Each raises ArgumentTypeError with a message for the user."""

from __future__ import annotations

import argparse
import json
import math
import re

ATTRIBUTE_KEY_MAX, ATTRIBUTE_VALUE_MAX = 64, 512  # the limits of filters


def attribute(text: str) -> tuple[str, str | int | float | bool]:
    """year=2024 is a number, draft=true is a boolean, everything else is text."""
    key, equals, value = text.partition("=")
    if not equals or not 1 <= len(key) <= ATTRIBUTE_KEY_MAX or not 1 <= len(value) <= ATTRIBUTE_VALUE_MAX:
        raise argparse.ArgumentTypeError(
            f"must be KEY=VALUE, with at most {ATTRIBUTE_KEY_MAX} and {ATTRIBUTE_VALUE_MAX} characters"
        )
    try:
        read = json.loads(value)
    except ValueError:
        return key, value
    return key, read if isinstance(read, bool | int) or (isinstance(read, float) and math.isfinite(read)) else value


def bound(text: str) -> tuple[str, int | float | str]:
    """steps=4, class=batch"""
    name, _, value = text.partition("=")
    if not value:
        raise argparse.ArgumentTypeError("must be NAME=VALUE, as in steps=4 or class=batch")
    try:
        return name, int(value) if value.isdigit() else float(value)
    except ValueError:
        return name, value


def hours(text: str) -> float:
    count = _number(text)
    if not 0.01 <= count <= 24 * 365:
        raise argparse.ArgumentTypeError("must be a number from 0.01 to 8760")
    return count


def share(text: str) -> float:
    count = _number(text)
    if not 0 <= count <= 1:
        raise argparse.ArgumentTypeError("must be a number from 0 to 1")
    return count


def at_once(text: str) -> int:
    if not text.isascii() or not text.isdigit() or not 1 <= int(text) <= 64:
        raise argparse.ArgumentTypeError("must be a number from 1 to 64")
    return int(text)


def positive_int(text: str) -> int:
    if not text.isascii() or not text.isdigit() or not 1 <= int(text) <= 36_500:
        raise argparse.ArgumentTypeError("must be a number from 1 to 36500")
    return int(text)


def canary_name(text: str) -> str:
    from worker.canary.proposal import NAME_PATTERN  # imports NumPy

    if not re.fullmatch(NAME_PATTERN, text):
        raise argparse.ArgumentTypeError("must be up to 64 letters, digits, hyphens and underscores")
    return text


def part(text: str) -> float:
    """A share strictly between 0 and 1."""
    count = _number(text)
    if not 0 < count < 1:
        raise argparse.ArgumentTypeError("must be more than 0 and less than 1")
    return count


def margin(text: str) -> tuple[str, float]:
    measure, equals, value = text.partition("=")
    if not equals:
        raise argparse.ArgumentTypeError("must be MEASURE=SHARE")
    return measure, share(value)


def _number(text: str) -> float:
    """NaN, which is in no range, if it is not a number."""
    try:
        return float(text)
    except ValueError:
        return math.nan
