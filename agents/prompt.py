"""From items to the messages of the chat template: stable from turn to turn, so that most of a prompt is read ahead.

Items only append messages, so the prompt of a step starts with the prompt of the step before and reuses its KV cache.
The two exceptions are at the end on purpose: passages in the newest user message, and the line that concludes a turn.

Where the caller allows it, the oldest turns of a conversation that has outgrown its context are dropped. A turn starts
with a message of the user. It is dropped as a whole, so that no answer is left without its question and no result
without its call. System messages, summaries and the newest turn stay.

Passages are part of the message of the question, so the prefix before it is the same with and without them. It is
prefilled while retrieval runs, so the time to first token contains the longer of the two instead of their sum. Results
are in the order of their calls: the available ones are prefilled while the tools of later calls still run.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import takewhile
from math import ceil

import orjson

from agents.errors import InvalidTurn
from agents.message import (
    Compaction,
    ConfigurationUpdate,
    FileSearchCall,
    FunctionCall,
    FunctionCallOutput,
    Item,
    Message,
    Reasoning,
    ToolListing,
    pictures_in,
)
from agents.turn import Turn
from inference.generation import Generation, Spent
from inference.language_model import LanguageModel
from inference.picture import Pixels
from inference.prompt import ChatMessage, Part, Segment, ToolCall
from inference.trace import Span, Trace, now_ns
from retrieval.passage import Passage

# The line on which the bundled model was trained; larger models understand it as well.
CONCLUDE = "Tool budget exhausted. Answer now with what you have."
SUMMARY = "Summary of the conversation so far:"
UNANSWERED = "Error: this call was not answered."

# What a template renders in two or three milliseconds; more would hold up the streams of all other requests.
FAST_ITEMS_MAX = 100
FAST_JSON_CHARS_MAX = 16_000  # of schemas and arguments, which are walked value by value

_BLANK_LINES = re.compile(r"\n\s*\n")
_CODE = re.compile(r"```|~~~|^(?: {4}|\t)", re.MULTILINE)
# A line break inside a paragraph only wraps the source file; before a list item, a table row or a heading it is
# significant. Models answer better from whole sentences.
_OWN_LINE = re.compile(r"[-*+|#>]|\d+[.)] ")
_SOFT_BREAKS = re.compile(rf"\s*\n\s*(?!{_OWN_LINE.pattern}|\s)")
# Tokens are dropped in multiples of this fraction of the context (1 / STRIDES), so the prompts of many following turns
# start with the same tokens, which stay cached.
STRIDES = 4
PICTURE_TOKENS = 256  # of common encoders; an estimate
MARKUP_TOKENS = 4  # around a message in common templates; an estimate


def assemble(
    turn: Turn,
    output: Sequence[Item] = (),
    passages: Sequence[Passage] = (),
    *,
    conclude: bool = False,
    default_system: Callable[[], str] = str,
) -> list[ChatMessage]:
    """The messages of the next step: system text, history, input, and the output of this turn so far.

    `default_system` is the model's own: called where there is no other, but hints, which it then precedes. Raises
    InvalidTurn when an output has no call, or when all of them are empty.
    """
    messages = _grouped((*turn.history, *turn.input, *output))
    if not messages:
        raise InvalidTurn("There is nothing to answer: the input is empty.")
    leading = next((i for i, message in enumerate(messages) if message.role != "system"), len(messages))
    messages = [*_system(turn, messages[:leading], default_system), *messages[leading:]]
    if passages:
        _give_passages(messages, passages)
    if conclude:
        _conclude(messages)
    return messages


def decoded(message: ChatMessage, pixels: Mapping[str, Pixels]) -> ChatMessage:
    """The message with the pixels of its pictures, which are known by their digests."""
    shown = (
        replace(placed, picture=replace(placed.picture, pixels=pixels[placed.picture.digest]))
        for placed in message.pictures
    )
    return replace(message, pictures=tuple(shown)) if message.pictures else message


def renders_fast(turn: Turn, output: Sequence[Item]) -> bool:
    """Whether assembling and rendering the prompt takes a few milliseconds at most. Looks at no more than that is."""
    if len(turn.history) + len(turn.input) + len(output) > FAST_ITEMS_MAX:
        return False
    calls = (item for item in (*turn.history, *turn.input, *output) if isinstance(item, FunctionCall))
    chars = sum(len(call.arguments) for call in calls)
    for function in turn.functions:
        if chars > FAST_JSON_CHARS_MAX:
            break
        if function.deferred:
            continue
        chars += len(function.description) + len(orjson.dumps(function.parameters))
    return chars <= FAST_JSON_CHARS_MAX


def question(turn: Turn) -> str:
    """The text of the newest user message, which is the query of retrieval. Empty when there is none."""
    items = reversed((*turn.history, *turn.input))
    return next((item.text for item in items if isinstance(item, Message) and item.role == "user"), "").strip()


def question_is_last(turn: Turn) -> bool:
    """Whether the turn ends with something to answer: a message of the user, or the result of a call."""
    last = next(reversed((*turn.history, *turn.input)), None)
    return isinstance(last, FunctionCallOutput) or (isinstance(last, Message) and last.role == "user")


def numbered(passages: Iterable[tuple[int, Passage]]) -> str:
    """Passages as in the prompt: `[1] Title: text`, without blank lines, which end the list."""
    return "\n".join(
        f"[{number}] {' '.join(passage.title.split())}: {_flowing(passage.text)}" for number, passage in passages
    )


def _flowing(text: str) -> str:
    """Joins paragraphs into one line; lists, tables and headings keep theirs, and code its indentation as well."""
    if _CODE.search(text):
        return _BLANK_LINES.sub("\n", text.strip("\n").rstrip())
    shown, *paragraphs = (_SOFT_BREAKS.sub(" ", each.strip()) for each in _BLANK_LINES.split(text.strip()))
    for each in paragraphs:
        apart = _OWN_LINE.match(each) or _OWN_LINE.match(shown, shown.rfind("\n") + 1)
        shown += ("\n" if apart else " ") + each
    return shown


@dataclass(slots=True)
class _Step:
    """The text and calls of one step, with the results in the order of the calls."""

    content: str = ""
    reasoning: str = ""
    calls: list[FunctionCall] = field(default_factory=list)
    results: dict[int, ChatMessage] = field(default_factory=dict)

    def messages(self) -> list[ChatMessage]:
        calls = tuple(ToolCall(call.name, call.arguments.strip() or "{}") for call in self.calls)
        results = (self.results.get(i, ChatMessage("tool", UNANSWERED)) for i in range(len(calls)))
        answer = ChatMessage("assistant", self.content, calls, self.reasoning)
        return [answer, *results]


def answer_message(items: Sequence[Item]) -> ChatMessage:
    """The assistant message of the items of one step, as later prompts contain it."""
    return _grouped(items)[0]


def _grouped(items: Sequence[Item]) -> list[ChatMessage]:
    """One assistant message per step: its text with its calls. Results follow their step, whenever they arrived. The
    first result of a call holds: clients also answer calls that this server has answered, because they were broken."""
    entries: list[ChatMessage | _Step] = []
    open_calls: dict[str, tuple[_Step, int]] = {}
    answered: set[str] = set()
    for item in items:
        match item:
            case Message(role="assistant"):
                _step_for_text(entries).content += item.text
            case Reasoning():
                entries.append(_Step(reasoning=item.text))
            case FunctionCall():
                if item.result is None or item.call_id not in open_calls:  # else it is what the user has approved
                    step = _step_for_call(entries, joins=item.joined)
                    open_calls[item.call_id] = (step, len(step.calls))
                    step.calls.append(item)
                if item.result is not None:
                    step, index = open_calls.pop(item.call_id)
                    step.results[index] = ChatMessage("tool", item.result.output)
                    answered.add(item.call_id)
            case FunctionCallOutput() if item.call_id in open_calls:
                if item.approves:
                    continue
                step, index = open_calls.pop(item.call_id)
                step.results[index] = ChatMessage("tool", item.output, pictures=item.pictures)
                answered.add(item.call_id)
            case FunctionCallOutput():
                if item.call_id not in answered:
                    raise InvalidTurn(f"No function call with the call_id '{item.call_id}' is waiting for an output.")
            case Message():
                role = "system" if item.role == "developer" else item.role
                entries.append(ChatMessage(role, item.text, pictures=item.pictures))
            case Compaction():
                entries.append(ChatMessage("system", f"{SUMMARY}\n{item.summary}"))
            case FileSearchCall() | ToolListing() | ConfigurationUpdate():
                pass  # its passages were in one prompt only; they are not part of the conversation
    return [each for entry in entries for each in (entry.messages() if isinstance(entry, _Step) else [entry])]


def _step_for_text(entries: list[ChatMessage | _Step]) -> _Step:
    """Text belongs to the open step after its reasoning or calls; two texts in a row are two messages."""
    last = entries[-1] if entries else None
    if isinstance(last, _Step) and last.reasoning and not last.content and not last.calls:
        return last
    if isinstance(last, _Step) and last.calls and not last.results:
        last.content += "\n" if last.content else ""
        return last
    entries.append(step := _Step())
    return step


def _step_for_call(entries: list[ChatMessage | _Step], *, joins: bool) -> _Step:
    last = entries[-1] if entries else None
    if isinstance(last, _Step) and (joins or not last.results):
        return last
    entries.append(step := _Step())
    return step


def _system(turn: Turn, leading: Sequence[ChatMessage], default: Callable[[], str]) -> list[ChatMessage]:
    """Instructions, the leading system messages and hints as one message: most templates allow exactly one, the first.
    None if there is nothing to say: then the model's own default applies."""
    parts = [part for part in (turn.instructions or "", *(message.content for message in leading)) if part]
    hints = _hints(turn) if turn.hints else []
    if hints and not parts:
        parts = [part for part in (default(),) if part]
    return [ChatMessage("system", "\n\n".join([*parts, *hints]))] if parts or hints else []


