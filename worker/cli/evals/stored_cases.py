"""Stored answers of a tenant as cases, as examples for fine-tuning in the format of chat completions, and beside what
is answered now. Pure.

What may identify somebody or grant access is removed, as far as its format reveals it. Names of people have no format:
read a file before handing it on.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import fmean, median
from typing import Any

import orjson

from agents.store.responses import Answered
from worker.cli.evals.graders import overlap
from worker.cli.evals.suite import CALLS_MAX, TOKENS
from worker.cli.evals.table import aligned, in_markdown, plain

CHARS_MAX = 100_000  # of one text; the rest is cut off
# Linear in the length of the text: no part of a pattern can match in two ways.
_KINDS = (
    ("url", re.compile(r"\b[a-z][a-z0-9+.-]{1,15}://\S{1,2000}", re.IGNORECASE)),
    ("email", re.compile(r"[A-Za-z0-9._%+-]{1,64}@[A-Za-z0-9-]{1,63}(?:\.[A-Za-z0-9-]{1,63}){1,8}")),
    ("key", re.compile(r"\b(?:sk|pk|ft|ghp|xox[abp])[-_][A-Za-z0-9_-]{12,}")),
    ("id", re.compile(r"\b[0-9a-fA-F]{8}-(?:[0-9a-fA-F]{4}-){3}[0-9a-fA-F]{12}\b")),
    ("account", re.compile(r"\b[A-Z]{2}\d{2}(?: ?[A-Z0-9]{4}){3,7}(?: ?[A-Z0-9]{1,4})?\b")),
    ("address", re.compile(r"\b\d{1,3}(?:\.\d{1,3}){3}\b")),
    ("number", re.compile(r"(?<![\w.])\+?+\(?+\d{1,4}+\)?+(?:[ /.-]?+\(?+\d{1,5}+\)?+){1,7}+(?!\w)")),
    ("token", re.compile(r"\b(?=[A-Za-z_-]{0,64}\d)[A-Za-z0-9_-]{32,}")),
)
_DATE = re.compile(r"\d{4}-\d{2}-\d{2}")
DIGITS_MIN = 7  # of a phone number or a card; dates and prices have fewer


def redacted(text: str) -> str:
    """With placeholders such as [email] for what was removed."""
    text = text[:CHARS_MAX]
    for name, form in _KINDS:
        text = form.sub(lambda found, name=name: _mark(name, found[0]), text)  # type: ignore[misc]
    return text


def _mark(name: str, found: str) -> str:
    if name == "number" and (sum(map(str.isdigit, found)) < DIGITS_MIN or _DATE.fullmatch(found)):
        return found
    return f"[{name}]"


ASKING = ("user", "system", "assistant", "developer")


def case_of(answer: Answered, judged: bool) -> dict[str, Any] | None:
    """As a line of a file, redacted; None for an answer that cannot become a case, such as one about files.

    `judged`: a model decides whether a new answer says the same, instead of counting shared words.
    """
    messages = [each for item in answer.input if (each := _message(item)) is not None]
    output = answer.body.get("output") or []
    calls = [item for item in output if item["type"] == "function_call"]
    text = said_in(answer)
    tools = [_tool(tool) for tool in answer.body.get("tools") or () if tool.get("type") == "function"]
    if len(messages) != len(answer.input) or not any(each["role"] == "user" for each in messages):
        return None
    if not tools and calls:  # only server tools, whose results led to the text
        calls = []
    if not (text or calls) or len(calls) > CALLS_MAX:
        return None
    stores = [
        store
        for tool in answer.body.get("tools") or ()
        if tool.get("type") == "file_search"
        for store in tool.get("vector_store_ids") or ()
    ]
    case: dict[str, Any] = {"id": answer.id[-24:], "messages": messages, "max_tokens": TOKENS}
    if instructions := answer.body.get("instructions"):
        case["instructions"] = redacted(str(instructions))
    if tools:
        case["tools"] = tools
    if stores:
        case["stores"] = stores
    return {**case, "expect": _expected(calls, text, judged)}


def said_in(answer: Answered) -> str:
    """Its text, redacted."""
    return redacted(_text(item for item in answer.body.get("output") or () if item["type"] == "message")).strip()


def _expected(calls: list[Mapping[str, Any]], text: str, judged: bool) -> dict[str, Any]:
    if calls:
        return {"calls": [{"name": each["name"], "arguments": cleaned(each["arguments"])} for each in calls]}
    return {"judge": f"It says the same as this answer, which was right:\n{text}"} if judged else {"like": text}


def _message(item: Mapping[str, Any]) -> dict[str, Any] | None:
    if item.get("type") != "message" or item.get("role") not in ASKING:
        return None
    content = item.get("content")
    parts = content if isinstance(content, list) else []
    if any(part.get("type") not in ("input_text", "output_text", "text") for part in parts):
        return None
    role = "system" if item["role"] == "developer" else item["role"]
    text = content if isinstance(content, str) else "\n".join(part["text"] for part in parts)
    return {"role": role, "content": redacted(text)}


def _text(items: Iterable[Mapping[str, Any]]) -> str:
    return "".join(part.get("text", "") for item in items for part in item.get("content") or ())


def _tool(tool: Mapping[str, Any]) -> dict[str, Any]:
    told = {"name": tool["name"], "description": tool.get("description") or ""}
    return {**told, "parameters": tool.get("parameters") or {}}


def cleaned(text: str) -> Any:
    """Redacted string by string, so that the structure stays intact."""

    def clean(value: Any) -> Any:
        if isinstance(value, str):
            return redacted(value)
        if isinstance(value, dict):
            return {key: clean(each) for key, each in value.items()}
        return [clean(each) for each in value] if isinstance(value, list) else value

    try:
        return clean(orjson.loads(text or "{}"))
    except orjson.JSONDecodeError:
        return {}


def example_of(answer: Answered) -> dict[str, Any] | None:
    """Redacted; None for an answer that does not follow from its messages alone, because of passages or server tools,
    or with anything but text in it."""
    case = case_of(answer, judged=False)
    if case is None or "stores" in case:
        return None
    tools = case.get("tools") or []
    calls = [item for item in answer.body.get("output") or () if item["type"] == "function_call"]
    if any(call["name"] not in {tool["name"] for tool in tools} for call in calls):
        return None
    wrote: dict[str, Any] = {"role": "assistant", "content": said_in(answer) or None}
    if calls:
        wrote["tool_calls"] = [
            {
                "id": f"call_{number}",
                "type": "function",
                "function": {"name": call["name"], "arguments": orjson.dumps(cleaned(call["arguments"])).decode()},
            }
            for number, call in enumerate(calls, 1)
        ]
    system = [{"role": "system", "content": case["instructions"]}] if "instructions" in case else []
    example: dict[str, Any] = {"messages": [*system, *case["messages"], wrote]}
    if tools:
        example["tools"] = [{"type": "function", "function": tool} for tool in tools]
    return example


SPANS_MAX = 40  # names of a table; tools name their spans
TURNS_SHOWN_MAX = 20
ALIKE = 0.9  # of the words: a paraphrase


@dataclass(frozen=True, slots=True)
class ReplayedTurn:
    """Milliseconds by the names of spans: `before` is empty if the trace is gone, `now` if the server reports none."""

    id: str
    before: Mapping[str, float]
    now: Mapping[str, float]
    said_before: str
    said_now: str
    error: str | None = None

    @property
    def likeness(self) -> float:
        """From 0 to 1, by shared words."""
        if self.said_before.split() == self.said_now.split():
            return 1.0
        return overlap(self.said_before, self.said_now)


@dataclass(frozen=True, slots=True)
class Row:
    """Medians over the turns that have such a span then or now."""

    span: str
    turns: int
    before_ms: float | None
    now_ms: float | None


def totals(spans: Iterable[Mapping[str, Any]]) -> dict[str, float]:
    """The sums of one turn by name: a turn of several steps has several spans of a name."""
    found: dict[str, float] = defaultdict(float)
    for span in spans:
        found[span["name"]] += float(span["duration_ms"] or 0)
    return dict(found)


def rows(turns: Sequence[ReplayedTurn]) -> list[Row]:
    """In the order in which spans begin."""
    both = [turn for turn in turns if turn.before and turn.now]
    names = dict.fromkeys(name for turn in both for name in (*turn.before, *turn.now))
    return [_row(name, both) for name in list(names)[:SPANS_MAX]]


def table(turns: Sequence[ReplayedTurn]) -> list[str]:
    found = rows(turns)
    return [*(aligned(_cells(found)) if found else []), *([""] if found else []), summary(turns)]


def summary(turns: Sequence[ReplayedTurn]) -> str:
    answered = [turn for turn in turns if turn.error is None]
    if not answered:
        return f"None of {len(turns)} turns was answered."
    likeness = [turn.likeness for turn in answered]
    same = sum(each == 1 for each in likeness)
    other = sum(each < ALIKE for each in likeness)
    missing = f" {len(turns) - len(answered)} more got no answer." if len(answered) < len(turns) else ""
    return (
        f"{len(answered)} turns: {same} answers are the same, {other} share less than {ALIKE:.0%} of their words "
        f"({fmean(likeness):.0%} in the mean).{missing}"
    )


def markdown(turns: Sequence[ReplayedTurn], side: str) -> str:
    """With the turns whose answers differ the most, side by side."""
    parts = [f"# Stored turns, asked again of {plain(side)}", summary(turns)]
    if found := rows(turns):
        parts.append("## Spans\n\nMedians, in milliseconds.\n\n" + in_markdown(_cells(found)))
    shown = sorted(turns, key=lambda turn: turn.likeness)[:TURNS_SHOWN_MAX]
    parts += [_side_by_side(turn) for turn in shown if turn.likeness < 1]
    parts.append(
        "Stored turns were measured under whatever load the worker had then, and could use its cache of earlier "
        "requests."
    )
    return "\n\n".join(parts) + "\n"


def as_json(turns: Sequence[ReplayedTurn], side: str) -> dict[str, Any]:
    return {
        "format": 1,
        "model": side,
        "spans": [asdict(row) for row in rows(turns)],
        "turns": [{**asdict(turn), "likeness": round(turn.likeness, 4)} for turn in turns],
    }


def _side_by_side(turn: ReplayedTurn) -> str:
    cells = [["", "THEN", "NOW"], ["answer", turn.said_before, turn.error or turn.said_now]]
    names = dict.fromkeys((*turn.before, *turn.now)) if turn.before and turn.now else {}
    cells += [[name, _ms(turn.before.get(name)), _ms(turn.now.get(name))] for name in list(names)[:SPANS_MAX]]
    return f"## {turn.id}\n\n" + in_markdown(cells)


def _row(name: str, turns: Sequence[ReplayedTurn]) -> Row:
    before = [turn.before[name] for turn in turns if name in turn.before]
    now = [turn.now[name] for turn in turns if name in turn.now]
    count = sum(name in turn.before or name in turn.now for turn in turns)
    return Row(name, count, median(before) if before else None, median(now) if now else None)


def _cells(found: Sequence[Row]) -> list[list[str]]:
    head = ["SPAN", "TURNS", "THEN", "NOW"]
    return [head, *([row.span, str(row.turns), _ms(row.before_ms), _ms(row.now_ms)] for row in found)]


def _ms(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f}"
