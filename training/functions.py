"""Functions with ways to ask for them: schemas that differ as in the world, and requests with the calls they take."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from training.values import POOLS, Chooser, Kind, Said, Unfit, capital, lines, lowered

DETAILED = "functions_3.txt"  # whose requests tell much in passing
LIBRARIES = "functions_4.txt"  # in the manner of libraries: families of similar functions stand together
PLURAL = "functions_5.txt"  # of which people ask several things at once
# the place in them says what is held out
FILES = ("everyday.txt", "functions_1.txt", "functions_2.txt", DETAILED, LIBRARIES, PLURAL)
SERVICES = "services.txt"  # operations of real services, whose names stay as they are
IN_PERCENT = " in percent"
TRIES = 4  # to find a value that is not said yet
NAMED = re.compile(r"\{(\w+(?:\.\w+)?)\}")
CLAUSE = re.compile(r"~([^~]*)~")
ARTICLE = re.compile(r"\b([Aa]) (?=\{(\w+(?:\.\w+)?)\})")  # before a value
AN = re.compile(r"(?!eu|one|uni)[aeiouAEIO]|8|1[18]\b")  # how the words start that "an" stands before
LEADING = re.compile(r"^[ ,:;]+(and )?")  # what joins a clause that is not there
PHRASE = re.compile(r"(in|at|by|around|on|for|as|to|with|without|from|of|only|not|per) ")
THIRD_PERSON = re.compile(r"([A-Z][a-z]+)(?<!s)s(?= (an?|the|all|every|each|how|what|which|whether|one|two|some)\b)")
ORDER = re.compile(r"(?!(I|We|My|Our|A|An|The|This)\b)[^.?!]+\.")  # a sentence that "please" may stand before

Call = dict[str, Any]  # {"name": ..., "arguments": {...}}
Values = Mapping[str, Said]  # of parameters, by name


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
        if not percent or not choose.chance("fraction"):
            return self
        return replace(self, description=self.description.replace(IN_PERCENT, choose.way("fraction")), scale=0.01)

    def schema(self, choose: Chooser) -> dict[str, Any]:
        made = self.kind.schema()
        if made["type"] == "integer" and (self.scale != 1 or choose.chance(0.2)):
            made["type"] = "number"
        described = _stopped(choose, self.description)
        schema = {"type": made.pop("type"), "description": described, **made}
        if not self.required and self.kind.text != "o" and choose.chance(0.35):
            usual = self.said(choose).value
            if choose.chance(0.5):
                told = choose.way("usual value")
                schema["description"] = f"{described.rstrip('.')}. {told} {json.dumps(usual)}."
            else:
                schema["default"] = usual
        return schema

    def said(self, choose: Chooser) -> Said:
        said = self.kind.said(choose, self.description)
        return said if self.scale == 1 else Said(round(said.value * self.scale, 6), said.words)

    @property
    def inner(self) -> bool:
        """Whether it is a property of an object."""
        return "." in self.name

    @property
    def sayable(self) -> bool:
        """Whether its words may stand anywhere."""
        return self.kind.text[0] not in "ol" and self.kind.text != "b"

    def alone(self, said: Said) -> bool:
        """Whether the words speak for themselves, without its name: `with pets`, `in front`."""
        return self.kind.text.startswith("b(") or (self.kind.text[0] == "e" and bool(PHRASE.match(said.words)))


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
        kept = [p.varied(choose) for p in self.parameters if p.required or self.exact or choose.chance("optional")]
        kept = [p for p in kept if p.name.partition(".")[0] in {each.name for each in kept}]
        if not self.exact and choose.chance(0.15):
            kept.reverse()
        name = self.name if self.exact else _renamed(choose, self.name)
        parameters: dict[str, Any] = {"type": "object", "properties": {}}
        for each in sorted(kept, key=lambda p: p.inner):
            outer, _, inner = each.name.rpartition(".")
            within = parameters["properties"][outer] if outer else parameters
            within.setdefault("properties", {})[inner] = each.schema(choose)
            if each.required:
                within.setdefault("required", []).append(inner)
        if "required" not in parameters and choose.chance(0.5):
            parameters["required"] = []
        function = {"name": name, "description": _stopped(choose, self.description), "parameters": parameters}
        return Tool(self, name, {p.name: p for p in kept}, {"type": "function", "function": function})


def _stopped(choose: Chooser, description: str) -> str:
    """With a full stop or without one."""
    return description if description.endswith(".") else description + choose.pick(("", "."))


def _renamed(choose: Chooser, name: str) -> str:
    """The name of a module and the dot stay."""
    module, dot, name = name.rpartition(".")
    pascal = "".join(map(capital, name.split("_")))
    camel = name[0] + pascal[1:]
    if dot:
        return f"{module}.{choose.pick((name, name, name, camel))}"
    return choose.way("function name", snake=name, camel=camel, pascal=pascal)


@dataclass(frozen=True, slots=True)
class Tool:
    """A function as one conversation has it."""

    function: Function
    name: str
    parameters: Mapping[str, Parameter]
    schema: dict[str, Any]

    def ask(self, choose: Chooser, known: Values | None = None, refer: Callable[[str], str] = str) -> Request:
        """With the values of `known`, to which `refer` may let the template refer by other words. Raises Unfit where no
        template fits."""
        known = known or {}
        template = self.template(choose, lambda text: known.keys() <= set(NAMED.findall(text)))
        said = self.said(choose, NAMED.findall(template)) | {**known}
        text = worded(refer(template), said)
        if choose.chance("spare"):
            spare = [p for p in self.outer if p.name not in said and p.kind.text != "o"]
            told = ""
            for extra in choose.some(spare, choose.pick((1, 1, 1, 2, 3))):
                said |= self.said(choose, [extra.name])
                if choose.chance("woven"):
                    text = _woven(choose, text, extra, said[extra.name])
                else:
                    told += _told(choose, extra, said[extra.name])
            text += told
        return Request(text, [self.call(said)])

    def filled(self, choose: Chooser, text: str) -> str:
        """A text about the things of this tool that its call cannot answer. Raises Unfit where it has not all of
        them."""
        named = NAMED.findall(text)
        if not self.parameters.keys() >= set(named):
            raise Unfit(text)
        return worded(text, self.said(choose, named))

    def unspecified(self, choose: Chooser) -> tuple[str, str]:
        """A request that leaves out what is required, and the question that asks for it. Raises Unfit where nothing
        is."""
        required = [spaced(p.name) for p in self.outer if p.required]
        if not required or self.function.exact:
            raise Unfit(self.name)
        wish = choose.way("wish", lowered(imperative(self.function.description).rstrip(".")))
        return wish, choose.pick(POOLS["missing"]).format(choose.listed(required))

    @property
    def outer(self) -> list[Parameter]:
        """Without the properties of objects."""
        return [p for p in self.parameters.values() if not p.inner]

    def template(self, choose: Chooser, fits: Callable[[str], object] = bool) -> str:
        """One with or without its clauses. Raises Unfit where there is none that `fits` and has no other parameters."""
        known = self.parameters.keys()

        def clause(found: re.Match[str]) -> str:
            return found[1] if known >= set(NAMED.findall(found[1])) and choose.chance("clause") else ""

        able = [t for t in self.function.templates if known >= set(NAMED.findall(CLAUSE.sub("", t)))]
        for each in choose.some(able, len(able)):
            made = capital(LEADING.sub("", CLAUSE.sub(clause, each).rstrip()))
            if fits(made):
                return made
        raise Unfit(self.name)

    def said(self, choose: Chooser, names: Iterable[str]) -> dict[str, Said]:
        """Values for these parameters: others for each of those that take the same, where there are others."""
        made: dict[str, Said] = {}
        for name in dict.fromkeys(names):
            parameter = self.parameters[name]
            taken = [said.value for other, said in made.items() if self.parameters[other].kind == parameter.kind]
            tries = (parameter.said(choose) for _ in range(TRIES))
            made[name] = next((said for said in tries if said.value not in taken), parameter.said(choose))
        return made

    def call(self, said: Values) -> Call:
        arguments: dict[str, Any] = {}
        for name in self.parameters:
            if name in said:
                outer, _, inner = name.rpartition(".")
                (arguments.setdefault(outer, {}) if outer else arguments)[inner] = said[name].value
        return {"name": self.name, "arguments": arguments}


def worded(template: str, said: Values) -> str:
    template = ARTICLE.sub(lambda found: found[1] + ("n " if AN.match(said[found[2]].words) else " "), template)
    return NAMED.sub(lambda found: said[found[1]].words, template)


def spaced(name: str) -> str:
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", " ", name).replace("_", " ").replace(".", " ").lower()


def imperative(described: str) -> str:
    """`Write a text backwards` for `Writes a text backwards`."""
    verb = THIRD_PERSON.match(described)
    if verb is None:
        return described
    stem = re.sub(r"ie$", "y", re.sub(r"(?<=ch|sh|ss)e$|(?<=x)e$", "", verb[1]))
    return stem + described[verb.end() :]


def _told(choose: Chooser, parameter: Parameter, said: Said) -> str:
    """A value in a sentence of its own."""
    if parameter.alone(said):
        return f" {capital(said.words)}."
    form = "told of a switch" if parameter.kind.text == "b" else "told of a value"
    told = choose.way(form, name=spaced(parameter.name), words=said.words, value=json.dumps(said.value))
    return f" {capital(told)}"


def _woven(choose: Chooser, text: str, parameter: Parameter, said: Said) -> str:
    """A value in passing: before the end of the last sentence, or in front of the only one."""
    name = spaced(parameter.name)
    end = text[-1] if text[-1] in ".?!" else ""
    body = text.removesuffix(end)
    if parameter.alone(said):
        return f"{body}, {said.words}{end}"
    if parameter.kind.text == "b":
        name = re.sub(r"^(include|with|is|use) ", "", name)
        return body + choose.way(f"woven of {'yes' if said.value else 'no'}", name=name) + end
    if choose.chance(0.2) and not re.search(r"[.?!:\n] ?", body):
        return capital(choose.way("woven in front", name=name, words=said.words)) + lowered(text)
    return body + choose.way("woven of a value", name=name, words=said.words) + end


def typed(choose: Chooser, text: str) -> str:
    """As people type it."""
    if choose.chance(0.65):
        return text
    ways = {"text": text, "lowered": lowered(text), "bare": text.rstrip(".?")}
    ways["please"] = f"Please {lowered(text)}" if ORDER.fullmatch(text) else text
    ways["careless"] = text if re.search(r"[A-Z\"]", text[1:]) else text.lower().rstrip(".?")
    return choose.way("typed", **ways)


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
