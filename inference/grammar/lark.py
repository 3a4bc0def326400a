"""A grammar in the dialect of Lark that llguidance reads: rules, texts in quotes, and JSON of a schema."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

# In a rule: a pattern, which stays as it is, or a text in quotes.
_QUOTED = re.compile(r'/(?:\\.|[^/\\\n])+/|"(?:\\.|[^"\\])*"')


@dataclass(frozen=True, slots=True)
class Thought:
    """The marks around a model's thoughts; `begun` when the prompt ends inside of one."""

    open: str
    close: str
    begun: bool = False


def grammar(start: str, rules: Mapping[str, str], thought: Thought | None = None) -> str:
    """The grammar of `start`, behind the thought that such a model may have first."""
    written = dict(rules)
    if thought:
        written |= {"answer": start, "thought": "thinking GAP?", "GAP": "/[ \\n]{1,2}/"}
        written["thinking[lazy]"] = up_to(thought.close) if thought.begun else up_to(thought.close, thought.open)
        start = "thought answer" if thought.begun else "thought? answer"
    written |= {"start": start, "ANYTHING": "/(?s:.*)/"}
    return "".join(f"{name}: {body}\n" for name, body in written.items())


def literal(text: str) -> str:
    """The text itself. Lark's escapes are those of JSON."""
    return json.dumps(text, ensure_ascii=False)


def up_to(mark: str, begin: str = "") -> str:
    """Any text and the mark behind it. A lazy rule ends with the first mark."""
    return f"{literal(begin)} ANYTHING {literal(mark)}" if begin else f"ANYTHING {literal(mark)}"


def value_of(document: Mapping[str, Any]) -> str:
    """JSON of a schema, as `restated` has it."""
    return f"%json {json.dumps(document, ensure_ascii=False)}"


def by_token(grammar: str, marks: Mapping[str, int]) -> str:
    """The same grammar for tokenizers that tell control tokens from a text that looks like them, as those of Hugging
    Face do: `marks` in its texts are told by their ids. JSON and patterns stay as they are."""
    if not marks:
        return grammar
    found = re.compile("(" + "|".join(map(re.escape, sorted(marks, key=len, reverse=True))) + ")")
    return "\n".join(_rule_by_token(rule, found, marks) for rule in grammar.split("\n"))


def _rule_by_token(rule: str, found: re.Pattern[str], marks: Mapping[str, int]) -> str:
    def told(quoted: re.Match[str]) -> str:
        if quoted[0].startswith("/"):
            return quoted[0]
        parts = [part for part in found.split(json.loads(quoted[0])) if part]
        if marks.keys().isdisjoint(parts):
            return quoted[0]
        return "(" + " ".join(f"<[{marks[part]}]>" if part in marks else literal(part) for part in parts) + ")"

    if "%json" in rule:
        return rule
    changed = _QUOTED.sub(told, rule)
    # A lazy rule is one lexeme, which has no place for a token. No text before the token can hold it, so the rule ends
    # with the first one all the same.
    return rule if changed == rule else changed.replace("[lazy]:", ":", 1)
