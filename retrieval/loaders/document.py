"""The output of a loader: the text of a file, and the headings of its sections."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

TITLE_CHARS_MAX = 120  # a title precedes every passage in the prompt
HEADING_CHARS_MAX = 200  # of a heading path
SECTIONS_MAX = 20_000  # guards against a file of nothing but headings; the rest becomes one section


@dataclass(frozen=True, slots=True)
class Heading:
    """A heading at text[start:end], followed by the body of its section. `level` counts from 1."""

    level: int
    title: str
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Section:
    """text[start:end] is below `heading`, a path such as "Install > Linux"; "" before the first heading."""

    heading: str
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Document:
    """All offsets, here and in citations, count characters of `text`."""

    title: str
    media_type: str
    text: str
    sections: tuple[Section, ...]


def clipped(title: str, chars_max: int = TITLE_CHARS_MAX) -> str:
    """One line of at most `chars_max` characters."""
    line = " ".join(title.split())
    return line if len(line) <= chars_max else line[: chars_max - 1].rstrip() + "…"


def sections(headings: Iterable[Heading], *, title: str, start: int, end: int) -> tuple[Section, ...]:
    """The sections of text[start:end]. A top heading that the document's title contains is omitted from the paths."""
    found: list[Section] = []
    path: list[tuple[int, str]] = []
    body = start
    for heading in headings:
        if len(found) == SECTIONS_MAX:
            break
        found.append(Section(_joined(path, title), body, heading.start))
        path = [*((level, name) for level, name in path if level < heading.level), (heading.level, heading.title)]
        body = heading.end
    found.append(Section(_joined(path, title), body, end))
    return tuple(section for section in found if section.start < section.end)


def _joined(path: list[tuple[int, str]], title: str) -> str:
    names = [name for _, name in path if name]
    if names and f" {clipped(names[0])} " in f" {title} ":  # a page's title often continues with the name of its site
        names = names[1:]
    return clipped(" > ".join(names), HEADING_CHARS_MAX)
