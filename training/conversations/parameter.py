"""Parameters of tools that do not exist: a name, a schema, and values with the words that ask for them.

A phrase is unambiguous: it says the parameter's name, or its preposition belongs to no other parameter of the tool.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from training.conversations import lexicon
from training.conversations.names import Names

Value: TypeAlias = str | int | float | bool


NAMED = "with {p} {v}"


@dataclass(frozen=True, slots=True)
class Parameter:
    """`phrases` ask for a value {v}, with the parameter's name in words {p} or without; `negated` for False."""

    name: str
    schema: Mapping[str, Any]
    value: Callable[[Names], Value]
    phrases: tuple[str, ...]
    negated: tuple[str, ...] = ()
    required: bool = True

    @property
    def title(self) -> str:
        return spaced(self.name)

    @property
    def lists(self) -> str:
        """How several values are asked for at once, with a {}; empty where nobody would."""
        first = self.phrases[0]
        choice = "enum" in self.schema or self.schema["type"] == "boolean"
        return "" if choice or "'" in first else first.format(p=self.title, v="{}")

    def make(self, names: Names) -> tuple[Value, str]:
        """A value, and the words that ask for it."""
        value = self.value(names)
        phrases = self.negated if value is False else self.phrases
        return value, names.pick(phrases).format(v=value, p=self.title)

    def beside(self, others: Iterable[Parameter]) -> Parameter:
        """The same without the prepositions that already belong to others: "for Lima for Nina" tells of neither what
        it is."""
        taken = {phrase for other in others for phrase in other.phrases if "{p}" not in phrase}
        return replace(self, phrases=tuple(phrase for phrase in self.phrases if phrase not in taken) or (NAMED,))


def spaced(name: str) -> str:
    return name.replace("_", " ")


@dataclass(frozen=True, slots=True)
class _Kind:
    """`phrases` take the value; {p} is the parameter's name in words."""

    names: str
    descriptions: tuple[str, ...]
    phrases: tuple[str, ...]
    value: Callable[[Names], Value]
    type: str = "string"
    share: int = 1


_FILES = (".txt", ".csv", ".log", ".pdf", ".md")
_SETS = (
    ("low", "medium", "high"),
    ("celsius", "fahrenheit"),
    ("small", "medium", "large"),
    ("json", "csv", "pdf"),
    ("open", "closed", "pending"),
    ("daily", "weekly", "monthly"),
    ("red", "blue", "green", "black"),
    ("economy", "business", "first"),
)


def _path(names: Names) -> str:
    return names.pick(
        (names.word() + names.pick(_FILES), f"/{names.word()}/{names.word()}", f"{names.syllables()}.example")
    )


def _anything(names: Names) -> str:
    makers: tuple[Callable[[], str], ...] = (names.word, names.proper, names.syllables, names.code, names.title)
    return names.pick(makers)()


_KINDS = (
    _Kind(
        "city location place destination town region",
        ("The city", "City name", "Name of the place", "The city and state, e.g. San Francisco, CA"),
        ("in {v}", "for {v}", "in {v}", "for {p} {v}"),
        Names.city,
        share=3,
    ),
    _Kind(
        ("name person customer recipient assignee employee contact guest author owner"),
        ("The person", "Full name", "Name of the person"),
        ("for {v}", "for {p} {v}", "with {p} {v}"),
        Names.person,
        share=2,
    ),
    _Kind(
        "date day due_date start_date deadline end_date",
        ("The date", "Date", "Which day"),
        ("on {v}", "for {v}", "with {p} {v}"),
        Names.date,
        share=2,
    ),
    _Kind(
        "time start_time begin_time hour", ("The time", "Time as HH:MM"), ("at {v}", "at {v}", "for {v}"), Names.time
    ),
    _Kind(
        "title subject message text note summary comment content query topic",
        ("The text", "Free text", "What it says"),
        ("saying '{v}'", "titled '{v}'", "with {p} '{v}'", "with the text '{v}'", 'with {p} "{v}"'),
        Names.title,
        share=2,
    ),
    _Kind(
        "email address recipient_email",
        ("Email address", "The address"),
        ("to {v}", "for {v}", "with email {v}"),
        Names.email,
    ),
    _Kind(
        ("count quantity limit minutes days level port age floor page amount size duration percent volume speed"),
        ("How many", "The number", "Value"),
        ("with {p} {v}", "{p} {v}", "with {v} {p}", "and {p} {v}"),
        Names.number,
        "integer",
        share=2,
    ),
    _Kind(
        "price temperature weight distance rate total budget height ratio",
        ("The value", "Numeric value", "Amount"),
        ("with {p} {v}", "at {p} {v}", "with a {p} of {v}"),
        Names.decimal,
        "number",
    ),
    _Kind(
        "room area zone",
        ("The room", "Which room"),
        ("in the {v}", "for the {v}"),
        lambda names: names.pick(lexicon.ROOMS),
    ),
    _Kind("color colour shade", ("The color",), ("in {v}", "with color {v}"), lambda names: names.pick(lexicon.COLORS)),
    _Kind(
        "product item model device brand",
        ("Product name", "The product"),
        ("for the {v}", "for {v}", "with {p} {v}"),
        Names.product,
    ),
    _Kind(
        "path file filename folder url host", ("Path or name", "The file"), ("for {v}", "at {v}", "with {p} {v}"), _path
    ),
)
_TURNS = tuple(kind for kind in _KINDS for _ in range(kind.share))


