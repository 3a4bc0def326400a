"""Converts the generated text of one step to items and their events, as it is generated. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from agents.events import ArgumentsDelta, Event, ItemFinished, ItemStarted, ReasoningDelta, TextDelta
from agents.function_tool import PLAIN, CallShape, FunctionTool
from agents.message import FunctionCall, Item, Message, Reasoning, Status, find_citations, storable
from agents.parser.markup import (
    CallArguments,
    CallBroken,
    CallFinished,
    CallStarted,
    MarkupParser,
    ParserEvent,
    Text,
    Thought,
)
from inference.frozen import changed
from inference.generation import TokenLogprob
from inference.grammar.conformance import Conformance, is_enforceable
from retrieval.passage import Passage

CALLS_MAX = 64  # of one step; a model that calls more is looping
UNREADABLE = "unreadable_call"  # the name of a call that failed to parse before its name was known


class StrictArguments:
    """`enforced`: a grammar holds calls of this dialect to their schemas."""

    def __init__(self, functions: Iterable[FunctionTool] = (), *, enforced: bool = False) -> None:
        self._schemas = {function.name: function.parameters for function in functions if function.strict}
        self._enforced = enforced
        self._known: dict[str, Conformance] = {}

    def may_break(self, name: str) -> bool:
        """Whether a call may turn out not to fit. Then nothing of it is sent before it is complete: what was streamed
        cannot be taken back."""
        return name in self._schemas and not (self._enforced and is_enforceable(self._schemas[name]))

    def unmet(self, name: str, arguments: str) -> str | None:
        """What the JSON text violates, for the model to read; None if it fits, or if the function is not strict."""
        if name not in self._schemas:
            return None
        if name not in self._known:
            self._known[name] = Conformance(self._schemas[name])
        broken = self._known[name].broken(json.loads(arguments))
        return None if broken is None else f"the arguments of {name} do not fit its schema: {broken}"


class StopStrings:
    """Push pieces of a text, get what is safe to show: no stop string, and no beginning of one."""

    def __init__(self, strings: Sequence[str] = ()) -> None:
        self.strings = tuple(string for string in strings if string)
        self.held = ""  # may be the start of a stop string
        self.met: str | None = None  # the one that ended the text
        self.rest = ""  # what was pushed from its beginning on

    def __bool__(self) -> bool:
        return bool(self.strings)

    def push(self, text: str) -> str:
        """What precedes the first stop string, once one is met: nothing more is shown then."""
        if self.met is not None:
            return ""
        text = self.held + text
        found = [(at, string) for string in self.strings if (at := text.find(string)) >= 0]
        if found:
            at, self.met = min(found)
            self.held, self.rest = "", text[at:]
            return text[:at]
        keep = max((_overlap(text, string) for string in self.strings), default=0)
        self.held = text[len(text) - keep :]
        return text[: len(text) - keep]

    def flush(self) -> str:
        """The withheld rest, where the text ends or is interrupted."""
        held, self.held = self.held, ""
        return held


def _overlap(text: str, string: str) -> int:
    """Length of the longest suffix of `text` that is a prefix of `string`."""
    longest = min(len(text), len(string) - 1)
    return next((n for n in range(longest, 0, -1) if text.endswith(string[:n])), 0)


@dataclass(slots=True)
class Reply:
    """Calls beyond `calls_max` are dropped without an event. `sources[i]` is cited as [i + 1]."""

    first_index: int
    parser: MarkupParser
    sources: Sequence[Passage] = ()
    calls_max: int = CALLS_MAX
    shapes: Mapping[str, CallShape] = field(default_factory=dict)  # of calls, by the name of the tool
    items: list[Item] = field(default_factory=list)
    broken: dict[str, str] = field(default_factory=dict)  # call_id -> why the call can never run
    exact: bool = True  # the items contain exactly the generated text
    verbatim: bool = False  # white space at both ends is a part of the text
    known: Sequence[tuple[str, str]] = ()  # the id and call_id of its first items, which were sent before
    strict: StrictArguments = field(default_factory=StrictArguments)
    forced: bool = False  # nothing but calls may be written
    repeats: bool = False  # a forced call was written twice: nothing that follows counts
    stops: StopStrings = field(default_factory=StopStrings)  # once one is met, whatever follows is dropped
    over: bool = False  # the answer has ended, although the model may go on
    thinking: bool = False  # the open item is reasoning
    _open: Message | Reasoning | FunctionCall | None = None  # without its text
    _texts: list[str] = field(default_factory=list)  # of the open item
    _logprobs: list[TokenLogprob] = field(default_factory=list)
    _pending_logprobs: tuple[TokenLogprob, ...] = ()  # of tokens whose text is still held back
    _space: str = ""  # white space that is sent only if visible text or a stop string follows
    _written: list[str] = field(default_factory=list)  # all text, if every call is dropped
    _twins: list[str] = field(default_factory=list)  # arguments of earlier calls that begin like those of the new one
    _alike: int = 0  # characters of these that the new call has written
    _name: str = ""  # of the new call, if it is held back

    @property
    def calls(self) -> list[FunctionCall]:
        return [item for item in self.items if isinstance(item, FunctionCall)]

    @property
    def begun(self) -> list[Item]:
        """The items that have begun."""
        return [*self.items, *([self._open] if self._open else [])]

    @property
    def open_chars(self) -> int:
        """Characters sent of the unfinished item."""
        return sum(map(len, self._texts)) if self._open else 0

    @property
    def written(self) -> str:
        """The text as the model wrote it, including what the parser removed. Known only if no tool may be called."""
        return "".join(self._written)

    @property
    def thought(self) -> bool:
        """Whether there is reasoning in it."""
        return self.thinking or any(isinstance(item, Reasoning) for item in self.items)

    def feed(self, text: str, logprobs: tuple[TokenLogprob, ...] = ()) -> list[Event]:
        if logprobs:
            self._pending_logprobs += logprobs
        text = storable(text)
        if not self.calls_max:
            self._written.append(text)
        if self.parser.passes(text) and not (self.over or self.stops.strings):
            return self._say(Message, text)
        return self._map(self.parser.feed(text))

    def finish(self, *, cut_off: bool, fallback: str | None = "") -> list[Event]:
        """End the step. An open item is incomplete if it was cut off. An empty answer becomes `fallback`; None: no
        item. If a stop string ended it, the answer is all that precedes it, white space included."""
        status: Status = "incomplete" if cut_off else "completed"
        rest = self.parser.finish(in_call=cut_off and self.forced)
        events = self._map([event for event in rest if not (cut_off and isinstance(event, CallBroken))])
        events += self._release()
        if self.stops.met is not None and self._space and isinstance(self._open, Message):
            events += self._grow(self._space)
        if self.verbatim and self._pending_logprobs and self.stops.met is None:  # the end, which has no text
            events += [] if isinstance(self._open, Message) else self._start(_empty(Message))
            events += self._grow("")
        events += self._close(status)
        if fallback is not None and all(isinstance(item, Reasoning) for item in self.items):
            self.exact = False
            events += self._start(_empty(Message))
            shown = self.stops.push(fallback) + self.stops.flush()
            if shown not in self.written:  # it is not the model's
                self._pending_logprobs = ()
            self._pending_logprobs = _within(shown, self._pending_logprobs)
            self.over |= self.stops.met is not None
            events += self._grow(shown) if shown else []
            events += self._close(status)
        return events

    def _map(self, parsed: Sequence[ParserEvent]) -> list[Event]:
        return [event for each in parsed for event in self._on(each)]

    def _on(self, event: ParserEvent) -> list[Event]:
        if self.over:
            return []
        if not self.stops:
            return self._handle(event)
        if isinstance(event, Text):
            return self._say_up_to_stop(event.text)
        return [*self._release(), *self._handle(event)]

    def _say_up_to_stop(self, text: str) -> list[Event]:
        """White space at the beginning of an answer is not shown, so no stop string is in it."""
        begins = not (self.verbatim or self.stops.held or isinstance(self._open, Message))
        shown = self.stops.push(text.lstrip() if begins else text)
        if self.stops.met is not None:
            self.over = True
            self._pending_logprobs = _before(self.stops.rest, self._pending_logprobs)
        return self._say(Message, shown)

    def _release(self) -> list[Event]:
        """The text that was held back turns out to be no stop string."""
        return self._say(Message, self.stops.flush()) if self.stops.held else []

    def _handle(self, event: ParserEvent) -> list[Event]:
        match event:
            case Text(text):
                return self._say(Message, text)
            case Thought(text):
                self.exact = False  # the template decides whether later prompts contain it
                return self._say(Reasoning, text)
            case CallStarted(_, name):
                self._name, self._alike, self._twins = name, 0, self._calls_of(name)
                held = self._twins or self.strict.may_break(name)
                return self._close("completed") if held else self._start_call(name)
            case CallArguments(_, text) if self._twins and not self.strict.may_break(self._name):
                return self._differ(text)
            case CallArguments(_, text) if isinstance(self._open, FunctionCall):
                return self._grow(text)
            case CallFinished(_, name, arguments):
                return self._finish_call(name, arguments)
            case CallBroken(_, reason):
                return self._break(reason)
        return []  # of a dropped call

    def _say(self, kind: type[Message] | type[Reasoning], text: str) -> list[Event]:
        goes_on = isinstance(self._open, kind)
        if not self.verbatim:
            text = self._space + text if goes_on else text.lstrip()
        shown = text if self.verbatim else text.rstrip()
        if not shown:
            self._space = text if goes_on else self._space
            return []
        if self._pending_logprobs and not self.verbatim:
            self._pending_logprobs = _within(shown, self._pending_logprobs)
        begun = [] if goes_on else [*self._close("completed"), *self._start(_empty(kind))]
        self._space = text[len(shown) :]
        return begun + self._grow(shown)

    def _start_call(self, name: str) -> list[Event]:
        closed = self._close("completed")
        if len(self.calls) >= self.calls_max:
            self.exact = False
            return closed
        joined = any(call.shape.form == "mcp" for call in self.calls)
        call = FunctionCall.begun(name, self.shapes.get(name, PLAIN), joined=joined)
        return [*closed, *self._start(call)]

    def _calls_of(self, name: str) -> list[str]:
        """The arguments of the earlier calls of a function. A forced call must not be repeated: a small model that may
        write nothing but calls repeats itself."""
        return [call.arguments for call in self.calls if call.name == name] if self.forced else []

    def _differ(self, text: str) -> list[Event]:
        """The next piece of the arguments, which is held back while they are those of an earlier call."""
        first = self._twins[0]
        self._twins = [twin for twin in self._twins if twin.startswith(text, self._alike)]
        alike, self._alike = self._alike, self._alike + len(text)
        return [] if self._twins else [*self._start_call(self._name), *self._grow(first[:alike] + text)]

    def _finish_call(self, name: str, arguments: str) -> list[Event]:
        if isinstance(self._open, FunctionCall):
            return self._close("completed")
        if arguments in self._calls_of(name):
            self.repeats = self.over = True
            return []
        if not (self._twins or self.strict.may_break(name)):  # it was dropped
            return []
        if reason := self.strict.unmet(name, arguments):
            return self._break(reason)
        return [*self._start_call(name), *self._grow(arguments), *self._close("completed")]

    def _break(self, reason: str) -> list[Event]:
        """A call without a name becomes an item too: its result reports the error to the model."""
        events = [] if isinstance(self._open, FunctionCall) else [*self._start_call(UNREADABLE), *self._grow("{}")]
        if not isinstance(self._open, FunctionCall):
            return events
        self.broken[self._open.call_id] = reason
        return [*events, *self._close("failed")]

    def _start(self, item: Message | Reasoning | FunctionCall) -> list[Event]:
        if len(self.items) < len(self.known):
            id, call_id = self.known[len(self.items)]
            item = changed(item, id=id, call_id=call_id) if isinstance(item, FunctionCall) else changed(item, id=id)
        self._open, self.thinking = item, isinstance(item, Reasoning)
        self._texts, self._logprobs = [], []
        return [ItemStarted(self._index, item)]

    def _grow(self, text: str) -> list[Event]:
        item, logprobs, self._pending_logprobs = self._open, self._pending_logprobs, ()
        if item is None:
            return []
        self._texts.append(text)
        if isinstance(item, Message):
            if logprobs:
                self._logprobs += logprobs
            return [TextDelta(self.first_index + len(self.items), item.id, text, logprobs)]
        kind = ReasoningDelta if isinstance(item, Reasoning) else ArgumentsDelta  # without log probabilities
        return [kind(self._index, item.id, text)]

    def _close(self, status: Status) -> list[Event]:
        self._space = ""
        item, index = self._open, self._index
        if item is None:
            return []
        text = "".join(self._texts)
        if isinstance(item, Message):
            citations = find_citations(text, self.sources)
            item = changed(item, text=text, status=status, citations=citations, logprobs=tuple(self._logprobs))
        elif isinstance(item, Reasoning):
            item = changed(item, text=text, status=status)
        else:
            item = changed(item, arguments=text, status=status)
        self.items.append(item)
        self._open, self.thinking = None, False
        return [ItemFinished(index, item)]

    @property
    def _index(self) -> int:
        return self.first_index + len(self.items)


def _before(text: str, logprobs: tuple[TokenLogprob, ...]) -> tuple[TokenLogprob, ...]:
    """All but the last tokens, which spell the text."""
    left = len(text.encode())
    while logprobs and len(logprobs[-1].token) <= left:
        left -= len(logprobs[-1].token)
        logprobs = logprobs[:-1]
    return logprobs


def _within(text: str, logprobs: tuple[TokenLogprob, ...]) -> tuple[TokenLogprob, ...]:
    """The tokens from the first one of the text on: those before it are marks, or white space that is not shown. The
    white space that a text begins with may stand for a mark."""
    spelled = b"".join(each.token for each in logprobs)
    at = spelled.rfind(text.encode("utf-8", "replace"))
    if at < 0:
        at = spelled.rfind(text.lstrip().encode("utf-8", "replace"))
    while logprobs and at >= len(logprobs[0].token):
        at -= len(logprobs[0].token)
        logprobs = logprobs[1:]
    return logprobs


def _empty(kind: type[Message] | type[Reasoning]) -> Message | Reasoning:
    return Message("assistant", "", status="in_progress") if kind is Message else Reasoning("", status="in_progress")
