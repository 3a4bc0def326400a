"""Removes from a text what may identify somebody or grant access, as far as its format reveals it. Pure.

Names of people have no format: read a file before handing it on.
"""

from __future__ import annotations

import re

CHARS_MAX = 100_000  # of one text; the rest is cut off
# Linear in the length of the text: no part of a pattern can match in two ways.
_KINDS = (
    ("url", re.compile(r"\b[a-z][a-z0-9+.-]{1,15}://\S{1,2000}", re.IGNORECASE)),
    ("email", re.compile(r"[A-Za-z0-9._%+-]{1,64}@[A-Za-z0-9-]{1,63}(?:\.[A-Za-z0-9-]{1,63}){1,8}")),
    ("key", re.compile(r"\b(?:sk|pk|ft|ghp|xox[abp])[-_][A-Za-z0-9_-]{12,}")),
    ("id", re.compile(r"\b[0-9a-fA-F]{8}-(?:[0-9a-fA-F]{4}-){3}[0-9a-fA-F]{12}\b")),
    ("account", re.compile(r"\b[A-Z]{2}\d{2}(?: ?[A-Z0-9]{4}){3,7}(?: ?[A-Z0-9]{1,4})?\b")),
    ("address", re.compile(r"\b\d{1,3}(?:\.\d{1,3}){3}\b")),
    ("number", re.compile(r"(?<![\w.])\+?+\(?+\d{1,4}+\)?+(?:[ /.-]?+\(?+\d{1,5}+\)?+){1,7}+(?!\w)")),
    ("token", re.compile(r"\b(?=[A-Za-z_-]{0,64}\d)[A-Za-z0-9_-]{32,}")),
)
_DATE = re.compile(r"\d{4}-\d{2}-\d{2}")
DIGITS_MIN = 7  # of a phone number or a card; dates and prices have fewer


def redacted(text: str) -> str:
    """With placeholders such as [email] for what was removed."""
    text = text[:CHARS_MAX]
    for name, form in _KINDS:
        text = form.sub(lambda found, name=name: _mark(name, found[0]), text)  # type: ignore[misc]
    return text


def _mark(name: str, found: str) -> str:
    if name == "number" and (sum(map(str.isdigit, found)) < DIGITS_MIN or _DATE.fullmatch(found)):
        return found
    return f"[{name}]"
