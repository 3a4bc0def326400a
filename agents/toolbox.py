"""The server's tools by name. Every failure of a tool becomes a result here; idempotent tools are retried, and results
of pure tools are cached. And what of them, and of the functions of the caller, the model may call in a turn.

A grammar constrains a step: the required format of the answer, and the calls that it must or may make. If nothing is
required, calls that the model makes on its own are constrained too, from their opening mark on: so they name an
existing tool, with arguments of its schema. Text costs nothing then, a call 5 microseconds per token.

Only in the dialect of Hermes and Qwen does one grammar hold both a call and an answer in a format. What no grammar
enforces of a schema is validated when the step has ended, and visible defects of an answer are a reason for another
model to take over.
"""

from __future__ import annotations

import asyncio
import json
import logging
import random
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any, NamedTuple
from uuid import UUID

from agents.errors import InvalidTurn
from agents.function_tool import SERVER_SEARCH, CallShape, FunctionTool
from agents.message import FunctionCallOutput, Item, Message, count_unknown, storable
from agents.parser.dialect import HERMES, Dialect, Format
from agents.tool import ServerTool, ToolContext, ToolError, TryAgain
from agents.turn import AnswerFormat, Turn, canonical
from inference.errors import InvalidSchema, SchemaUnmet
from inference.grammar import calls
from inference.grammar.calls import ANY_OBJECT, OPEN, CallableFunction, Forced, tool_grammar
from inference.grammar.conformance import check
from inference.grammar.constraint import check_productive
from inference.grammar.lark import ReasoningMarks, escaped, grammar, hollow, readable, value_of
from inference.grammar.schema import restated
from inference.lru_cache import LruCache
from inference.trace import now_ns
from retrieval.passage import Passage

log = logging.getLogger(__name__)

CUT_NOTE = "\n[cut: the result was longer]"

CHARS_MAX = 4_000_000  # of cached results
ENTRY_CHARS_MIN = 1_000  # that one counts as, so that there are 4,000 at most

# A transient network failure is over by then; the client waits for the answer, so there are no more retries.
WAITS_S = (0.1, 0.4)
JITTER = 0.5  # of a wait, at random: calls that failed together do not retry together


@dataclass(frozen=True, slots=True)
class ToolResult:
    """What the model sees. An error is a result too: it starts with "Error: "."""

    output: str
    failed: bool = False
    start_ns: int = 0
    end_ns: int = 0
    cached: bool = False  # from an earlier call

    @classmethod
    def error(cls, message: str, start_ns: int = 0) -> ToolResult:
        end_ns = now_ns()
        return cls(f"Error: {message}", True, start_ns or end_ns, end_ns)


class Key(NamedTuple):
    """`arguments` in canonical form: equal JSON is the same call."""

    tenant_id: UUID
    tool: str
    arguments: str


class CachedResult(NamedTuple):
    """Of a pure tool, until a time in monotonic nanoseconds."""

    output: str
    until_ns: int


def result_cache() -> LruCache[Key, CachedResult]:
    return LruCache(CHARS_MAX, lambda key, kept: max(len(key.arguments) + len(kept.output), ENTRY_CHARS_MIN))


class Toolbox:
    """Tools that run on the server. Raises ValueError when two have the same name."""

    def __init__(self, tools: Iterable[ServerTool] = ()) -> None:
        self._results = result_cache()
        self._tools: dict[str, ServerTool] = {}
        for each in tools:
            if each.name in self._tools:
                raise ValueError(f"two tools are named '{each.name}'")
            self._tools[each.name] = each

    def put(self, tool: ServerTool) -> None:
        """Add a tool, or replace the one of that name: tools of MCP servers change with every connection."""
        self._tools[tool.name] = tool

    def including(self, tools: Sequence[ServerTool]) -> Toolbox:
        """These tools and those of one turn, which come first."""
        if not tools:
            return self
        both = Toolbox()
        both._results, both._tools = self._results, {**self._tools, **{tool.name: tool for tool in tools}}
        return both

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self._tools)

    def repeats(self, name: str) -> bool:
        """Whether running it twice has the same effect as running it once. A tool that does not exist has none."""
        return name not in self._tools or self._tools[name].idempotent

    def schemas(self, names: Sequence[str]) -> list[dict[str, Any]]:
        return [self._tools[name].schema for name in names]

    async def run(
        self, name: str, arguments: str, context: ToolContext, *, timeout_s: float, result_chars: int
    ) -> ToolResult:
        """Run one call. Raises nothing but cancellation; `arguments` is JSON text as the model wrote it."""
        start_ns = now_ns()
        if name not in self._tools:
            return ToolResult.error(f"there is no tool named '{name}'", start_ns)
        called, key = self._tools[name], Key(context.tenant_id, name, canonical(arguments))
        if (known := self._results.get(key)) is not None and start_ns < known.until_ns:
            return ToolResult(shorten(known.output, result_chars), False, start_ns, now_ns(), cached=True)
        context = replace(context, deadline_ns=start_ns + int(timeout_s * 1e9))
        try:
            async with asyncio.timeout(timeout_s):
                output = await _attempted(called, arguments, context)
        except TimeoutError:
            return ToolResult.error(f"{name} took longer than {timeout_s:g} seconds and was stopped", start_ns)
        except ToolError as error:
            return ToolResult.error(shorten(storable(str(error)), result_chars), start_ns)
        except Exception as error:  # top-level boundary: a tool is third-party code, and the turn continues without it
            log.exception("tool %s failed", name)
            return ToolResult.error(f"{name} failed ({type(error).__name__})", start_ns)
        output, end_ns = storable(output), now_ns()
        if called.cache_s:
            self._results.put(key, CachedResult(output, end_ns + int(called.cache_s * 1e9)))
        return ToolResult(shorten(output, result_chars), False, start_ns, end_ns)


