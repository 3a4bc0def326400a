"""The state that a turn accumulates: output items, usage and budgets, and its end. Also that of another worker's turn,
which is decoded again from its checkpoint on, and must be what was sent.

Checkpoints are marks that are stored with the events of a turn. From one, a turn resumes after the last stored event
exactly as its lost worker would have continued it. Marks are JSON. Each contains its position, so that reading one
twice changes nothing, and a missing one is noticed.
"""

from __future__ import annotations

import zlib
from array import array
from base64 import b64decode, b64encode
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field, replace
from typing import Any, TypeVar

from agents.errors import AgentError
from agents.events import (
    STEERED,
    Event,
    ItemFinished,
    ItemStarted,
    RetrievalStarted,
    ScoredPrompt,
    SourcesFound,
    TurnFinished,
    TurnStarted,
    TurnStatus,
    Usage,
)
from agents.function_tool import PLAIN, Addition
from agents.message import (
    CallResult,
    FileSearchCall,
    FunctionCall,
    FunctionCallOutput,
    Item,
    Message,
    ToolListing,
    count_unknown,
)
from agents.payload import from_payload, to_payload
from agents.prompt import Prefetch
from agents.router import Candidate
from agents.routing.policy import DECLINED, begins_like
from agents.search import Rewriting
from agents.step import Step
from agents.tool import ToolContext
from agents.toolbox import AvailableTools, Stage
from agents.turn import WALL_CLOCK, Budget, Owner, Turn
from inference.errors import InferenceError
from inference.frozen import changed
from inference.generation import Finish, Grammar, Predicted, Spent
from inference.trace import Trace, now_ns
from retrieval.passage import Passage

T = TypeVar("T")


class CannotResume(Exception):
    """What is stored of a turn is not enough to resume it exactly on this worker. The message is for the log."""


@dataclass(slots=True)
class Checkpoint:
    """The state of a turn at the start of its newest step, and the progress of that step: the tokens `written`, the ids
    of the items that were `sent`, and the characters sent of the last one."""

    model: str = ""
    prompt: Sequence[int] = ()
    thinking: bool = False
    before: int = 0  # items of the output that precede the step
    in_prompt: int = 0
    concluding: str | None = None
    usage: Usage = field(default_factory=Usage)
    budget: Mapping[str, Any] = field(default_factory=dict)
    output: list[Item] = field(default_factory=list)
    sources: list[Passage] = field(default_factory=list)
    written: list[int] = field(default_factory=list)
    sent: Sequence[tuple[str, str]] = ()
    chars: int = 0
    finish: Finish | None = None
    ended: bool = False
    _step: int = -1

    @classmethod
    def read(cls, marks: Iterable[Mapping[str, Any]]) -> Checkpoint:
        """Raises CannotResume."""
        checkpoint = cls()
        try:
            for mark in marks:
                checkpoint._add(mark)
        except (KeyError, TypeError, ValueError, AttributeError, zlib.error) as error:
            raise CannotResume(f"a checkpoint mark cannot be read: {error!r}") from error
        if checkpoint._step < 0:
            raise CannotResume("none of its steps is known")
        return checkpoint

    def _add(self, mark: Mapping[str, Any]) -> None:
        if "step" in mark:
            self._begin(mark)
        elif "items" in mark:
            _put(self.output, mark["from"], [from_payload(item) for item in mark["items"]])
        elif "sources" in mark:
            _put(self.sources, mark["from"], [Passage(**source) for source in mark["sources"]])
        elif "written" in mark and mark["of"] == self._step:
            _put(self.written, mark["from"], mark["written"])
            self.sent = tuple((id, call_id) for id, call_id in mark["told"])
            self.chars, self.ended = mark["chars"], mark["ended"]
            self.finish = Finish(mark["finish"]) if mark["finish"] else None

    def _begin(self, mark: Mapping[str, Any]) -> None:
        used = mark["usage"]
        usage = {**used, "spent": Spent(**used["spent"]), "predicted": Predicted(**used.get("predicted", {}))}
        self.model, self.prompt, self.thinking = mark["model"], unpacked(mark["prompt"]), mark["thinking"]
        self.before, self.in_prompt, self.concluding = mark["output"], mark["in_prompt"], mark["concluding"]
        self.usage, self.budget = Usage(**usage), mark["budget"]
        if mark["step"] != self._step:
            self._step, self.written, self.sent, self.chars = mark["step"], [], (), 0
            self.finish, self.ended = None, False


