"""Values of parameters, and how people say them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from random import Random
from typing import Any, TypeVar

DATA = Path(__file__).parent / "data"
SMALL = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve"]
LETTERS = "ABCDEFGHKLMNPRSTUVWX"
FIRST_DAY, LAST_DAY = date(2019, 1, 1).toordinal(), date(2027, 12, 28).toordinal()

T = TypeVar("T")


def pools(path: Path = DATA / "values.txt") -> dict[str, list[str]]:
    """A line is `name: one|another`."""
    named = (line.split(": ", 1) for line in path.read_text().splitlines())
    return {name: values.split("|") for name, values in named}


def sections(path: Path) -> dict[str, list[str]]:
    """Lines below their `[name]`."""
    parts = re.split(r"^\[(\w+)\]\n", path.read_text(), flags=re.MULTILINE)[1:]
    return {
        name: lines.split("\n")[: lines.rstrip().count("\n") + 1]
        for name, lines in zip(parts[::2], parts[1::2], strict=True)
    }


POOLS = pools()


@dataclass(frozen=True, slots=True)
class Chooser:
    """Seeded: the same seed chooses the same."""

    random: Random

    def pick(self, options: Sequence[T]) -> T:
        return self.random.choice(options)

    def chance(self, share: float) -> bool:
        return self.random.random() < share

    def some(self, options: Sequence[T], count: int) -> list[T]:
        return self.random.sample(options, min(count, len(options)))

    def between(self, low: int, high: int) -> int:
        return self.random.randint(low, high)

    def listed(self, items: Sequence[object]) -> str:
        """`a`, `a and b`, `a, b and c`."""
        *head, last = map(str, items)
        if not head:
            return last
        comma = "," if len(head) > 1 and self.chance(0.3) else ""
        return f"{', '.join(head)}{comma} and {last}"


@dataclass(frozen=True, slots=True)
class Said:
    """An argument, and the words for it."""

    value: Any
    words: str


@dataclass(frozen=True, slots=True)
class Kind:
    """What values a parameter takes.

    `b` is yes or no, `i1-9` and `n0.5-2` are numbers of a range, `p0.1-0.2` is a share that may be said in percent,
    `e(red,blue)` is one of these, `@city` is one of a pool (or made: `date`, `code` ...); `li`, `l1-9`, `ln0.5-2` and
    `l@city` are lists.
    Words of its own are said for a value in `b(with pets/no pets)` and `e(en=English,fr=French)`.
    """

    text: str

    @property
    def options(self) -> list[str]:
        return self.text[2:-1].split(",") if self.text.startswith("e(") else []

    def schema(self) -> dict[str, Any]:
        if self.options:
            return {"type": "string", "enum": [option.partition("=")[0] for option in self.options]}
        match self.text[0]:
            case "b":
                return {"type": "boolean"}
            case "l":
                return {"type": "array", "items": {"type": {"@": "string", "n": "number"}.get(self.text[1], "integer")}}
            case "i":
                return {"type": "integer"}
            case "n" | "p":
                return {"type": "number"}
        return {"type": "string"}

    def said(self, choose: Chooser, description: str = "") -> Said:
        """`description` may ask for a format: YYYY-MM-DD, HH:MM."""
        if self.options:
            option, _, words = choose.pick(self.options).partition("=")
            return Said(option, words or option.replace("_", " "))
        match self.text[0]:
            case "b":
                yes, no = (self.text[2:-1] or "yes/no").split("/")
                return Said(True, yes) if choose.chance(0.6) else Said(False, no)
            case "l":
                return self._list(choose)
            case "i":
                return _whole(choose, *_range(self.text))
            case "n":
                return _decimal(choose, *_range(self.text))
            case "p":
                share = round(choose.random.uniform(*_range(self.text)), choose.pick((2, 2, 3)))
                return Said(share, choose.pick((f"{share * 100:g}%", f"{share * 100:g} percent", str(share))))
        made = MADE.get(self.text[1:])
        if made is not None:
            return made(choose, description)
        value = choose.pick(POOLS[self.text[1:]])
        return Said(value, value)

    def _list(self, choose: Chooser) -> Said:
        count = choose.between(2, 6)
        if "@" in self.text:
            of = Kind(self.text[1:])
            texts = list(dict.fromkeys(of.said(choose).value for _ in range(count)))
            return Said(texts, choose.listed(texts))
        span = self.text[1:] if "-" in self.text else f"1-{choose.pick((20, 100, 999))}"
        of = Kind(span if span[0] == "n" else f"i{span}")
        numbers = [of.said(choose).value for _ in range(count)]
        bracketed = f"[{', '.join(map(str, numbers))}]"
        return Said(numbers, bracketed if choose.chance(0.4) else choose.listed(numbers))


def _range(text: str) -> tuple[float, float]:
    found = re.fullmatch(r"[a-z](-?[\d.]+)-(-?[\d.]+)", text)
    if found is None:
        raise ValueError(f"not a range: {text}")
    return float(found[1]), float(found[2])


def _whole(choose: Chooser, low: float, high: float) -> Said:
    value = choose.between(int(low), int(high))
    amount = high > 2100  # what ends before may be a year, which is neither rounded nor has a comma
    if amount and choose.chance(0.6):
        value = round(value, -3 if value > 5000 else -2) or value
    if amount and value >= 1000 and choose.chance(0.4):
        return Said(value, f"{value:,}")
    return Said(value, SMALL[value] if 1 < value < 13 and choose.chance(0.12) else str(value))


def _decimal(choose: Chooser, low: float, high: float) -> Said:
    value = round(choose.random.uniform(low, high), 3 if high < 1 else choose.pick((1, 1, 2)))
    whole = value == int(value) or (high > 20 and choose.chance(0.25))
    return Said(int(value), str(int(value))) if whole else Said(value, str(value))


def _person(choose: Chooser, _: str) -> Said:
    name = f"{choose.pick(POOLS['first'])} {choose.pick(POOLS['last'])}"
    return Said(name, name)


def _date(choose: Chooser, description: str) -> Said:
    day = date.fromordinal(choose.between(FIRST_DAY, LAST_DAY))
    iso, month = day.isoformat(), POOLS["month"][day.month - 1]
    words = choose.pick((iso, iso, f"{month} {day.day}, {day.year}", f"{day.day} {month} {day.year}"))
    return Said(iso if "YYYY" in description else words, words)


def _time(choose: Chooser, description: str) -> Said:
    hour, minute = choose.between(0, 23), choose.pick((0, 0, 15, 30, 45, choose.between(0, 59)))
    clock = f"{hour:02d}:{minute:02d}"
    spoken = f"{(hour - 1) % 12 + 1}{f':{minute:02d}' if minute else ''} {'am' if hour < 12 else 'pm'}"
    words = choose.pick((clock, spoken))
    return Said(clock if "HH:MM" in description else words, words)


def _code(choose: Chooser, _: str) -> Said:
    two = choose.pick(LETTERS) + choose.pick(LETTERS)
    number = choose.between(100, 99_999)
    forms = (f"{two}-{number}", f"{number}", f"{two.lower()}{number}", f"{two}{number}{choose.pick(LETTERS)}")
    code = choose.pick(forms)
    return Said(code, code)


def _email(choose: Chooser, _: str) -> Said:
    user = f"{choose.pick(POOLS['first'])}.{choose.pick(POOLS['last'])}".lower()
    address = f"{user}@{choose.pick(('example.com', 'mail.org', 'acme.io'))}"
    return Said(address, address)


def _dna(choose: Chooser, _: str) -> Said:
    bases = "".join(choose.pick("ACGT") for _ in range(choose.between(6, 14)))
    return Said(bases, bases)


MADE = {made.__name__[1:]: made for made in (_person, _date, _time, _code, _email, _dna)}
