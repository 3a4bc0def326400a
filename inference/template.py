"""The model's own chat template, rendered so that untrusted text can never act as markup.

Everything that a caller wrote (contents, tool schemas, arguments) goes through the template as an opaque mark; then the
rendered text is cut at the marks. What the template wrote is trusted, what a mark stands for is not.
"""

from __future__ import annotations

import json
import re
import secrets
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from itertools import count, pairwise
from typing import Any, NoReturn, TypeAlias

import jinja2
import jinja2.meta
from jinja2 import nodes
from jinja2.ext import Extension
from jinja2.parser import Parser

from inference.errors import InvalidTemplate
from inference.message_fitting import Capabilities, TemplateMessage, fit
from inference.prompt import NO_OPTIONS, ChatMessage, Part, Rendered, Segment, ToolCall, Value
from inference.template_probe import ASK, openings, probe
from inference.template_sandbox import WORK, Sandbox, Work

# Markup needs brackets, bars or the like. Text of only these characters is harmless, and templates compare it
# ("type" == "string"), so it is passed as it is.
_PLAIN = re.compile(r"[\w\s.,:;?!()'\"/+*=%&-]*")

# What may be a mark: `_Marks` knows its own by their nonce. A pattern with the nonce would be compiled for each prompt,
# which takes longer than the template, and would drive others out of the cache of patterns.
_MARK = re.compile(r"(\x02[0-9a-f]{16}:\d+\x03?)")

OURS = frozenset({"messages", "tools", "__marks"})  # variables that every prompt sets
# Of a prompt: as many as a template needs that looks at all messages for each of a thousand. They take 0.1 s.
ITERATIONS_MAX = 1_000_000
PROBE_ITERATIONS_MAX = 20_000  # of a few short messages
ANY = "<any>"  # stands for any system message
CALL_ID_CHARS = 9  # Mistral's templates accept no other length
# What to do about a template that takes no conversation.
INSTEAD = (
    "choose another file of this model, or another model (`firsttoken models list`); variables that it misses can be "
    "set by `switches` in models.toml, or by the `chat_template_kwargs` of a request"
)
# Of the markup that is kept by the shape of its conversation, for all tenants: no text of a message is in it.
SHAPES_MAX = 256
SHAPE_CHARS_MAX = 20_000  # all of it, and what it is found by, takes some 10 MB
SHAPED_MESSAGES_MAX = 100  # longer ones seldom have the same shape again
# All that a template can tell apart of messages without calls, as their texts are marks to it.
_Shape: TypeAlias = tuple[object, ...]


# The tokens of an assistant message that this model generated for the same tenant; None for any other.
Exact: TypeAlias = Callable[[ChatMessage], tuple[int, ...] | None]


