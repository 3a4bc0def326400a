"""Functions with ways to ask for them: schemas that differ as in the world, and requests with the calls they take."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from training.values import POOLS, Chooser, Kind, Said, capital, lines, lowered

DETAILED = "functions_3.txt"  # whose requests tell much in passing
FILES = ("everyday.txt", "functions_1.txt", "functions_2.txt", DETAILED)  # the place in them says what is held out
SERVICES = "services.txt"  # operations of real services, whose names stay as they are
OPTIONAL_SHARE = 0.8  # of the optional parameters stay in a schema
IN_PERCENT, FRACTION_SHARE = " in percent", 0.4
SPARE_SHARE = 0.4  # of the requests name parameters that their template does not
WOVEN_SHARE = 0.7  # of these parameters stand inside the sentence
CLAUSE_SHARE = 0.65  # of the clauses that a template may do without are said
LIST_SHARE = 0.2  # of several requests in a message
NAMED = re.compile(r"\{(\w+(?:\.\w+)?)\}")
CLAUSE = re.compile(r"~([^~]*)~")
LEADING = re.compile(r"^[ ,:;]+(and )?")  # what joins a clause that is not there
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
        if not self.required and self.kind.text != "o" and choose.chance(0.35):
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
    """`templates` are requests with parameters in braces, and clauses between tildes that may be left out.

    A parameter `of.it` is a property of the object `of`. `exact`: of a real interface, its names stay as they are.
    """

    name: str
    description: str
    parameters: tuple[Parameter, ...]
    templates: tuple[str, ...]
    exact: bool = False

    def tool(self, choose: Chooser) -> Tool:
        """The same under another name and with other optional parameters."""
        kept = [p.varied(choose) for p in self.parameters if p.required or self.exact or choose.chance(OPTIONAL_SHARE)]
        kept = [p for p in kept if p.name.partition(".")[0] in {each.name for each in kept}]
        if not self.exact and choose.chance(0.15):
            kept.reverse()
        name = self.name if self.exact else _renamed(choose, self.name)
        parameters: dict[str, Any] = {"type": "object", "properties": {}}
        for each in sorted(kept, key=lambda p: "." in p.name):
            outer, _, inner = each.name.rpartition(".")
            within = parameters["properties"][outer] if outer else parameters
            within.setdefault("properties", {})[inner] = each.schema(choose)
            if each.required:
                within.setdefault("required", []).append(inner)
        if "required" not in parameters and choose.chance(0.5):
            parameters["required"] = []
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
        spare = [p for name, p in self.parameters.items() if not (name in said or "." in name or p.kind.text == "o")]
        if choose.chance(SPARE_SHARE):
            told = ""
            for extra in choose.some(spare, choose.pick((1, 1, 1, 2, 3))):
                said |= self._said(choose, [extra.name])
                if choose.chance(WOVEN_SHARE):
                    text = _woven(choose, text, extra, said[extra.name])
                else:
                    told += _told(choose, extra, said[extra.name])
            text += told
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
        required = [spaced(name) for name, p in self.parameters.items() if p.required and "." not in name]
        if not required or self.function.exact:
            return None
        wish = choose.pick(POOLS["wish"]).format(lowered(self.function.description.rstrip(".")))
        return wish, choose.pick(POOLS["missing"]).format(choose.listed(required))

    def _template(self, choose: Chooser, alone: bool = False) -> str | None:
        known = self.parameters.keys()
        fits = [t for t in self.function.templates if known >= set(NAMED.findall(CLAUSE.sub("", t)))]
        fits = [t for t in fits if not (alone and TOLD.search(t))]

        def clause(found: re.Match[str]) -> str:
            return found[1] if known >= set(NAMED.findall(found[1])) and choose.chance(CLAUSE_SHARE) else ""

        return capital(LEADING.sub("", CLAUSE.sub(clause, choose.pick(fits)).rstrip())) if fits else None

    def _said(self, choose: Chooser, names: Iterable[str]) -> dict[str, Said]:
        return {name: self.parameters[name].said(choose) for name in dict.fromkeys(names)}

    def _call(self, said: Mapping[str, Said]) -> Call:
        arguments: dict[str, Any] = {}
        for name in self.parameters:
            if name in said:
                outer, _, inner = name.rpartition(".")
                (arguments.setdefault(outer, {}) if outer else arguments)[inner] = said[name].value
        return {"name": self.name, "arguments": arguments}


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


def _woven(choose: Chooser, text: str, parameter: Parameter, said: Said) -> str:
    """A value in passing: before the end of the last sentence, or in front of the only one."""
    kind, name = parameter.kind.text, spaced(parameter.name)
    end = text[-1] if text[-1] in ".?!" else ""
    body = text.removesuffix(end)
    if kind.startswith("b("):
        return f"{body}, {said.words}{end}"
    if kind == "b":
        form = choose.pick(POOLS[f"woven of {'yes' if said.value else 'no'}"])
        return body + form.format(name=re.sub(r"^(include|with|is|use) ", "", name)) + end
    if choose.chance(0.2) and not re.search(r"[.?!:\n] ?", body):
        return capital(choose.pick(POOLS["woven in front"]).format(name=name, words=said.words)) + lowered(text)
    return body + choose.pick(POOLS["woven of a value"]).format(name=name, words=said.words) + end


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
        parts = (each.split(":", 2) for each in filter(None, re.split(r";(?=[\w.]+\??:)", parameters)))
        made = tuple(Parameter(n.rstrip("?"), Kind(kind), told, not n.endswith("?")) for n, kind, told in parts)
        yield Function(name, description, made, tuple(templates.split(";;")), exact=file == SERVICES)
