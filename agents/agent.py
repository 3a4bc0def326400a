"""The agent loop: assemble a prompt, generate, run the tools that the model called, repeat until there is an answer.

A turn can be refused only before its first event. From then on it always ends with TurnFinished, unless the task is
cancelled: that cancels the generation and the tools at once.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial

from agents.budget import ANSWER_TOKENS, FREE, Budget, Prices
from agents.constraint import Stage, constraint_of
from agents.errors import Interrupted
from agents.events import EventSink, ItemFinished, ItemStarted, TurnFinished
from agents.message import FunctionCall, Message
from agents.offer import Offer
from agents.parser.choose import Format, FormattedParser, Parser, choose
from agents.parser.plain import PlainParser
from agents.prefetch import Prefetch, before_missing, before_question
from agents.progress import Progress
from agents.promise import is_due, keep
from agents.prompt import answer_message, assemble, question
from agents.reply import CALLS_MAX, Reply
from agents.search import Searcher, found, search
from agents.step import RunningCalls, Step, StepSpans, add_tool, settled, takes_long
from agents.tool import ToolContext
from agents.toolbox import Toolbox, ToolResult, fit
from agents.truncation import bytes_of, shortened
from agents.turn import Turn
from agents.work import Work
from inference.core import WHENEVER, ChatMessage, Finish, Generation, Grammar, LanguageModel, Sampling, Segment
from inference.errors import InferenceError, InvalidSchema, TextTooLong
from inference.trace import Trace, now_ns
from retrieval.passage import Passage

log = logging.getLogger(__name__)

# Tokenising this many takes a few milliseconds; longer text would block the event loop of all requests.
ENCODE_CHARS_MAX = 10_000

NOTHING_LEFT = "I could not finish that because the tool budget is used up."


class Agent:
    """`turns` are those in progress. One that is interrupted fails, with what it said so far."""

    def __init__(
        self, model: LanguageModel, retriever: Searcher | None, toolbox: Toolbox, prices: Prices = FREE
    ) -> None:
        self._model = model
        self._prices = prices
        self._retriever = retriever
        self._toolbox = toolbox
        self.turns = Work()
        self._dialect = choose(model.chat_template)
        # Reserved for the answer beside passages and results; less in a small context.
        self._answer_tokens = min(ANSWER_TOKENS, model.context_length // 8)

    async def run(self, turn: Turn, trace: Trace, sink: EventSink) -> TurnFinished:
        """Write the events of one turn to the sink and return the last one.

        Raises before the first event only: InvalidTurn, StoreNotFound, PromptTooLong, QueueFull, Late, EngineStopped,
        Interrupted, and what `sink.open` raises.
        """
        with self.turns.doing(), Prefetch(self._model, trace) as ahead:
            progress = await self._prepare(turn, trace, ahead)
            progress.step = await self._begin(progress)
        try:
            with self.turns.doing():
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
            with self.turns.doing():
                await self._go_on(progress, sink)
            return progress.finished()
        except Exception as error:  # the boundary: any failure of a started turn becomes its last event
            if not isinstance(error, InferenceError | Interrupted):
                log.exception("turn failed")
            self._end(progress, sink)
            return progress.failed(error)

    async def _go_on(self, progress: Progress, sink: EventSink) -> None:
        """Step by step, until the model answers or nothing is left of the budget."""
        while True:
            step = progress.step
            await step.run(sink)
            self._end(progress, sink)
            with Prefetch(self._model, progress.trace) as progress.ahead:
                await self._results(progress, sink)
                if not step.goes_on or progress.budget.remaining_tokens <= 0:
                    return await self._keep_promise(progress)
                progress.concluding = progress.budget.spent(now_ns())
                await sink.drain()
                progress.step = await self._begin(progress)

    async def _keep_promise(self, progress: Progress) -> None:
        """Raises SchemaUnmet for an answer that is complete and breaks what no grammar holds."""
        step, turn = progress.step, progress.turn
        if step.generation.finish is Finish.STOP and is_due(turn):
            await asyncio.to_thread(keep, turn, step.reply.items)

    async def count(self, turn: Turn) -> int:
        """Tokens of the first prompt of this turn, without passages. Raises InvalidTurn, InvalidTemplate."""
        return len(await self.tokens(turn))

    async def tokens(self, turn: Turn) -> list[int]:
        """The first prompt of this turn, without passages. Raises InvalidTurn, InvalidTemplate."""
        trace = Trace()
        progress = await self._prepare(replace(turn, file_search=None), trace, Prefetch(self._model, trace))
        return (await self._prompt(progress))[1]

    async def warm(self, turn: Turn) -> Generation | None:
        """Prefill what precedes the next question, where that helps; this turn has no question yet.

        Raises InvalidTurn, InvalidTemplate.
        """
        asked = replace(turn, input=(*turn.input, Message("user", "?")))
        return self._model.read_ahead(await self._prefix(asked, self._offer(asked)), salt=turn.salt)

    async def share(self, turn: Turn) -> Generation | None:
        """Let all tenants share the prefix of turns like this one, which comes from the configuration and contains no
        data of a tenant, and prefill it, where that helps. Raises InvalidTurn, InvalidTemplate.
        """
        asked = replace(turn, input=(Message("user", "?"),))
        prefix = await self._prefix(asked, self._offer(asked))
        self._model.share(prefix)
        return self._model.read_ahead(prefix, salt=turn.salt)

    def _offer(self, turn: Turn) -> Offer:
        return Offer.of(turn, self._toolbox, holds=self._dialect.format is Format.HERMES)

    async def _prepare(self, turn: Turn, trace: Trace, ahead: Prefetch) -> Progress:
        """Check the turn and search for passages."""
        offer = self._offer(turn)
        budget = Budget(turn.limits, now_ns(), self._prices)
        sources = await self._search(turn, offer, trace, ahead) if turn.file_search else []
        stores = turn.file_search.vector_store_ids if turn.file_search else ()
        return Progress(
            turn,
            trace,
            offer,
            budget,
            ToolContext(turn.tenant_id, stores, sources),
            ahead,
            in_prompt=len(sources),
            concluding=budget.spent(now_ns()) if offer.server else None,
        )

    async def _search(self, turn: Turn, offer: Offer, trace: Trace, ahead: Prefetch) -> list[Passage]:
        """Search while the model prefills what precedes the passages. The search starts first: the database works while
        the prompt is built.
        """
        searching = asyncio.create_task(search(turn, self._retriever, trace))
        try:
            await asyncio.sleep(0)  # lets it send its first query
            if self._retriever and question(turn):
                with suppress(TextTooLong):  # something may be left out of it
                    prefix = await self._prefix(turn, offer)
                    ahead.read(prefix, salt=turn.salt, exact=turn.sampling.deterministic)
            return list(await searching)
        finally:
            searching.cancel()

    async def _results(self, progress: Progress, sink: EventSink) -> None:
        """Wait for the results of the step's calls and write them, in the order of the calls."""
        step = progress.step
        calls = step.calls.pending
        if not calls:
            return
        with progress.trace.span("tools", calls=len(calls)) as span:
            for number, (call, pending) in enumerate(calls):
                if number and step.goes_on and await takes_long(pending):
                    await self._read_results(progress, missing=len(calls) - number)
                result = await settled(pending)
                add_tool(progress.trace, span, call, result)
                progress.budget.add_call(call.name, max(0, result.end_ns - result.start_ns) / 1e9)
                self._answer(progress, call, result, sink)

    async def _read_results(self, progress: Progress, missing: int) -> None:
        """Prefill the results that are available, while tools whose results follow them still run."""
        turn = progress.turn
        segments = self._render(turn, assemble(turn, progress.output, progress.passages), progress.offer)
        with suppress(TextTooLong):
            prefix = await self._encode(before_missing(segments, missing), turn.salt)
            progress.ahead.read(prefix, salt=turn.salt, exact=turn.sampling.deterministic)

    async def _prefix(self, turn: Turn, offer: Offer) -> list[int]:
        return await self._encode(before_question(self._render(turn, assemble(turn), offer)), turn.salt)

    async def _begin(self, progress: Progress) -> Step:
        """Submit the next step. Raises PromptTooLong, QueueFull, Late, EngineStopped, InvalidTurn, InvalidSchema."""
        turn, budget = progress.turn, progress.budget
        segments, prompt = await self._prompt(progress)
        end = segments[-1].text if segments and segments[-1].trusted else ""
        thinking = self._dialect.opens_thought(end)
        if turn.file_search and not budget.steps:
            progress.output = [found(turn, progress.passages)]
        sampling = await self._held(turn.sampling.at_most(budget.remaining_tokens), progress, thinking)
        generation = self._model.generate(
            prompt,
            sampling,
            salt=turn.salt,
            priority=turn.priority,
            due=WHENEVER if budget.steps else turn.due,
            deadline_ns=budget.deadline_ns(concluding=progress.concluding is not None),
        )
        return Step(
            generation,
            Reply(
                len(progress.output),
                self._parser(progress, thinking),
                progress.context.sources,
                self._calls_max(progress),
                exact=self._dialect.keeps_tokens and not turn.prompt,
                verbatim=bool(turn.prompt),
            ),
            RunningCalls(self._toolbox, progress.offer.server, progress.context, budget),
            StepSpans(progress.trace, generation, lambda: self._model.verdict(segments, generation, salt=turn.salt)),
            progress.offer,
        )

    async def _prompt(self, progress: Progress) -> tuple[list[Segment], list[int]]:
        """The next step's prompt and its token ids, shortened until an answer fits, where anything may be left out."""
        while True:
            with progress.trace.span("assemble", passages=progress.in_prompt):
                segments = self._segments(progress)
            try:
                with progress.trace.span("tokenize") as span:
                    prompt = await self._encode(segments, progress.turn.salt)
                    span.attributes["tokens"] = len(prompt)
            except TextTooLong as error:
                if not await self._shorten(progress, error.excess_bytes, error.room_bytes, bytes_of):
                    raise
                continue
            room, count = self._model.context_length, partial(self._model.count, salt=progress.turn.salt)
            excess = len(prompt) + self._answer_tokens - room
            if excess <= 0 or not await self._shorten(progress, excess, room, count):
                return segments, prompt

    def _segments(self, progress: Progress) -> list[Segment]:
        if progress.turn.prompt:
            return list(progress.turn.prompt)
        conclude = progress.concluding is not None
        messages = assemble(progress.turn, progress.output, progress.passages, conclude=conclude)
        return self._render(progress.turn, messages, progress.offer)

    async def _shorten(self, progress: Progress, excess: int, room: int, count: Callable[[str], int]) -> bool:
        """Leave out the oldest turns where the caller allows it, or else a passage. False: nothing may be left out.

        `excess` and `room` are in what `count` counts.
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

    async def _held(self, sampling: Sampling, progress: Progress, thinking: bool) -> Sampling:
        """The sampling with the grammar of the step, compiled in a thread. Raises InvalidTurn, InvalidSchema."""
        turn, calls_max = progress.turn, self._calls_max(progress)
        if not calls_max and turn.answer_format is None:
            return sampling
        stage = Stage(not progress.budget.steps and turn.tool_choice != "auto", calls_max, thinking)
        if stage not in progress.grammars:
            progress.grammars[stage] = await asyncio.to_thread(self._grammar, turn, progress.offer, stage)
        return replace(sampling, grammar=progress.grammars[stage])

    def _grammar(self, turn: Turn, offer: Offer, stage: Stage, *, loosely: bool = False) -> Grammar | None:
        """Raises InvalidTurn, and InvalidSchema for a strict schema that no grammar can enforce."""
        to = constraint_of(turn, offer, self._dialect, stage, loosely=loosely)
        if to is None:
            return None
        try:
            return self._model.prepare(to.grammar, to.begins)
        except InvalidSchema as error:
            if not loosely:  # it may be the schema of a function that is not strict
                return self._grammar(turn, offer, stage, loosely=True)
            if to.begins:
                return None
            error.param = turn.answer_format.param if turn.answer_format else None
            raise

    def _parser(self, progress: Progress, thinking: bool) -> Parser:
        if progress.turn.prompt:
            return PlainParser()
        parser = self._dialect.parser(progress.offer.schemas, thinking=thinking)
        return FormattedParser(parser) if progress.turn.answer_format else parser

    def _render(self, turn: Turn, messages: Sequence[ChatMessage], offer: Offer) -> list[Segment]:
        switches = turn.switches.chosen(self._model.switches)
        return self._model.render(messages, offer.schemas, switches, salt=turn.salt)

    async def _encode(self, segments: Sequence[Segment], salt: str) -> list[int]:
        if sum(len(segment.text) for segment in segments) < ENCODE_CHARS_MAX:
            return self._model.encode(segments, salt=salt)
        return await asyncio.to_thread(self._model.encode, segments, salt=salt)

    def _calls_max(self, progress: Progress) -> int:
        if progress.concluding or not progress.offer.schemas:
            return 0
        return CALLS_MAX if progress.turn.parallel_tool_calls and not self._dialect.one_call else 1

    def _end(self, progress: Progress, sink: EventSink) -> None:
        """Close the step's items and account for it. Idempotent."""
        step = progress.step
        if step.ended:
            return
        sink.write(step.end(fallback=NOTHING_LEFT if progress.concluding else ""))
        progress.add(step)
        if step.reply.exact and not progress.turn.sampling.stop:  # the ids contain the stop string, the text does not
            self._model.remember(answer_message(step.reply.items), step.generation.ids, salt=progress.turn.salt)

    def _answer(self, progress: Progress, call: FunctionCall, result: ToolResult, sink: EventSink) -> None:
        """Write the result as an item, cut to its share of the free context."""
        step = progress.step
        used = step.generation.prompt_tokens + len(step.generation.ids) + self._answer_tokens
        share = (self._model.context_length - used) // len(step.calls.pending)
        count = partial(self._model.count, salt=progress.turn.salt)
        index, item = progress.add_result(call, fit(result.output, share, count))
        sink.write([ItemStarted(index, replace(item, output="", status="in_progress")), ItemFinished(index, item)])