class _Marks:
    """Stands in for untrusted text while a template runs. The nonce prevents anyone from forging a mark."""

    def __init__(self, nonce: str) -> None:
        self._nonce = nonce
        self._segments: dict[str, Segment] = {}

    def __len__(self) -> int:
        return len(self._segments)

    def keep(self, segment: Segment) -> str:
        mark = f"\x02{self._nonce}:{len(self._segments)}\x03"
        self._segments[mark] = segment
        return mark

    def put(self, text: str, part: Part) -> str:
        return self.keep(Segment(text, False, part=part))

    def written(self, segments: Sequence[Segment]) -> str:
        """Texts for the template: what is trusted in them as it is."""
        return "".join(segment.text if segment.trusted else self.keep(segment) for segment in segments)

    def shield(self, value: Any, part: Part) -> Any:
        """The same JSON value with every string that could be markup replaced by a mark, including keys."""
        if isinstance(value, str):
            return value if _PLAIN.fullmatch(value) else self.put(value, part)
        if isinstance(value, Mapping):
            return {self.shield(key, part): self.shield(item, part) for key, item in value.items()}
        return [self.shield(item, part) for item in value] if isinstance(value, list | tuple) else value

    def unshield(self, value: Any) -> Any:
        if isinstance(value, str):
            return _MARK.sub(lambda mark: self._segment(mark[0], Part.TOOLS).text, value)
        if isinstance(value, Mapping):
            return {self.unshield(key): self.unshield(item) for key, item in value.items()}
        return [self.unshield(item) for item in value] if isinstance(value, list | tuple) else value

    def put_in(self, pieces: Sequence[str]) -> list[Segment]:
        """What a template wrote, cut at the marks. Its own text belongs to the part that it introduces; at the end, to
        the part that it closes."""
        segments: list[Segment] = []
        part = self._last
        for piece in reversed(pieces):
            segments.append(self._segment(piece, part))
            part = segments[-1].part
        return [segment for segment in reversed(segments) if segment.text or segment.ids or segment.picture]

    @property
    def _last(self) -> Part:
        return next(reversed(self._segments.values())).part if self._segments else Part.QUESTION

    def _segment(self, piece: str, part: Part) -> Segment:
        if (clipped := self._segments.get(piece + "\x03")) is not None:
            # The template cut off the last character to continue inside a JSON object (Mistral's do).
            return Segment(clipped.text[:-1], trusted=False, part=clipped.part)
        return self._segments.get(piece) or Segment(piece, trusted=True, part=part)


class _Arguments(dict[str, Any]):
    """Arguments of a call: a mapping for templates that iterate it, the model's own JSON for those that dump it."""

    def __init__(self, call: ToolCall, marks: _Marks, part: Part) -> None:
        try:
            parsed = json.loads(call.arguments)
            shielded = marks.shield(parsed, part) if isinstance(parsed, dict) else {}
        except (ValueError, RecursionError):  # not JSON, or nested too deep for Python
            shielded = {}
        super().__init__(shielded)
        self._text, self._part = call.arguments, part  # names that no template can say


@jinja2.pass_context
def _tojson(context: jinja2.runtime.Context, value: Any, **_options: Any) -> str:
    """Plain JSON as in the models' training data, without the HTML escaping of Jinja's own filter."""
    marks: _Marks = context["__marks"]
    if isinstance(value, _Arguments):
        return marks.put(value._text, value._part)
    return marks.put(json.dumps(marks.unshield(value), ensure_ascii=False), Part.TOOLS)


def _reject(message: str) -> NoReturn:
    raise InvalidTemplate(f"the model's chat template rejects these messages: {message}")


