"""Functions out of real services: botocore's models and Google's discovery documents (both Apache-2.0)."""

from __future__ import annotations

import gzip
import html
import json
import re
from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from training.functions import Function, Parameter, spaced
from training.values import POOLS, Chooser, Kind

OPERATIONS_MAX = 8  # of one service, so that large ones do not outweigh the others
PARAMETERS_MAX = 5
WORDS = range(4, 19)  # of a description
DESCRIPTION_CHARS_MAX = 110
TEMPLATES = 4
FIRST_VERB = re.compile(r"([A-Z][a-z]+)s (\w.*)")
SENTENCE = re.compile(r"(?<=[a-z)])\. ")
PARTS = ("with {w} {{{n}}}", "{w} {{{n}}}", "for the {w} {{{n}}}", "where {w} is {{{n}}}", "with {w} set to {{{n}}}")
KINDS = [pair.split() for pair in POOLS["text named"]]  # what a string is, told from its name


def botocore(choose: Chooser) -> Iterator[Function]:
    """Of every service, some operations."""
    for path in sorted(_package("botocore").glob("data/*/*/service-2.json.gz")):
        service = json.loads(gzip.decompress(path.read_bytes()))
        shapes = service["shapes"]
        made = 0
        for name, operation in choose.some(list(service["operations"].items()), 3 * OPERATIONS_MAX):
            shape = shapes.get(operation.get("input", {}).get("shape"), {})
            required = set(shape.get("required", ()))
            members = {
                member: {**shapes[each["shape"]], "documentation": each.get("documentation", "")}
                for member, each in shape.get("members", {}).items()
            }
            parameters = [(n, m["type"], m.get("enum"), m["documentation"], n in required) for n, m in members.items()]
            called = name if choose.chance(0.5) else spaced(name).replace(" ", "_")
            if function := _function(choose, called, operation.get("documentation", ""), parameters):
                yield function
                made += 1
            if made == OPERATIONS_MAX:
                break


def google(choose: Chooser) -> Iterator[Function]:
    """Of every service in its newest version, some methods."""
    for path in sorted(_package("googleapiclient").glob("discovery_cache/documents/*.json")):
        if path.name.count(".") < 2:
            continue
        service = json.loads(path.read_text())
        made = 0
        methods = list(_methods(service.get("resources", {})))
        for resource, verb, method in choose.some(methods, 3 * OPERATIONS_MAX):
            own = method.get("parameters", {}).items()
            parameters = [
                (n, p.get("type", "object"), p.get("enum"), p.get("description", ""), p.get("required", False))
                for n, p in own
            ]
            called = f"{service['name']}_{resource}_{verb}"
            if function := _function(choose, called, method.get("description", ""), parameters):
                yield function
                made += 1
            if made == OPERATIONS_MAX:
                break


def _methods(resources: Mapping[str, Any]) -> Iterator[tuple[str, str, Mapping[str, Any]]]:
    for name, resource in resources.items():
        for verb, method in resource.get("methods", {}).items():
            yield name, verb, method
        yield from _methods(resource.get("resources", {}))


def _package(name: str) -> Path:
    spec = find_spec(name)
    if spec is None or spec.origin is None:
        raise ImportError(f"{name} is not installed")
    return Path(spec.origin).parent


def plain(text: str) -> str:
    """The first sentence that says something, without tags."""
    told = html.unescape(re.sub(r"\s+", " ", re.sub(r"<[^>]+>", "", text))).strip()
    told = re.sub(r"^((Required|Optional|Output only|Identifier|Immutable)\. ?)+", "", told)
    return SENTENCE.split(told)[0].rstrip(".")


def _function(
    choose: Chooser, name: str, documentation: str, described: list[tuple[str, str, list[str] | None, str, bool]]
) -> Function | None:
    """None for what cannot be asked for in a sentence of simple values."""
    text = plain(documentation)
    found = FIRST_VERB.match(text)
    if not found or found[1] in ("Thi", "It") or found[1].endswith("s") or len(text.split()) not in WORDS:
        return None
    parameters: list[Parameter] = []
    for parameter, type, options, told, required in described:
        kind = _kind(choose, parameter, type, options)
        if kind is None and required:
            return None
        if kind is not None and (required or (len(parameters) < 4 and choose.chance(0.6))):
            short = plain(told)[:DESCRIPTION_CHARS_MAX] or spaced(parameter)
            parameters.append(Parameter(parameter, kind, short, required))
    if not 1 <= len(parameters) <= PARAMETERS_MAX:
        return None
    verb = found[1] + ("e" if found[1].endswith(("Creat", "Delet", "Updat", "Generat")) else "")
    templates = tuple(_template(choose, f"{verb} {found[2]}", parameters) for _ in range(TEMPLATES))
    return Function(name, text, tuple(parameters), templates, exact=True)


def _template(choose: Chooser, order: str, parameters: list[Parameter]) -> str:
    named = [p for p in parameters if p.required or choose.chance(0.35)] or parameters[:1]
    parts = [choose.pick(PARTS).format(w=p.words, n=p.name) for p in named]
    return f"{order.replace('{', '(').replace('}', ')')} {', '.join(parts)}."


def _kind(choose: Chooser, name: str, type: str, options: list[str] | None) -> Kind | None:
    """None for what is no simple value."""
    if options:
        simple = [option for option in options[:6] if "," not in option and not option.endswith("UNSPECIFIED")]
        return Kind(f"e({','.join(simple)})") if len(simple) > 1 else None
    match type:
        case "integer" | "long":
            return Kind(f"i1-{choose.pick((10, 50, 500))}")
        case "float" | "double" | "number":
            return Kind("n1-90")
        case "boolean":
            return Kind("b")
        case "string":
            low = name.lower()
            for word, kind in KINDS:
                if word in low:
                    return Kind(kind)
            return Kind(choose.pick(("@service", "@dbname", "@user", "@title", "@code", "@word")))
    return None
