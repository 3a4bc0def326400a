"""A conversation as a Markdown document for people. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import pairwise

from agents.message import FunctionCall, FunctionCallOutput, Item, Message

SPEAKERS = {"user": "Question", "assistant": "Answer"}
IMAGE = "*(image)*"


def markdown(title: str | None, items: Iterable[Item]) -> str:
    """The messages, the tools that were used, and the sources that the answers cite."""
    return "\n\n".join([f"# {title or 'Conversation'}", *_sections(items)]) + "\n"


def _said(message: Message) -> str:
    """The text, with a note in the place of each picture."""
    cuts = [0, *(placed.at for placed in message.pictures), len(message.text)]
    texts = [message.text[begin:end] for begin, end in pairwise(cuts)]
    return "\n\n".join(filter(None, [texts[0], *(part for text in texts[1:] for part in (IMAGE, text))]))


def _sections(items: Iterable[Item]) -> Iterator[str]:
    calls: dict[str, str] = {}
    for item in items:
        match item:
            case Message() if item.role in SPEAKERS:
                yield f"## {SPEAKERS[item.role]}\n\n{_said(item)}"
                if sources := _sources(item):
                    yield sources
            case FunctionCall():
                calls[item.call_id] = f"{item.name} {item.arguments}"
                if item.result is not None:
                    yield _quoted(f"{calls[item.call_id]}: {item.result.output}")
            case FunctionCallOutput() if item.output:
                yield _quoted(f"{calls.get(item.call_id, 'Tool')}: {item.output}")


def _sources(message: Message) -> str:
    titles = {citation.number: citation.title or citation.filename for citation in message.citations}
    return "\n".join(f"- [{number}] {titles[number]}" for number in sorted(titles))


def _quoted(text: str) -> str:
    return "\n".join(f"> {line}" for line in text.splitlines())