async def _attempted(called: ServerTool, arguments: str, context: ToolContext) -> str:
    """The result of the first attempt that succeeds. Only an idempotent tool is run again, and only while the next wait
    is shorter than the remaining time.

    Raises what the last attempt raised; a ToolError is the tool's answer and is not retried, unless it is TryAgain.
    """
    for wait_s in WAITS_S if called.idempotent else ():
        try:
            return await called.run(arguments, context)
        except Exception as error:  # top-level boundary: a tool is third-party code
            spread_s = wait_s * (1 + JITTER * random.random())
            if (isinstance(error, ToolError) and not isinstance(error, TryAgain)) or context.remaining_s <= spread_s:
                raise
            await asyncio.sleep(spread_s)
    return await called.run(arguments, context)


def shorten(text: str, chars_max: int) -> str:
    """The text, or the longest prefix that fits together with a note that it was cut."""
    if len(text) <= chars_max:
        return text
    return text[: max(0, chars_max - len(CUT_NOTE))] + CUT_NOTE


def fit(text: str, tokens_max: int, count: Callable[[str], int]) -> str:
    """Shorten a text until it has at most `tokens_max` tokens by `count`."""
    shown, chars = text, len(text)
    while chars > 0 and len(shown.encode()) > tokens_max and (tokens := count(shown)) > tokens_max:
        chars = chars * max(0, tokens_max) * 9 // (tokens * 10)  # token lengths vary: aim a little lower
        shown = shorten(text, chars)
    return shown


@dataclass(frozen=True, slots=True)
class AvailableTools:
    """`shown` are in the prompt, the same at every step of the turn; `schemas` are those and the ones that the items of
    the conversation add. `server` and `functions` are the names of those that may be called, `definitions` all
    functions of the caller among the schemas, `shapes` those of calls that are not told as plain function calls.
    `dialect` is that of the model that they are offered to.
    """

    server: frozenset[str]
    functions: frozenset[str]
    schemas: tuple[dict[str, Any], ...]
    shown: tuple[dict[str, Any], ...]
    definitions: tuple[FunctionTool, ...]
    shapes: Mapping[str, CallShape]
    dialect: Dialect = HERMES

    @classmethod
    def of(cls, turn: Turn, toolbox: Toolbox, dialect: Dialect = HERMES, output: Sequence[Item] = ()) -> AvailableTools:
        """`output`: what the turn has produced so far.

        Where a grammar can keep the model from calling a tool in the prompt, tools that are not allowed stay in it,
        and the prompt is the same as without the restriction. Raises InvalidTurn naming the parameter to change.
        """
        added = _added((*turn.history, *turn.input, *output))
        if not (added or _asks_for_tools(turn)):  # nearly always
            return NO_TOOLS
        given = [each for each in turn.functions if not each.deferred or _is_forced(turn, each, added)]
        server = _server_names(turn, toolbox)
        names = _distinct([*server, *(each.name for each in given)])
        added = {name: each for name, each in added.items() if name not in names}
        chosen = _chosen(turn, [*names, *added])
        if not (names or added):
            return NO_TOOLS
        allowed = frozenset(chosen if turn.allowed_tools is None else turn.allowed_tools.intersection(chosen))
        shown = set(chosen if dialect.format is Format.HERMES else allowed) - added.keys()
        if (shown or added.keys() & allowed) and not dialect.calls:
            raise InvalidTurn("The chat template of this model shows no tools: leave them out.", param="tools")
        functions = [each for each in given if each.name in shown]
        known = {each.name: each.shape for each in turn.functions}  # items do not say who runs a tool
        definitions = (*functions, *(replace(each, shape=known.get(name, each.shape)) for name, each in added.items()))
        by_server = {each.name: each.shape.by_server for each in definitions if each.name in allowed}
        prompted = (
            *toolbox.schemas([name for name in server if name in shown]),
            *(each.schema for each in functions),
        )
        shapes = {each.name: each.shape for each in definitions}
        return cls(
            server=allowed.intersection([*server, *(name for name, is_ours in by_server.items() if is_ours)]),
            functions=frozenset(name for name, is_ours in by_server.items() if not is_ours),
            schemas=(*prompted, *(each.schema for each in added.values())),
            shown=prompted,
            definitions=definitions,
            shapes=shapes | {search.name: SERVER_SEARCH for search in turn.tool_searches},
            dialect=dialect,
        )

    @property
    def callable(self) -> frozenset[str]:
        return self.server | self.functions

    @property
    def limited(self) -> bool:
        """Whether the model knows tools that may not be called."""
        return len(self.callable) < len(self.schemas)


