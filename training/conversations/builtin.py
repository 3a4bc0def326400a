"""Requests for the tools that come with the server. Schemas, results and errors are the server's own."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from agents.tool import ToolError
from agents.tools.calculator import calculator as calculator_tool
from agents.tools.calculator import evaluate
from agents.tools.convert_units import convert_units as convert_units_tool
from agents.tools.current_time import current_time as current_time_tool
from training.conversations import lexicon
from training.conversations.names import Names
from training.conversations.request import Request, Several, listed
from training.conversations.scene import call

RESULT_MAX = 1e12  # longer numbers teach nothing but digits
DIGITS_USUAL = 8
SAME_SHARE = 0.08  # of the sums have the same number twice, as the first that people try
ALIKE_SHARE = 0.6  # of the sums in a list have the same first number
BARE_SHARE = 0.15  # of the sums come back as the number alone, as from a calculator of one's own

_SUMS: tuple[tuple[tuple[str, ...], str], ...] = (
    (("{a} plus {b}", "{a} + {b}", "the sum of {a} and {b}", "{a}+{b}"), "{a} + {b}"),
    (("{a} minus {b}", "{a} - {b}", "{a}-{b}", "the difference of {a} and {b}"), "{a} - {b}"),
    (
        ("{a} times {b}", "{a} * {b}", "{a} multiplied by {b}", "{a} x {b}", "the product of {a} and {b}", "{a}*{b}"),
        "{a} * {b}",
    ),
    (("{a} divided by {b}", "{a} / {b}", "{a} over {b}", "{a}/{b}"), "{a} / {b}"),
    (("{c} percent of {a}", "{c}% of {a}", "{c} % of {a}"), "{c} / 100 * {a}"),
    (("({a} + {b}) * {c}", "({a} + {b}) times {c}"), "({a} + {b}) * {c}"),
    (("{a} * {b} - {c}", "{a} times {b} minus {c}"), "{a} * {b} - {c}"),
    (("{a} + {b} + {c}", "{a} plus {b} plus {c}"), "{a} + {b} + {c}"),
    (("{a} * {b} + {c}", "{a} times {b} plus {c}"), "{a} * {b} + {c}"),
    (("{c} to the power of {d}", "{c} ** {d}", "{c}^{d}"), "{c} ** {d}"),
    (("the square root of {a}", "sqrt({a})", "sqrt {a}"), "sqrt({a})"),
    (("{c} squared",), "{c} ** 2"),
)
SIMPLE = 5  # of the sums are of two numbers
_ORDERS: tuple[tuple[tuple[str, ...], str], ...] = (
    (("add {b} to {a}", "add {b} to {a}", "add {a} and {b}"), "{a} + {b}"),
    (("subtract {b} from {a}", "take {b} away from {a}"), "{a} - {b}"),
    (("multiply {a} by {b}", "multiply {a} with {b}"), "{a} * {b}"),
    (("divide {a} by {b}",), "{a} / {b}"),
)
ORDERS_SHARE = 0.3  # of the sums are told as an order
_IT = ("the result", "the result", "the result", "it", "that")
_CALCULATE = (
    "what is {}",
    "calculate {}",
    "compute {}",
    "how much is {}",
    "work out {}",
    "what's {}",
    "{}",
    "evaluate {}",
)
_TIME = (
    "what time is it in {}",
    "what is the time in {}",
    "tell me the current time in {}",
    "what's the time in {} right now",
    "time in {}",
    "current time in {}",
    "what is the current time in {}",
)
_ELSEWHERE = ("and in {}", "what about {}", "how about {}", "and {}", "and the time in {}")
_DATE = ("what is the date in {}", "what day is it in {}", "tell me the date in {}", "what is today's date in {}")
_CONVERT = (
    "convert {v} {f} to {t}",
    "how many {t} are {v} {f}",
    "what is {v} {f} in {t}",
    "{v} {f} in {t}",
    "{v} {f} to {t}",
    "how many {t} is {v} {f}",
    "change {v} {f} into {t}",
    "how much is {v} {f} in {t}",
)


def _calculation(names: Names) -> Request:
    a = names.decimal() if names.chance(0.2) else names.number()
    ordered = names.chance(ORDERS_SHARE)
    words, expression = names.pick(_ORDERS if ordered else _SUMS)
    b = a if names.chance(SAME_SHARE) else names.number()
    values = {"a": a, "b": b, "c": names.number(30), "d": names.number(8) + 1}
    expression = expression.format(**values)
    try:
        value = evaluate(expression)
    except ToolError:
        return _calculation(names)
    if not teaches(names, value):
        return _calculation(names)
    told = names.pick(words).format(**values)
    request = _calculated(told if ordered else names.pick(_CALCULATE).format(told), expression, value)
    return replace(request, result=str(value)) if names.chance(BARE_SHARE) else request


def first_sum(names: Names) -> Request:
    """As people try first: two small numbers, often the same."""
    words, expression = names.pick(_SUMS[:SIMPLE])
    a, c = names.number(20), names.number(30)
    values = {"a": a, "b": a if names.chance(0.2) else names.number(20), "c": c}
    told = names.pick(_CALCULATE).format(names.pick(words).format(**values))
    return calculation_of(f"{told[0].upper()}{told[1:]}?", expression.format(**values))


def _calculated(ask: str, expression: str, value: float) -> Request:
    result = json.dumps({"expression": expression, "result": value})
    return Request(ask, call("calculator", {"expression": expression}), result, f"{expression} = {value}")


def _calculations(names: Names, count: int) -> Several:
    """Sums of one sort, often with the same first number: their results begin alike, and each belongs to its sum."""
    words, expression = names.pick(_SUMS)
    asked, same = names.pick(words), names.number(99) if names.chance(ALIKE_SHARE) else None
    made: dict[str, Request] = {}
    while len(made) < count:
        values = {"a": same or names.number(), "b": names.number(), "c": names.number(30), "d": names.number(8) + 1}
        try:
            request = calculation_of("", expression.format(**values))
        except ToolError:
            continue
        if (told := asked.format(**values)) in made:
            same = None  # nothing else differs in a root
        elif teaches(names, value_of(request)):
            made[told] = request
    return Several(names.pick(_CALCULATE).format(listed(list(made))), tuple(made.values()))


def teaches(names: Names, value: float) -> bool:
    """Few of the results may be long."""
    return abs(value) <= RESULT_MAX and (len(str(value)) <= DIGITS_USUAL or names.chance(0.3))


def value_of(request: Request) -> float:
    """What a calculation or a conversion returned, bare or not."""
    returned = json.loads(request.result)
    value: float = returned["result"] if isinstance(returned, dict) else returned
    return value


def calculation_of(ask: str, expression: str) -> Request:
    """Raises ToolError for what has no value."""
    return _calculated(ask, expression, evaluate(expression))


def further(names: Names, value: float) -> Request:
    """What is to be done with a value that is known. Raises ToolError."""
    (words, expression), number = names.pick(_ORDERS), names.number(20)
    return calculation_of(names.pick(words).format(a=names.pick(_IT), b=number), expression.format(a=value, b=number))


def _clock(names: Names) -> Request:
    if names.chance(0.08):
        ask = names.pick(("what time is it", "what is the time", "tell me the time", "what's the time now"))
        return _told(names, ask, "UTC")
    place = _place(names)
    if names.chance(0.12):
        return _told(names, names.pick(_DATE).format(place[0]), place[1], dated=True)
    return _told(names, names.pick(_TIME).format(place[0]), place[1])


def first_clock(names: Names) -> Request:
    """As people try first: a city whose zone is known."""
    city, zone = names.pick(list(lexicon.ZONES.items()))
    told = names.pick(_TIME).format(city)
    return _told(names, f"{told[0].upper()}{told[1:]}?", zone)


def elsewhere(names: Names) -> Request:
    """The time once more, in another place."""
    place, zone = _place(names)
    return _told(names, names.pick(_ELSEWHERE).format(place), zone)


def _place(names: Names) -> tuple[str, str]:
    """A place as people say it, and what the tool is asked for: a zone known by heart, else the place itself."""
    chance = names.random.random()
    if chance < 0.75:
        return names.pick(list(lexicon.ZONES.items()))
    if chance < 0.85:
        zone = names.pick(list(lexicon.ZONES.values()))
        return zone, zone
    city = names.city()
    return city, lexicon.ZONES.get(city, city)


def _told(names: Names, ask: str, zone: str, *, dated: bool = False) -> Request:
    r = names.random
    date, time = f"{r.randint(2024, 2031)}-{r.randint(1, 12):02d}-{r.randint(1, 28):02d}", names.time()
    result = json.dumps({"timezone": zone, "date": date, "time": time}, ensure_ascii=False)
    answer = f"The date in {zone} is {date}" if dated else f"It is {time} in {zone}"
    return Request(ask, call("current_time", {"timezone": zone}), result, answer)


def _clocks(names: Names, count: int) -> Several:
    places = [_place(names) for _ in range(count)]
    ask = names.pick(_TIME).format(listed([place for place, _ in places]))
    return Several(ask, tuple(_told(names, "", zone) for _, zone in places))


def _conversion(names: Names) -> Request:
    source, target = names.random.sample(names.pick(lexicon.UNITS), 2)
    value = names.number() if names.chance(0.6) else names.decimal()
    return conversion_of(names.pick(_CONVERT).format(v=value, f=source, t=target), value, source, target)


def conversion_of(ask: str, value: float, source: str, target: str) -> Request:
    """Raises ToolError for units that do not fit."""
    converted = convert_units_tool.function(float(value), source, target)
    arguments = {"value": value, "from_unit": source, "to_unit": target}
    answer = f"{value} {source} is {converted['result']} {target}"
    return Request(ask, call("convert_units", arguments), json.dumps(converted, ensure_ascii=False), answer)


def _conversions(names: Names, count: int) -> Several:
    """One amount in several units, or several amounts in one."""
    source, target = names.random.sample(names.pick(lexicon.UNITS), 2)
    values = [names.number() for _ in range(count)]
    ask = f"convert {listed([f'{value} {source}' for value in values])} to {target}"
    return Several(ask, tuple(conversion_of("", value, source, target) for value in values))


@dataclass(frozen=True, slots=True)
class BuiltIn:
    name: str
    schema: Mapping[str, Any]
    request: Callable[[Names], Request]
    list_of: Callable[[Names, int], Several] | None = None

    def several(self, names: Names, count: int) -> Several | None:
        return self.list_of(names, count) if self.list_of else None


CALCULATOR = BuiltIn("calculator", calculator_tool.schema, _calculation, _calculations)
CURRENT_TIME = BuiltIn("current_time", current_time_tool.schema, _clock, _clocks)
CONVERT_UNITS = BuiltIn("convert_units", convert_units_tool.schema, _conversion, _conversions)


def failed(names: Names) -> tuple[BuiltIn, Request]:
    """A request that the real tool refuses, with what it says."""
    return names.pick((_unknown_place, _no_value, _unknown_unit))(names)


def _unknown_place(names: Names) -> tuple[BuiltIn, Request]:
    place = names.proper()
    error = f"unknown time zone '{place}', use an IANA name such as Europe/Berlin"
    return CURRENT_TIME, _refused(names.pick(_TIME).format(place), CURRENT_TIME, {"timezone": place}, error)


def _no_value(names: Names) -> tuple[BuiltIn, Request]:
    expression = f"{names.number()} / 0"
    ask = names.pick(_CALCULATE).format(expression)
    return CALCULATOR, _refused(ask, CALCULATOR, {"expression": expression}, "division by zero")


def _unknown_unit(names: Names) -> tuple[BuiltIn, Request]:
    value, source, target = names.number(), names.word(), names.pick(names.pick(lexicon.UNITS))
    ask = names.pick(_CONVERT).format(v=value, f=source, t=target)
    arguments = {"value": value, "from_unit": source, "to_unit": target}
    return CONVERT_UNITS, _refused(ask, CONVERT_UNITS, arguments, f"unknown unit '{source}'")


def _refused(ask: str, tool: BuiltIn, arguments: Mapping[str, Any], error: str) -> Request:
    return Request(ask, call(tool.name, arguments), f"Error: {error}", sorry(tool.name, error))


def sorry(name: str, error: str) -> str:
    return f"Sorry, {name} failed: {error}"
