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
from training.values import DATA, Chooser, sections

SCHEMAS = [tool.schema for tool in (calculator, current_time, convert_units)]
LARGEST = 1e9  # longer results teach nothing but digits

ZONES = dict(line.split("|") for line in (DATA / "zones.txt").read_text().splitlines())
UNITS = [line.split("|") for line in (DATA / "units.txt").read_text().splitlines()]

ASKED = sections(DATA / "requests.txt")
SUMS, STORIES = ([line.split(" => ") for line in ASKED[name]] for name in ("sums", "stories"))  # words, expression
NUMBERS = {"a": (2, 9999), "b": (2, 999), "c": (1, 60), "d": (2, 40), "e": (2, 6)}  # c is a percentage


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


def sum_(choose: Chooser) -> Asked:
    while True:
        story = choose.chance(0.15)
        words, expression = choose.pick(STORIES if story else SUMS)
        named = {name: _number(choose, *limits) for name, limits in NUMBERS.items()}
        named["s"] = str(choose.between(2, 40) ** 2)
        thing = words.format(**{name: _written(choose, value) for name, value in named.items()})
        text = thing if story else choose.pick(ASKED["sum"]).format(thing)
        if (asked := _calculated(text, expression.format(**named), None if story else thing)) is not None:
            return asked


def _number(choose: Chooser, low: int, high: int) -> str:
    top = min(high, choose.pick((20, 100, 1000, high)))
    if high > 60 and choose.chance(0.12):
        return str(round(choose.random.uniform(low, top), choose.pick((1, 2))))
    if high > 1000 and choose.chance(0.2):
        return str(choose.between(1, 900) * choose.pick((100, 1000, 1250)))
    return str(choose.between(low, max(low, top)))


def _written(choose: Chooser, number: str) -> str:
    """With thousands separators, as people write large numbers."""
    whole, _, rest = number.partition(".")
    if len(whole) < 4 or choose.chance(0.3):
        return number
    return f"{int(whole):,}" + (f".{rest}" if rest else "")


def _calculated(text: str, expression: str, thing: str | None) -> Asked | None:
    try:
        value = evaluate(expression)
    except (ToolError, ValueError):
        return None
    if isinstance(value, complex) or not math.isfinite(value) or abs(value) > LARGEST:
        return None
    result = calculator.function(expression)
    answer = f"{thing[0].upper()}{thing[1:]} is {result['result']}." if thing else f"It is {result['result']}."
    return _asked(text, "calculator", {"expression": expression}, result, answer, thing or "that")


def time(choose: Chooser) -> Asked:
    place, zone = choose.pick(list(ZONES.items()))
    dated = choose.chance(0.12)
    text = choose.pick(ASKED["date" if dated else "time"]).format(place)
    result = {
        "timezone": zone,
        "date": f"{choose.between(2024, 2031)}-{choose.between(1, 12):02d}-{choose.between(1, 28):02d}",
        "time": f"{choose.between(0, 23):02d}:{choose.between(0, 59):02d}",
    }
    answer = f"The date in {place} is {result['date']}." if dated else f"It is {result['time']} in {place}."
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
        try:
            result = convert_units.function(value, source, target)
        except ToolError:
            continue
        if result["result"] == value:
            continue  # two names of one unit
        words = f"{number} degrees {source}" if degrees else f"{number} {source}"
        answer = f"{words[0].upper()}{words[1:]} is {result['result']} {target}."
        arguments = {"value": value, "from_unit": source, "to_unit": target}
        return _asked(text, "convert_units", arguments, result, answer, f"{number} {source} in {target}")


def _asked(text: str, name: str, arguments: dict[str, Any], result: object, answer: str, thing: str) -> Asked:
    return Asked(text, {"name": name, "arguments": arguments}, json.dumps(result, ensure_ascii=False), answer, thing)


KINDS: tuple[Callable[[Chooser], Asked], ...] = (sum_, sum_, time, conversion, conversion)


def again(choose: Chooser, before: Asked) -> Asked:
    """The same kind of thing once more, as in "and in London?"."""
    match before.call["name"]:
        case "current_time":
            now = time(choose)
            text = choose.pick(("And in {}?", "And {}?", "What about {}?", "and in {}", "How about in {}?"))
            now = replace(now, answer=f"It is {json.loads(now.result)['time']} in {now.thing}.")
        case "calculator":
            now = sum_(choose)
            while now.thing == "that":
                now = sum_(choose)
            text = choose.pick(("And {}?", "And what is {}?", "What about {}?", "and {}"))
        case _:
            if choose.chance(0.5) and (other := _other_unit(choose, before)) is not None:
                return other
            now = conversion(choose)
            text = choose.pick(("And {}?", "What about {}?", "and {}"))
    return replace(now, text=text.format(now.thing))


def _other_unit(choose: Chooser, before: Asked) -> Asked | None:
    """The same amount in another unit: "and in feet?"."""
    value, source, last = before.call["arguments"].values()
    targets = [unit for line in UNITS if source in line for unit in line if unit not in (source, last)]
    if not targets:
        return None
    target = choose.pick(targets)
    result = convert_units.function(value, source, target)
    text = choose.pick(("And in {}?", "What about {}?", "and in {}?")).format(target)
    answer = f"{value} {source} is {result['result']} {target}."
    arguments = {"value": value, "from_unit": source, "to_unit": target}
    return _asked(text, "convert_units", arguments, result, answer, f"{value} {source} in {target}")