NO_TOOLS = AvailableTools(frozenset(), frozenset(), (), (), (), {})


def _added(items: Sequence[Item]) -> dict[str, FunctionTool]:
    """The functions that items add, by name. The first definition of a name holds: the model has read it first."""
    added: dict[str, FunctionTool] = {}
    for item in items:
        if isinstance(item, (Message, FunctionCallOutput)) and item.tools:  # a union would be made anew for each
            for tool in item.tools:
                added.setdefault(tool.name, tool)
    return added


def _is_forced(turn: Turn, function: FunctionTool, added: Mapping[str, FunctionTool]) -> bool:
    """A deferred function that must be called now is in the prompt, unless the conversation has added it."""
    return function.name == turn.tool_choice and function.name not in added


def _distinct(names: list[str]) -> list[str]:
    twice = next((name for name, count in Counter(names).items() if count > 1), None)
    if twice is not None:
        raise InvalidTurn(f"Two tools are named '{twice}'.", param="tools")
    return names


def _asks_for_tools(turn: Turn) -> bool:
    chosen = turn.tool_choice not in ("auto", "none")
    return bool(turn.functions or turn.server_tools or turn.tool_searches) or chosen


def _server_names(turn: Turn, toolbox: Toolbox) -> list[str]:
    """The names of the server's tools that a turn asks for. Raises InvalidTurn if there is none of a name."""
    names = [*turn.server_tools, *(search.name for search in turn.tool_searches)]
    for name in names:
        if name not in toolbox.names:
            available = ", ".join(toolbox.names) or "none"
            raise InvalidTurn(f"There is no server tool '{name}'. Available: {available}.", param="tools")
    return names


def _chosen(turn: Turn, names: list[str]) -> list[str]:
    """A named choice offers only that tool. The grammar in `constraint` forces the call."""
    match turn.tool_choice:
        case "none":
            return []
        case "auto":
            return names
        case "required" if names:
            return names
        case name if name in names:
            return [name]
    raise InvalidTurn(f"The tool choice '{turn.tool_choice}' needs a tool that is not in `tools`.", param="tool_choice")


# Of a schema that the client did not ask to enforce, and of all such schemas together: each turn compiles them anew,
# which takes some ms for this many.
SCHEMA_CHARS_MAX = 32_000
OFFER_CHARS_MAX = 100_000
# The mark that opens a call in each dialect but that of Hermes, and the grammar of calls.
CALLS: Mapping[Format, tuple[str, Callable[[Sequence[CallableFunction], Forced | None], str]]] = {
    Format.LLAMA: (calls.PYTHON_TAG, calls.llama_calls),
    Format.MISTRAL: (calls.TOOL_CALLS, calls.mistral_calls),
    Format.QWEN_CODER: (calls.FUNCTION, calls.qwen_coder_calls),
    Format.GEMMA: (calls.GEMMA[0], calls.gemma_calls),
    Format.FUNCTION_GEMMA: (calls.FUNCTION_GEMMA[0], calls.function_gemma_calls),
    Format.HARMONY: (calls.CHANNEL, calls.harmony_calls),
}


class Extent(Enum):
    """How much of the schemas that nobody insists on is enforced."""

    POSSIBLE = "possible"  # all that a grammar can hold
    OUTLINE = "outline"  # names, types and enums
    NOTHING = "nothing"


@dataclass(frozen=True, slots=True)
class StepConstraint:
    """Without a `trigger`, the whole text is constrained. Otherwise only the calls, from that mark on, as far as
    possible.
    """

    grammar: str
    trigger: str = ""


@dataclass(frozen=True, slots=True)
class Stage:
    """The properties by which the constraints of a turn's steps differ.

    A call is forced until one is complete: the answer follows its result.
    """

    forced: bool
    calls_max: int
    thinking: bool


