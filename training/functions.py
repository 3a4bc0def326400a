"""Functions with ways to ask for them: schemas that differ as in the world, and requests with the calls they take."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from training.values import POOLS, Chooser, Kind, Said, capital, lines, lowered

FILES = ("everyday.txt", "functions_1.txt", "functions_2.txt")  # the place in them says what is held out
SERVICES = "services.txt"  # operations of real services, whose names stay as they are
OPTIONAL_SHARE = 0.8  # of the optional parameters stay in a schema
IN_PERCENT, FRACTION_SHARE = " in percent", 0.4
SPARE_SHARE = 0.25  # of the requests name a parameter in a sentence of its own
LIST_SHARE = 0.2  # of several requests in a message
NAMED = re.compile(r"\{(\w+)\}")
TOLD = re.compile(r"\b(I|[Mm]y|[Ww]e|[Oo]ur)\b|[.?!] |[^.?]$|\(\{")  # a story, or so short: odd with several values
ORDER = re.compile(r"(?!(I|We|My|Our|A|An|The|This)\b)[^.?!]+\.")  # a sentence that "please" may stand before

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
        described = self.description.replace(IN_PERCENT, choose.pick(POOLS["fraction"]))
        return replace(self, description=described, scale=0.01)

    def schema(self, choose: Chooser) -> dict[str, Any]:
        made = self.kind.schema()
        if made["type"] == "integer" and (self.scale != 1 or choose.chance(0.2)):
            made["type"] = "number"
        described = self.description if self.description.endswith(".") else self.description + choose.pick(("", "."))
        schema = {"type": made.pop("type"), "description": described, **made}
        if not self.required and choose.chance(0.35):
            usual = self.said(choose).value
            if choose.chance(0.5):
                told = choose.pick(POOLS["usual value"])
                schema["description"] = f"{described.rstrip('.')}. {told} {json.dumps(usual)}."
            else:
                schema["default"] = usual
        return schema

    def said(self, choose: Chooser) -> Said:
        said = self.kind.said(choose, self.description)
        return said if self.scale == 1 else Said(round(said.value * self.scale, 6), said.words)


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
    pascal = "".join(map(capital, name.split("_")))
    return choose.pick(POOLS["function name"]).format(snake=name, camel=name[0] + pascal[1:], pascal=pascal)


@dataclass(frozen=True, slots=True)
class Tool:
    """A function as one conversation has it."""

    function: Function
    name: str
    parameters: Mapping[str, Parameter]
    schema: dict[str, Any]

    def ask(self, choose: Chooser) -> Request | None:
        """None where no template fits the parameters."""
        template = self._template(choose)
        if template is None:
            return None
        said = self._said(choose, NAMED.findall(template))
        text = _worded(template, said)
        spare = [parameter for name, parameter in self.parameters.items() if name not in said]
        if spare and choose.chance(SPARE_SHARE):
            extra = choose.pick(spare)
            said |= self._said(choose, [extra.name])
            text += _told(choose, extra, said[extra.name])
        return Request(text, [self._call(said)])

    def filled(self, choose: Chooser, text: str) -> str | None:
        """A text about the things of this tool that its call cannot answer. None where it has not all of them."""
        named = NAMED.findall(text)
        return _worded(text, self._said(choose, named)) if self.parameters.keys() >= set(named) else None

    def several(self, choose: Chooser) -> Request | None:
        """One request that takes two to four calls of this tool."""
        template = self._template(choose, alone=True)
        if template is None:
            return None
        count = choose.pick((2, 2, 2, 3, 3, 4))
        if choose.chance(0.3):
            return joined(choose, [request for _ in range(count) if (request := self.ask(choose))])
        used = NAMED.findall(template)
        single = [name for name in used if used.count(name) == 1 and self.parameters[name].kind.text[0] not in "lb"]
        if not single:
            return None
        varied = choose.some(single, choose.pick((1, 1, 2)))
        fixed = self._said(choose, [name for name in used if name not in varied])
        rows = [fixed | self._said(choose, varied) for _ in range(count)]
        listed = {name: Said(None, choose.listed([row[name].words for row in rows])) for name in varied}
        text = _worded(template, fixed | listed)
        if len(varied) > 1:
            text = f"{text[:-1]}, respectively{text[-1]}"
        elif choose.chance(0.4) and self._plain(used, varied[0]):
            further = choose.listed([row[varied[0]].words for row in rows[1:]])
            text = f"{_worded(template, rows[0])} {choose.pick(POOLS['the same']).format(further)}"
        elif choose.chance(0.2):
            text += f" {choose.pick(POOLS['for each'])}"
        return Request(text, [self._call(row) for row in rows])

    def _plain(self, used: list[str], varied: str) -> bool:
        """Whether a value alone says which of the parameters it is for."""
        kinds = [re.sub(r"^[in].*", "number", self.parameters[name].kind.text) for name in used]
        return kinds.count(kinds[used.index(varied)]) == 1

    def unspecified(self, choose: Chooser) -> tuple[str, str] | None:
        """A request that leaves out what is required, and the question that asks for it. None where nothing is."""
        required = [spaced(name) for name, parameter in self.parameters.items() if parameter.required]
        if not required or self.function.exact:
            return None
        wish = choose.pick(POOLS["wish"]).format(lowered(self.function.description.rstrip(".")))
        return wish, choose.pick(POOLS["missing"]).format(choose.listed(required))

    def _template(self, choose: Chooser, alone: bool = False) -> str | None:
        fits = [t for t in self.function.templates if self.parameters.keys() >= set(NAMED.findall(t))]
        fits = [t for t in fits if not (alone and TOLD.search(t))]
        return choose.pick(fits) if fits else None

    def _said(self, choose: Chooser, names: Iterable[str]) -> dict[str, Said]:
        return {name: self.parameters[name].said(choose) for name in dict.fromkeys(names)}

    def _call(self, said: Mapping[str, Said]) -> Call:
        return {"name": self.name, "arguments": {name: said[name].value for name in self.parameters if name in said}}


def _worded(template: str, said: Mapping[str, Said]) -> str:
    return NAMED.sub(lambda found: said[found[1]].words, template)


def spaced(name: str) -> str:
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", " ", name).replace("_", " ").lower()


def _told(choose: Chooser, parameter: Parameter, said: Said) -> str:
    """A value in a sentence of its own."""
    if parameter.kind.text.startswith("b("):
        return f" {capital(said.words)}."
    form = choose.pick(POOLS["told of a switch" if parameter.kind.text == "b" else "told of a value"])
    return f" {capital(form.format(name=spaced(parameter.name), words=said.words, value=json.dumps(said.value)))}"


def joined(choose: Chooser, requests: list[Request]) -> Request:
    """Several requests in one sentence, one sentence after the other, or as a list."""
    calls = [call for request in requests for call in request.calls]
    texts = [request.text for request in requests]
    if len(texts) > 1 and choose.chance(LIST_SHARE) and "\n" not in "".join(texts):
        numbered = choose.chance(0.5)
        points = [f"{at}. {text}" if numbered else f"- {text}" for at, text in enumerate(texts, 1)]
        return Request("\n".join([choose.pick(POOLS["before a list"]), *points]), calls)
    text = texts[0]
    for more in texts[1:]:
        text += "" if text[-1] in ".?!" else "."
        where = " before a question" if more.endswith("?") else ""
        between, within = (choose.pick(POOLS[f"between {what}{where}"]) for what in ("sentences", "requests"))
        ways = (f"{text} {between} {lowered(more)}", f"{text.rstrip('.?!')}{within} {lowered(more)}", f"{text} {more}")
        text = choose.pick(ways)
    return Request(text, calls)


def typed(choose: Chooser, text: str) -> str:
    """As people type it."""
    if choose.chance(0.65):
        return text
    ways = {"text": text, "lowered": lowered(text), "bare": text.rstrip(".?")}
    ways["please"] = f"Please {lowered(text)}" if ORDER.fullmatch(text) else text
    ways["careless"] = text if re.search(r"[A-Z\"]", text[1:]) else text.lower().rstrip(".?")
    return choose.pick(POOLS["typed"]).format(**ways)


def read(*files: str) -> Iterator[Function]:
    """A line is `name|description|parameters|templates`; all `FILES` are read if none is given.

    Parameters are `name:kind:description` between `;`, with `?` after the name of an optional one; templates stand
    between `;;`. No parameters: nothing between the bars.
    """
    for file, line in ((name, line) for name in files or FILES for line in lines(name)):
        name, description, parameters, templates = line.split("|", 3)
        parts = (each.split(":", 2) for each in filter(None, re.split(r";(?=\w+\??:)", parameters)))
        made = tuple(Parameter(n.rstrip("?"), Kind(kind), told, not n.endswith("?")) for n, kind, told in parts)
        yield Function(name, description, made, tuple(templates.split(";;")), exact=file == SERVICES)
