"""A grammar in the dialect of Lark that llguidance reads: rules, texts in quotes, and JSON of a schema."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


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
