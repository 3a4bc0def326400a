"""Functions with ways to ask for them: schemas that differ as in the world, and requests with the calls they take."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from training.values import DATA, POOLS, Chooser, Kind, Said

PREFIXES = ("get_", "api_", "do_", "run_", "fetch_")
PACKAGES = ("tools", "service", "utils", "app", "lib")
SUFFIXES = ("_v2", "_lookup", "_tool", "_api")
OPTIONAL_SHARE = 0.8  # of the optional parameters stay in a schema
IN_PERCENT, FRACTIONS = " in percent", (" as a decimal", " as a fraction of 1", ", 0.05 for 5 percent")
FRACTION_SHARE = 0.4
SPARE_SHARE = 0.25  # of the requests name a parameter in a sentence of its own
NAMED = re.compile(r"\{(\w+)\}")
TOLD = re.compile(r"\b(I|[Mm]y|[Ww]e|[Oo]ur)\b|[.?!] |[^.?]$|\(\{")  # a story, or so short: odd with several values
ORDER = re.compile(r"(?!(I|We|My|Our|A|An|The|This)\b)[^.?!]+\.")  # a sentence that "please" may stand before
FILES = (DATA / "everyday.txt", *sorted(DATA.glob("functions_*.txt")))  # the place in them says what is held out

THE_SAME = POOLS["the same"]
OPENINGS = POOLS["before a list"]

# between requests: as sentences, and in one; the first two not before a question
LINKS = POOLS["between sentences"]
WORDS = POOLS["between requests"]

Call = dict[str, Any]  # {"name": ..., "arguments": {...}}


@dataclass(frozen=True, slots=True)
class Request:
    """What somebody says, and the calls it takes."""

    text: str
    calls: list[Call]


@dataclass(frozen=True, slots=True)
class Parameter:
    name: str
    kind: Kind
    description: str
    required: bool = True
    scale: float = 1  # of what is said: 0.01 where percentages are wanted as fractions

    def varied(self, choose: Chooser) -> Parameter:
        """Now and then with percentages as fractions."""
        percent = self.kind.text[0] in "in" and IN_PERCENT in self.description and "percent" not in self.name
        if not percent or not choose.chance(FRACTION_SHARE):
            return self
        return replace(self, description=self.description.replace(IN_PERCENT, choose.pick(FRACTIONS)), scale=0.01)

    def schema(self, choose: Chooser) -> dict[str, Any]:
        made = self.kind.schema()
        if made["type"] == "integer" and (self.scale != 1 or choose.chance(0.2)):
            made["type"] = "number"
        described = self.description if self.description.endswith(".") else self.description + choose.pick(("", "."))
        schema = {"type": made.pop("type"), "description": described, **made}
        if not self.required and choose.chance(0.35):
            usual = self.said(choose).value
            if choose.chance(0.5):
                told = choose.pick(("Default is", "Defaults to", "Optional, default"))
                schema["description"] = f"{described.rstrip('.')}. {told} {json.dumps(usual)}."
            else:
                schema["default"] = usual
        return schema

    def said(self, choose: Chooser) -> Said:
        said = self.kind.said(choose, self.description)
        return said if self.scale == 1 else Said(round(said.value * self.scale, 6), said.words)

    @property
    def words(self) -> str:
        return spaced(self.name)


@dataclass(frozen=True, slots=True)
class Function:
    """`templates` are requests with parameters in braces. `exact`: of a real interface, its names stay as they are."""

    name: str
    description: str
    parameters: tuple[Parameter, ...]
    templates: tuple[str, ...]
    exact: bool = False

    def tool(self, choose: Chooser) -> Tool:
        """The same under another name and with other optional parameters."""
        kept = [p.varied(choose) for p in self.parameters if p.required or self.exact or choose.chance(OPTIONAL_SHARE)]
        if not self.exact and choose.chance(0.15):
            kept.reverse()
        name = self.name if self.exact else _renamed(choose, self.name)
        parameters: dict[str, Any] = {"type": "object", "properties": {p.name: p.schema(choose) for p in kept}}
        required = [p.name for p in kept if p.required]
        if required or choose.chance(0.5):
            parameters["required"] = required
        described = self.description + ("" if self.description.endswith(".") else choose.pick(("", ".")))
        function = {"name": name, "description": described, "parameters": parameters}
        return Tool(self, name, {p.name: p for p in kept}, {"type": "function", "function": function})


def _renamed(choose: Chooser, name: str) -> str:
    head, *rest = name.split("_")
    return choose.pick(
        (
            *[name] * 9,
            *[head + "".join(word.capitalize() for word in rest)] * 3,
            *[choose.pick(PREFIXES) + name] * 3,
            *[f"{choose.pick(PACKAGES)}_{name}"] * 2,
            name + choose.pick(SUFFIXES),
            "".join(word.capitalize() for word in (head, *rest)),
        )
    )


@dataclass(slots=True)
class Tool:
    """A function as one conversation has it."""

    function: Function
    name: str
    parameters: Mapping[str, Parameter]
    schema: dict[str, Any]
    _spare: list[Parameter] = field(default_factory=list)

    def ask(self, choose: Chooser) -> Request | None:
        """None where no template fits the parameters."""
        template = self._template(choose)
        if template is None:
            return None
        used = NAMED.findall(template)
        said = {name: self.parameters[name].said(choose) for name in dict.fromkeys(used)}
        text = NAMED.sub(lambda found: said[found[1]].words, template)
        spare = [p for p in self.parameters.values() if p.name not in used]
        if spare and choose.chance(SPARE_SHARE):
            extra = choose.pick(spare)
            said[extra.name] = extra.said(choose)
            text += _told(choose, extra, said[extra.name])
        return Request(text, [self._call({name: each.value for name, each in said.items()})])

    def filled(self, choose: Chooser, text: str) -> str | None:
        """A text about the things of this tool that its call cannot answer."""
        if not set(NAMED.findall(text)) <= set(self.parameters):
            return None
        return NAMED.sub(lambda found: self.parameters[found[1]].said(choose).words, text)

    def several(self, choose: Chooser) -> Request | None:
        """One request that takes two to four calls of this tool."""
        template = self._template(choose, alone=True)
        if template is None:
            return None
        count = choose.pick((2, 2, 2, 3, 3, 4))
        if choose.chance(0.3):
            asked = [request for _ in range(count) if (request := self.ask(choose))]
            return joined(choose, list({json.dumps(each.calls): each for each in asked}.values()))
        used = list(dict.fromkeys(NAMED.findall(template)))
        varied = [n for n in used if template.count(f"{{{n}}}") == 1 and self.parameters[n].kind.text[0] not in "lb"]
        if not varied:
            return None
        varied = choose.some(varied, 2 if choose.chance(0.35) else 1)
        fixed = {name: self.parameters[name].said(choose) for name in used if name not in varied}
        rows = [{name: self.parameters[name].said(choose) for name in varied} for _ in range(count)]
        told = [[each.words for each in row.values()] for row in rows]
        if len(set(map(tuple, told))) < count or any(len(set(each)) < len(each) for each in told):
            return None
        words = {name: each.words for name, each in fixed.items()}
        words |= {name: choose.listed([row[name].words for row in rows]) for name in varied}
        text = NAMED.sub(lambda found: words[found[1]], template)
        if len(varied) > 1:
            text = f"{text[:-1]}, respectively{text[-1]}" if text[-1] in ".?" else f"{text}, respectively"
        elif choose.chance(0.4) and self._plain(used, varied[0]):
            first, *rest = [row[varied[0]].words for row in rows]
            text = NAMED.sub(lambda found: (words | {varied[0]: first})[found[1]], template)
            text += " " + choose.pick(THE_SAME).format(choose.listed(rest))
        elif choose.chance(0.2):
            text += choose.pick((" Do it for each of them.", " I need all of them.", " One after the other."))
        calls = [self._call({name: each.value for name, each in (fixed | row).items()}) for row in rows]
        return Request(text, calls)

    def _plain(self, used: list[str], varied: str) -> bool:
        """Whether a value alone says which of the parameters it is for."""
        kinds = [re.sub(r"^[in].*", "number", self.parameters[name].kind.text) for name in used]
        return kinds.count(kinds[used.index(varied)]) == 1

    def unspecified(self, choose: Chooser) -> tuple[str, str] | None:
        """A request that leaves out what is required, and the question that asks for it. None where nothing is."""
        required = [p.words for p in self.parameters.values() if p.required]
        if not required or self.function.exact:
            return None
        wish = lowered(self.function.description.rstrip("."))
        asked = choose.pick(("Please help me: {}.", "I want this: {}.", "Can you do this for me: {}?", "I need {}."))
        reply = choose.pick(("Please tell me the {}.", "For that I need the {}.", "What is the {}?"))
        return asked.format(wish), reply.format(choose.listed(required))

    def _template(self, choose: Chooser, alone: bool = False) -> str | None:
        fits = [t for t in self.function.templates if set(NAMED.findall(t)) <= set(self.parameters)]
        fits = [t for t in fits if not (alone and TOLD.search(t))]
        return choose.pick(fits) if fits else None

    def _call(self, arguments: Mapping[str, Any]) -> Call:
        ordered = {name: arguments[name] for name in self.parameters if name in arguments}
        return {"name": self.name, "arguments": ordered}


def spaced(name: str) -> str:
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", " ", name).replace("_", " ").lower()


def lowered(text: str) -> str:
    """With a small first letter, where that is no name."""
    word = text.split()[0]
    return text if word in ("I", "I'm") or (len(word) > 1 and word.isupper()) else text[0].lower() + text[1:]


def _told(choose: Chooser, parameter: Parameter, said: Said) -> str:
    if parameter.kind.text.startswith("b("):
        return f" {said.words[0].upper()}{said.words[1:]}."
    if parameter.kind.text == "b":
        value = "true" if said.value else "false"
        return choose.pick((f" {parameter.words.capitalize()}: {said.words}.", f" Set {parameter.words} to {value}."))
    forms = (" Set {} to {}.", " The {} is {}.", " With {} {}.", " Use {1} for the {0}.")
    return choose.pick(forms).format(parameter.words, said.words)


def joined(choose: Chooser, requests: list[Request], listed_share: float = 0.2) -> Request:
    """Several requests in one sentence, one sentence after the other, or as a list."""
    calls = [call for request in requests for call in request.calls]
    texts = [request.text for request in requests]
    if len(texts) > 1 and choose.chance(listed_share) and not any("\n" in text for text in texts):
        bullets = choose.pick(([f"{at}. " for at in range(1, len(texts) + 1)], ["- "] * len(texts)))
        lines = [f"{bullet}{text}" for bullet, text in zip(bullets, texts, strict=True)]
        return Request("\n".join([choose.pick(OPENINGS), *lines]), calls)
    text = texts[0]
    for more in texts[1:]:
        text += "" if text[-1] in ".?!" else "."
        small, asks = lowered(more), more.endswith("?")
        text = choose.pick(
            (
                f"{text} {choose.pick(LINKS[2:] if asks else LINKS)} {small}",
                text.rstrip(".?!") + f"{choose.pick(WORDS[2:] if asks else WORDS)} {small}",
                f"{text} {more}",
            )
        )
    return Request(text, calls)


def typed(choose: Chooser, text: str) -> str:
    """As people type it."""
    if choose.chance(0.65):
        return text
    return choose.pick(
        (
            f"Please {lowered(text)}" if ORDER.fullmatch(text) else text,
            f"Can you help me? {text}",
            f"Hi! {text}",
            f"{text} Thanks!",
            lowered(text),
            text.rstrip(".?"),
            text.lower().rstrip(".?") if not re.search(r"[A-Z\"]", text[1:]) else text,
        )
    )


def read(*paths: Path) -> Iterator[Function]:
    """A line is `name|description|parameters|templates`; all `FILES` are read if no path is given.

    Parameters are `name:kind:description` between `;`, with `?` after the name of an optional one; templates stand
    between `;;`. No parameters: nothing between the bars.
    """
    for line in "".join(path.read_text() for path in paths or FILES).splitlines():
        name, description, parameters, templates = line.split("|", 3)
        parts = (each.split(":", 2) for each in filter(None, re.split(r";(?=\w+\??:)", parameters)))
        made = tuple(Parameter(n.rstrip("?"), Kind(kind), told, not n.endswith("?")) for n, kind, told in parts)
        yield Function(name, description, made, tuple(templates.split(";;")))