def _put(row: list[T], place: int, values: Sequence[T]) -> None:
    """Raises CannotResume if entries before `place` are missing."""
    if place > len(row):
        raise CannotResume(f"{place - len(row)} entries are missing")
    row[place : place + len(values)] = values


def packed(ids: Sequence[int]) -> str:
    """Token ids in about two characters each."""
    return b64encode(zlib.compress(array("I", ids).tobytes(), 1)).decode()


def unpacked(text: str) -> list[int]:
    """The inverse of `packed`. Raises ValueError and zlib.error."""
    ids = array("I")
    ids.frombytes(zlib.decompress(b64decode(text)))
    return ids.tolist()


NOTHING_LEFT = "I could not finish that because the tool budget is used up."


@dataclass(slots=True)
class Kept:
    """How much of a turn is recorded in marks."""

    steps: int = 0
    items: int = 0
    sources: int = 0
    written: int = 0  # of the newest step


class Marks:
    """Records what is new in a turn since its last stored marks. `stored` returns once all events sent so far are."""

    def __init__(self, stored: Callable[[], Awaitable[None]]) -> None:
        self.stored = stored
        self._turn: Progress | None = None
        self._begun: list[tuple[Step, dict[str, Any]]] = []  # steps, with the state of the turn at the start of each
        self._kept = self._taken = Kept()

    def begin(self, turn: Progress) -> None:
        """Begin the next step of the turn, or that of the model that takes over a step on trial."""
        facts = {
            "model": turn.step.candidate.name,
            "thinking": turn.step.thinking,
            "output": len(turn.output),
            "in_prompt": turn.in_prompt,
            "concluding": turn.concluding,
            "usage": asdict(turn.usage),
            "budget": turn.budget.state(now_ns()),
        }
        self._turn = turn
        self._begun.append((turn.step, facts))

    def take(self) -> list[dict[str, Any]]:
        """The marks for everything new; returned again until `keep` confirms that they are stored."""
        turn, kept = self._turn, self._kept
        if turn is None:
            return []
        marks: list[dict[str, Any]] = [
            {"step": number, "prompt": packed(step.prompt), **facts}
            for number, (step, facts) in enumerate(self._begun[kept.steps :], kept.steps)
        ]
        items, sources = turn.output[kept.items :], turn.context.sources[kept.sources :]
        if items:
            marks.append({"from": kept.items, "items": list(map(to_payload, items))})
        if sources:
            marks.append({"from": kept.sources, "sources": list(map(asdict, sources))})
        self._taken = Kept(len(self._begun), len(turn.output), len(turn.context.sources))
        step = self._begun[-1][0]
        if step.is_kept:
            since = kept.written if kept.steps == len(self._begun) else 0
            marks.append(_written(len(self._begun) - 1, step, since))
            self._taken.written = step.fed
        return marks

    def keep(self) -> None:
        """The marks that were taken last are stored. Only the newest step can still change."""
        self._kept = self._taken


def _written(number: int, step: Step, since: int) -> dict[str, Any]:
    over = step.finish is not None and step.fed >= len(step.ids)
    return {
        "of": number,
        "from": since,
        "written": list(step.ids[since : step.fed]),
        "told": [[item.id, item.call_id if isinstance(item, FunctionCall) else ""] for item in step.reply.begun],
        "chars": step.reply.open_chars,
        "finish": str(step.finish) if over else None,
        "ended": step.ended,
    }


