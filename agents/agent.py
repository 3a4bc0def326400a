"""The agent loop: assemble a prompt, generate, run the tools that the model called, repeat until there is an answer.

A turn can be refused only before its first event. From then on it always ends with TurnFinished, unless the task is
cancelled: that cancels the generation and the tools at once. Results are awaited in the order of their calls, and read
by the engine as they come.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack, nullcontext, suppress
from dataclasses import replace
from functools import partial

from agents.answer_cache import AnswerCache, CachedAnswer
from agents.errors import AgentError, Interrupted, InvalidTurn
from agents.events import ArgumentsDelta, Event, EventSink, ItemFinished, ItemStarted, TurnFinished
from agents.function_tool import SERVER_SEARCH, Addition, CallShape
from agents.inflight import InFlight
from agents.message import FunctionCall, FunctionCallOutput, Message, new_id
from agents.opener import StepStarter, TurnOpener
from agents.progress import CannotResume, Checkpoint, Marks, Progress, replay
from agents.prompt import Prefetch, answer_message, assemble, before_missing
from agents.prompt_builder import DecodePicture, PromptBuilder
from agents.router import Candidate, ModelRegistry, Router
from agents.search import best_within, passage_tokens_max
from agents.step import Pending, RunningCalls, add_tool, report_position, settled, takes_long
from agents.step_on_trial import StepOnTrial, run_on_trial
from agents.toolbox import Toolbox, ToolResult, fit, validate
from agents.tools.tool_search import loaded
from agents.turn import FREE, Prices, Turn
from inference.errors import InferenceError, InvalidSchema, TextTooLong
from inference.generation import Finish, Generation, Priority
from inference.language_model import LanguageModel
from inference.prompt import Segment
from inference.tokenizer import count_all
from inference.trace import Span, Trace, now_ns
from retrieval.passage import Passage
from retrieval.query import Searcher
from retrieval.speculative_search import ReadDraft

log = logging.getLogger(__name__)


ANSWERED_MAX = 16  # a model that is that busy reads nothing ahead


class Agent:
    """`turns` are the turns in progress. One that is interrupted fails and keeps its output so far. `answered` are
    those for `read_answered`, once their ends are told."""

    def __init__(
        self,
        model: LanguageModel | ModelRegistry,
        retriever: Searcher | None,
        toolbox: Toolbox,
        prices: Prices = FREE,
        answers: AnswerCache | None = None,
        decode_picture: DecodePicture | None = None,
        is_free: Callable[[], bool] = lambda: True,
    ) -> None:
        """`answers` are reused for identical prompts; None: no cache. `is_free`: whether no request waits for a
        model."""
        model_registry = model if isinstance(model, ModelRegistry) else ModelRegistry.of(model)
        self._router = Router(model_registry)
        self._prompts = PromptBuilder(toolbox, decode_picture)
        self._opener = TurnOpener(self._prompts, self._router, retriever, prices)
        self._starter = StepStarter(self._prompts, answers, names_models=len(model_registry.candidates) > 1)
        self._is_free = is_free
        self.answered: asyncio.Queue[Turn] = asyncio.Queue(ANSWERED_MAX)
        self.turns = InFlight()

    async def run(self, turn: Turn, trace: Trace, sink: EventSink, marks: Marks | None = None) -> TurnFinished:
        """Write the events of one turn to the sink and return the last one. `marks` record its checkpoints.

        Raises before the first event only: InvalidTurn, StoreNotFound, PromptTooLong, QueueFull, Late, EngineStopped,
        Interrupted, and what `sink.open` raises.
        """
        approved: Sequence[FunctionCall] = ()
        with ExitStack() as held:
            with self.turns.track():
                likely = self._router.likely(turn)
                await likely.ready(trace, held)
                with Prefetch(likely.model, trace) as ahead:
                    progress = await self._opener.open(turn, trace, ahead, likely)
                    progress.held, progress.marks = held, marks
                    progress.same(likely)
                    for server in turn.servers:
                        held.callback(server.close)
                    if turn.only_reads:
                        progress.step = await self._starter.start_reading(progress, likely)
                    elif not (approved := approved_calls(turn)):
                        await self._next(progress)
            if approved:
                return await self._run_approved(approved, progress, likely, sink)
            return await self._run_begun(progress, sink)

    async def resume(
        self,
        turn: Turn,
        trace: Trace,
        sink: EventSink,
        checkpoint: Checkpoint,
        marks: Marks,
        recall: Callable[[Sequence[Event]], None],
    ) -> TurnFinished:
        """Resume a turn from its checkpoint, otherwise like `run`. `recall` gets the earlier events that later ones
        depend on.

        Also raises CannotResume, for instance if the model of this worker tokenizes differently.
        """
        with ExitStack() as held:
            with self.turns.track():
                candidate = self._router.model_registry.candidates.get(checkpoint.model)
                if candidate is None:
                    raise CannotResume(f"there is no model {checkpoint.model} here")
                await candidate.ready(trace, held)
                with Prefetch(candidate.model, trace) as ahead:
                    progress = self._opener.reopen(turn, trace, checkpoint, candidate, ahead)
                    progress.held, progress.marks = held, marks
                    progress.same(candidate)
                    texts = await self._starter.restart(progress, candidate, checkpoint)
                    events = replay(progress, checkpoint, texts)
                    progress.mark()
            recall(events)
            return await self._run_begun(progress, sink)

    async def _run_approved(
        self, calls: Sequence[FunctionCall], progress: Progress, likely: Candidate, sink: EventSink
    ) -> TurnFinished:
        """A turn that begins with calls. They must not run twice, so nothing refuses it from here on."""
        await sink.open()
        progress.opened = True
        try:
            with self.turns.track(), Prefetch(likely.model, progress.trace) as progress.ahead:
                sink.write(progress.opening())
                await run_approved(calls, progress, self._prompts, likely, sink)
                await self._next(progress)
            return await self._run_begun(progress, sink)
        except Exception as error:  # top-level boundary: any failure of a started turn becomes its last event
            if not isinstance(error, InferenceError | AgentError):
                log.exception("turn failed")
            finished = progress.failed_before_step(error)
            sink.write([finished])
            return finished

    async def _run_begun(self, progress: Progress, sink: EventSink) -> TurnFinished:
        try:
            with self.turns.track():
                await progress.step.generation.admitted()
            if not progress.opened:
                await sink.open()
            finished = await self._run_steps(progress, sink)
            sink.write([finished])
            if finished.status in ("completed", "incomplete"):
                self._keep_answered(progress)
            return finished
        finally:
            progress.step.cancel()
            progress.record_cost()

    def _keep_answered(self, progress: Progress) -> None:
        turn, last = progress.turn, next(reversed(progress.output), None)
        asks_again = progress.in_prompt and isinstance(last, Message) and turn.priority < Priority.BATCH
        if asks_again and not self.answered.full():
            history = (*turn.history, *turn.input, *progress.output)
            self.answered.put_nowait(replace(turn, history=history, input=()))

    async def read_answered(self, turn: Turn) -> None:
        """Prefill an answered question as the next prompt will contain it: without its passages, so that whatever
        followed them has other places there. Otherwise the next question waits for that."""
        if self._is_free():
            with suppress(InferenceError, AgentError):  # what keeps it from being read is told to the next turn
                await self.warm(turn)

    async def _run_steps(self, progress: Progress, sink: EventSink) -> TurnFinished:
        try:
            sink.write(progress.opening())
            with (
                self.turns.track(),
                report_position(progress.step, sink) if progress.turn.reports_position else nullcontext(),
            ):
                await self._go_on(progress, sink)
            return progress.finished()
        except Exception as error:  # top-level boundary: any failure of a started turn becomes its last event
            if not isinstance(error, InferenceError | Interrupted):
                log.exception("turn failed")
            self._end(progress, sink)
            return progress.failed(error)

    async def _go_on(self, progress: Progress, sink: EventSink) -> None:
        """Run steps until the model answers or the budget is exhausted."""
        if progress.turn.only_reads:
            return await progress.read()
        while True:
            if not progress.step.ended:
                if isinstance(progress.step, StepOnTrial):
                    await run_on_trial(progress, progress.step, self._prompts.unshortened, self._starter.start, sink)
                else:
                    await progress.step.run(sink)
            step = progress.step
            self._end(progress, sink)
            with Prefetch(step.candidate.model, progress.trace) as progress.ahead:
                await take_results(progress, self._prompts, sink)
                if step.needs_another_step and progress.turn.is_steered:
                    return None
                if not step.needs_another_step or progress.budget.remaining_tokens <= 0:
                    return await self._validate_output(progress)
                progress.concluding = progress.budget.spent(now_ns())
                await sink.drain()
                await self._next(progress)

    async def _next(self, progress: Progress) -> None:
        """Choose the model of the next step and submit it. Raises what `StepStarter.start` raises."""
        decision = self._router.decide(
            progress.turn,
            progress.output,
            offers_tools=bool(progress.offer.callable) and not progress.concluding,
            documents=progress.in_prompt,
            step=progress.budget.steps,
            trace=progress.trace,
        )
        candidate = progress.same(self._router.candidate(decision.model))
        if decision.is_trial:  # the turn holds it from here on, even if the models are reloaded
            progress.same(self._router.candidate(decision.fallback))
        progress.step = await self._starter.start(progress, candidate, decision)
        progress.mark()

    async def _validate_output(self, progress: Progress) -> None:
        """Raises SchemaUnmet for a complete answer that violates a part of its schema that no grammar enforces."""
        step, form = progress.step, progress.turn.answer_format
        if step.finish is Finish.STOP and form is not None:
            await asyncio.to_thread(validate, form, step.reply.items)

    def _end(self, progress: Progress, sink: EventSink) -> None:
        """Close the step's items and account for it. Idempotent."""
        step = progress.step
        if step.ended:
            return
        sink.write(step.end(fallback=progress.fallback))
        progress.add(step)
        hurried = progress.turn.answer_now is not None and progress.turn.answer_now.wanted
        if hurried:
            progress.trace.attributes["firsttoken.answer_now"] = True
        if step.cache_answer and step.is_whole and step.finish not in (None, Finish.CANCELLED) and not hurried:
            step.cache_answer(CachedAnswer("".join(step.generated), tuple(step.ids), step.finish))
        self._router.learn(step.candidate, progress.turn, step.reply.items, step.generation)
        reply = step.reply
        if reply.exact and reply.items and not progress.turn.stop:  # the ids contain the stop string, the text does not
            message = answer_message(reply.items)
            digest = step.candidate.model.remember(message, step.said_ids, salt=progress.turn.salt)
            if digest is not None:
                progress.remembered.append((digest, tuple(step.said_ids)))

    def unknown(self, turn: Turn) -> Mapping[bytes, Candidate]:
        """The digests of its turns whose exact tokens another worker may know, and this one does not, each with the
        model that would have written it. Raises InvalidTurn."""
        sharing = [each for each in self._router.named(turn) if each.model.shares_turns]
        if not sharing or turn.prompt:
            return {}
        messages = assemble(turn)
        return {digest: each for each in sharing for digest in each.model.unknown(messages, salt=turn.salt)}

    def learn(
        self, turn: Turn, unknown: Mapping[bytes, Candidate], turns: Iterable[tuple[bytes, tuple[int, ...]]]
    ) -> None:
        """Take the tokens that other workers had for them: the model that wrote the last turn has the conversation in
        its cache."""
        newest = {candidate.name: digest for digest, candidate in unknown.items()}  # they come oldest first
        for digest, ids in turns:
            candidate = unknown[digest]
            candidate.model.learn([(digest, ids)])
            if digest == newest[candidate.name]:
                self._router.wrote(turn, candidate)

    def repeats(self, turn: Turn) -> bool:
        """Whether all that the turn may call on the server may run twice."""
        tools = self._prompts.tools_of(turn)
        of_servers = (tool.name for server in turn.servers for tool in server.tools)
        return all(map(tools.repeats, (*turn.server_tools, *of_servers)))

    async def count(self, turn: Turn) -> int:
        """Tokens of the first prompt of this turn, without passages.

        Raises InvalidTurn, InvalidTemplate, TextTooLong.
        """
        return len(await self.tokens(turn))

    async def count_all(self, turn: Turn) -> int:
        """The same, however long the prompt is: takes a thread a second for each megabyte."""
        progress, likely = await self._unread(turn)
        segments, model = await self._prompts.segments(progress, likely), likely.model
        return await asyncio.to_thread(count_all, segments, model.tokenize, model.encode([Segment("", trusted=True)]))

    async def tokens(self, turn: Turn) -> list[int]:
        """The first prompt of this turn, without passages. Raises InvalidTurn, InvalidTemplate, TextTooLong."""
        return (await self._prompts.build(*await self._unread(turn)))[1]

    async def _unread(self, turn: Turn, passages: Sequence[Passage] = ()) -> tuple[Progress, Candidate]:
        """The turn before its first step, with these passages, and the model that would likely run it."""
        trace, likely = Trace(), self._router.likely(turn)
        unread = Prefetch(likely.model, trace)
        return await self._opener.open(turn, trace, unread, likely, passages), likely

    async def warm(self, turn: Turn) -> Generation | None:
        """Prefill what precedes the next question, if that helps; this turn has no question yet. Starts to load a model
        that is not loaded.

        Raises InvalidTurn, InvalidTemplate.
        """
        asked = replace(turn, input=(*turn.input, Message("user", "?")))
        likely = self._router.likely(asked)
        if likely.on_demand is not None:
            likely.on_demand.foresee()
        prefix = await self._prompts.prefix(asked, likely)
        return likely.model.prefill_ahead(prefix, salt=turn.salt, exact=turn.sampling.deterministic)

    async def read_draft(self, turn: Turn, passages: Sequence[Passage]) -> ReadDraft | None:
        """Prefill the prompt of a question that may still change, with those of its passages that can be read until the
        turn is due, if that helps.

        Raises InvalidTurn, InvalidTemplate, TextTooLong.
        """
        if self._router.rewriter(turn) is not None:
            return None  # the turn may search for another question, and find other passages
        token_s = self._router.likely(turn).model.prefill_token_s
        passages = best_within(passages, passage_tokens_max(turn, now_ns(), token_s))
        progress, likely = await self._unread(turn, passages)
        prompt = (await self._prompts.build(progress, likely))[1]
        reading = likely.model.prefill_ahead(prompt, salt=turn.salt, exact=turn.sampling.deterministic)
        return ReadDraft(passages, reading) if reading is not None else None

    async def share(self, turn: Turn, only: Candidate | None = None) -> Generation | None:
        """Let all tenants share the prefix of turns like this one, which comes from the configuration and contains no
        data of a tenant, and prefill it, if that helps: on all models that may run a step of it, or `only` on one that
        is about to be among them. Compiles its grammar once, as the first compilation of a process takes longest.
        Raises InvalidTurn, InvalidTemplate.
        """
        asked = replace(turn, input=(Message("user", "?"),))
        likely, reading = only or self._router.likely(asked), None
        named = self._router.named(asked)
        if only is not None:
            is_known = only.name in self._router.model_registry.candidates
            named = [only] if only.name in [each.name for each in named] or not is_known else []
        for candidate in named:
            prefix = await self._prompts.prefix(asked, candidate)
            candidate.model.share(prefix)
            read = candidate.model.prefill_ahead(prefix, salt=turn.salt)
            reading = read if candidate is likely else reading
        with suppress(InvalidTurn, InvalidSchema):  # its turns will say so
            await self._starter.sampling((await self._unread(asked))[0], likely, thinking=False)
        return reading


