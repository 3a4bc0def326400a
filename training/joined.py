"""Several requests in one message: one after the other, as a list, or about the same thing."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from itertools import product

from training.functions import Parameter, Request, Tool
from training.values import CODED, POOLS, SMALL, Chooser, capital, lowered

LIST_SHARE = 0.2  # of several requests in a message stand as a list
ORDERS_SHARE = 0.15  # of several orders are told as first, then
TOLD_BEFORE_SHARE = 0.3  # of the places that two tools share are told before
REFERRED_SHARE = 0.6  # of the values that two tools share are referred to, not said again
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
    for mine, theirs in choose.some(shared := _shared(one, other), len(shared)):
        kind = mine.kind.text
        told_before = kind in PLACES and choose.chance(TOLD_BEFORE_SHARE)
        said = {mine.name: mine.said(choose)}
        first = one.ask(choose, said, _referring(choose, mine) if told_before else str)
        refer = _referring(choose, theirs) if choose.chance(REFERRED_SHARE) else str
        second = other.ask(choose, {theirs.name: said[mine.name]}, refer)
        if first and second:
            if told_before and STORY.search(first.text):
                continue
            before = choose.pick(POOLS["told before"]).format(said[mine.name].words) if told_before else ""
            return [Request(f"{before} {first.text}".lstrip(), first.calls), second]
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
    again = choose.pick(POOLS["the same day"])
    return lambda template: re.sub(rf"\bon {named}", again, template, count=1) if kind == "@date" else template


def joined(choose: Chooser, requests: Sequence[Request]) -> Request:
    """Several requests in one sentence, one sentence after the other, or as a list."""
    calls = [call for request in requests for call in request.calls]
    texts = [request.text for request in requests]
    if len(texts) > 1 and "\n" not in "".join(texts) and choose.chance(LIST_SHARE):
        mark = choose.pick(POOLS["mark of a list"])
        points = [f"{mark.format(at=at, letter='abcdefgh'[at - 1])} {text}" for at, text in enumerate(texts, 1)]
        count = SMALL[len(texts)]
        before = choose.pick(POOLS["before a list"]).format(count=count, Count=capital(count))
        return Request("\n".join([before, *points]), calls)
    if "\n" in "".join(texts):
        return Request("\n\n".join(texts), calls)
    if len(texts) > 1 and choose.chance(ORDERS_SHARE) and all(map(ORDER.fullmatch, texts)):
        orders = [_continued(request).rstrip(".") for request in requests]
        first, last = choose.pick((("First ", ", then "), ("First, ", "; then "), ("Please ", ", and then ")))
        return Request(f"{first}{', then '.join(orders[:-1])}{last}{orders[-1]}.", calls)
    text = texts[0]
    for request in requests[1:]:
        more = _continued(request)
        text = ended(text)
        where = " before a question" if more.endswith("?") else ""
        between, within = (choose.pick(POOLS[f"between {what}{where}"]) for what in ("sentences", "requests"))
        ways = (f"{text} {between} {more}", f"{text.rstrip('.?!')}{within} {more}", f"{text} {request.text}")
        text = choose.pick(ways)
    return Request(text, calls)


def _continued(request: Request) -> str:
    """With a small first letter, where no name begins it."""
    values = json.dumps([call["arguments"] for call in request.calls], ensure_ascii=False)
    return request.text if request.text.split()[0].rstrip(",:;'s") in values else lowered(request.text)
