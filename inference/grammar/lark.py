"""A grammar in llguidance's dialect of Lark: rules, quoted texts, and JSON of a schema."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

# In a rule: a pattern, which is kept as it is, or a quoted text.
_QUOTED = re.compile(r'/(?:\\.|[^/\\\n])+/|"(?:\\.|[^"\\])*"')


@dataclass(frozen=True, slots=True)
class Thought:
    """The markers around a model's reasoning; `begun` if the prompt ends inside it."""

    open: str
    close: str
    begun: bool = False


def grammar(start: str, rules: Mapping[str, str], thought: Thought | None = None) -> str:
    """The grammar of `start`, preceded by reasoning if the model may produce it."""
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
    """Any text up to and including the marker. A lazy rule ends at the first marker."""
    return f"{literal(begin)} ANYTHING {literal(mark)}" if begin else f"ANYTHING {literal(mark)}"


def value_of(document: Mapping[str, Any]) -> str:
    """JSON of a schema that was converted by `restated`."""
    return f"%json {json.dumps(document, ensure_ascii=False)}"


def by_token(grammar: str, marks: Mapping[str, int]) -> str:
    """The same grammar for tokenizers that distinguish control tokens from text that looks like them, as those of
    Hugging Face do: `marks` in its texts are replaced by their ids. JSON and patterns are unchanged."""
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
    # A lazy rule is a single lexeme, which cannot contain a token. No text before the token can contain it, so the rule
    # still ends with the first one.
    return rule if changed == rule else changed.replace("[lazy]:", ":", 1)