async def take_results(progress: Progress, prompts: PromptBuilder, sink: EventSink) -> None:
    """Wait for the results of the step's calls and write them, in the order of the calls."""
    step = progress.step
    calls = step.calls.pending
    if not calls:
        return
    with progress.trace.span("tools", calls=len(calls)) as span:
        for number, (call, pending) in enumerate(calls):
            if number < step.calls.answered:
                continue
            if number and step.needs_another_step and await takes_long(pending):
                await _read_ahead(progress, prompts, missing=len(calls) - number)
            result = await _settled(progress, span, call, pending)
            read = await _read_by_model(progress, call, result)
            sink.write(progress.add_result(call, read, failed=result.failed))


async def _settled(progress: Progress, span: Span, call: FunctionCall, pending: Pending) -> ToolResult:
    """The result of a call, as soon as there is one. Its time is told within the span, and paid for."""
    result = await settled(pending)
    add_tool(progress.trace, span, call, result)
    progress.budget.add_call(call.name, max(0, result.end_ns - result.start_ns) / 1e9)
    return result


def approved_calls(turn: Turn) -> list[FunctionCall]:
    """The calls that the request allows, and that nothing has answered. One that has run follows its request, under the
    same id."""
    if not turn.approved:
        return []
    said = (*turn.history, *turn.input)
    denied = {item.call_id for item in said if isinstance(item, FunctionCallOutput) and not item.approves}
    newest = {item.call_id: item for item in said if isinstance(item, FunctionCall) and item.runs}
    return [
        replace(call, id=new_id("mcp"), shape=CallShape("mcp", call.shape.namespace, by_server=True), joined=False)
        for id, call in newest.items()
        if id in turn.approved - denied and call.shape.form == "mcp_approval"
    ]