def constraint_of(
    turn: Turn, offer: AvailableTools, dialect: Dialect, stage: Stage, extent: Extent = Extent.POSSIBLE
) -> StepConstraint | None:
    """The constraint of a step, or None for unconstrained text. Takes milliseconds for large schemas.

    Raises InvalidSchema, and InvalidTurn for a constraint that the model's dialect does not support.
    """
    answer = _answer_schema(turn.answer_format, extent) if turn.answer_format else None
    marks = dialect.thoughts
    thought = ReasoningMarks(marks.open, marks.close, stage.thinking) if marks else None
    functions = _functions(offer, extent) if stage.calls_max else []
    if turn.answer_format and not _can_hold(dialect, tools=bool(functions)):
        raise InvalidTurn("This model cannot be held to a format here: leave it out.", param=turn.answer_format.param)
    holds = dialect.format is Format.HERMES
    if answer is not None and not (functions and holds):
        return StepConstraint(grammar("value", {"value": value_of(answer)}, thought))
    if not functions:
        return None
    limited = offer.limited or any(function.strict for function in functions)
    calls_max = stage.calls_max
    if not holds and stage.forced:
        return StepConstraint(CALLS[dialect.format][1](functions, Forced(calls_max, thought)))
    if not holds or (not stage.forced and answer is None and not limited):
        return _helping(functions, dialect.format)
    return StepConstraint(
        tool_grammar(functions, calls_max=calls_max, required=stage.forced, answer=answer, thought=thought)
    )


def _helping(functions: list[CallableFunction], format: Format) -> StepConstraint:
    """Of schemas that are too large, only the names of their functions are constrained."""
    chars = [len(json.dumps(function.parameters)) for function in functions]
    most = SCHEMA_CHARS_MAX if sum(chars) <= OFFER_CHARS_MAX else 0
    helped = [
        replace(function, parameters=ANY_OBJECT if count > most else function.parameters, strict=False)
        for function, count in zip(functions, chars, strict=True)
    ]
    if format is Format.HERMES:
        return StepConstraint(tool_grammar(helped), trigger=OPEN)
    mark, grammar_of = CALLS[format]
    return StepConstraint(grammar_of(helped, None), trigger=mark)


def _can_hold(dialect: Dialect, *, tools: bool) -> bool:
    """Harmony answers in channels, which our grammars do not cover."""
    return dialect.format is Format.HERMES or (dialect.format is not Format.HARMONY and not tools)


def _answer_schema(answer_format: AnswerFormat, extent: Extent) -> dict[str, Any]:
    """As a grammar takes it. Raises InvalidSchema for a strict one that cannot be enforced."""
    loose = not answer_format.strict
    return restated(answer_format.schema, loose=loose, outline=loose and extent is not Extent.POSSIBLE)


def _functions(offer: AvailableTools, extent: Extent) -> list[CallableFunction]:
    strict = {function.name for function in offer.definitions if function.strict}
    larks = {
        function.name: _lark(function.name, function.grammar.definition)
        for function in offer.definitions
        if function.grammar and function.grammar.syntax == "lark"
    }
    described = [schema["function"] for schema in offer.schemas]
    functions = [
        CallableFunction(each["name"], each["parameters"], each["name"] in strict, lark=larks.get(each["name"], ""))
        for each in described
        if each["name"] in offer.callable
    ]
    if extent is Extent.POSSIBLE:
        return functions
    less = {"outline": True} if extent is Extent.OUTLINE else {"parameters": ANY_OBJECT}
    return [each if each.strict else replace(each, **less) for each in functions]


def _lark(name: str, definition: str) -> str:
    """As the grammar of a call takes it. Raises InvalidTurn for one in which an input could not be completed."""
    try:
        check_productive(hollow(definition))
        return escaped(definition)
    except InvalidSchema as error:
        reason = readable(error.reason)
        raise InvalidTurn(f"The grammar of the tool '{name}' cannot be used: {reason}.", param="tools") from None


def validate(answer_format: AnswerFormat, items: Sequence[Item]) -> None:
    """Scans every text: not for the event loop. Raises SchemaUnmet."""
    for item in items:
        if isinstance(item, Message):
            check(answer_format.schema, item.text)


def defect_of(turn: Turn, sources: Sequence[Passage], said: str, *, is_whole: bool) -> str:
    """The defect of an answer, or "". `said` are the few words that may be held back, or all of a shorter answer: fast
    enough for the event loop."""
    is_mark_open = said.endswith("]") and not is_whole  # followed by "(", it would be a link
    if not is_mark_open and count_unknown(said, sources):
        return "cites what was not found"
    if is_whole and said and turn.answer_format is not None:
        try:
            validate(turn.answer_format, [Message("assistant", said)])
        except SchemaUnmet:
            return "breaks its schema"
    return ""
