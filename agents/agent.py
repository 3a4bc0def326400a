"""The agent loop: assemble a prompt, generate, run the tools that the model called, repeat until there is an answer.

A turn can be refused only before its first event. From then on it always ends with TurnFinished, unless the task is
cancelled: that cancels the generation and the tools at once.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack, nullcontext, suppress
from dataclasses import replace
from functools import partial

from agents.answer_cache import AnswerCache, CachedAnswer, CachedGeneration
from agents.answer_lookup import AnswerLookup, LookupQuery
from agents.available_tools import AvailableTools
from agents.budget import FREE, Budget, Prices
from agents.call_shape import SERVER_SEARCH
from agents.checkpoint import CannotResume, Checkpoint, Marks
from agents.constraint import Extent, Stage, constraint_of
from agents.errors import Interrupted, InvalidTurn
from agents.events import Event, EventSink, ItemFinished, ItemStarted, SourcesFound, TurnFinished
from agents.function_tool import Addition
from agents.inflight import InFlight
from agents.message import FileSearchCall, FunctionCall, Item, Message
from agents.model_registry import Candidate, ModelRegistry
from agents.output_validation import defect_of, validate
from agents.parser.choose import Format, FormattedParser, Parser
from agents.parser.plain import PlainParser
from agents.prefetch import Prefetch, before_missing, before_question
from agents.progress import Progress
from agents.prompt import answer_message, assemble, question, question_is_last, renders_fast
from agents.query_rewriting import Rewriting, rewritten
from agents.queue_position import report_position
from agents.reply import CALLS_MAX, Reply
from agents.router import Router
from agents.routing.decision import Decision
from agents.routing.trial import Trial, judged
from agents.search import found, search
from agents.semantic_cache import SemanticCache
from agents.step import RunningCalls, Step, StepSpans, add_tool, settled, takes_long
from agents.stop_strings import StopStrings
from agents.strict_arguments import StrictArguments
from agents.tool import ToolContext
from agents.toolbox import Toolbox, ToolResult, fit
from agents.tools.tool_search import loaded, tool_search
from agents.truncation import bytes_of, shortened
from agents.turn import TOKENS_MAX, Turn
from inference.core import (
    Finish,
    Generation,
    Grammar,
    LanguageModel,
    PromptTokens,
    Rendered,
    Sampling,
    Segment,
    ThoughtLimit,
)
from inference.errors import InferenceError, InvalidSchema, TextTooLong
from inference.tokenizer import count_all
from inference.trace import Trace, now_ns
from retrieval.passage import Passage
from retrieval.query import Searcher

log = logging.getLogger(__name__)

# Tokenizing this many takes a few milliseconds; longer text would block the event loop for all requests.
ENCODE_CHARS_MAX = 10_000

NOTHING_LEFT = "I could not finish that because the tool budget is used up."


class Agent:
    """`turns` are the turns in progress. One that is interrupted fails and keeps its output so far."""

    def __init__(
        self,
        model: LanguageModel | ModelRegistry,
        retriever: Searcher | None,
        toolbox: Toolbox,
        prices: Prices = FREE,
        answers: AnswerCache | None = None,
        similar: SemanticCache | None = None,
    ) -> None:
        """`answers` are reused for identical prompts, `similar` ones for similar questions; None: no cache."""
        model_registry = model if isinstance(model, ModelRegistry) else ModelRegistry.of(model)
        self._router = Router(model_registry)
        self._names_models = len(model_registry.candidates) > 1
        self._prices = prices
        self._retriever = retriever
        self._toolbox = toolbox
        self._known = AnswerLookup(answers, similar)
        self.turns = InFlight()

    async def run(self, turn: Turn, trace: Trace, sink: EventSink, marks: Marks | None = None) -> TurnFinished:
        """Write the events of one turn to the sink and return the last one. `marks` record its checkpoints.

        Raises before the first event only: InvalidTurn, StoreNotFound, PromptTooLong, QueueFull, Late, EngineStopped,
        Interrupted, and what `sink.open` raises.
        """
        with ExitStack() as held:
            with self.turns.track():
                likely = self._router.likely(turn)
                await likely.ready(trace, held)
                with Prefetch(likely.model, trace) as ahead:
                    progress = await self._prepare(turn, trace, ahead, likely)
                    progress.held, progress.marks = held, marks
                    progress.same(likely)
                    await (self._read(progress, likely) if turn.only_reads else self._next(progress))
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
                    progress = self._reopened(turn, trace, checkpoint, candidate, ahead)
                    progress.held, progress.marks = held, marks
                    progress.same(candidate)
                    events = await self._recall(progress, candidate, checkpoint)
                    self._mark(progress)
            recall(events)
            return await self._run_begun(progress, sink)

    def _reopened(
        self, turn: Turn, trace: Trace, checkpoint: Checkpoint, candidate: Candidate, ahead: Prefetch
    ) -> Progress:
        budget = Budget(turn.limits, now_ns(), self._prices)
        budget.spend(checkpoint.budget, now_ns())
        stores = turn.file_search.vector_store_ids if turn.file_search else ()
        return Progress(
            turn,
            trace,
            self._offer(turn, candidate, checkpoint.output[: checkpoint.before]),
            budget,
            ToolContext(turn.tenant_id, stores, list(checkpoint.sources)),
            ahead,
            in_prompt=checkpoint.in_prompt,
            concluding=checkpoint.concluding,
            output=checkpoint.output[: checkpoint.before],
            usage=checkpoint.usage,
            needs_another_step=True,
        )

    async def _recall(self, progress: Progress, candidate: Candidate, checkpoint: Checkpoint) -> list[Event]:
        """Restore the turn and its newest step from the checkpoint. Returns the events that were sent of both."""
        turn, written = progress.turn, checkpoint.written
        asked = turn.sampling.at_most(progress.budget.remaining_tokens)
        asked = asked.completed(candidate.model.usual_sampling.values)
        asked = replace(asked, thought=_thought_of(progress, candidate, checkpoint.thinking))
        sampling = await self._constrained(asked, progress, candidate, checkpoint.thinking)
        over = checkpoint.finish or (Finish.LENGTH if len(written) >= sampling.max_tokens else None)
        try:
            texts = candidate.model.text_pieces(written, over=over is not None)
        except InferenceError as error:
            raise CannotResume(str(error)) from error
        generation: Generation
        if over is not None:
            answer = CachedAnswer("", tuple(written), over)
            generation = CachedGeneration.over(answer, len(checkpoint.prompt))
        else:
            generation = candidate.model.generate(
                checkpoint.prompt,
                sampling,
                salt=turn.salt,
                priority=turn.priority,
                due=turn.due.begun,
                deadline_ns=progress.budget.deadline_ns(concluding=progress.concluding is not None),
                traceparent=progress.trace.traceparent,
                written=written,
            )
        step = self._step(
            progress, candidate, generation, checkpoint.prompt, checkpoint.thinking, known=checkpoint.told
        )
        progress.step = step
        try:
            return self._replayed(progress, checkpoint, texts)
        except BaseException:
            step.cancel()
            raise

    @staticmethod
    def _replayed(progress: Progress, checkpoint: Checkpoint, texts: Sequence[str]) -> list[Event]:
        step, output = progress.step, checkpoint.output
        before = [_item_event(index, item) for index, item in enumerate(progress.output)]
        behind = output[checkpoint.before + len(checkpoint.told) :] if checkpoint.ended else []
        step.calls.answered, step.calls.lost = len(behind), True
        told = step.replay(texts)
        if checkpoint.ended:
            told += step.end(fallback=_fallback(progress))
        step.calls.lost = False
        if (len(step.reply.told), step.reply.open_chars) != (len(checkpoint.told), checkpoint.chars):
            raise CannotResume("its tokens do not decode to the text that was sent")
        if checkpoint.ended:
            progress.add(step)
            progress.output += behind
        return [
            *before,
            *told,
            *(_item_event(len(output) - len(behind) + n, item) for n, item in enumerate(behind)),
        ]

    @staticmethod
    def _mark(progress: Progress) -> None:
        if progress.marks is not None:
            step = progress.step
            progress.marks.begin(progress, step, step.candidate.name, step.prompt, thinking=step.thinking)

    async def _run_begun(self, progress: Progress, sink: EventSink) -> TurnFinished:
        try:
            with self.turns.track():
                await progress.step.generation.admitted()
            await sink.open()
            finished = await self._run_steps(progress, sink)
            sink.write([finished])
            return finished
        finally:
            progress.step.cancel()
            progress.tell_cost()

    async def _run_steps(self, progress: Progress, sink: EventSink) -> TurnFinished:
        try:
            sink.write(progress.opening())
            with (
                self.turns.track(),
                report_position(progress.step, sink) if progress.turn.tells_place else nullcontext(),
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
                await self._run_step(progress, sink)
            step = progress.step
            self._end(progress, sink)
            with Prefetch(step.candidate.model, progress.trace) as progress.ahead:
                await self._results(progress, sink)
                if not step.needs_another_step or progress.budget.remaining_tokens <= 0:
                    return await self._validate_output(progress)
                progress.concluding = progress.budget.spent(now_ns())
                await sink.drain()
                await self._next(progress)

    async def _read(self, progress: Progress, candidate: Candidate) -> None:
        """Submit the prompt of a turn that is only read, or what will precede its question where it has none. Every
        engine generates at least one token, which is thrown away. Raises what `_begin` raises."""
        turn = progress.turn
        asked = turn if question_is_last(turn) else replace(turn, input=(*turn.input, Message("user", "?")))
        segments: Sequence[Segment] = await self._render(asked, candidate)
        if asked is not turn:
            segments = before_question(segments) or segments
        prompt = await self._encode(segments, candidate, turn.salt)
        generation = candidate.model.generate(
            prompt,
            Sampling(max_tokens=1, deterministic=turn.sampling.deterministic),
            salt=turn.salt,
            priority=turn.priority,
            due=turn.due,
            deadline_ns=progress.budget.deadline_ns(concluding=False),
            traceparent=progress.trace.traceparent,
        )
        progress.step = self._step(progress, candidate, generation, prompt, False, segments)

    async def _next(self, progress: Progress) -> None:
        """Choose the model of the next step and submit it. Raises what `_begin` raises."""
        offer = None if progress.concluding else progress.offer
        decision = self._router.decide(
            progress.turn,
            progress.output,
            offer,
            documents=progress.in_prompt,
            step=progress.budget.steps,
            trace=progress.trace,
        )
        candidate = progress.same(self._router.candidate(decision.model))
        if decision.is_trial:  # the turn holds it from here on, even if the models are reloaded
            progress.same(self._router.candidate(decision.fallback))
        progress.step = await self._begin(progress, candidate, decision)
        self._mark(progress)

    async def _run_step(self, progress: Progress, sink: EventSink) -> None:
        """Run the step to its end; a step on trial until it is kept or another model has taken it over."""
        step = progress.step
        if step.trial is None:
            return await step.run(sink)
        decision = step.trial.decision
        other = progress.models[decision.fallback]
        running = asyncio.create_task(step.run(sink), name="trial")
        try:
            with Prefetch(other.model, progress.trace) as hedge:
                if decision.hedge and other.is_loaded:
                    await self._hedge(progress, other, hedge)
                await step.decided.wait()
                takes_over = not step.is_kept and await self._take_over(progress, step, other, sink)
            progress.add_hedge(hedge.spent, other, took_over=takes_over)
            self._record_trial(progress, step, takes_over)
            await (progress.step.run(sink) if takes_over else running)
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)

    async def _hedge(self, progress: Progress, other: Candidate, hedge: Prefetch) -> None:
        """Prefill the prompt unchanged on the other model. It is not shortened to fit there: the answer would lack what
        the first model had."""
        with suppress(InferenceError):
            prompt = await self._encode(await self._segments(progress, other), other, progress.turn.salt)
            if len(prompt) + other.answer_tokens <= other.model.context_length:
                hedge.read(prompt, salt=progress.turn.salt, exact=progress.turn.sampling.deterministic)

    async def _take_over(self, progress: Progress, step: Step, other: Candidate, sink: EventSink) -> bool:
        """Whether the other model takes the step over. If it cannot, the first one continues."""
        taken = None
        try:
            taken = await self._begin(progress, other)
            await taken.generation.admitted()
        except BaseException as error:
            if taken is not None:
                taken.generation.cancel()
            if not isinstance(error, InferenceError | InvalidTurn):
                raise
            step.keep(f"no {other.name}: {type(error).__name__}", sink)
            return False
        step.cancel()
        progress.give_up(step)
        progress.step, progress.ahead = taken, Prefetch(other.model, progress.trace)
        self._mark(progress)
        return True

    @staticmethod
    def _record_trial(progress: Progress, step: Step, took_over: bool) -> None:
        span = next((span for span in reversed(progress.trace.spans) if span.name == "route"), None)
        if span is not None and step.trial is not None:
            span.attributes |= {**step.trial.attributes, "model": progress.step.candidate.name, "took_over": took_over}

    async def _validate_output(self, progress: Progress) -> None:
        """Raises SchemaUnmet for a complete answer that violates a part of its schema that no grammar enforces."""
        step, form = progress.step, progress.turn.answer_format
        if step.finish is Finish.STOP and form is not None:
            await asyncio.to_thread(validate, form, step.reply.items)

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

    async def count(self, turn: Turn) -> int:
        """Tokens of the first prompt of this turn, without passages.

        Raises InvalidTurn, InvalidTemplate, TextTooLong.
        """
        return len(await self.tokens(turn))

    async def count_all(self, turn: Turn) -> int:
        """The same, however long the prompt is: takes a thread a second for each megabyte."""
        progress, likely = await self._unread(turn)
        segments, model = await self._segments(progress, likely), likely.model
        return await asyncio.to_thread(count_all, segments, model.tokenize, model.encode([Segment("", trusted=True)]))

    async def tokens(self, turn: Turn) -> list[int]:
        """The first prompt of this turn, without passages. Raises InvalidTurn, InvalidTemplate, TextTooLong."""
        return (await self._prompt(*await self._unread(turn)))[1]

    async def _unread(self, turn: Turn) -> tuple[Progress, Candidate]:
        """The turn before its first step, without passages, and the model that would likely run it."""
        trace, likely = Trace(), self._router.likely(turn)
        unread = Prefetch(likely.model, trace)
        return await self._prepare(replace(turn, file_search=None), trace, unread, likely), likely

    async def warm(self, turn: Turn) -> Generation | None:
        """Prefill what precedes the next question, if that helps; this turn has no question yet. Starts to load a model
        that is not loaded.

        Raises InvalidTurn, InvalidTemplate.
        """
        asked = replace(turn, input=(*turn.input, Message("user", "?")))
        likely = self._router.likely(asked)
        if likely.on_demand is not None:
            likely.on_demand.foresee()
        return likely.model.prefill_ahead(await self._prefix(asked, likely), salt=turn.salt)

    async def share(self, turn: Turn, only: Candidate | None = None) -> Generation | None:
        """Let all tenants share the prefix of turns like this one, which comes from the configuration and contains no
        data of a tenant, and prefill it, if that helps: on all models that may run a step of it, or `only` on one that
        is about to be among them. Raises InvalidTurn, InvalidTemplate.
        """
        asked = replace(turn, input=(Message("user", "?"),))
        likely, reading = only or self._router.likely(asked), None
        named = self._router.named(asked)
        if only is not None:
            is_known = only.name in self._router.model_registry.candidates
            named = [only] if only.name in [each.name for each in named] or not is_known else []
        for candidate in named:
            prefix = await self._prefix(asked, candidate)
            candidate.model.share(prefix)
            read = candidate.model.prefill_ahead(prefix, salt=turn.salt)
            reading = read if candidate is likely else reading
        return reading

    def _offer(self, turn: Turn, candidate: Candidate, output: Sequence[Item] = ()) -> AvailableTools:
        return AvailableTools.of(turn, self._tools_of(turn), candidate.dialect, output)

    def _tools_of(self, turn: Turn) -> Toolbox:
        return self._toolbox.including([tool_search(search, turn.functions) for search in turn.tool_searches])

    async def _prepare(self, turn: Turn, trace: Trace, ahead: Prefetch, likely: Candidate) -> Progress:
        """Check the turn and search for passages."""
        offer = self._offer(turn, likely)
        budget = Budget(turn.limits, now_ns(), self._prices)
        asked, sources = await self._search(turn, likely, trace, ahead) if turn.file_search else (None, [])
        stores = turn.file_search.vector_store_ids if turn.file_search else ()
        progress = Progress(
            turn,
            trace,
            offer,
            budget,
            ToolContext(turn.tenant_id, stores, sources),
            ahead,
            in_prompt=len(sources),
            concluding=budget.spent(now_ns()) if offer.server else None,
        )
        if asked is not None:
            progress.add_rewriting(asked)
        return progress

    async def _search(
        self, turn: Turn, likely: Candidate, trace: Trace, ahead: Prefetch
    ) -> tuple[Rewriting, list[Passage]]:
        """Search while the model prefills what precedes the passages. The search starts first: the database works while
        the prompt is built.
        """
        searching = asyncio.create_task(self._find(turn, trace))
        try:
            await asyncio.sleep(0)  # lets the search send its first query
            if self._retriever and question(turn):
                with suppress(TextTooLong):  # it may be shortened
                    prefix = await self._prefix(turn, likely)
                    ahead.read(prefix, salt=turn.salt, exact=turn.sampling.deterministic)
            return await searching
        finally:
            searching.cancel()

    async def _find(self, turn: Turn, trace: Trace) -> tuple[Rewriting, list[Passage]]:
        asked = await rewritten(turn, self._router.rewriter(turn), trace)
        return asked, await search(turn, self._retriever, trace, asked.query, after_ms=asked.took_ms)

    async def _results(self, progress: Progress, sink: EventSink) -> None:
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
                    await self._read_results(progress, missing=len(calls) - number)
                result = await settled(pending)
                add_tool(progress.trace, span, call, result)
                progress.budget.add_call(call.name, max(0, result.end_ns - result.start_ns) / 1e9)
                index, item = progress.add_result(call, await self._output(progress, call, result))
                started = replace(item, output="", tools=(), status="in_progress")
                sink.write([ItemStarted(index, started), ItemFinished(index, item)])

    async def _read_results(self, progress: Progress, missing: int) -> None:
        """Prefill the results that are available, while tools whose results follow them still run."""
        turn, candidate = progress.turn, progress.step.candidate
        segments = await self._render(turn, candidate, progress.output, progress.passages)
        with suppress(TextTooLong):
            prefix = await self._encode(before_missing(segments, missing), candidate, turn.salt)
            progress.ahead.read(prefix, salt=turn.salt, exact=turn.sampling.deterministic)

    async def _prefix(self, turn: Turn, candidate: Candidate) -> PromptTokens:
        return await self._encode(before_question(await self._render(turn, candidate)), candidate, turn.salt)

    async def _begin(self, progress: Progress, candidate: Candidate, decision: Decision | None = None) -> Step:
        """Submit the next step; without a decision, one that is taken over. Raises PromptTooLong, QueueFull, Late,
        EngineStopped, InvalidTurn, InvalidSchema."""
        turn, budget = progress.turn, progress.budget
        trial = Trial(decision, turn.due.at_ns) if decision and decision.is_trial else None
        await candidate.ready(progress.trace, progress.held)
        progress.offer = self._offer(turn, candidate, progress.output)
        segments, prompt = await self._prompt(progress, candidate)
        end = segments[-1].text if segments and segments[-1].trusted else ""
        thinking = candidate.dialect.opens_thought(end)
        if turn.file_search and not progress.output:
            progress.output = [found(progress.query, progress.passages)]
        asked = turn.sampling.at_most(budget.remaining_tokens).completed(candidate.model.usual_sampling.values)
        asked = replace(asked, thought=_thought_of(progress, candidate, thinking))
        sampling = await self._constrained(
            judged(asked, decision) if trial and decision else asked, progress, candidate, thinking
        )
        ask = LookupQuery(
            turn,
            progress.offer,
            self._calls_max(progress, candidate),
            budget.steps,
            progress.output,
            progress.passages,
            candidate,
            prompt,
            sampling,
            on_trial=trial is not None,
        )
        known, cache_slot = await self._known.find(ask, progress.trace)
        generation = known or candidate.model.generate(
            prompt,
            sampling,
            salt=turn.salt,
            priority=turn.priority,
            due=turn.due.begun if budget.steps or decision is None else turn.due,
            deadline_ns=budget.deadline_ns(concluding=progress.concluding is not None),
            traceparent=progress.trace.traceparent,
        )
        step = self._step(progress, candidate, generation, prompt, thinking, segments)
        step.trial, step.cache_slot = trial, cache_slot
        return step

    def _step(
        self,
        progress: Progress,
        candidate: Candidate,
        generation: Generation,
        prompt: Sequence[int],
        thinking: bool,
        segments: Sequence[Segment] = (),
        known: Sequence[tuple[str, str]] = (),
    ) -> Step:
        turn, model = progress.turn, candidate.model
        if turn.answer_now:
            turn.answer_now.follow(generation)
        return Step(
            candidate,
            generation,
            Reply(
                len(progress.output),
                self._parser(progress, candidate, thinking),
                progress.context.sources,
                self._calls_max(progress, candidate),
                shapes=progress.offer.shapes,
                exact=candidate.dialect.keeps_tokens and not turn.prompt,
                verbatim=bool(turn.prompt),
                known=known,
                stops=StopStrings(turn.stop),
                forced=self._is_forced(progress),
                strict=StrictArguments(progress.offer.definitions, enforced=candidate.dialect.format is Format.HERMES),
            ),
            RunningCalls(
                *(self._tools_of(turn), progress.offer.server, progress.context, progress.budget),
                stored=progress.marks.stored if progress.marks else None,
            ),
            StepSpans(
                progress.trace,
                generation,
                lambda: model.verdict(segments, generation, salt=turn.salt) if segments else None,
                candidate.name if self._names_models else "",
                turn.priority,
            ),
            progress.offer,
            flaw=lambda said, is_whole: defect_of(turn, progress.context.sources, said, is_whole=is_whole),
            top_logprobs=turn.sampling.top_logprobs,
            prompt=prompt,
            thinking=thinking,
        )

    async def _prompt(self, progress: Progress, candidate: Candidate) -> tuple[Rendered, PromptTokens]:
        """The prompt of the next step and its token ids, shortened where allowed until an answer fits."""
        model = candidate.model
        while True:
            with progress.trace.span("assemble", passages=progress.in_prompt) as assembling:
                segments = await self._segments(progress, candidate)
                if segments.rewrites:
                    assembling.attributes["rewritten"] = ", ".join(segments.rewrites)
            try:
                with progress.trace.span("tokenize") as span:
                    prompt = await self._encode(segments, candidate, progress.turn.salt)
                    span.attributes["tokens"] = len(prompt)
            except TextTooLong as error:
                if not await self._shorten(progress, error.excess_bytes, error.room_bytes, bytes_of):
                    raise
                continue
            room, count = model.context_length, partial(model.count, salt=progress.turn.salt)
            excess = len(prompt) + candidate.answer_tokens - room
            if excess <= 0 or not await self._shorten(progress, excess, room, count):
                return segments, prompt

    async def _segments(self, progress: Progress, candidate: Candidate) -> Rendered:
        turn = progress.turn
        if turn.prompt:
            return Rendered(turn.prompt)
        conclude = progress.concluding is not None
        return await self._render(turn, candidate, progress.output, progress.passages, conclude=conclude)

    async def _shorten(self, progress: Progress, excess: int, room: int, count: Callable[[str], int]) -> bool:
        """Drop the oldest turns where the caller allows it, otherwise a passage. False: nothing can be dropped.

        `excess` and `room` are in the unit of `count`.
        """
        if progress.turn.truncates:
            shorter = await asyncio.to_thread(shortened, progress.turn, excess, room, count)
            if shorter is not None:
                progress.truncate(*shorter)
                return True
        if progress.in_prompt and not progress.budget.steps:
            progress.drop_passage()
            return True
        return False

    async def _constrained(
        self, sampling: Sampling, progress: Progress, candidate: Candidate, thinking: bool
    ) -> Sampling:
        """The sampling with the grammar of the step, compiled in a thread. Raises InvalidTurn, InvalidSchema."""
        turn, calls_max = progress.turn, self._calls_max(progress, candidate)
        if not calls_max and turn.answer_format is None:
            return sampling if turn.prompt else sampling.without(candidate.call_tokens)
        stage = Stage(self._is_forced(progress), calls_max, thinking)
        key = (candidate.name, stage, progress.offer.callable)
        if key not in progress.grammars:
            progress.grammars[key] = await asyncio.to_thread(self._grammar, turn, progress.offer, candidate, stage)
        return replace(sampling, grammar=progress.grammars[key])

    def _grammar(
        self,
        turn: Turn,
        offer: AvailableTools,
        candidate: Candidate,
        stage: Stage,
        extents: Sequence[Extent] = tuple(Extent),
    ) -> Grammar | None:
        """Raises InvalidTurn, and InvalidSchema for a strict schema that no grammar can enforce."""
        extent, *less = extents
        to = constraint_of(turn, offer, candidate.dialect, stage, extent)
        if to is None:
            return None
        try:
            return candidate.model.prepare(to.grammar, to.begins)
        except InvalidSchema as error:
            if less:  # it may be a schema that nobody insists on
                return self._grammar(turn, offer, candidate, stage, less)
            if to.begins:
                return None
            error.param = turn.answer_format.param if turn.answer_format else "tools"
            raise

    def _parser(self, progress: Progress, candidate: Candidate, thinking: bool) -> Parser:
        if progress.turn.prompt:
            return PlainParser()
        parser = candidate.dialect.parser(progress.offer.schemas, thinking=thinking)
        return FormattedParser(parser) if progress.turn.answer_format else parser

    async def _render(
        self,
        turn: Turn,
        candidate: Candidate,
        output: Sequence[Item] = (),
        passages: Sequence[Passage] = (),
        *,
        conclude: bool = False,
    ) -> Rendered:
        """The prompt as the chat template writes it. Raises InvalidTurn, InvalidTemplate."""
        known, offer = candidate.model.switches, self._offer(turn, candidate)
        switches = {**candidate.switches, **turn.switches.chosen(known)}

        def work(output: Sequence[Item], passages: Sequence[Passage]) -> Rendered:
            default = candidate.model.default_system
            messages = assemble(turn, output, passages, conclude=conclude, default_system=default)
            return candidate.model.render(messages, offer.shown, switches, salt=turn.salt)

        if renders_fast(turn, output):
            return work(output, passages)
        return await asyncio.to_thread(work, tuple(output), tuple(passages))

    @staticmethod
    async def _encode(segments: Sequence[Segment], candidate: Candidate, salt: str) -> PromptTokens:
        if sum(len(segment.text) for segment in segments) < ENCODE_CHARS_MAX:
            return candidate.model.encode(segments, salt=salt)
        return await asyncio.to_thread(candidate.model.encode, segments, salt=salt)

    @staticmethod
    def _is_forced(progress: Progress) -> bool:
        """Whether the step must call a tool: until a call of the turn is complete, or the budget is spent."""
        called = any(isinstance(item, FunctionCall) and item.runs for item in progress.output)
        return not (called or progress.concluding) and progress.turn.tool_choice not in ("auto", "none")

    @staticmethod
    def _calls_max(progress: Progress, candidate: Candidate) -> int:
        turn = progress.turn
        if progress.concluding or not progress.offer.callable:
            return 0
        is_named = turn.tool_choice not in ("auto", "none", "required")  # the choice of one call
        return 1 if is_named or candidate.dialect.one_call or not turn.parallel_tool_calls else CALLS_MAX

    def _end(self, progress: Progress, sink: EventSink) -> None:
        """Close the step's items and account for it. Idempotent."""
        step = progress.step
        if step.ended:
            return
        sink.write(step.end(fallback=_fallback(progress)))
        progress.add(step)
        hurried = progress.turn.answer_now is not None and progress.turn.answer_now.wanted
        if step.is_whole and step.finish is not None and not hurried:
            self._known.keep(step.cache_slot, CachedAnswer("".join(step.heard), tuple(step.ids), step.finish))
        self._router.learn(step.candidate, progress.turn, step.reply.items, step.generation)
        if step.reply.exact and not progress.turn.stop:  # the ids contain the stop string, the text does not
            message = answer_message(step.reply.items)
            digest = step.candidate.model.remember(message, step.said_ids, salt=progress.turn.salt)
            if digest is not None:
                progress.remembered.append((digest, tuple(step.said_ids)))

    @staticmethod
    async def _output(progress: Progress, call: FunctionCall, result: ToolResult) -> Addition:
        """What the model reads of a result, cut to its share of the free context, and the tools that it adds."""
        step, model = progress.step, progress.step.candidate.model
        used = step.generation.prompt_tokens + len(step.ids) + step.candidate.answer_tokens
        share = (model.context_length - used) // len(step.calls.pending)
        count = partial(model.count, salt=progress.turn.salt)
        if call.shape == SERVER_SEARCH and not result.failed:
            functions = progress.turn.functions
            return await asyncio.to_thread(loaded, result.output, functions, lambda text: count(text) <= share)
        return Addition(fit(result.output, share, count), ())


def _thought_of(progress: Progress, candidate: Candidate, begun: bool) -> ThoughtLimit | None:
    """How the reasoning of the next step is ended, after what is left of the turn's budget."""
    limit, most = candidate.thought, progress.turn.limits.thought_tokens
    if limit is None or progress.turn.prompt:
        return None
    left = max(0, most - progress.usage.reasoning_tokens) if most < TOKENS_MAX else None
    return replace(limit, begun=begun, tokens=left)


def _item_event(index: int, item: Item) -> Event:
    return SourcesFound(index, item, ()) if isinstance(item, FileSearchCall) else ItemFinished(index, item)


def _fallback(progress: Progress) -> str:
    """Replaces an answer that would be empty: if the model wrote nothing but a call that was not allowed, its text is
    better than no answer."""
    step = progress.step
    unread = step.candidate.dialect.unthought(step.reply.written, thought=step.reply.thought)
    return NOTHING_LEFT if progress.concluding else unread