async def run_approved(
    calls: Sequence[FunctionCall], progress: Progress, prompts: PromptBuilder, candidate: Candidate, sink: EventSink
) -> None:
    """Run the calls that the user has approved, all at once, and write their items. The model reads their results in
    the first prompt, at most half of it."""
    tools, model = prompts.tools_of(progress.turn), candidate.model
    offered = frozenset(tool.name for server in progress.turn.servers for tool in server.tools)
    stored = progress.marks.stored if progress.marks else None
    running = RunningCalls(tools, offered, progress.context, progress.budget, stored=stored)
    fit_in = partial(fit, tokens_max=model.context_length // (2 * len(calls)))
    count = partial(model.count, salt=progress.turn.salt)
    try:
        with progress.trace.span("tools", calls=len(calls)) as span:
            for call in calls:
                running.start(call)
                index, begun = len(progress.output), replace(call, arguments="", status="in_progress")
                delta = ArgumentsDelta(index, call.id, call.arguments)
                sink.write([ItemStarted(index, begun), delta, ItemFinished(index, call)])
                progress.output.append(call)
            progress.opening_sent = len(progress.output)
            for call, pending in running.pending:
                result = await _settled(progress, span, call, pending)
                read = Addition(fit_in(result.output, count=count), ())
                sink.write(progress.add_result(call, read, failed=result.failed))
    finally:
        running.cancel()


async def _read_ahead(progress: Progress, prompts: PromptBuilder, missing: int) -> None:
    """Prefill the results that are available, while tools whose results follow them still run."""
    turn, candidate = progress.turn, progress.step.candidate
    segments = await prompts.render(turn, candidate, progress.output, progress.passages)
    with suppress(TextTooLong):
        prefix = await prompts.encode(before_missing(segments, missing), candidate, turn.salt)
        progress.ahead.read(prefix, salt=turn.salt, exact=turn.sampling.deterministic)


async def _read_by_model(progress: Progress, call: FunctionCall, result: ToolResult) -> Addition:
    """What the model reads of a result, cut to its share of the free context, and the tools that it adds."""
    step, model = progress.step, progress.step.candidate.model
    used = step.generation.prompt_tokens + len(step.ids) + step.candidate.answer_tokens
    share = (model.context_length - used) // len(step.calls.pending)
    count = partial(model.count, salt=progress.turn.salt)
    if call.shape == SERVER_SEARCH and not result.failed:
        functions = progress.turn.functions
        return await asyncio.to_thread(loaded, result.output, functions, lambda text: count(text) <= share)
    return Addition(fit(result.output, share, count), ())
