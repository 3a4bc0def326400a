"""Several requests in one message: one after the other, as a list, or about the same thing."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import product

from training.functions import Parameter, Request, Tool
from training.values import CODED, POOLS, Chooser, Unfit, capital, in_words, lowered

ORDER = re.compile(r"(?!I\b|We\b|My\b|Our\b|A\b|An\b|The\b)[A-Z][^.?!:]*\.")
STORY = re.compile(r"\b(I|[Mm]y|[Ww]e|[Oo]ur)\b")
ANYTHING = ("@code", "@word", "@title", "@sentence", "@phrase")  # of all sorts of things: no two have one in common
FORM = re.compile(r"[\w/.-]*YYYY[\w/.-]*|HH:MM")
PLACES = ("@city", "@country", "@region", "@island")


def ended(text: str) -> str:
    return text if text[-1] in ".?!" else f"{text}."


def woven(choose: Chooser, one: Tool, other: Tool) -> list[Request]:
    """Requests of two tools about the same thing, to which the second may but refer. Empty where they have nothing
    in common."""

    def asked(tool: Tool, parameter: Parameter, refer: bool) -> Request | None:
        referring = _referring(choose, parameter) if refer else str
        with suppress(Unfit):
            return tool.ask(choose, {parameter.name: said}, referring)
        return None

    for mine, theirs in choose.some(shared := _shared(one, other), len(shared)):
        told_before = mine.kind.text in PLACES and choose.chance("told_before")
        said = mine.said(choose)
        first, second = asked(one, mine, told_before), asked(other, theirs, choose.chance("referred"))
        if first and second and not (told_before and STORY.search(first.text)):
            before = f"{choose.way('told before', said.words)} " if told_before else ""
            return [Request(before + first.text, first.calls), second]
    return []


def _shared(one: Tool, other: Tool) -> list[tuple[Parameter, Parameter]]:
    """Parameters that take the same values."""
    pairs = product(one.parameters.values(), other.parameters.values())
    named = ((a, b) for a, b in pairs if a.kind.text not in ANYTHING or a.name == b.name)
    return [(a, b) for a, b in named if a.kind == b.kind and a.kind.text[0] == "@" and _format(a) == _format(b)]


def _format(parameter: Parameter) -> tuple[bool, list[str]]:
    """What its description asks for: a code, a date or a time in a certain form."""
    return bool(CODED.search(parameter.description)), FORM.findall(parameter.description)


def _referring(choose: Chooser, parameter: Parameter) -> Callable[[str], str]:
    """Writes `there` for a place in a template, and the like for a day."""
    kind, named = parameter.kind.text, rf"\{{{re.escape(parameter.name)}\}}"
    if kind in PLACES:
        return lambda template: re.sub(rf"\b(in|to) {named}", "there", template, count=1)
    again = choose.way("the same day")
    return lambda template: re.sub(rf"\bon {named}", again, template, count=1) if kind == "@date" else template


def joined(choose: Chooser, requests: Sequence[Request]) -> Request:
    """In one sentence, one sentence after the other, or as a list. Raises Unfit where there is no request."""
    if not requests:
        raise Unfit("nothing to join")
    return Request(_text(choose, requests), [call for request in requests for call in request.calls])


def _text(choose: Chooser, requests: Sequence[Request]) -> str:
    text, *more = texts = [request.text for request in requests]
    broken = "\n" in "".join(texts)
    if more and not broken and choose.chance("list"):
        mark, count = choose.pick(POOLS["mark of a list"]), in_words(len(texts))
        points = [f"{mark.format(at=at, letter='abcdefgh'[at - 1])} {each}" for at, each in enumerate(texts, 1)]
        return "\n".join([choose.way("before a list", count=count, Count=capital(count)), *points])
    if broken:
        return "\n\n".join(texts)
    continued = [_continued(request) for request in requests]
    if more and choose.chance("orders") and all(map(ORDER.fullmatch, texts)):
        *orders, final = (each.rstrip(".") for each in continued)
        first, last = choose.pick((("First ", ", then "), ("First, ", "; then "), ("Please ", ", and then ")))
        return f"{first}{', then '.join(orders)}{last}{final}."
    for whole, begun in zip(more, continued[1:], strict=True):
        text = ended(text)
        where = " before a question" if begun.endswith("?") else ""
        between, within = choose.way(f"between sentences{where}"), choose.way(f"between requests{where}")
        text = choose.pick((f"{text} {between} {begun}", f"{text.rstrip('.?!')}{within} {begun}", f"{text} {whole}"))
    return text


def _continued(request: Request) -> str:
    """With a small first letter, where no name begins it."""
    values = json.dumps([call["arguments"] for call in request.calls], ensure_ascii=False)
    return request.text if request.text.split()[0].rstrip(",:;'s") in values else lowered(request.text)
