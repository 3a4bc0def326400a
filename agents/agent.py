"""The agent loop: assemble a prompt, generate, run the tools that the model called, repeat until there is an answer.

A turn can be refused only before its first event. From then on it always ends with TurnFinished, unless the task is
cancelled: that cancels the generation and the tools at once.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import replace

from agents.budget import ANSWER_TOKENS, FREE, Budget, Prices
from agents.constraint import Stage, constraint_of
from agents.events import EventSink, ItemFinished, ItemStarted, TurnFinished
from agents.message import FunctionCall, Message
from agents.offer import Offer
from agents.parser.choose import Format, FormattedParser, Parser, choose
from agents.prefetch import Prefetch, before_missing, before_question
from agents.progress import Progress
from agents.prompt import answer_message, assemble, question
from agents.reply import CALLS_MAX, Reply
from agents.search import Searcher, found, search
from agents.step import RunningCalls, Step, StepSpans, add_tool, settled, takes_long
from agents.tool import ToolContext
from agents.toolbox import Toolbox, ToolResult, fit
from agents.truncation import shortened
from agents.turn import Turn
from inference.core import Generation, Grammar, LanguageModel, Sampling, Segment
from inference.errors import InferenceError, InvalidSchema
from inference.trace import Trace, now_ns

log = logging.getLogger(__name__)

# Tokenising this many takes a few milliseconds; longer text would block the event loop of all requests.
ENCODE_CHARS_MAX = 10_000

NOTHING_LEFT = "I could not finish that because the tool budget is used up."


class Agent:
    def __init__(
        self, model: LanguageModel, retriever: Searcher | None, toolbox: Toolbox, prices: Prices = FREE
    ) -> None:
        self._model = model
        self._prices = prices
        self._retriever = retriever
        self._toolbox = toolbox
        self._dialect = choose(model.chat_template)
        # Reserved for the answer beside passages and results; less in a small context.
        self._answer_tokens = min(ANSWER_TOKENS, model.context_length // 8)

    async def run(self, turn: Turn, trace: Trace, sink: EventSink) -> TurnFinished:
        """Write the events of one turn to the sink and return the last one.

        Raises before the first event only: InvalidTurn, StoreNotFound, PromptTooLong, QueueFull, EngineStopped, and
        what `sink.open` raises.
        """
        with Prefetch(self._model, trace) as ahead:
            progress = await self._prepare(turn, trace, ahead)
            progress.step = await self._begin(progress)
        try:
            await sink.open()
            finished = await self._run_steps(progress, sink)
            sink.write(finished)
            return finished
        finally:
            progress.step.cancel()

    async def _run_steps(self, progress: Progress, sink: EventSink) -> TurnFinished:
        try:
            for event in progress.opening():
                sink.write(event)
            while True:
                step = progress.step
                await step.run(sink)
                self._end(progress, sink)
                with Prefetch(self._model, progress.trace) as progress.ahead:
                    await self._results(progress, sink)
                    if not step.goes_on or progress.budget.remaining_tokens <= 0:
                        return progress.finished()
                    progress.concluding = progress.budget.spent(now_ns())
                    await sink.drain()
                    progress.step = await self._begin(progress)
        except Exception as error:  # the boundary: any failure of a started turn becomes its last event
            if not isinstance(error, InferenceError):
                log.exception("turn failed")
            self._end(progress, sink)
            return progress.failed(error)

    async def count(self, turn: Turn) -> int:
        """Tokens of the first prompt of this turn, without passages. Raises InvalidTurn, InvalidTemplate."""
        trace = Trace()
        progress = await self._prepare(replace(turn, file_search=None), trace, Prefetch(self._model, trace))
        return len((await self._prompt(progress))[1])

    async def warm(self, turn: Turn) -> Generation | None:
        """Prefill what precedes the next question, where that helps; this turn has no question yet.

        Raises InvalidTurn, InvalidTemplate.
        """
        asked = replace(turn, input=(*turn.input, Message("user", "?")))
        return self._model.read_ahead(await self._prefix(asked, self._offer(asked)), salt=str(turn.tenant_id))

    async def share(self, turn: Turn) -> None:
        """Let all tenants share the prefix of turns like this one, which comes from the configuration and contains no
        data of a tenant. Raises InvalidTurn, InvalidTemplate.
        """
        asked = replace(turn, input=(Message("user", "?"),))
        self._model.share(await self._prefix(asked, self._offer(asked)))

    def _offer(self, turn: Turn) -> Offer:
        return Offer.of(turn, self._toolbox, holds=self._dialect.format is Format.HERMES)

    async def _prepare(self, turn: Turn, trace: Trace, ahead: Prefetch) -> Progress:
        """Check the turn and search for passages, while the model prefills what precedes them. The search starts first:
        the database works while the prompt is built.
        """
        offer = self._offer(turn)
        budget = Budget(turn.limits, now_ns(), self._prices)
        searching = asyncio.create_task(search(turn, self._retriever, trace))
        try:
            await asyncio.sleep(0)  # lets it send its first query
            await self._read_ahead(turn, offer, ahead)
            sources = await searching
        finally:
            searching.cancel()
        stores = turn.file_search.vector_store_ids if turn.file_search else ()
        return Progress(
            turn,
            trace,
            offer,
            budget,
            ToolContext(turn.tenant_id, stores, list(sources)),
            ahead,
            in_prompt=len(sources),
            concluding=budget.spent(now_ns()) if offer.server else None,
        )

    async def _read_ahead(self, turn: Turn, offer: Offer, ahead: Prefetch) -> None:
        if not (turn.file_search and self._retriever and question(turn)):
            return
        ahead.read(await self._prefix(turn, offer), salt=str(turn.tenant_id), exact=turn.sampling.deterministic)

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
                self._answer(progress, call, result, sink)

    async def _read_results(self, progress: Progress, missing: int) -> None:
        """Prefill the results that are available, while tools whose results follow them still run."""
        turn = progress.turn
        segments = self._model.render(assemble(turn, progress.output, progress.passages), progress.offer.schemas)
        prefix = await self._encode(before_missing(segments, missing))
        progress.ahead.read(prefix, salt=str(turn.tenant_id), exact=turn.sampling.deterministic)

    async def _prefix(self, turn: Turn, offer: Offer) -> list[int]:
        return await self._encode(before_question(self._model.render(assemble(turn), offer.schemas)))

    async def _begin(self, progress: Progress) -> Step:
        """Submit the next step. Raises PromptTooLong, QueueFull, EngineStopped, InvalidTurn, InvalidSchema."""
        turn, budget = progress.turn, progress.budget
        segments, prompt = await self._prompt(progress)
        end = segments[-1].text if segments and segments[-1].trusted else ""
        thinking = self._dialect.opens_thought(end)
        if turn.file_search and not budget.steps:
            progress.output = [found(turn, progress.passages)]
        tokens_max = min(turn.sampling.max_tokens, budget.remaining_tokens)
        sampling = await self._held(replace(turn.sampling, max_tokens=tokens_max), progress, thinking)
        generation = self._model.generate(
            prompt,
            sampling,
            salt=str(turn.tenant_id),
            priority=turn.priority,
            deadline_ns=budget.deadline_ns(concluding=progress.concluding is not None),
        )
        return Step(
            generation,
            Reply(
                len(progress.output),
                self._parser(progress, thinking),
                progress.context.sources,
                self._calls_max(progress),
                exact=self._dialect.keeps_tokens,
            ),
            RunningCalls(self._toolbox, progress.offer.server, progress.context, budget),
            StepSpans(progress.trace, generation, lambda: self._model.verdict(segments, generation)),
            progress.offer,
        )

    async def _prompt(self, progress: Progress) -> tuple[list[Segment], list[int]]:
        """The next step's prompt and its token ids, shortened until an answer fits, where anything may be left out."""
        while True:
            with progress.trace.span("assemble", passages=progress.in_prompt):
                conclude = progress.concluding is not None
                messages = assemble(progress.turn, progress.output, progress.passages, conclude=conclude)
                segments = self._model.render(messages, progress.offer.schemas)
            with progress.trace.span("tokenize") as span:
                prompt = await self._encode(segments)
                span.attributes["tokens"] = len(prompt)
            excess = len(prompt) + self._answer_tokens - self._model.context_length
            if excess <= 0 or not await self._shorten(progress, excess):
                return segments, prompt

    async def _shorten(self, progress: Progress, excess: int) -> bool:
        """Leave out the oldest turns where the caller allows it, or else a passage. False: nothing may be left out."""
        model = self._model
        if progress.turn.truncates:
            shorter = await asyncio.to_thread(shortened, progress.turn, excess, model.context_length, model.count)
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
        parser = self._dialect.parser(progress.offer.schemas, thinking=thinking)
        return FormattedParser(parser) if progress.turn.answer_format else parser

    async def _encode(self, segments: Sequence[Segment]) -> list[int]:
        if sum(len(segment.text) for segment in segments) < ENCODE_CHARS_MAX:
            return self._model.encode(segments)
        return await asyncio.to_thread(self._model.encode, segments)

    def _calls_max(self, progress: Progress) -> int:
        if progress.concluding or not progress.offer.schemas:
            return 0
        return CALLS_MAX if progress.turn.parallel_tool_calls and not self._dialect.one_call else 1

    def _end(self, progress: Progress, sink: EventSink) -> None:
        """Close the step's items and account for it. Idempotent."""
        step = progress.step
        if step.ended:
            return
        for event in step.end(fallback=NOTHING_LEFT if progress.concluding else ""):
            sink.write(event)
        progress.add(step)
        if step.reply.exact and not progress.turn.sampling.stop:  # the ids contain the stop string, the text does not
            self._model.remember(answer_message(step.reply.items), step.generation.ids)

    def _answer(self, progress: Progress, call: FunctionCall, result: ToolResult, sink: EventSink) -> None:
        """Write the result as an item, cut to its share of the free context."""
        step = progress.step
        used = step.generation.prompt_tokens + len(step.generation.ids) + self._answer_tokens
        share = (self._model.context_length - used) // len(step.calls.pending)
        index, item = progress.add_result(call, fit(result.output, share, self._model.count))
        sink.write(ItemStarted(index, replace(item, output="", status="in_progress")))
        sink.write(ItemFinished(index, item))
