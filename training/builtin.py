"""Requests for the tools that come with the server. Schemas and results are the server's own."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import date, timedelta
from typing import Any

from agents.tool import ToolError
from agents.tools.calculator import calculator
from agents.tools.convert_units import convert_units
from agents.tools.current_time import current_time
from training.functions import Call
from training.values import MIXTURE, POOLS, Chooser, capital, halves, in_words, lines

SCHEMAS = [tool.schema for tool in (calculator, current_time, convert_units)]
LARGEST = 1e9  # longer results teach nothing but digits
ZONES = [line.split("|") for line in lines("zones.txt")]
UNITS = [line.split("|") for line in lines("units.txt")]
DEGREES = ("celsius", "fahrenheit", "kelvin")
# words, expression, and the answer of a story, in which {r} is the result
SUMS, STORIES, AFTER = map(halves, ("sums", "stories", "after"))
NUMBERS = {"a": (2, 9999), "b": (2, 999), "c": (1, 60), "d": (2, 40), "e": (2, 6)}  # c is a percentage
TOLD = {"The": "date", "Tomorrow": "tomorrow"}  # begin the answers to these kinds
PERCENT = re.compile(r"([\d.]+) \* [\d.]+ / 100")


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

    def again(self, choose: Chooser) -> Asked:
        """The same kind of thing once more, as in "and in London?"."""
        match self.call["name"]:
            case "current_time":
                return time(choose, "time again", TOLD.get(self.answer.split()[0], "clock"))
            case "calculator":
                share = PERCENT.fullmatch(self.call["arguments"]["expression"])
                if share and choose.chance(0.6) and (made := _share(choose, share[1])):
                    return made
                return (choose.chance(0.5) and _after(choose, self)) or sum_(choose, "sum again")
        value, source, last = self.call["arguments"].values()
        units = [unit for line in UNITS if source in line for unit in line if unit not in (source, last)]
        if units and choose.chance(0.5):
            return _converted(choose.pick(POOLS["other unit"]), value, source, choose.pick(units))
        if choose.chance(0.6):
            told, value = _amount(choose)
            told = told if choose.chance("bare") else f"{told} {source}"
            return _converted(choose.way("other amount", told), value, source, last)
        made = conversion(choose)
        return replace(made, text=choose.way("conversion again", made.thing))


def sum_(choose: Chooser, form: str = "sum") -> Asked:
    """A sum in a sentence of a section of requests.txt, or a story."""
    story = form == "sum" and choose.chance("story")
    while True:
        words, expression, *answer = choose.pick(STORIES if story else SUMS)
        named, thing = _filled(choose, words)
        text = thing if story else choose.way(form, thing)
        told = answer[0].format(**named) if answer else f"{capital(thing)} is {{r}}."
        asked = _calculated(text, expression.format(**named), told, "that" if story else thing)
        if asked is not None and not (story and "-" in asked.answer):
            return asked


def _share(choose: Chooser, whole: str) -> Asked | None:
    """Another percentage of the same."""
    share = _number(choose, *NUMBERS["c"])
    told = f"{share}% of {whole}"
    return _calculated(choose.way("other share", share), f"{whole} * {share} / 100", f"{told} is {{r}}.", told)


def _after(choose: Chooser, before: Asked) -> Asked | None:
    """A sum with the result of the last one."""
    words, expression = choose.pick(AFTER)
    named, text = _filled(choose, words)
    last = str(json.loads(before.result)["result"])
    last = f"({last})" if last.startswith("-") else last
    return _calculated(text, expression.format(**named).replace("{r}", last), "It is {r}.", "that")


def _filled(choose: Chooser, words: str) -> tuple[dict[str, str], str]:
    """What stands for the names in an expression, and the words with it."""
    numbers = {name: _number(choose, *limits) for name, limits in NUMBERS.items()}
    numbers["s"] = str(choose.randint(2, 40) ** 2)
    others = {"n": choose.word("first"), "y": str(choose.randint(40, 99)), "r": "{r}"}
    told = {name: _written(choose, number) for name, number in numbers.items()}
    return numbers | others, words.format(**told, **others)


def _number(choose: Chooser, low: int, high: int) -> str:
    top = min(high, choose.pick((20, 100, 1000, high)))
    if high > 60 and choose.chance(0.12):
        return f"{round(choose.uniform(low, top), choose.pick((1, 2))):g}"
    if high > 1000 and choose.chance(0.2):
        return str(choose.randint(1, 900) * choose.pick((100, 1000, 1250)))
    return str(choose.randint(low, top))


def _written(choose: Chooser, number: str) -> str:
    """With thousands separators, as people write large numbers, or in words."""
    whole, point, rest = number.partition(".")
    if not point and choose.chance("in_words"):
        return in_words(int(whole))
    return number if len(whole) < 4 or choose.chance(0.3) else f"{int(whole):,}{point}{rest}"


def _calculated(text: str, expression: str, answer: str, thing: str) -> Asked | None:
    """None where there is no result, or too large a one."""
    try:
        result = calculator.function(expression)
    except ToolError:
        return None
    told = answer.replace("{r}", str(result["result"]))
    fine = abs(result["result"]) <= LARGEST
    return _asked(text, "calculator", {"expression": expression}, result, told, thing) if fine else None


def time(choose: Chooser, form: str = "", kind: str = "") -> Asked:
    """A clock; `kind` is "date", "clock", "tomorrow" or "both"."""
    kind = kind or (choose.pick(("both", "date", "date", "date", "tomorrow")) if choose.chance("dates") else "clock")
    place, zone = choose.pick(ZONES)
    text = choose.way(form or f"{kind} in", place)
    if not form and kind != "both" and choose.chance(MIXTURE["here"] * (6 if kind == "tomorrow" else 1)):
        place = zone = "UTC"
        text = choose.way(f"{kind} here")
    today = date(choose.randint(2024, 2031), choose.randint(1, 12), choose.randint(1, 28))
    clock = f"{choose.randint(0, 23):02d}:{choose.randint(0, 59):02d}"
    result = {"timezone": zone, "date": str(today), "time": clock}
    answer = choose.way(f"told {kind}", place=place, tomorrow=today + timedelta(1), **result)
    return _asked(text, "current_time", {"timezone": zone}, result, answer, place)


def conversion(choose: Chooser) -> Asked:
    """Between two units of a line of units.txt."""
    while True:
        source, target = choose.some(choose.pick(UNITS), 2)
        told, value = _amount(choose)
        forms = POOLS["convert"] + POOLS["degrees"] * 3 * (source in DEGREES)
        text = choose.pick(forms).format(v=told, f=source, t=target)
        made = _converted(text, value, source, target)
        if json.loads(made.result)["result"] != value:  # else two names of one unit
            return made


def _amount(choose: Chooser) -> tuple[str, float]:
    number = _number(choose, 1, 5000)
    return _written(choose, number), float(number) if "." in number else int(number)


def _converted(text: str, value: float, source: str, target: str) -> Asked:
    result = convert_units.function(value, source, target)
    told = f"degrees {source}" if source in DEGREES else source
    answer = f"{value} {told} is {result['result']} {target}."
    arguments = {"value": value, "from_unit": source, "to_unit": target}
    return _asked(text.format(target), "convert_units", arguments, result, answer, f"{value} {source} in {target}")


def _asked(text: str, name: str, arguments: dict[str, Any], result: object, answer: str, thing: str) -> Asked:
    return Asked(text, {"name": name, "arguments": arguments}, json.dumps(result, ensure_ascii=False), answer, thing)


KINDS: tuple[Callable[[Chooser], Asked], ...] = (sum_, sum_, time, conversion, conversion)
