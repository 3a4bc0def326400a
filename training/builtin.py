"""Requests for the tools that come with the server. Schemas and results are the server's own."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from agents.tool import ToolError
from agents.tools.calculator import calculator, evaluate
from agents.tools.convert_units import convert_units
from agents.tools.current_time import current_time
from training.functions import Call
from training.values import DATA, POOLS, Chooser, sections

SCHEMAS = [tool.schema for tool in (calculator, current_time, convert_units)]
LARGEST = 1e9  # longer results teach nothing but digits

ZONES = dict(line.split("|") for line in (DATA / "zones.txt").read_text().splitlines())
UNITS = [line.split("|") for line in (DATA / "units.txt").read_text().splitlines()]

ASKED = sections(DATA / "requests.txt")
# words, expression, and the answer of a story, in which {r} is the result
SUMS, STORIES, AFTER = ([line.split(" => ") for line in ASKED[name]] for name in ("sums", "stories", "after"))
NUMBERS = {"a": (2, 9999), "b": (2, 999), "c": (1, 60), "d": (2, 40), "e": (2, 6)}  # c is a percentage
STORY_SHARE, DATE_SHARE, HERE_SHARE = 0.4, 0.4, 0.08  # of the sums; of the clocks


@dataclass(frozen=True, slots=True)
class Asked:
    """A request, the call it takes, what the server's tool returns, and the sentence that tells it.

    `thing` names what was asked, for "and ..." after it.
    """

    text: str
    call: Call
    result: str
    answer: str
    thing: str


def sum_(choose: Chooser, story: bool | None = None) -> Asked:
    story = choose.chance(STORY_SHARE) if story is None else story
    while True:
        words, expression, *answer = choose.pick(STORIES if story else SUMS)
        named, thing = _filled(choose, words)
        text = thing if story else choose.pick(ASKED["sum"]).format(thing)
        told = answer[0].format(**named) if answer else f"{thing[0].upper()}{thing[1:]} is {{r}}."
        asked = _calculated(text, expression.format(**named), told, "that" if story else thing)
        if asked is not None and not (story and asked.answer.count("-")):
            return asked


def _filled(choose: Chooser, words: str) -> tuple[dict[str, str], str]:
    named = {name: _number(choose, *limits) for name, limits in NUMBERS.items()}
    named |= {
        "s": str(choose.between(2, 40) ** 2),
        "n": choose.pick(POOLS["first"]),
        "y": str(choose.between(40, 99)),
        "r": "{r}",
    }
    return named, words.format(**{n: v if n in "nry" else _written(choose, v) for n, v in named.items()})


def _number(choose: Chooser, low: int, high: int) -> str:
    top = min(high, choose.pick((20, 100, 1000, high)))
    if high > 60 and choose.chance(0.12):
        return f"{round(choose.random.uniform(low, top), choose.pick((1, 2))):g}"
    if high > 1000 and choose.chance(0.2):
        return str(choose.between(1, 900) * choose.pick((100, 1000, 1250)))
    return str(choose.between(low, max(low, top)))


def _written(choose: Chooser, number: str) -> str:
    """With thousands separators, as people write large numbers."""
    whole, _, rest = number.partition(".")
    if len(whole) < 4 or choose.chance(0.3):
        return number
    return f"{int(whole):,}" + (f".{rest}" if rest else "")


def _calculated(text: str, expression: str, answer: str, thing: str) -> Asked | None:
    try:
        value = evaluate(expression)
    except (ToolError, ValueError):
        return None
    if isinstance(value, complex) or not math.isfinite(value) or abs(value) > LARGEST:
        return None
    result = calculator.function(expression)
    told = answer.replace("{r}", str(result["result"]))
    return _asked(text, "calculator", {"expression": expression}, result, told, thing)


def time(choose: Chooser) -> Asked:
    place, zone = ("UTC", "UTC") if choose.chance(HERE_SHARE) else choose.pick(list(ZONES.items()))
    dated = choose.chance(DATE_SHARE)
    kind = "both" if dated and choose.chance(0.3) else "date" if dated else "time"
    if place == "UTC":
        text = choose.pick(ASKED["today" if dated else "now"])
    else:
        text = choose.pick(ASKED[kind]).format(place)
    result = {
        "timezone": zone,
        "date": f"{choose.between(2024, 2031)}-{choose.between(1, 12):02d}-{choose.between(1, 28):02d}",
        "time": f"{choose.between(0, 23):02d}:{choose.between(0, 59):02d}",
    }
    answer = CLOCK_ANSWERS[kind].format(place=place, **result)
    return _asked(text, "current_time", {"timezone": zone}, result, answer, place)


def conversion(choose: Chooser) -> Asked:
    """Between two units of a line of units.txt; `Spelled in words` are numbers of any size."""
    while True:
        source, target = choose.some(choose.pick(UNITS), 2)
        number = _number(choose, 1, 5000)
        degrees = source in ("celsius", "fahrenheit", "kelvin")
        forms = ASKED["convert"] + ASKED["degrees"] * 3 * degrees
        text = choose.pick(forms).format(v=_written(choose, number), f=source, t=target)
        value = float(number) if "." in number else int(number)
        made = _converted(text, value, source, target)
        if json.loads(made.result)["result"] != value:  # else two names of one unit
            return replace(made, answer=made.answer.replace(source, f"degrees {source}", 1) if degrees else made.answer)


def _asked(text: str, name: str, arguments: dict[str, Any], result: object, answer: str, thing: str) -> Asked:
    return Asked(text, {"name": name, "arguments": arguments}, json.dumps(result, ensure_ascii=False), answer, thing)


CLOCK_ANSWERS = {
    "time": "It is {time} in {place}.",
    "date": "The date in {place} is {date}.",
    "both": "It is {date}, {time} in {place}.",
}
KINDS: tuple[Callable[[Chooser], Asked], ...] = (sum_, sum_, time, conversion, conversion)


def again(choose: Chooser, before: Asked) -> Asked:
    """The same kind of thing once more, as in "and in London?"."""
    match before.call["name"]:
        case "current_time":
            now = time(choose)
            text = choose.pick(("And in {}?", "And {}?", "What about {}?", "and in {}", "How about in {}?", "{}?"))
            kind = "date" if before.answer.startswith("The date") else "time"
            now = replace(now, answer=CLOCK_ANSWERS[kind].format(place=now.thing, **json.loads(now.result)))
        case "calculator":
            if choose.chance(0.5) and (after := _after(choose, before)) is not None:
                return after
            now = sum_(choose, story=False)
            text = choose.pick(("And {}?", "And what is {}?", "What about {}?", "and {}", "{}"))
        case _:
            if choose.chance(0.5) and (other := _other_unit(choose, before)) is not None:
                return other
            if choose.chance(0.6):
                return _other_amount(choose, before)
            now = conversion(choose)
            text = choose.pick(("And {}?", "What about {}?", "and {}"))
    return replace(now, text=text.format(now.thing))


def _after(choose: Chooser, before: Asked) -> Asked | None:
    """A sum with the result of the last one."""
    words, expression = choose.pick(AFTER)
    named, text = _filled(choose, words)
    last = str(json.loads(before.result)["result"])
    last = f"({last})" if last.startswith("-") else last
    return _calculated(text, expression.format(**named).replace("{r}", last), "It is {r}.", "that")


def _other_unit(choose: Chooser, before: Asked) -> Asked | None:
    """The same amount in another unit: "and in feet?"."""
    value, source, last = before.call["arguments"].values()
    targets = [unit for line in UNITS if source in line for unit in line if unit not in (source, last)]
    text = choose.pick(("And in {}?", "What about {}?", "and in {}?", "in {}?", "And how many {}?"))
    return _converted(text, value, source, choose.pick(targets)) if targets else None


def _other_amount(choose: Chooser, before: Asked) -> Asked:
    """Another amount in the same unit: "and for 40 miles?"."""
    _, source, target = before.call["arguments"].values()
    number = _number(choose, 1, 5000)
    text = choose.pick(("And {}?", "and for {}?", "What about {}?", "{}?", "And how much is {}?", "Now {}."))
    text = text.format(f"{_written(choose, number)} {source}")
    return _converted(text, float(number) if "." in number else int(number), source, target)


def _converted(text: str, value: float, source: str, target: str) -> Asked:
    result = convert_units.function(value, source, target)
    answer = f"{value} {source} is {result['result']} {target}."
    arguments = {"value": value, "from_unit": source, "to_unit": target}
    return _asked(text.format(target), "convert_units", arguments, result, answer, f"{value} {source} in {target}")
