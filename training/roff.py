"""The text of manual pages, without their markup. Paragraphs are parted by empty lines; headings begin with `# `."""

from __future__ import annotations

import re

_COMMENT = ("'\\\"", '.\\"')
_FONT = re.compile(r"\.(?:B|I|BR|IR|RB|RI|BI|IB|Nm|Fl|Ar|Pa|Cm)\s+(.*)")  # a line of text in another font
_JOINED = re.compile(r"\.(?:BR|IR|RB|RI)")  # fonts take turns, without blanks between
_HEADING = re.compile(r"\.(?:SH|SS|Sh|Ss)")
_FONT_CHANGES = re.compile(r"\\f[A-Z]|\\f\(..|\\f\[[^]]*\]")
_GLYPHS = re.compile(r"\\\(..|\\\[[^]]*\]|\\[,/|^~ ]")
_ESCAPES = (("\\-", "-"), ("\\&", ""), ("\\(aq", "'"), ("\\e", "\\"))
_BREAK = "\n\n"


def plain(page: str) -> str:
    text = _FONT_CHANGES.sub("", "".join(_line(line) for line in page.split("\n") if not line.startswith(_COMMENT)))
    for escape, character in _ESCAPES:
        text = text.replace(escape, character)
    return _GLYPHS.sub("", text)


def _line(line: str) -> str:
    if not line.startswith("."):
        return line + "\n"
    if font := _FONT.match(line):
        words = font[1].replace('"', "")
        return (words.replace(" ", "") if _JOINED.match(line) else words) + "\n"
    if _HEADING.match(line):
        return f"{_BREAK}# {line[4:].strip().strip(chr(34))}{_BREAK}"
    return _BREAK
