"""Tools that do not exist, with random names and schemas: what is learnt is to read a schema, not to know a tool."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from agents.function_tool import function_schema
from training.conversations import lexicon
from training.conversations.names import Names
from training.conversations.parameter import Parameter, Value, parameter, spaced
from training.conversations.request import Request, Several, listed
from training.conversations.scene import call

PARAMETERS = (1, 1, 1, 2, 2, 2, 3)  # how many a tool has, as shares
REQUIRED_SHARE = 0.7  # of the parameters behind the first
LEFT_OUT_SHARE = 0.4  # of the optional ones, in a request
SAME_VERB_SHARE = 0.35  # of the requests use the verb of the name
QUESTION_SHARE = 0.35  # "what is the tide for Oslo" instead of "get the tide for Oslo"
_READING = ("get", "list", "track")
_DESCRIPTIONS = (
    "{v} the {w}.",
    "{v} a {w}.",
    "{v} {w} by {p}.",
    "{v} the {w} for a given {p}.",
    "{v} the {w} of a {p}.",
    "{v} {w}.",
)
_DONE = ("ok", "done", "success", "created", "updated", "sent", "scheduled", "confirmed")
_ERRORS = (
    "{a} not found",
    "service unavailable",
    "timed out after {n} seconds",
    "invalid {p}",
    "permission denied",
    "no such {w}",
    "connection refused",
    "{p} is not valid",
    "rate limit reached",
    "unknown {w}",
    "the {w} service is offline",
    "internal error {n}",
    "quota exceeded",
)


@dataclass(frozen=True, slots=True)
class Invented:
    """`topic` is the thing in words; `verbs` how people ask for it, the name's own last; `action` what they mean."""

    name: str
    description: str
    topic: str
    action: str
    verbs: tuple[str, ...]
    parameters: tuple[Parameter, ...]

    @property
    def schema(self) -> Mapping[str, Any]:
        properties = {parameter.name: dict(parameter.schema) for parameter in self.parameters}
        required = [parameter.name for parameter in self.parameters if parameter.required]
        shape = {"type": "object", "properties": properties, "required": required}
        return function_schema(self.name, self.description, shape)

    @property
    def reads(self) -> bool:
        return self.action in _READING

    @property
    def takes_one_text(self) -> bool:
        """Whether it can be fed with what another tool returned."""
        first, *others = self.parameters
        plain = first.schema["type"] == "string" and "enum" not in first.schema
        return plain and not any(parameter.required for parameter in others)

    def request(self, names: Names, without: Parameter | None = None) -> Request:
        """Optional parameters are often not asked for, and then they are not in the call."""
        chosen = [
            p for p in self.parameters if p != without and (p.required or not names.chance(LEFT_OUT_SHARE))
        ]  # fmt: skip
        made = [(p.name, *p.make(names)) for p in chosen]
        phrases = [phrase for _, _, phrase in made]
        if len(phrases) > 1 and names.chance(0.2):
            names.random.shuffle(phrases)
        ask = " ".join([self._head(names), names.pick((" ", " ", " and ", ", ")).join(phrases)]).strip()
        return self.called(names, ask, {name: value for name, value, _ in made})

    def called(self, names: Names, ask: str, arguments: Mapping[str, Value]) -> Request:
        result, answer = outcome(names, self)
        return Request(ask, call(self.name, arguments), result, answer)

    def several(self, names: Names, count: int) -> Several | None:
        first, *others = self.parameters
        if not first.lists or any(parameter.required for parameter in others):
            return None
        values: list[Value] = []
        while len(values) < count:
            value, _ = first.make(names)
            if value not in values:
                values.append(value)
        ask = f"{self._head(names)} {first.lists.format(listed([str(value) for value in values]))}"
        return Several(ask, tuple(self.called(names, "", {first.name: value}) for value in values))

    def _head(self, names: Names) -> str:
        if self.reads and names.chance(QUESTION_SHARE):
            return names.pick(("what is the {}", "how is the {}", "what's the {}", "{}")).format(self.topic)
        verb = self.verbs[-1] if names.chance(SAME_VERB_SHARE) else names.pick(self.verbs)
        return names.pick(("{v} the {w}", "{v} the {w}", "{v} a {w}", "{v} {w}", "{v} my {w}")).format(
            v=verb, w=self.topic
        )


def invent(names: Names) -> Invented:
    action = names.pick(list(lexicon.VERBS))
    spelt, spoken = lexicon.VERBS[action]
    noun = names.noun() if names.chance(0.65) else f"{names.noun()}_{names.noun()}"
    verb, chance = names.pick(spelt), names.random.random()
    name = f"{verb}_{noun}" if chance < 0.85 else f"{noun}_{verb}" if chance < 0.93 else noun
    parameters = _parameters(names)
    description = names.pick(_DESCRIPTIONS).format(
        v=names.pick(spoken).replace(" me", "").capitalize(), w=spaced(noun), p=parameters[0].title
    )
    return Invented(name, description, spaced(noun), action, (*spoken, verb), parameters)


def _parameters(names: Names) -> tuple[Parameter, ...]:
    made: dict[str, Parameter] = {}
    count = names.pick(PARAMETERS)
    while len(made) < count:
        new = parameter(names)
        required = not made or names.chance(REQUIRED_SHARE)
        made.setdefault(new.name, replace(new.beside(made.values()), required=required))
    return tuple(made.values())


def outcome(names: Names, tool: Invented) -> tuple[str, str]:
    """What a tool returns, and the sentence that tells it: every field in its order, nothing else."""
    chance = names.random.random()
    if not tool.reads and chance < 0.5:
        fields: dict[str, Value] = {"status": names.pick(_DONE)}
        if names.chance(0.5):
            fields[names.pick(("id", "reference", "number", "confirmation", f"{names.noun()}_id"))] = names.code()
        return json.dumps(fields), told(fields)
    if chance < 0.6:
        text = names.pick((str(names.value()), names.phrase(2, 5), f"{names.number()} {names.word()}"))
        return text, f"The {tool.topic} is {text}"
    if chance < 0.7:
        values = [str(names.value()) for _ in range(names.random.randint(2, 3))]
        key = names.pick(("items", "results", "matches", tool.topic.replace(" ", "_")))
        return json.dumps({key: values}, ensure_ascii=False), f"The {spaced(key)} are {listed(values)}"
    keys: tuple[Callable[[], str], ...] = (
        names.noun,
        names.word,
        lambda: names.attribute().replace(" ", "_"),
        lambda: tool.topic.replace(" ", "_"),
    )
    fields = {names.pick(keys)(): names.value() for _ in range(names.pick((1, 2, 2, 3)))}
    return json.dumps(fields, ensure_ascii=False), told(fields)


def told(fields: Mapping[str, Value]) -> str:
    text = listed([f"the {spaced(key)} is {value}" for key, value in fields.items()])
    return text[0].upper() + text[1:]


def error(names: Names, tool: Invented) -> str:
    return names.pick(_ERRORS).format(a=names.proper(), n=names.number(99), p=tool.parameters[0].title, w=tool.topic)