@dataclass(slots=True)
class Progress:
    """The first `in_prompt` sources of the context are in the prompt; tools may append more."""

    turn: Turn
    trace: Trace
    offer: AvailableTools
    budget: Budget
    context: ToolContext
    ahead: Prefetch  # of the step that runs
    in_prompt: int = 0
    concluding: str | None = None  # the spent budget, after which the model answers from what it has
    output: list[Item] = field(default_factory=list)
    usage: Usage = field(default_factory=Usage)
    _step: Step | None = None
    turns_dropped: int = 0  # oldest turns of the conversation, if the context was too small
    grammars: dict[tuple[str, Stage, frozenset[str]], Grammar | None] = field(default_factory=dict)  # compiled once
    query: str = ""  # of the search before the answer
    held: ExitStack = field(default_factory=ExitStack)  # keeps the models of the turn loaded
    escalations: int = 0  # steps that another model took over
    models: dict[str, Candidate] = field(default_factory=dict)  # those that the turn has used, by name
    cascade_ns: int = 0  # of engines, for work that did not become the answer: abandoned steps, unused prefills
    marks: Marks | None = None  # if another worker may resume the turn
    remembered: list[tuple[bytes, tuple[int, ...]]] = field(default_factory=list)  # exact tokens, for other workers
    needs_another_step: bool = False  # it was started by another worker, which sent its beginning
    opened: bool = False  # the sink is, so that nothing can be refused any more
    opening_sent: int = 0  # items of the output that were sent as its opening

    @property
    def step(self) -> Step:
        """The current or last step. Valid only after the first one was submitted."""
        assert self._step is not None
        return self._step

    @step.setter
    def step(self, step: Step) -> None:
        self._step = step

    def same(self, candidate: Candidate) -> Candidate:
        """The model that this turn knows by the name: it may have been replaced in the registry since."""
        return self.models.setdefault(candidate.name, candidate)

    def mark(self) -> None:
        """Record that the current step begins, for a worker that may have to resume the turn."""
        if self.marks is not None:
            self.marks.begin(self)

    @property
    def fallback(self) -> str | None:
        """Replaces an answer that would be empty: if the model wrote nothing but a call that was not allowed, its text
        is better than no answer. None: another turn answers."""
        step = self.step
        if self.turn.is_steered and step.finish is Finish.CANCELLED:
            return None
        unread = step.candidate.dialect.unthought(step.reply.written, thought=step.reply.thought)
        return NOTHING_LEFT if self.concluding else unread

    @property
    def passages(self) -> list[Passage]:
        return self.context.sources[: self.in_prompt]

    def drop_passage(self) -> None:
        """Leave out the least relevant passage. Only before the first step: later, answers may cite it."""
        del self.context.sources[self.in_prompt - 1]
        self.in_prompt -= 1

    def truncate(self, turn: Turn, turns_dropped: int) -> None:
        """Continue without the oldest turns."""
        self.turn = turn
        self.turns_dropped += turns_dropped

    def opening(self) -> list[Event]:
        if self.needs_another_step:
            return []
        tokens = self._step.generation.prompt_tokens if self._step else 0
        events: list[Event] = [] if self.opening_sent else [TurnStarted(tokens)]
        for index, item in enumerate(self.output[self.opening_sent :], self.opening_sent):
            match item:
                case FileSearchCall():
                    started = RetrievalStarted(index, replace(item, results=(), status="in_progress"))
                    events += [started, SourcesFound(index, item, tuple(self.passages))]
                case ToolListing():
                    begun = replace(item, tools=(), error="", status="in_progress")
                    events += [ItemStarted(index, begun), ItemFinished(index, item)]
        self.opening_sent = len(self.output)
        return events

    def add(self, step: Step) -> None:
        """Account for a step that has ended."""
        self.output += step.reply.items
        self._charge(self._usage(step), step.candidate)

    async def read(self) -> None:
        """Wait until the prompt of a turn that is only read has been prefilled, and account for it."""
        step = self.step
        await step.generation.stream(lambda _: None)
        step.ended = True
        self._charge(replace(self._usage(step), output_tokens=0), step.candidate)
        self.trace.attributes["firsttoken.prewarm"] = True

    def give_up(self, step: Step) -> None:
        """Account for a step that another model has taken over."""
        spent = step.generation.facts.spent + self.ahead.spent
        tokens = step.generation.prompt_tokens, step.generation.facts.cached_tokens, len(step.ids)
        self._charge_unsent(Usage(*tokens, spent=spent), step.candidate)
        self.cascade_ns += spent.engine_ns
        self.escalations += 1

    def add_hedge(self, spent: Spent, candidate: Candidate, *, took_over: bool) -> None:
        """Account for what a model prefilled in case it had to take over."""
        self._charge_unsent(Usage(spent=spent), candidate)
        self.cascade_ns += 0 if took_over else spent.engine_ns

    def add_rewriting(self, rewriting: Rewriting) -> None:
        """Account for a rewritten query."""
        self.query = rewriting.query
        if rewriting.candidate is not None:
            self._charge_unsent(rewriting.usage, rewriting.candidate)

    def _charge(self, usage: Usage, candidate: Candidate) -> None:
        self.budget.add_step(usage, candidate.own_price)
        self.usage += usage

    def _charge_unsent(self, usage: Usage, candidate: Candidate) -> None:
        """What a model computed beside the steps: its tokens cost, but are not sent."""
        self.budget.add_unused(usage, candidate.own_price)
        self.usage += Usage(spent=usage.spent)

    def record_cost(self) -> None:
        """Record in the trace what the turn cost, including an abandoned step. Call this once, at its end."""
        if not self.step.ended:
            self._charge(self._usage(self.step), self.step.candidate)
        spent, attributes = self.usage.spent, self.trace.attributes
        for name, amount in (
            ("cost", self.budget.cost),
            ("engine_ms", spent.engine_ns / 1e6),
            ("speculation_ms", spent.speculation_ns / 1e6),
            ("sight_ms", spent.sight_ns / 1e6),
            ("cascade_ms", self.cascade_ns / 1e6),
            ("tool_ms", self.budget.tool_s * 1e3),
        ):
            before = attributes.get(f"firsttoken.{name}")
            attributes[f"firsttoken.{name}"] = round(amount + (before if isinstance(before, float) else 0.0), 6)

    def _usage(self, step: Step) -> Usage:
        generation = step.generation
        return Usage(
            generation.prompt_tokens,
            self.ahead.cached(generation),
            len(step.ids),
            step.reasoning_tokens,
            generation.facts.spent + self.ahead.spent,
            step.spans.image_tokens,
            generation.facts.predicted,
        )

    def add_result(self, call: FunctionCall, output: Addition, *, failed: bool) -> list[Event]:
        """The events of a result, which is a new item, or completes that of an MCP call. The error of a call that the
        caller never saw has no shape of its own."""
        if call.shape.form == "mcp":
            index = next(index for index, item in enumerate(self.output) if item.id == call.id)
            self.output[index] = answered = replace(call, result=CallResult(output.text, failed))
            return [ItemFinished(index, answered)]
        shape = call.shape if call.shape.by_server else PLAIN
        item = FunctionCallOutput(call.call_id, output.text, shape=shape, tools=output.tools)
        self.output.append(item)
        index, started = len(self.output) - 1, replace(item, output="", tools=(), status="in_progress")
        return [ItemStarted(index, started), ItemFinished(index, item)]

    def finished(self) -> TurnFinished:
        """The last event after the last step, which either answered or reached a limit."""
        if self.turn.only_reads and self.step.finish in (Finish.STOP, Finish.LENGTH):
            return self._finished("completed")
        match self.step.finish:
            case Finish.STOP if not self.step.needs_another_step:
                return changed(self._finished("completed"), stop_string=self.step.reply.stops.met)
            case Finish.STOP | Finish.CANCELLED if self.turn.is_steered:
                return self._finished("incomplete", STEERED)
            case Finish.STOP | Finish.LENGTH:
                return self._finished("incomplete", self._cut_at)
            case Finish.DEADLINE:
                self.concluding = WALL_CLOCK
                return self._finished("incomplete", f"{self.budget.limits.seconds_by}.seconds")
            case Finish.CANCELLED:
                return self._finished("cancelled")
            case _:
                return self.failed(InferenceError("The model stopped without an answer."))

    @property
    def _cut_at(self) -> str | None:
        if self.budget.remaining_tokens > 0:
            return "context"
        owner = self.budget.limits.tokens_by
        return None if owner is Owner.REQUEST else f"{owner}.tokens"

    def failed(self, error: Exception) -> TurnFinished:
        code, message = _code_and_message(error)
        return replace(self._finished("failed"), error_code=code, error_message=message)

    def failed_before_step(self, error: Exception) -> TurnFinished:
        """The end of a turn whose first step could not begin, although it had been accepted."""
        code, message = _code_and_message(error)
        return TurnFinished("failed", tuple(self.output), self.usage, error_code=code, error_message=message)

    def _finished(self, status: TurnStatus, cut: str | None = None) -> TurnFinished:
        messages = [item for item in self.output if isinstance(item, Message)]
        self.trace.attributes |= {
            "gen_ai.usage.input_tokens": self.usage.input_tokens,
            "gen_ai.usage.output_tokens": self.usage.output_tokens,
            "firsttoken.cached_tokens": self.usage.cached_tokens,
            "firsttoken.steps": self.budget.steps,
            "firsttoken.tool_calls": self.budget.calls,
            "firsttoken.budget": self.concluding,
            **({"firsttoken.cut": cut} if cut else {}),
            **({"firsttoken.model": self.step.candidate.name} if self.step.spans.model else {}),
            **({"firsttoken.escalations": self.escalations} if self.escalations else {}),
            "firsttoken.turns_dropped": self.turns_dropped,
            **({"firsttoken.declined": begins_like(messages[-1].text, DECLINED)} if messages else {}),
            "firsttoken.citations": sum(len(message.citations) for message in messages),
            "firsttoken.citations_unknown": sum(count_unknown(m.text, self.context.sources) for m in messages),
        }
        scored = ScoredPrompt(self.step.prompt, self.step.generation.facts.scores)
        return TurnFinished(
            *(status, tuple(self.output), self.usage, cut, self.concluding),
            prompt=scored if self.turn.sampling.scores_prompt else None,
            remembered=tuple(self.remembered),
        )