class _Generation(Extension):
    """The block that says which text the model learns to write. It matters in training alone."""

    tags = {"generation"}  # noqa: RUF012 (the base class declares it so)

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class ChatTemplate:
    """Compiled and probed once. Raises InvalidTemplate if the model has none or it does not compile."""

    def __init__(self, source: str | None, *, bos: str = "", eos: str = "") -> None:
        if not source:
            raise InvalidTemplate("this model has no chat template, so it cannot be used for chat")
        environment = Sandbox(trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols", _Generation])
        environment.globals["raise_exception"] = _reject
        environment.globals["strftime_now"] = lambda pattern: datetime.now().strftime(pattern)
        environment.filters["tojson"] = _tojson
        self._variables = {"bos_token": bos, "eos_token": eos, "add_generation_prompt": True}
        # The nonce of the marks and the pieces, by the shape of the messages. Threads share it: each access is atomic.
        self._written: dict[_Shape | None, tuple[str, Sequence[str]]] = {}
        self._varies = "strftime_now" in source or "random" in source
        try:
            tree = environment.parse(source)
            read = jinja2.meta.find_undeclared_variables(tree)
            code = environment.compile(environment.bounded(tree))
        except (jinja2.TemplateError, RecursionError) as error:
            raise InvalidTemplate(f"the model's chat template does not compile: {error}") from error
        self._template = jinja2.Template.from_code(environment, code, dict(environment.globals))
        self.switches = frozenset(read - OURS - self._variables.keys() - environment.globals.keys())
        self.capabilities = probe(self._tried)
        self.openings = openings(self._tried, self.capabilities) if self.capabilities.chats else frozenset()
        self.fault = "" if self.capabilities.chats else self._fault()  # why it takes no conversation

    def render(
        self,
        messages: Sequence[ChatMessage],
        tools: Sequence[Mapping[str, Any]] = (),
        exact: Exact | None = None,
        switches: Mapping[str, Value] = NO_OPTIONS,
    ) -> Rendered:
        """The prompt up to where the assistant's answer begins. `switches` sets some of `self.switches`.

        Messages that the template does not take are rewritten: see `message_fitting`. Messages whose tokens `exact`
        returns are rendered with these instead of their text. Raises InvalidTemplate if the template rejects the
        messages all the same.
        """
        given = [
            TemplateMessage.of(message, part, exact(message) if exact is not None else None)
            for message, part in zip(messages, _parts(messages), strict=True)
        ]
        try:
            return self._fitted(given, tools, switches, self.capabilities)
        except InvalidTemplate as error:  # for a reason that the probe did not foresee
            try:
                return self._fitted(given, tools, switches, self.capabilities.least)
            except InvalidTemplate:
                raise error from None

    def _fitted(
        self,
        given: Sequence[TemplateMessage],
        tools: Sequence[Mapping[str, Any]],
        switches: Mapping[str, Value],
        can: Capabilities,
    ) -> Rendered:
        messages, rewrites = fit(given, tools, can)
        return Rendered(self._rendered(messages, tools if can.tools else (), can, switches), rewrites)

    def _tried(self, messages: Sequence[TemplateMessage], tools: Sequence[Mapping[str, Any]], can: Capabilities) -> str:
        segments = self._rendered(messages, tools, can, iterations_max=PROBE_ITERATIONS_MAX)
        return "".join(segment.text for segment in segments)

    def _rendered(
        self,
        messages: Sequence[TemplateMessage],
        tools: Sequence[Mapping[str, Any]],
        can: Capabilities,
        switches: Mapping[str, Value] = NO_OPTIONS,
        iterations_max: int | None = None,
    ) -> list[Segment]:
        given = {name: switches[name] for name in switches if name in self.switches}
        shape = None if tools or self._varies else _shape(messages, given, can)
        nonce, pieces = self._written.get(shape) or (secrets.token_hex(8), None)
        marks = _Marks(nonce)
        switched = marks.shield(given, Part.SYSTEM)
        shown = [_message(message, marks, can) for message in messages]
        if pieces is not None:
            return marks.put_in(pieces)
        _number_calls(messages, shown, marks)
        made = len(marks)
        variables = {
            "messages": shown,
            # Some introduce even an empty list.
            "tools": marks.shield(list(tools), Part.TOOLS) if tools or can.lists_tools else None,
            "__marks": marks,
            WORK: Work(iterations_max or ITERATIONS_MAX),
        }
        try:
            pieces = _MARK.split(self._template.render(switched | variables | self._variables))
        except InvalidTemplate:
            raise
        except Exception as error:  # a template is foreign code: whatever it raises, these messages do not suit it
            raise InvalidTemplate(f"the model's chat template fails on these messages: {error}") from error
        # Nothing of a text was written as JSON.
        if shape is not None and len(marks) == made and sum(map(len, pieces)) <= SHAPE_CHARS_MAX:
            if len(self._written) >= SHAPES_MAX:
                self._written.clear()
            self._written[shape] = nonce, pieces
        return marks.put_in(pieces)

    def _fault(self) -> str:
        try:
            self._tried([TemplateMessage.of(ASK, Part.QUESTION)], (), self.capabilities)
        except InvalidTemplate as error:
            return str(error)
        return "the model's chat template drops messages, or changes their order"

    def default_system(self) -> str:
        """The system text that a prompt without a system message has; empty if none is found. Not cached: it may have
        the date."""
        question = ChatMessage("user", "?")
        try:
            told = _text(self.render([ChatMessage("system", ANY), question]))
            bare = _text(self.render([question]))
        except InvalidTemplate:
            return ""
        before, _, behind = told.partition(ANY)
        is_there = len(before) + len(behind) <= len(bare) and bare.startswith(before) and bare.endswith(behind)
        return bare[len(before) : len(bare) - len(behind)].strip() if is_there else ""


def _shape(messages: Sequence[TemplateMessage], switches: Mapping[str, Value], can: Capabilities) -> _Shape | None:
    """The same for messages that a template renders alike; None where it sees more of them than marks."""
    if len(messages) > SHAPED_MESSAGES_MAX or len(given := repr(switches)) > SHAPE_CHARS_MAX:
        return None
    seen: list[object] = [can.content_parts, can.lists_tools, given]  # as text, where 1 is not True
    for message in messages:
        if message.calls:
            return None
        seen.append(message.role)
        for part in (message.content, message.reasoning):
            seen.append(tuple([each.text if each.trusted else each.picture is None for each in part]))
    return tuple(seen)


def _text(segments: Sequence[Segment]) -> str:
    return "".join(segment.text for segment in segments)


def _parts(messages: Sequence[ChatMessage]) -> list[Part]:
    """The part that each message belongs to."""
    roles = [message.role for message in messages]
    question = max((i for i, role in enumerate(roles) if role == "user"), default=len(roles))
    parts = [Part.HISTORY if i < question else Part.RESULTS for i in range(len(roles))]
    if question < len(roles):
        parts[question] = Part.QUESTION
    if roles[:1] == ["system"]:
        parts[0] = Part.SYSTEM
    return parts


def _message(message: TemplateMessage, marks: _Marks, can: Capabilities) -> dict[str, Any]:
    content: Any = marks.written(message.content)
    if can.content_parts:
        content = [{"type": "text", "text": marks.written(part)} for part in _content_parts(message.content)]
    shown: dict[str, Any] = {"role": message.role, "content": content}
    if message.reasoning:
        reasoning = shown["reasoning_content"] = marks.written(message.reasoning)
        if not message.content:
            shown["thinking"] = reasoning  # gpt-oss: its template refuses both together
    if message.calls and not message.is_exact:
        shown["tool_calls"] = [_call(call, marks, message.part) for call in message.calls]
    return shown


def _content_parts(content: Sequence[Segment]) -> list[Sequence[Segment]]:
    """The content as the caller's parts: pictures, and the texts between them."""
    pictures = [at for at, segment in enumerate(content) if segment.picture]
    if not pictures:
        return [content]
    cuts = [0, *sorted({*pictures, *(at + 1 for at in pictures)}), len(content)]
    return [content[begin:end] for begin, end in pairwise(cuts) if begin < end]


def _call(call: ToolCall, marks: _Marks, part: Part) -> dict[str, Any]:
    function = {"name": marks.shield(call.name, part), "arguments": _Arguments(call, marks, part)}
    return {"type": "function", "function": function}


def _number_calls(messages: Sequence[TemplateMessage], shown: Sequence[dict[str, Any]], marks: _Marks) -> None:
    """Give calls and results the ids and names that some templates require. Results are in the order of calls."""
    numbers = count()
    waiting: deque[tuple[str, str]] = deque()
    for message, each in zip(messages, shown, strict=True):
        ids = [f"{next(numbers):0{CALL_ID_CHARS}d}" for _ in message.calls]
        for id, call in zip(ids, each.get("tool_calls", ()), strict=False):
            call["id"] = id
        waiting += zip(ids, (call.name for call in message.calls), strict=True)
        if message.role == "tool" and waiting:
            each["tool_call_id"], name = waiting.popleft()
            each["name"] = marks.shield(name, Part.RESULTS)
