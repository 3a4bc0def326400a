"""Opens a turn and each of its steps. A turn is checked, and passages are searched while the model reads what precedes
them. At a step, a prompt, a grammar and limits become a generation, or a cached answer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from functools import partial

from agents.answer_cache import AnswerCache, CachedAnswer, CachedGeneration, NextStep
from agents.message import FileSearchCall, FunctionCall, Item, Message, ToolListing
from agents.parser.dialect import Format, PlainParser
from agents.parser.markup import MarkupParser
from agents.progress import CannotResume, Checkpoint, Progress
from agents.prompt import Prefetch, before_question, question, question_is_last
from agents.prompt_builder import PromptBuilder
from agents.reply import CALLS_MAX, Reply, StopStrings, StrictArguments
from agents.router import Candidate, Router
from agents.routing.policy import Decision
from agents.routing.trial import Trial, judged
from agents.search import Rewriting, best_within, found, passage_tokens_max, rewritten, search
from agents.step import RunningCalls, Step, StepSpans
from agents.step_on_trial import StepOnTrial
from agents.tool import ToolContext
from agents.toolbox import AvailableTools, Extent, Stage, constraint_of, defect_of
from agents.turn import TOKENS_MAX, Budget, Prices, Turn
from inference.errors import InferenceError, InvalidSchema, TextTooLong, UnseenPicture
from inference.frozen import changed
from inference.generation import Due, Finish, Generation, Grammar, ReasoningLimit, Sampling, Terms
from inference.language_model import LanguageModel
from inference.prompt import PromptTokens, Segment, Verdict, image_tokens
from inference.trace import Trace, now_ns
from retrieval.passage import Passage
from retrieval.query import Searcher
from retrieval.speculative_search import READ_TOKENS


class TurnOpener:
    def __init__(self, prompts: PromptBuilder, router: Router, retriever: Searcher | None, prices: Prices) -> None:
        self._prompts, self._router, self._retriever, self._prices = prompts, router, retriever, prices

    async def open(
        self, turn: Turn, trace: Trace, ahead: Prefetch, likely: Candidate, passages: Sequence[Passage] | None = None
    ) -> Progress:
        """`likely` is the model that probably runs its first step; `passages` are those of a search that was made
        before. Raises InvalidTurn, StoreNotFound."""
        offer = self._prompts.offer(turn, likely)
        budget = Budget(turn.limits, now_ns(), self._prices)
        asked, sources = None, list(passages or ())
        if turn.file_search and passages is None:
            asked, sources = await self._search(turn, likely, trace, ahead)
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
            output=_listed(turn),
        )
        if asked is not None:
            progress.add_rewriting(asked)
        return progress

    def reopen(
        self, turn: Turn, trace: Trace, checkpoint: Checkpoint, candidate: Candidate, ahead: Prefetch
    ) -> Progress:
        """The turn as its checkpoint has it, before its newest step. Raises InvalidTurn."""
        budget = Budget(turn.limits, now_ns(), self._prices)
        budget.restore(checkpoint.budget, now_ns())
        stores = turn.file_search.vector_store_ids if turn.file_search else ()
        output = checkpoint.output[: checkpoint.before]
        return Progress(
            turn,
            trace,
            self._prompts.offer(turn, candidate, output),
            budget,
            ToolContext(turn.tenant_id, stores, list(checkpoint.sources)),
            ahead,
            in_prompt=checkpoint.in_prompt,
            concluding=checkpoint.concluding,
            output=output,
            usage=checkpoint.usage,
            needs_another_step=True,
        )

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
                    prefix = await self._prompts.prefix(turn, likely)
                    ahead.read(prefix, salt=turn.salt, exact=turn.sampling.deterministic)
            asked, passages = await searching
            return asked, _affordable(turn, trace, likely, passages)
        finally:
            searching.cancel()

    async def _find(self, turn: Turn, trace: Trace) -> tuple[Rewriting, list[Passage]]:
        asked = await rewritten(turn, self._router.rewriter(turn), trace)
        return asked, await search(turn, self._retriever, trace, asked)


def _affordable(turn: Turn, trace: Trace, candidate: Candidate, passages: list[Passage]) -> list[Passage]:
    """Those that this model can read in time: all that it has read already. The span of the search tells how many are
    left out, and why."""
    if any(READ_TOKENS in span.attributes for span in trace.spans):
        return passages
    tokens_max = passage_tokens_max(turn, trace.start_ns, candidate.model.prefill_token_s)
    kept = best_within(passages, tokens_max)
    if len(kept) < len(passages):
        for span in trace.spans:
            if span.name == "retrieve":
                span.attributes |= {"in_prompt": len(kept), "prompt_tokens_max": tokens_max}
    return kept


def _listed(turn: Turn) -> list[Item]:
    """The tools of its servers, as far as the conversation does not show them yet."""
    known = {item.label: item for item in (*turn.history, *turn.input) if isinstance(item, ToolListing)}
    listings = (server.listing for server in turn.servers)
    return [each for each in listings if not (each.label in known and _same(known[each.label], each))]


def _same(one: ToolListing, other: ToolListing) -> bool:
    return (one.tools, one.error) == (other.tools, other.error)


class StepStarter:
    """`names_models`: spans name the model, because there are several."""

    def __init__(self, prompts: PromptBuilder, answers: AnswerCache | None, *, names_models: bool) -> None:
        self._prompts, self._answers, self._names_models = prompts, answers, names_models

    async def start(self, progress: Progress, candidate: Candidate, decision: Decision | None = None) -> Step:
        """Submit the next step; without a decision, one that is taken over. Raises PromptTooLong, QueueFull, Late,
        EngineStopped, InvalidTurn, InvalidSchema."""
        turn, budget = progress.turn, progress.budget
        trial = Trial(decision, turn.due.at_ns) if decision and decision.is_trial else None
        await candidate.ready(progress.trace, progress.held)
        progress.offer = self._prompts.offer(turn, candidate, progress.output, progress.offer)
        segments, prompt = await self._prompts.build(progress, candidate)
        end = segments[-1].text if segments and segments[-1].trusted else ""
        thinking = candidate.dialect.opens_thought(end)
        if turn.file_search and not any(isinstance(item, FileSearchCall) for item in progress.output):
            progress.output.append(found(progress.query, progress.passages))
        sampling = await self.sampling(progress, candidate, thinking, decision if trial else None)
        cached = cache_answer = None
        if self._answers is not None:
            calls_max = _calls_max(progress, candidate)
            asked = NextStep(turn, progress.offer, calls_max, budget.steps, candidate, prompt, sampling)
            cached, cache_answer = self._answers.find(asked, progress.trace)
        predicted = () if cached else await self._prompts.prediction(turn, candidate)
        due = turn.due.begun if budget.steps or decision is None else turn.due
        generation = cached or candidate.model.generate(prompt, sampling, _terms(progress, due, prediction=predicted))
        step = self.step(progress, candidate, generation, prompt, thinking, segments, trial=trial)
        step.cache_answer = cache_answer
        return step

    async def start_reading(self, progress: Progress, candidate: Candidate) -> Step:
        """Submit the prompt of a turn that is only read, or what will precede its question where it has none. Every
        engine generates at least one token, which is thrown away. Raises what `start` raises."""
        turn = progress.turn
        asked = turn if question_is_last(turn) else changed(turn, input=(*turn.input, Message("user", "?")))
        segments: Sequence[Segment] = await self._prompts.render(asked, candidate)
        if asked is not turn:
            segments = before_question(segments) or segments
        prompt = await self._prompts.encode(segments, candidate, turn.salt)
        generation = candidate.model.generate(
            prompt,
            Sampling(max_tokens=1, deterministic=turn.sampling.deterministic),
            _terms(progress, turn.due),
        )
        return self.step(progress, candidate, generation, prompt, False, segments)

    async def restart(self, progress: Progress, candidate: Candidate, checkpoint: Checkpoint) -> list[str]:
        """Submit the newest step of a checkpoint again, behind the tokens that it has, whose texts are returned. Raises
        CannotResume, and what `start` raises."""
        turn, written = progress.turn, checkpoint.written
        sampling = await self.sampling(progress, candidate, checkpoint.thinking)
        over = checkpoint.finish or (Finish.LENGTH if len(written) >= sampling.max_tokens else None)
        try:
            texts = candidate.model.text_pieces(written, over=over is not None)
        except InferenceError as error:
            raise CannotResume(str(error)) from error
        generation: Generation
        if over is not None:
            answer = CachedAnswer("", tuple(written), over)
            generation = CachedGeneration.delivered(answer, len(checkpoint.prompt))
        else:
            terms = _terms(progress, turn.due.begun, written)
            try:
                generation = candidate.model.generate(checkpoint.prompt, sampling, terms)
            except UnseenPicture as error:  # a checkpoint has the tokens that stood for it, not the picture
                raise CannotResume(str(error)) from error
        prompt, thinking = checkpoint.prompt, checkpoint.thinking
        progress.step = self.step(progress, candidate, generation, prompt, thinking, known=checkpoint.sent)
        return texts

    def step(
        self,
        progress: Progress,
        candidate: Candidate,
        generation: Generation,
        prompt: Sequence[int],
        thinking: bool,
        segments: Sequence[Segment] = (),
        known: Sequence[tuple[str, str]] = (),
        trial: Trial | None = None,
    ) -> Step:
        """The step that a generation computes. `known`: the ids and names of calls that were sent before."""
        turn, model = progress.turn, candidate.model
        if turn.answer_now:
            turn.answer_now.follow(generation)
        reply = Reply(
            len(progress.output),
            _parser(progress, candidate, thinking),
            progress.context.sources,
            _calls_max(progress, candidate),
            shapes=progress.offer.shapes,
            exact=candidate.dialect.keeps_tokens and not (turn.prompt or turn.beginning),
            verbatim=bool(turn.prompt or turn.beginning),
            known=known,
            stops=StopStrings(turn.stop),
            forced=_is_forced(progress),
            strict=StrictArguments(progress.offer.definitions, enforced=candidate.dialect.format is Format.HERMES),
        )
        calls = RunningCalls(
            *(self._prompts.tools_of(turn), progress.offer.server, progress.context, progress.budget),
            stored=progress.marks.stored if progress.marks else None,
        )
        spans = StepSpans(
            progress.trace,
            generation,
            lambda: _verdict(turn, model, segments, prompt, generation),
            candidate.name if self._names_models else "",
            turn.priority,
            image_tokens=image_tokens(prompt),
        )
        parts = candidate, generation, reply, calls, spans, progress.offer, prompt, thinking
        if trial is None:
            step = Step(*parts)
        else:
            flaw = partial(defect_of, turn, progress.context.sources)
            step = StepOnTrial(*parts, trial=trial, flaw=flaw, top_logprobs=turn.sampling.top_logprobs)
        if turn.steering:
            turn.steering.follow(step)
        return step

    async def sampling(
        self, progress: Progress, candidate: Candidate, thinking: bool, judge: Decision | None = None
    ) -> Sampling:
        """How the next step is sampled: within what the turn has left, with the model's defaults, and with a grammar,
        which is compiled in a thread. `judge`: the decision by which the step is on trial. Raises InvalidTurn,
        InvalidSchema."""
        turn, calls_max = progress.turn, _calls_max(progress, candidate)
        asked = turn.sampling.at_most(progress.budget.remaining_tokens)
        asked = asked.completed(candidate.model.sampling_defaults.values)
        if (limit := _reasoning_limit(progress, candidate, thinking)) is not None:
            asked = changed(asked, reasoning_limit=limit)
        if judge is not None:
            asked = judged(asked, judge)
        if not calls_max and turn.answer_format is None:
            return asked if turn.prompt else asked.without(candidate.call_tokens)
        stage = Stage(_is_forced(progress), calls_max, thinking)
        key = (candidate.name, stage, progress.offer.callable)
        if key not in progress.grammars:
            progress.grammars[key] = await asyncio.to_thread(_grammar, turn, progress.offer, candidate, stage)
        return changed(asked, grammar=progress.grammars[key])


def _grammar(
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
        return candidate.model.prepare(to.grammar, to.trigger, salt=turn.salt)
    except InvalidSchema as error:
        if less:  # it may be a schema that nobody insists on
            return _grammar(turn, offer, candidate, stage, less)
        if to.trigger:
            return None
        error.param = turn.answer_format.param if turn.answer_format else "tools"
        raise


def _terms(progress: Progress, due: Due, written: Sequence[int] = (), prediction: Sequence[int] = ()) -> Terms:
    turn = progress.turn
    deadline_ns = progress.budget.deadline_ns(concluding=progress.concluding is not None)
    return Terms(turn.salt, turn.priority, due, deadline_ns, progress.trace.traceparent, written, prediction)


def _verdict(
    turn: Turn, model: LanguageModel, segments: Sequence[Segment], prompt: Sequence[int], generation: Generation
) -> Verdict | None:
    if not isinstance(prompt, PromptTokens):  # of a checkpoint, which has no segments
        return None
    return model.verdict(segments, prompt, generation, salt=turn.salt)


def _parser(progress: Progress, candidate: Candidate, thinking: bool) -> MarkupParser:
    if progress.turn.prompt:
        return PlainParser()
    parser = candidate.dialect.parser(progress.offer.schemas, thinking=thinking)
    parser.formatted = progress.turn.answer_format is not None
    return parser


def _is_forced(progress: Progress) -> bool:
    """Whether the step must call a tool: until a call of the turn is complete, or the budget is spent."""
    called = any(isinstance(item, FunctionCall) and item.runs for item in progress.output)
    return not (called or progress.concluding) and progress.turn.tool_choice not in ("auto", "none")


def _calls_max(progress: Progress, candidate: Candidate) -> int:
    turn = progress.turn
    if progress.concluding or not progress.offer.callable:
        return 0
    is_named = turn.tool_choice not in ("auto", "none", "required")  # the choice of one call
    return 1 if is_named or candidate.dialect.one_call or not turn.parallel_tool_calls else CALLS_MAX


def _reasoning_limit(progress: Progress, candidate: Candidate, begun: bool) -> ReasoningLimit | None:
    """How the reasoning of the next step is ended, after what is left of the turn's budget."""
    limit, most = candidate.reasoning_limit, progress.turn.limits.thought_tokens
    if limit is None or progress.turn.prompt:
        return None
    left = max(0, most - progress.usage.reasoning_tokens) if most < TOKENS_MAX else None
    if progress.turn.answer_now and progress.turn.answer_now.wanted:
        left = 0
    return changed(limit, begun=begun, tokens=left)