def _code_and_message(error: Exception) -> tuple[str, str]:
    """Code and message. That of an unexpected error is only logged: it may contain data of others."""
    if isinstance(error, InferenceError | AgentError):
        return error.code or "server_error", str(error)
    return "server_error", "The turn failed unexpectedly."


def replay(progress: Progress, checkpoint: Checkpoint, texts: Sequence[str]) -> list[Event]:
    """Bring the turn and its newest step to where the checkpoint is; `texts` are those of the step's tokens. Returns
    the events that were sent of both. Raises CannotResume."""
    try:
        return _replayed(progress, checkpoint, texts)
    except BaseException:
        progress.step.cancel()
        raise


def _replayed(progress: Progress, checkpoint: Checkpoint, texts: Sequence[str]) -> list[Event]:
    step, output = progress.step, checkpoint.output
    before = [_item_event(index, item) for index, item in enumerate(progress.output)]
    behind = output[checkpoint.before + len(checkpoint.sent) :] if checkpoint.ended else []
    step.calls.answered, step.calls.lost = len(behind), True
    replayed = step.replay(texts)
    if checkpoint.ended:
        replayed += step.end(fallback=progress.fallback)
    step.calls.lost = False
    if (len(step.reply.begun), step.reply.open_chars) != (len(checkpoint.sent), checkpoint.chars):
        raise CannotResume("its tokens do not decode to the text that was sent")
    if checkpoint.ended:
        progress.add(step)
        progress.output += behind
    return [*before, *replayed, *(_item_event(len(output) - len(behind) + n, item) for n, item in enumerate(behind))]


def _item_event(index: int, item: Item) -> Event:
    return SourcesFound(index, item, ()) if isinstance(item, FileSearchCall) else ItemFinished(index, item)
