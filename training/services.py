"""Functions out of real services: botocore's models and Google's discovery documents (both Apache-2.0)."""

from __future__ import annotations

import gzip
import html
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from importlib.resources import files
from itertools import chain, islice
from pathlib import Path
from random import Random
from typing import Any

from training.functions import Function, Parameter, spaced
from training.values import POOLS, Chooser, Kind

OPERATIONS_MAX = 8  # of one service, so that large ones do not outweigh the others
PARAMETERS_MAX, OPTIONAL_MAX = 5, 4
WORDS = range(4, 19)  # of a description
DESCRIPTION_CHARS_MAX = 110
TEMPLATES = 4
FIRST_VERB = re.compile(r"(?!This|Its?\b)([A-Z][a-z]+?)(?:(?<=ss|sh|ch)e)?s (\w.*)")
SENTENCE = re.compile(r"(?<=[a-z)])\. ")
MARKS = re.compile(r"^((Required|Optional|Output only|Identifier|Immutable)\. ?)+")
KINDS = {"float": "n1-90", "double": "n1-90", "number": "n1-90", "boolean": "b"}
TEXTS = [pair.split() for pair in POOLS["text named"]]  # what a string is, told from its name

Operation = tuple[str, str, Mapping[str, Any]]  # name, documentation, parameters as Google describes them


@cache
def read() -> tuple[Function, ...]:
    """Some operations of each service: always the same, so that what is held out does not hang on a seed."""
    choose = Chooser(Random("services"))
    found: list[Function] = []
    for operations in chain(_botocore(), _google()):
        some = choose.some(list(operations), 3 * OPERATIONS_MAX)
        found += islice(filter(None, (_function(choose, *operation) for operation in some)), OPERATIONS_MAX)
    return tuple(found)


def _botocore() -> Iterator[Iterable[Operation]]:
    for path in sorted(Path(str(files("botocore"))).glob("data/*/*/service-2.json.gz")):
        service = json.loads(gzip.decompress(path.read_bytes()))
        yield [_operation(service["shapes"], *named) for named in service["operations"].items()]


def _operation(shapes: Mapping[str, Any], name: str, operation: Mapping[str, Any]) -> Operation:
    shape = shapes.get(operation.get("input", {}).get("shape"), {})
    parameters = {
        member: {**shapes[each["shape"]], "description": each.get("documentation", "")}
        | {"required": member in shape.get("required", ())}
        for member, each in shape.get("members", {}).items()
    }
    called = name if len(name) % 2 else spaced(name).replace(" ", "_")
    return called, operation.get("documentation", ""), parameters


def _google() -> Iterator[Iterable[Operation]]:
    for path in sorted(Path(str(files("googleapiclient"))).glob("discovery_cache/documents/*.*.json")):
        service = json.loads(path.read_text())
        yield _methods(service["name"], service.get("resources", {}))


def _methods(service: str, resources: Mapping[str, Any]) -> Iterator[Operation]:
    for name, resource in resources.items():
        for verb, method in resource.get("methods", {}).items():
            yield f"{service}_{name}_{verb}", method.get("description", ""), method.get("parameters", {})
        yield from _methods(service, resource.get("resources", {}))


def plain(text: str) -> str:
    """The first sentence that says something, without tags."""
    told = html.unescape(re.sub(r"\s+", " ", re.sub(r"<[^>]+>", "", text))).strip()
    return SENTENCE.split(MARKS.sub("", told))[0].rstrip(".")


def _function(choose: Chooser, name: str, documentation: str, described: Mapping[str, Any]) -> Function | None:
    """None for what cannot be asked for in a sentence of simple values."""
    text = plain(documentation)
    found = FIRST_VERB.match(text)
    if not found or len(text.split()) not in WORDS:
        return None
    parameters: list[Parameter] = []
    for named, each in described.items():
        kind, required = _kind(choose, named, each), each.get("required", False)
        if required and not kind:
            return None
        if kind and (required or (len(parameters) < OPTIONAL_MAX and choose.chance(0.6))):
            told = plain(each.get("description", ""))[:DESCRIPTION_CHARS_MAX] or spaced(named)
            parameters.append(Parameter(named, Kind(kind), told, required))
    if not 1 <= len(parameters) <= PARAMETERS_MAX:
        return None
    order = f"{re.sub('ie$', 'y', found[1])} {found[2]}".replace("{", "(").replace("}", ")")
    templates = tuple(f"{order} {_told(choose, parameters)}." for _ in range(TEMPLATES))
    return Function(name, text, tuple(parameters), templates, exact=True)


def _told(choose: Chooser, parameters: list[Parameter]) -> str:
    told = [p for p in parameters if p.required or choose.chance(0.35)] or parameters[:1]
    forms = POOLS["parameter of a service"]
    return ", ".join(choose.pick(forms).format(p.words, f"{{{p.name}}}") for p in told)


def _kind(choose: Chooser, name: str, described: Mapping[str, Any]) -> str:
    """Empty for what is no simple value."""
    type, options = described.get("type", ""), described.get("enum")
    if options:
        simple = [option for option in options[:6] if "," not in option and "UNSPECIFIED" not in option]
        return f"e({','.join(simple)})" if len(simple) > 1 else ""
    if type in ("integer", "long"):
        return f"i1-{choose.pick((10, 50, 500))}"
    if type == "string":
        return next((kind for word, kind in TEXTS if word in name.lower()), choose.pick(POOLS["other text"]))
    return KINDS.get(type, "")
