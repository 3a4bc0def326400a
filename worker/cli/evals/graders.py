"""Grades an answer: a score from 0 to 1 by each grader that its case names. Pure, except for the judge.

The score of an answer is the lowest of them: one with the right value and the wrong citation is not right. Tool calls
are compared as syntax trees, by meaning, not by spelling, after the AST evaluation of the Berkeley Function-Calling
Leaderboard (Patil et al. 2025): arguments are compared value by value, several values may be right, and an argument may
be omitted if it is optional or has its default.
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import orjson

from agents.message import CITATION
from inference.grammar.conformance import Checked, Pattern
from retrieval.quality.measures import RANKS_MAX
from worker.cli.evals.suite import Answer, Called, Case, ExpectedCall, ExpectedCitation, Found, Place, Tool

DEPTH_MAX = 32  # of arguments; no case expects a call with deeper nesting


def overlap(right: str, text: str) -> float:
    """F1 of the words (Rajpurkar et al. 2016, "SQuAD")."""
    wanted, said = (Counter(re.findall(r"\w+", each.casefold())) for each in (right, text))
    shared = (wanted & said).total()
    return 2 * shared / (wanted.total() + said.total()) if shared else 0.0


def matched(expected: Sequence[ExpectedCall], called: Sequence[Called], tools: Sequence[Tool], ordered: bool) -> float:
    """The share of correct calls, of the expected or the made calls, whichever are more."""
    most = max(len(expected), len(called))
    if not most:
        return 1.0
    defaults = {tool.name: _defaults(tool) for tool in tools}
    fits = [[_fits(each, call, defaults.get(each.name, {})) for call in called] for each in expected]
    if ordered:
        return _in_order(fits) / most
    return _paired(fits, len(called)) / most


def normalised(value: Any, depth: int = 0) -> Any:
    """Equal for equal meaning: numbers by value, texts independent of their spelling, keys in any order.

    Raises ValueError if it is nested too deeply.
    """
    if depth > DEPTH_MAX:
        raise ValueError("nested too deeply")
    match value:
        case bool() | None:
            return value
        case int() | float():
            return float(value) if abs(value) < 2**53 else value
        case str():
            return " ".join(unicodedata.normalize("NFC", value).split())
        case Mapping():
            return {str(key): normalised(each, depth + 1) for key, each in value.items()}
        case list() | tuple():
            return [normalised(each, depth + 1) for each in value]
    return value


def _fits(expected: ExpectedCall, called: Called, defaults: Mapping[str, Any]) -> bool:
    if called.name != expected.name:
        return False
    try:
        arguments = orjson.loads(called.arguments or "{}")
        given = normalised(arguments)
        if not isinstance(given, dict) or given.keys() - expected.arguments.keys() - expected.also.keys() - {*defaults}:
            return False
        return all(
            _right(given, name, expected, defaults) for name in {*expected.arguments, *expected.also, *given.keys()}
        )
    except ValueError:
        return False


def _right(given: Mapping[str, Any], name: str, expected: ExpectedCall, defaults: Mapping[str, Any]) -> bool:
    accepted = [expected.arguments[name]] if name in expected.arguments else []
    accepted += expected.also.get(name, [])
    if not accepted:  # not expected: it may state the default explicitly
        accepted = [defaults[name]]
    wanted = [normalised(value) for value in accepted]
    if name in given:
        return any(_same(given[name], value) for value in wanted)
    return name in expected.optional or (name in defaults and normalised(defaults[name]) in wanted)


def _same(one: Any, other: Any) -> bool:
    """True is not 1."""
    if isinstance(one, bool) or isinstance(other, bool):
        return one is other
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(_same(one[key], other[key]) for key in one)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(_same, one, other))
    return bool(one == other)


def _defaults(tool: Tool) -> dict[str, Any]:
    properties = tool.parameters.get("properties")
    if not isinstance(properties, Mapping):
        return {}
    return {
        name: schema["default"]
        for name, schema in properties.items()
        if isinstance(schema, Mapping) and "default" in schema
    }


def _in_order(fits: Sequence[Sequence[bool]]) -> int:
    """The longest subsequence of expected calls that were made in this order."""
    best = [0] * (len(fits[0]) + 1 if fits else 1)
    for row in fits:
        before = best.copy()
        for at, right in enumerate(row):
            best[at + 1] = max(best[at], before[at + 1], before[at] + right)
    return best[-1]


def _paired(fits: Sequence[Sequence[bool]], calls: int) -> int:
    """A maximum matching of expected calls and made calls that fit (augmenting paths: Kuhn 1955)."""
    partner: dict[int, int] = {}

    def augmented(row: int, seen: set[int]) -> bool:
        for at in range(calls):
            if fits[row][at] and at not in seen:
                seen.add(at)
                if at not in partner or augmented(partner[at], seen):
                    partner[at] = row
                    return True
        return False

    return sum(augmented(row, set()) for row in range(len(fits)))


BORNE_OUT = 0.6  # of the words of a sentence that carry its meaning; paraphrases keep about two thirds
WORD_CHARS_MIN = 4
_SENTENCE = re.compile(r"[^.!?\n]*(?:[.!?](?!\s|$)[^.!?\n]*)*[.!?\n]?(?: ?\[\d{1,3}\])*")
_WORD = re.compile(r"\w+(?:[.,:]\d+)*")


def cites(expected: Sequence[ExpectedCitation], answer: Answer) -> float:
    """The share of expected citations that the answer has. 0 if it also cites something that it was not given."""
    numbers = [int(mark[1]) for mark in CITATION.finditer(answer.text)]
    if any(not 1 <= number <= len(answer.found) for number in numbers):
        return 0.0
    return sum(_cited(each, answer) for each in expected) / len(expected)


def rank(places: Sequence[Place], found: Sequence[Found]) -> float:
    """The reciprocal rank: that of the first result at one of the places; 0 beyond RANKS_MAX."""
    for number, passage in enumerate(found[:RANKS_MAX], 1):
        if any(_is_at(place.file, passage) and _holds(passage.text, place.text or "") for place in places):
            return 1 / number
    return 0.0


def _cited(expected: ExpectedCitation, answer: Answer) -> bool:
    passages = [
        (sentence, answer.found[int(mark[1]) - 1])
        for sentence in _sentences(answer.text)
        for mark in CITATION.finditer(sentence)
    ]
    own = [(sentence, passage) for sentence, passage in passages if _is_at(expected.file, passage)]
    if not expected.says:
        return any(_bears_out(passage.text, CITATION.sub("", sentence)) for sentence, passage in own)
    return all(
        _holds(answer.text, text) and any(_holds(passage.text, text) for _, passage in own) for text in expected.says
    )


def _sentences(text: str) -> list[str]:
    return [match[0] for match in _SENTENCE.finditer(text) if match[0].strip()]


def _bears_out(passage: str, sentence: str) -> bool:
    """All its numbers, and most of its longer words, are in the passage."""
    known, words = set(_words(passage)), _words(sentence)
    numbers = [word for word in words if word[0].isdigit()]
    longer = [word for word in words if len(word) >= WORD_CHARS_MIN and not word[0].isdigit()]
    if any(number not in known for number in numbers):
        return False
    return not longer or sum(word in known for word in longer) >= BORNE_OUT * len(longer)


def _words(text: str) -> list[str]:
    return _WORD.findall(text.casefold())


def _is_at(file: str, passage: Found) -> bool:
    """A file matches by its name, or by the end of its path."""
    return passage.file == file or passage.file.endswith(f"/{file}")


def _holds(text: str, part: str) -> bool:
    """As whole words: 12 is not in 125."""
    wanted, there = " ".join(part.casefold().split()), " ".join(text.casefold().split())
    return not wanted or re.search(rf"(?<!\w){re.escape(wanted)}(?!\w)", there) is not None


def grade(case: Case, answer: Answer, judged: float | None = None) -> dict[str, float]:
    """The score by each grader; `judged` is the judge's score. A missing answer scores 0."""
    if answer.error is not None:
        return dict.fromkeys(case.expect.graders, 0.0)
    return {name: _score(name, case, answer, judged) for name in case.expect.graders}


def score(grades: Mapping[str, float]) -> float:
    return min(grades.values())


def _score(grader: str, case: Case, answer: Answer, judged: float | None) -> float:
    expect, text = case.expect, answer.text.strip()
    match grader:
        case "exact":
            return float(not answer.calls and text in [each.strip() for each in expect.texts])
        case "pattern":
            return float(Pattern(expect.pattern or "").occurs_in(text))
        case "schema":
            return float(Checked(expect.json_schema or {}).unmet(text) is None)
        case "calls":
            return matched(expect.calls or (), answer.calls, case.tools or (), expect.ordered)
        case "cites":
            return cites(expect.cites or (), answer)
        case "finds":
            return rank(expect.finds or (), answer.found)
        case "like":
            return overlap(expect.like or "", text)
    return judged or 0.0