def _hints(turn: Turn) -> list[str]:
    """What the model is told of the constraints on its answer: it answers better than one that is only held to them."""
    hints = []
    if turn.answer_format:
        hints.append(f"Answer with JSON only. Its schema: {json.dumps(turn.answer_format.schema, ensure_ascii=False)}")
    if turn.tool_choice == "required":
        hints.append("Call a tool before you answer.")
    elif turn.tool_choice not in ("auto", "none"):
        hints.append(f"Call the tool {turn.tool_choice} before you answer.")
    return hints


def _give_passages(messages: list[ChatMessage], passages: Sequence[Passage]) -> None:
    at = max(i for i, message in enumerate(messages) if message.role == "user")
    found = f"Passages:\n{numbered(enumerate(passages, 1))}\n\n"
    before = f"{found}Question: "
    pictures = tuple(placed.behind(len(before)) for placed in messages[at].pictures)
    messages[at] = ChatMessage("user", before + messages[at].content, passage_chars=len(found), pictures=pictures)


def _conclude(messages: list[ChatMessage]) -> None:
    """Append the line to the last tool result, or as a separate message when there is none."""
    last = messages[-1]
    if last.role == "tool":
        messages[-1] = replace(last, content=f"{last.content}\n{CONCLUDE}")
    else:
        messages.append(ChatMessage("system", CONCLUDE))


