"""The search for deferred tools: the model finds a few of hundreds, and only those cost prompt tokens."""

from __future__ import annotations

import json
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from math import log

from pydantic import BaseModel, Field
from pydantic_core import SchemaError, SchemaValidator, ValidationError, core_schema

from agents.function_tool import Addition, FunctionTool, addition
from agents.tool import Tool, ToolError
from agents.turn import ToolSearch

FOUND_MAX = 5  # each costs a hundred prompt tokens or more
TOOL_CHARS_MAX = 2_000  # searched of each: the purpose comes first
SEARCHED_CHARS_MAX = 2_000_000  # of all together: they take a thread 0.3 s, in which other threads wait for the GIL
QUERY_CHARS_MAX = 200  # as in Anthropic's API
K1, B = 1.2, 0.75  # of BM25, as Robertson and Zaragoza give them

_HUMP = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
_WORD = re.compile(r"[^\W_]+")


class _Words(BaseModel, extra="forbid"):
    query: str = Field(description="Words that say what the tool should do")


class _Pattern(BaseModel, extra="forbid"):
    query: str = Field(description="A regular expression, such as (?i)weather|forecast")


PURPOSE = (
    "Search further tools by {by} their names and descriptions, when no tool at hand can do what is asked. The tools "
    "that are found can be called afterwards."
)
BY_WORDS, BY_PATTERN = PURPOSE.format(by="words of"), PURPOSE.format(by="a regular expression over")


def tool_search(search: ToolSearch, functions: Iterable[FunctionTool]) -> Tool:
    """The tool by which a model searches the deferred ones among these functions. Its result is their names."""
    deferred = [each for each in functions if each.deferred]
    if search.by == "words":
        return Tool(search.name, BY_WORDS, _bounded(_with_words, deferred), _Words, idempotent=True)
    return Tool(search.name, BY_PATTERN, _bounded(_matching, deferred), _Pattern, idempotent=True)


def _bounded(
    find: Callable[[str, Sequence[FunctionTool]], list[str]], functions: Sequence[FunctionTool]
) -> Callable[[str], list[str]]:
    def searched(query: str) -> list[str]:
        if len(query) > QUERY_CHARS_MAX:
            raise ToolError(f"the query has more than {QUERY_CHARS_MAX} characters")
        return find(query, functions)[:FOUND_MAX]

    return searched


def _with_words(query: str, functions: Sequence[FunctionTool]) -> list[str]:
    """By BM25, best first."""
    texts = [Counter(_words(text)) for text in _texts(functions)]
    usual = sum(text.total() for text in texts) / max(1, len(texts))
    scores: dict[str, float] = defaultdict(float)
    for word in set(_words(query)):
        holding = [(each.name, text) for each, text in zip(functions, texts, strict=True) if word in text]
        rarity = log(1 + (len(texts) - len(holding) + 0.5) / (len(holding) + 0.5))
        for name, text in holding:
            often = text[word]
            scores[name] += rarity * often * (K1 + 1) / (often + K1 * (1 - B + B * text.total() / usual))
    return sorted(scores, key=lambda name: -scores[name])


def _matching(query: str, functions: Sequence[FunctionTool]) -> list[str]:
    """In the order of the request. The engine takes linear time, whatever the expression."""
    try:
        pattern = SchemaValidator(core_schema.str_schema(pattern=query, regex_engine="rust-regex"))
    except SchemaError:
        raise ToolError("the query is no regular expression") from None
    texts = zip(functions, _texts(functions), strict=True)
    return [each.name for each, text in texts if _matches(pattern, text)]


def _matches(pattern: SchemaValidator, text: str) -> bool:
    try:
        pattern.validate_python(text)
    except ValidationError:
        return False
    return True


def _texts(functions: Sequence[FunctionTool]) -> list[str]:
    """Of each the name, the names of the arguments, and the description."""
    chars = min(TOOL_CHARS_MAX, SEARCHED_CHARS_MAX // max(1, len(functions)))
    return [f"{each.name}\n{' '.join(_arguments(each))}\n{each.description}"[:chars] for each in functions]


def _arguments(function: FunctionTool) -> Iterable[str]:
    properties = function.parameters.get("properties")
    return properties if isinstance(properties, dict) else ()


def _words(text: str) -> list[str]:
    """Lower-case words, also those within a name. Singular and plural are one."""
    words = (word.lower() for word in _WORD.findall(_HUMP.sub(" ", text)))
    return [word.removesuffix("s") if len(word) > 3 else word for word in words]


def loaded(found: str, functions: Iterable[FunctionTool], fits: Callable[[str], bool]) -> Addition:
    """What the model reads of the names that a search found: as many definitions as fit, best first."""
    names: list[str] = json.loads(found)
    given = {each.name: each for each in functions if each.deferred}
    while names and not fits(addition(names, given).text):
        names.pop()
    return addition(names, given)