def parameter(names: Names) -> Parameter:
    """One at random: two in three of a common kind, the rest identifiers, choices, switches and plain inventions."""
    chance = names.random.random()
    if chance < 0.62:
        return _common(names)
    return names.pick((_identifier, _identifier, _choice, _choice, _switch, _invented, _invented))(names)


def _common(names: Names) -> Parameter:
    kind = names.pick(_TURNS)
    return _parameter(names, names.pick(kind.names.split()), kind.descriptions, kind.phrases, kind.value, kind.type)


def _identifier(names: Names) -> Parameter:
    noun = names.pick(
        ("order", "ticket", "invoice", "customer", "item", "case", "booking", "device", "user", "account", names.noun())
    )
    name = names.pick((f"{noun}_id", f"{noun}_number", "id", f"{noun}_code", "reference"))
    described = (f"The {spaced(name)}", f"Identifier of the {noun}")
    return _parameter(
        names, name, described, ("with {p} {v}", "{p} {v}", "for {p} {v}", "with id {v}", "for {v}"), Names.code
    )


def _invented(names: Names) -> Parameter:
    name = names.pick(
        (names.word(), names.noun(), f"{names.word()}_{names.word()}", f"{names.word()}_name", names.syllables())
    )
    described = (f"The {spaced(name)}", spaced(name).capitalize(), f"Name of the {spaced(name)}")
    return _parameter(names, name, described, ("with {p} {v}", "for {p} {v}", "with {p} {v}"), _anything)


def _parameter(
    names: Names,
    name: str,
    described: tuple[str, ...],
    phrases: tuple[str, ...],
    value: Callable[[Names], Value],
    type: str = "string",
) -> Parameter:
    return Parameter(name, _described(names, {"type": type}, described), value, phrases)


def _choice(names: Names) -> Parameter:
    name = names.pick(
        ("priority", "unit", "size", "format", "status", "frequency", "mode", "category", "class", names.word())
    )
    options = names.pick((*_SETS, _words(names, 3), _words(names, 4)))
    schema = _described(names, {"type": "string"}, ("One of the allowed values", "Which kind", "The option")) | {
        "enum": list(options)
    }

    phrases = ("with {p} {v}", "with {v} {p}", "{p} {v}")
    return Parameter(name, schema, lambda names: names.pick(options), phrases)


def _words(names: Names, count: int) -> tuple[str, ...]:
    """Each once, in the order in which they came up: that of a set differs from process to process."""
    return tuple(dict.fromkeys(names.word() for _ in range(count)))


def _switch(names: Names) -> Parameter:
    name = names.pick(
        ("urgent", "notify", "recursive", "verbose", "public", "force", "silent", "express", "private", names.word())
    )
    schema = _described(names, {"type": "boolean"}, ("Whether to do so", "Flag"))

    on, off = ("with {p} on", "with {p} true", "with {p}"), ("with {p} off", "with {p} false", "without {p}")
    return Parameter(name, schema, lambda names: names.chance(0.5), on, off)


def _described(names: Names, schema: dict[str, Any], descriptions: tuple[str, ...]) -> dict[str, Any]:
    return schema | ({"description": names.pick(descriptions)} if names.chance(0.7) else {})