def shortened(turn: Turn, excess: int, context_length: int, count: Callable[[str], int]) -> tuple[Turn, int] | None:
    """The turn without the oldest turns of its history, about `excess` tokens rounded up to a stride, and the number of
    dropped turns. None when nothing may be dropped. If the excess is too large to be counted in tokens, it is in bytes.

    Sizes are estimates. Those of a conversation that is far too long may be wrong by more than a context, so half a
    context is kept by the same estimate; if that is still too much, the caller asks again.
    """
    stride = max(1, context_length // STRIDES)
    goal = ceil(excess / stride) * stride
    turns = turns_of((*turn.history, *turn.input))
    sizes = [size_of(items, count) for items in turns]
    if min(excess, sum(sizes)) > context_length:
        goal = (sum(sizes) - context_length // 2) // stride * stride
    gone, freed = 0, 0
    while gone < len(turns) - 1 and (freed < goal or not gone):
        freed += sizes[gone]
        gone += 1
    if not gone:
        return None
    kept = [item for left_out in turns[:gone] for item in left_out if _is_system(item)]
    kept += [item for whole in turns[gone:] for item in whole]
    return replace(turn, history=(), input=_without_orphans(kept)), gone


def size_of(items: Sequence[Item], count: Callable[[str], int]) -> int:
    """The approximate number of tokens of these items in a prompt."""
    pictures = PICTURE_TOKENS * sum(1 for _ in pictures_in(items))
    return pictures + sum(MARKUP_TOKENS + count(_text(item)) for item in items)


def bytes_of(text: str) -> int:
    return len(text.encode("utf-8", "replace"))


def turns_of(items: Sequence[Item]) -> list[list[Item]]:
    """The items by turns; those before the first message of a user belong to the first turn."""
    turns: list[list[Item]] = [[]]
    for item in items:
        begins = isinstance(item, Message) and item.role == "user"
        if begins and not all(map(_is_system, turns[-1])):
            turns.append([])
        turns[-1].append(item)
    return turns


def _is_system(item: Item) -> bool:
    return isinstance(item, Compaction) or (isinstance(item, Message) and item.role in ("system", "developer"))


def _without_orphans(items: Sequence[Item]) -> tuple[Item, ...]:
    """Without outputs whose call was in a dropped turn."""
    calls = {item.call_id for item in items if isinstance(item, FunctionCall)}
    return tuple(item for item in items if not isinstance(item, FunctionCallOutput) or item.call_id in calls)


def _text(item: Item) -> str:
    match item:
        case Message() | Reasoning():
            return item.text
        case FunctionCall():
            return item.arguments + (item.result.output if item.result else "")
        case FunctionCallOutput():
            return item.output
        case Compaction():
            return item.summary
        case FileSearchCall() | ToolListing() | ConfigurationUpdate():
            return ""


def since_compaction(items: Sequence[Item]) -> tuple[Item, ...]:
    """The part of a conversation that prompts still contain: the newest summary with its recent turns and what follows
    it, and the system messages before it.
    """
    at = max((i for i, item in enumerate(items) if isinstance(item, Compaction)), default=-1)
    summary = items[at] if at >= 0 else None
    if not isinstance(summary, Compaction):
        return tuple(items)
    before = (item for item in items[:at] if instructs(item))
    return (*before, summary, *summary.recent, *items[at + 1 :])


def instructs(item: Item) -> bool:
    return isinstance(item, Message) and item.role in ("system", "developer")


LANE = "prefix"


def before_question(segments: Sequence[Segment]) -> list[Segment]:
    """The prefix of a rendered prompt that does not depend on the question and the passages."""
    return list(takewhile(lambda segment: segment.trusted or segment.part is not Part.QUESTION, segments))


def before_missing(segments: Sequence[Segment], missing: int) -> list[Segment]:
    """The prefix of a rendered prompt that does not depend on the last `missing` results; empty if the template hides
    their positions.
    """
    places = [at for at, segment in enumerate(segments) if not segment.trusted and segment.text == UNANSWERED]
    return list(segments[: places[-missing]]) if len(places) >= missing else []


class Prefetch:
    """Prefetches for one prompt, each longer than the one before. They end with the `with` block: then the prompt is
    submitted, or never will be.
    """

    def __init__(self, model: LanguageModel, trace: Trace) -> None:
        self._model = model
        self._trace = trace
        self._readings: list[Generation] = []
        self._spans: list[tuple[Span, int]] = []  # of the prefetches, with the tokens that were cached before each

    def __enter__(self) -> Prefetch:
        return self

    def __exit__(self, *_: object) -> None:
        for reading in self._readings:
            reading.cancel()
            stamps = reading.facts.stamps
            if stamps.admitted_ns:
                end_ns = stamps.prefilled_ns or now_ns()
                span = self._trace.add("prefill_prefix", stamps.admitted_ns, end_ns, lane=LANE, new_tokens=0)
                self._spans.append((span, reading.facts.cached_tokens))

    def read(self, prefix: Sequence[int], *, salt: str, exact: bool) -> None:
        reading = self._model.prefill_ahead(prefix, salt=salt, exact=exact)
        if reading is not None:
            self._readings.append(reading)

    @property
    def spent(self) -> Spent:
        """The engine time of all of them."""
        return sum((reading.facts.spent for reading in self._readings), Spent())

    def cached(self, generation: Generation) -> int:
        """Tokens of the prompt that were cached before its first prefetch."""
        after = generation.facts.cached_tokens
        for span, cached in reversed(self._spans):
            before = min(cached, after)
            span.attributes |= {"new_tokens": after - before, "cached_tokens": before}
            after = before
        return after
