"""Values of parameters, and how people say them. Words, and ways to say them, are pools in files of data/."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from random import Random
from typing import Any, TypeVar

DATA = Path(__file__).parent / "data"
MIXTURE: dict[str, Any] = tomllib.loads((DATA / "mixture.toml").read_text())
FIRST_DAY, LAST_DAY = date(2019, 1, 1).toordinal(), date(2027, 12, 28).toordinal()
BRACES = re.compile(r"\{([a-z]+2?|\d+-\d+)\}")
CODED = re.compile(r"\b([Cc]ode|[Ss]ymbol|ISO|IATA|letters?)\b")  # in a description that asks for a code
DATE_FORMAT = re.compile(r"YYYY[-/]?MM[-/]?DD|(MM/DD|DD([./-])MM)[./-]YYYY")
TYPES = {"b": "boolean", "i": "integer", "n": "number", "p": "number", "@": "string"}

T = TypeVar("T")


class Unfit(Exception):
    """What was asked for cannot be made here: something else is tried."""


def lines(name: str) -> list[str]:
    return (DATA / name).read_text().splitlines()


def halves(name: str) -> list[list[str]]:
    """Lines of a file or texts of a pool, parted at each ` => `."""
    return [line.split(" => ") for line in POOLS.get(name) or lines(name)]


def capital(text: str) -> str:
    return text[0].upper() + text[1:]


def lowered(text: str) -> str:
    """With a small first letter, where that is no name."""
    word = text.split()[0]
    return text if word in ("I", "I'm") or (len(word) > 1 and word.isupper()) else text[0].lower() + text[1:]


def in_words(number: int) -> str:
    """Below a million."""
    for size, name in ((1000, "thousand"), (100, "hundred")):
        if number >= size:
            head, rest = divmod(number, size)
            return f"{in_words(head)} {name}{f' {in_words(rest)}' if rest else ''}"
    if number < 20:
        return POOLS["below twenty"][number]
    ten, one = divmod(number, 10)
    return POOLS["tens"][ten] + (f"-{in_words(one)}" if one else "")


def pools() -> Iterator[tuple[str, list[str]]]:
    """Texts to choose from, by name: a line `name: one|another`, or the lines below `[name]`."""
    for line in lines("values.txt"):
        name, values = line.split(": ", 1)
        yield name, values.split("|")
    for file in ("requests.txt", "tasks.txt"):
        for section in "\n".join(lines(file))[1:].split("\n["):
            name, *texts = section.rstrip().split("\n")
            yield name.rstrip("]"), [text.replace("\\n", "\n") for text in texts]


POOLS = dict(pools())
SPOKEN = {code: words.split("/") for code, words in (each.split("=", 1) for each in POOLS["spoken"])}  # names of codes


class Chooser(Random):
    """Seeded: the same seed chooses the same."""

    def pick(self, options: Sequence[T]) -> T:
        """Raises Unfit where there is none."""
        if not options:
            raise Unfit("nothing to choose from")
        return self.choice(options)

    def chance(self, share: float | str) -> bool:
        """Of a share, or of one that stands in mixture.toml."""
        return self.random() < (MIXTURE[share] if isinstance(share, str) else share)

    def count(self, name: str) -> int:
        return int(self.choice(MIXTURE[name]))

    def some(self, options: Sequence[T], count: int) -> list[T]:
        return self.sample(options, min(count, len(options)))

    def way(self, pool: str, *values: object, **named: object) -> str:
        """To say something: a text of a pool, with values in its braces."""
        return self.choice(POOLS[pool]).format(*values, **named)

    def word(self, pool: str) -> str:
        """With words of other pools in its braces: `{first} {last}`. `2-60` is a number of this range."""
        if pool[0].isdigit():
            return str(self.randint(*map(int, pool.split("-"))))
        return BRACES.sub(lambda found: self.word(found[1]), self.choice(POOLS[pool]))

    def fill(self, text: str, **known: str) -> str:
        """The same word wherever the text has the same name in braces, and two for `{day}` and `{day2}`."""
        words = dict(known)
        for name in sorted(set(BRACES.findall(text)) - known.keys()):
            pool = name.removesuffix("2")
            words[name] = self.word(pool)
            while pool != name and words[name] == words.get(pool):
                words[name] = self.word(pool)
        return BRACES.sub(lambda found: words[found[1]], text)

    def listed(self, items: Sequence[object]) -> str:
        """`a`, `a and b`, `a, b and c`."""
        *head, last = map(str, items)
        comma = "," if len(head) > 1 and self.chance(0.3) else ""
        return f"{', '.join(head)}{comma} and {last}" if head else last


@dataclass(frozen=True, slots=True)
class Said:
    """An argument, and the words for it."""

    value: Any
    words: str


@dataclass(frozen=True, slots=True)
class Kind:
    """What values a parameter takes.

    `b` is yes or no, `i1-9` and `n0.5-2` are numbers of a range, `p0.1-0.2` is a share that may be said in percent,
    `e(red,blue)` is one of these, `@city` is one of a pool (`@date` and `@time` as their description asks); `li`,
    `l1-9`, `ln0.5-2` and `l@city` are lists. `o` is an object, whose properties are parameters with a dot in their
    names; `lo(of=@drink,count=i1-9/{count} {of})` is a list of objects, with the words for each.
    Words of its own are said for a value in `b(with pets/no pets)` and `e(en=English,fr=French)`; codes that many
    parameters take have theirs in the pool `spoken`.
    """

    text: str

    @property
    def options(self) -> list[str]:
        return self.text[2:-1].split(",") if self.text.startswith("e(") else []

    @property
    def words(self) -> list[str]:
        """Of the options that have some of their own."""
        return [option.partition("=")[2] for option in self.options]

    @property
    def fields(self) -> dict[str, Kind]:
        """Of the objects in a list."""
        found = self.text[2:-1].partition("/")[0]
        return {name: Kind(kind) for name, kind in (each.split("=", 1) for each in found.split(",") if each)}

    def schema(self) -> dict[str, Any]:
        if self.options:
            return {"type": "string", "enum": [option.partition("=")[0] for option in self.options]}
        if self.text.startswith("o"):
            fields = {name: kind.schema() for name, kind in self.fields.items()}
            return {"type": "object", "properties": fields, "required": [*fields]} if fields else {"type": "object"}
        if self.text.startswith("lo"):
            return {"type": "array", "items": Kind(self.text[1:]).schema()}
        if self.text[0] == "l":
            return {"type": "array", "items": {"type": TYPES.get(self.text[1], "integer")}}
        return {"type": TYPES[self.text[0]]}

    def said(self, choose: Chooser, description: str = "") -> Said:
        """`description` may ask for a format: YYYY-MM-DD or another order of these, HH:MM."""
        match self.text[0]:
            case "e":
                option, _, words = choose.pick(self.options).partition("=")
                return Said(option, words or _spoken(choose, option).replace("_", " "))
            case "b":
                yes, no = (self.text[2:-1] or "yes/no").split("/")
                return Said(True, yes) if choose.chance(0.6) else Said(False, no)
            case "l":
                return _list(choose, self.text[1:])
            case "o":
                values = {name: kind.said(choose) for name, kind in self.fields.items()}
                words = re.sub(r"\{(\w+)\}", lambda found: values[found[1]].words, self.text[:-1].partition("/")[2])
                return Said({name: said.value for name, said in values.items()}, words)
            case "i":
                return _whole(choose, *self._range)
            case "n":
                return _decimal(choose, *self._range)
            case "p":
                share = round(choose.uniform(*self._range), choose.pick((2, 2, 3)))
                return Said(share, choose.pick((f"{share * 100:g}%", f"{share * 100:g} percent", str(share))))
        if self.text in FORMATTED:
            return FORMATTED[self.text](choose, description)
        word = choose.word(self.text[1:])
        return Said(word, _spoken(choose, word) if CODED.search(description) else word)

    @property
    def _range(self) -> tuple[float, float]:
        low, _, high = self.text[1:].rpartition("-")
        return float(low), float(high)


def _spoken(choose: Chooser, code: str) -> str:
    return choose.pick(SPOKEN[code]) if code in SPOKEN and choose.chance("spoken") else code


def _list(choose: Chooser, of: str) -> Said:
    if of[0] == "o":
        made = [Kind(of).said(choose) for _ in range(choose.pick((1, 2, 2, 3, 4)))]
        each = {next(iter(said.value.values())): said for said in made}.values()
        return Said([said.value for said in each], choose.listed([said.words for said in each]))
    count = choose.randint(2, 6)
    if of == "i":
        of = f"i1-{choose.pick((20, 100, 999))}"
    kind = Kind(f"i{of}" if of[0].isdigit() else of)
    values = [kind.said(choose).value for _ in range(count)]
    if of[0] == "@":
        values = list(dict.fromkeys(values))
    elif choose.chance(0.4):
        return Said(values, f"[{', '.join(map(str, values))}]")
    return Said(values, choose.listed(values))


def _whole(choose: Chooser, low: float, high: float) -> Said:
    value = choose.randint(int(low), int(high))
    amount = high > 2100  # what ends before may be a year, which is neither rounded nor has a comma
    if amount and choose.chance(0.6):
        value = round(value, -3 if value > 5000 else -2) or value
    if amount and value >= 1000 and choose.chance(0.4):
        return Said(value, f"{value:,}")
    return Said(value, in_words(value) if 1 < value < 13 and choose.chance(0.12) else str(value))


def _decimal(choose: Chooser, low: float, high: float) -> Said:
    value = round(choose.uniform(low, high), 3 if high < 1 else choose.pick((1, 1, 2)))
    if value == int(value) or (high > 20 and choose.chance(0.25)):
        value = int(value)
    return Said(value, str(value))


def _date(choose: Chooser, description: str) -> Said:
    day = date.fromordinal(choose.randint(FIRST_DAY, LAST_DAY))
    iso = day.isoformat()
    words = choose.pick((iso, iso, f"{day:%B} {day.day}, {day.year}", f"{day.day} {day:%B} {day.year}"))
    wanted = DATE_FORMAT.search(description)
    form = wanted[0].replace("YYYY", "%Y").replace("MM", "%m").replace("DD", "%d") if wanted else words
    return Said(day.strftime(form), words)


def _time(choose: Chooser, description: str) -> Said:
    hour, minute = choose.randint(0, 23), choose.pick((0, 0, 15, 30, 45, choose.randint(0, 59)))
    clock = f"{hour:02d}:{minute:02d}"
    spoken = f"{(hour - 1) % 12 + 1}{f':{minute:02d}' if minute else ''} {'am' if hour < 12 else 'pm'}"
    words = choose.pick((clock, spoken))
    return Said(clock if "HH:MM" in description else words, words)


FORMATTED = {"@date": _date, "@time": _time}
