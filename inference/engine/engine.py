"""The engine: one thread that owns the model's context and runs step after step while there is work.

The event loop submits requests through a deque and receives tokens through one callback per step. No other thread
touches the context. A step is: take submitted requests, plan, execute, publish.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
from collections import Counter, deque
from collections.abc import Sequence
from typing import Any

from inference.backend import Backend
from inference.config import EngineConfig
from inference.engine.encoder_thread import EncoderThread
from inference.engine.executor import Executor
from inference.engine.fairness import within_share
from inference.engine.forecast import Forecasts
from inference.engine.reasoning_budget import ReasoningBudget
from inference.engine.sampler import Sampler
from inference.engine.scheduler import AHEAD_TOKENS_MIN, Scheduler
from inference.errors import (
    EngineStopped,
    InferenceError,
    NotDeterministic,
    QueueFull,
    UnseenPicture,
)
from inference.generation import ANY_TERMS, Due, Finish, Priority, Sampling, Terms
from inference.grammar.constraint import Constraint
from inference.kvcache.disk import DiskTier
from inference.kvcache.tiers import Tiers
from inference.picture import PictureRange, VisionEncoder
from inference.prompt import CacheScope, PromptTokens
from inference.request import Handle, Outbox, Request, TokenUpdate, room_for
from inference.speculative.controller import Drafter, SpeculationController
from inference.tokenizer import TextStream
from inference.trace import now_ns

log = logging.getLogger("firsttoken.engine")

# A Python thread in a computation holds the GIL for at most this long before another thread gets a turn.
SWITCH_INTERVAL_S = 0.001
# While all requests wait for the encoder of pictures, their deadlines are looked at so often.
ENCODER_WAIT_S = 0.1
# Parking takes milliseconds, and the next request of a tool loop must not wait for it: its tools take less than this.
REST_AFTER_S = 0.5


class Engine:
    """Construct it, `start` it on a running event loop, `submit` requests, `close` it."""

    def __init__(
        self,
        backend: Backend,
        pieces: Sequence[bytes],
        end_tokens: frozenset[int],
        config: EngineConfig,
        drafter: Drafter | None = None,
        disk: DiskTier | None = None,
        vision: VisionEncoder | None = None,
    ) -> None:
        self._backend = backend
        self._pieces = pieces
        self._end_tokens = end_tokens
        self._config = config
        self._scheduler = Scheduler(config, rewinds=backend.rewinds, streams=backend.streams)
        self._forecasts = Forecasts(self._scheduler, config)
        self.speculation = SpeculationController(drafter, config, self._scheduler.cost, backend)
        self.tiers = Tiers(backend, self._scheduler.slots, disk, self.wake)
        self._encoder = EncoderThread(vision, self.wake) if vision else None
        self._handles: dict[Request, Handle] = {}
        self._inbox: deque[tuple[Request, Handle]] = deque()
        self._news: list[TokenUpdate] = []
        self._wake = threading.Event()
        self._wakes_soon = False
        self._closing = False
        self.failed: str | None = None  # why the engine is dead, if it is
        self.lost = False  # the device is gone, and the engine's thread with it: only another process can use it again
        self._outbox: Outbox | None = None
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)
        self.totals: Counter[str] = Counter()  # tokens by kind, steps, decode_ns
        self._executor = Executor(
            backend, self._scheduler, self.speculation, self.tiers, self._accept, self._finish, self.totals
        )

    # --- on the event loop ---

    def start(self) -> None:
        """Start the thread; results are delivered to the running event loop."""
        sys.setswitchinterval(SWITCH_INTERVAL_S)
        self._outbox = Outbox(asyncio.get_running_loop())
        self.tiers.start()
        self._thread.start()

    def submit(
        self,
        prompt: Sequence[int],
        sampling: Sampling,
        terms: Terms = ANY_TERMS,
        constraint: Constraint | None = None,
    ) -> Handle:
        """Queue a prompt. Behind what is written of its answer it goes on as a preempted request does. Raises
        PromptTooLong, UnknownToken, QueueFull, Late, EngineStopped, and GrammarFailed if that breaks the constraint."""
        written = terms.written
        if self._closing or self.failed or self._outbox is None:
            raise EngineStopped(self.failed or "the model is shutting down")
        room = room_for(prompt, sampling, terms, context=self._backend.context, vocabulary=len(self._pieces))
        pictures = self._pictures_of(prompt)
        if sampling.deterministic:
            self._check_deterministic(pictures)
        scope = CacheScope(terms.salt, sampling.deterministic)
        known = 0 if sampling.scores_prompt else self._scheduler.slots.longest(prompt, scope)
        uncached = max(1, len(prompt) - known)
        self._check_queue(len(prompt), terms.salt)
        limit = sampling.reasoning_limit
        request = Request(
            prompt=list(prompt),
            max_tokens=min(sampling.max_tokens, room),
            sampler=Sampler(sampling, constraint, written),
            text=TextStream(self._pieces),
            generated=list(written),
            prediction=terms.prediction,
            scores_top=(sampling.top_logprobs or 0) if sampling.scores_prompt else None,
            scope=scope,
            priority=terms.priority,
            due_ns=terms.due.at_ns,
            pace_s=terms.due.pace_s,
            forecast=self._forecasts.check(uncached, terms.due, terms.salt, terms.priority, now_ns()),
            deadline_ns=terms.deadline_ns,
            reasoning=ReasoningBudget(limit, self._pieces, self._end_tokens) if limit else None,
            boundaries=PromptTokens.boundaries_of(prompt),
            pictures=pictures,
        )
        for token in written:
            request.text.push(token)
        self._scheduler.load.add(request, uncached)
        handle = self._enter(request)
        if self.failed:  # it failed meanwhile: its thread may have drained the inbox for the last time
            raise EngineStopped(self.failed)
        return handle

    def expect(self, due: Due, *, salt: str = "", priority: Priority = Priority.STANDARD) -> None:
        """Raises Late if not even a prompt of one token could meet its due time."""
        if due.at_ns is None or due.waits:
            return  # `submit` makes the forecast once the prompt is known
        load = self._scheduler.load
        if load.total.waiting or load.total.running >= self._config.parallel:  # otherwise it is admitted at once
            self._forecasts.check(1, due, salt, priority, now_ns())

    def prefill_ahead(self, prompt: Sequence[int], *, salt: str = "", exact: bool = False) -> Handle | None:
        """Prefill the prefix of a future prompt, below all priority classes. Returns None if that would not help."""
        stopped = self._closing or self.failed or self._outbox is None
        fits = AHEAD_TOKENS_MIN <= len(prompt) < self._backend.context
        waits = any(not each.ahead and each.slot is None for each in self._requests)
        if stopped or not fits or waits or self.running >= self._config.parallel:
            return None
        request = Request(
            prompt=list(prompt),
            max_tokens=0,
            sampler=Sampler(Sampling()),
            text=TextStream(self._pieces),
            scope=CacheScope(salt, exact),
            priority=Priority.AHEAD,
            boundaries=PromptTokens.boundaries_of(prompt),
            pictures=self._pictures_of(prompt),
        )
        return self._enter(request)

    def _pictures_of(self, prompt: Sequence[int]) -> Sequence[PictureRange]:
        """The pictures of a prompt. Raises UnseenPicture if only the tokens are left that stood for them."""
        pictures = PromptTokens.pictures_of(prompt)
        if self._encoder and not pictures and max(prompt) >= len(self._pieces):
            raise UnseenPicture("the prompt had images, which this model does not have any more")
        return pictures

    def _check_deterministic(self, pictures: Sequence[PictureRange]) -> None:
        """Raises NotDeterministic."""
        if not (self._backend.exact and self._backend.rewinds):
            raise NotDeterministic(
                "deterministic answers need a CPU, a model without recurrent layers, and a worker that was started "
                "with --kv-layout streams --flash-attention off and, for sliding windows, --kv-windows all"
            )
        if pictures:
            raise NotDeterministic("deterministic answers are only for prompts without images")

    def share(self, beginning: Sequence[int]) -> None:
        """From now on, prompts of all tenants that start with these tokens share the KV cache of this prefix."""
        self._scheduler.shared_prefixes.add(beginning)

    def _enter(self, request: Request) -> Handle:
        request.stamps.submitted_ns = now_ns()
        handle = Handle(request, self.wake, self._queue_position)
        self._inbox.append((request, handle))
        self._wake_soon()
        return handle

    def _queue_position(self, request: Request) -> int | None:
        if request.finish is not None or request.slot is not None:
            return None
        return self._scheduler.queue_position(request, now_ns())

    def _check_queue(self, tokens: int, tenant: str) -> None:
        """Raises QueueFull. No prompt is too long for an empty queue: there, the context is the limit."""
        load, config = self._scheduler.load, self._config
        all_, own = load.total, load.held_by(tenant)
        free = config.parallel + config.queue_max - all_.waiting - all_.running
        if not within_share(own.waiting, free):
            is_own = free > 0 and own.waiting > 0
            raise self._full(f"{all_.waiting} requests are already waiting for the model", own=is_own)
        free = config.queue_tokens_max - all_.tokens
        if all_.tokens and not within_share(own.tokens, free, tokens):
            raise self._full(f"prompts of {all_.tokens} tokens are already waiting for the model", own=free >= tokens)

    def _full(self, message: str, *, own: bool) -> QueueFull:
        return QueueFull(message, self._forecasts.next_slot_s, own=own)

    def wake(self) -> None:
        self._wake.set()

    def _wake_soon(self) -> None:
        """Wake the thread at the end of this iteration of the event loop. Woken by the first of several requests, the
        thread would take the GIL from the code that submits the others, and these would wait for a step that starts
        without them."""
        if not self._wakes_soon:
            self._wakes_soon = True
            asyncio.get_running_loop().call_soon(self._wake_now)

    def _wake_now(self) -> None:
        self._wakes_soon = False
        self.wake()

    def close(self) -> None:
        """End running requests with an error, save the conversations to disk and stop the thread. Blocks for one step
        and the writes: a few seconds at most."""
        self._closing = True
        self.wake()
        if self.lost:  # the thread is stuck in the device and may still use whatever would be freed here
            return
        alive = self._thread.is_alive()
        if alive:
            self._thread.join()
        if self.failed:
            self.tiers.abandon()
        elif alive:
            self.tiers.close()
        self.speculation.close()
        if self._encoder:
            self._encoder.close()
        self._backend.close()

    @property
    def waiting(self) -> int:
        return 0 if self.failed else self._scheduler.waiting + len(self._arriving)

    @property
    def running(self) -> int:
        return 0 if self.failed else self._scheduler.running

    @property
    def ahead(self) -> int:
        """How many of those that wait or run are prefills ahead."""
        return 0 if self.failed else sum(each.ahead for each in self._requests)

    @property
    def _requests(self) -> list[Request]:
        return [*self._scheduler.requests, *self._arriving]

    @property
    def _arriving(self) -> list[Request]:
        """Requests that the scheduler does not know yet."""
        return [*(request for request, _ in list(self._inbox)), *self.tiers.arrivals.requests]

    @property
    def prefill_token_s(self) -> float | None:
        """Seconds to prefill one token; None until it has been measured."""
        return self._forecasts.prefill_token_s

    def stats(self) -> dict[str, Any]:
        """Gauges and totals, for health and metrics. Those by position in a draft are mappings."""
        slots, totals = self._scheduler.slots, self.totals
        return {
            "waiting": self.waiting,
            "running": self.running,
            "ahead": self.ahead,
            "waiting_tokens": self._scheduler.load.total.tokens,  # of all waiting prompts
            "predicted_ttft_s": self._forecasts.next_ttft_s(now_ns()),  # of a request that arrived now
            "parallel": self._config.parallel,
            "resident": slots.resident,
            "kv_use": round(slots.tokens / (slots.count * self._backend.context), 4),
            "preempted_total": totals["preempted"],
            "steps_total": totals["steps"],
            "prompt_tokens_total": totals["prompt_tokens"],
            "cached_tokens_total": totals["cached_tokens"],
            "ahead_tokens_total": totals["ahead_tokens"],
            "generated_tokens_total": totals["generated_tokens"],
            "decode_seconds_total": totals["decode_ns"] / 1e9,
            **self.speculation.stats(),
            **self.tiers.stats(self.prefill_token_s),
        }

    # --- on the engine's thread ---

    def _run(self) -> None:
        try:
            with self._backend.surviving(self._lose_device):
                while not self._closing:
                    if self._wake.is_set():
                        self._wake.clear()
                    self._take_submitted()
                    self._step()
                    self._publish()
                    self._executor.keep_ends()
                    if self._scheduler.idle:
                        self._rest()
                    elif self._encoder and self._encoder.is_busy and not self._scheduler.can_compute:
                        self._wake.wait(ENCODER_WAIT_S)
            self._fail_all(EngineStopped("the model is shutting down"))
        except Exception as error:  # the outermost handler: waiting callers must get the error
            log.exception("the engine stopped")
            self._give_up(f"the engine failed: {error or type(error).__name__}")

    def _lose_device(self, reason: str) -> None:
        """Called in the middle of a device call that never returns: the last thing that the thread does."""
        self.lost = True
        log.critical("the device failed: %s; the process must be restarted", reason)
        self._give_up(f"the device failed: {reason}")

    def _give_up(self, reason: str) -> None:
        """Fail all requests. The engine's state is no longer reliable; the handles are all that is needed."""
        self.failed = reason  # before the inbox is emptied: see `submit`
        handles, self._handles = self._handles, {}
        for request in handles:
            request.finish = Finish.ERROR
        error = EngineStopped(reason)
        self._news += [TokenUpdate(handle, None, "", Finish.ERROR, error) for handle in handles.values()]
        while self._inbox:
            self._news.append(TokenUpdate(self._inbox.popleft()[1], None, "", Finish.ERROR, error))
        self._publish()

    def _take_submitted(self) -> None:
        while self._inbox:
            request, handle = self._inbox.popleft()
            self._handles[request] = handle
            if not self.tiers.hold(request, self.prefill_token_s):
                self._add(request)
        for request in self.tiers.arrived():
            self._add(request)
        now = now_ns()
        for request in [*self._scheduler.requests, *self.tiers.arrivals.requests]:
            if (finish := request.ending(now)) is not None:
                self._finish(request, finish)

    def _add(self, request: Request) -> None:
        self._scheduler.add(request)
        for other in self._scheduler.superseded(request):
            self._finish(other, Finish.CANCELLED)

    def _step(self) -> None:
        began_ns = now_ns()
        plan = self._scheduler.admit(began_ns)
        self._executor.place(plan)
        self._publish()  # the first tokens that need no step do not wait for one
        self._executor.keep_ends()
        self._scheduler.begin(self._scheduler.fill(plan, began_ns), began_ns)
        took_ns = self._executor.run(plan)
        self.totals["preempted"] += plan.preempted
        if took_ns is not None:
            self.totals["steps"] += 1
            self.totals["decode_ns"] += took_ns
            self._scheduler.record_step(plan, took_ns / 1e9)
            if plan.cost_follows_rows(parted=self._backend.streams):
                self._scheduler.cost.observe(plan.rows, took_ns / 1e9)
        for request, error in self._encoder.serve(self._scheduler.running_requests) if self._encoder else ():
            self._finish(request, Finish.ERROR, error)

    def _rest(self) -> None:
        """Wait for work. In a longer pause, park conversations so that their slots can be taken later at no cost, then
        leave the cores to other models."""
        if (wait_s := self.tiers.arrivals.wait_s(now_ns())) is not None:
            self._wake.wait(wait_s)
        elif self._wake.wait(REST_AFTER_S):
            return
        elif saved := self._scheduler.slots.offer():
            self.tiers.park(saved)
        else:
            self._backend.rest()
            self._wake.wait()

    def _accept(self, request: Request, token: int) -> None:
        """Record the next token of a request."""
        stamps = request.stamps
        stamps.last_token_ns = now_ns()
        stamps.first_token_ns = stamps.first_token_ns or stamps.last_token_ns
        if token in self._end_tokens:
            if request.scores_top is not None:  # the end is scored like what precedes it
                self._emit(request, None, "")
            self._finish(request, Finish.STOP)
            return
        request.generated.append(token)
        self.totals["generated_tokens"] += 1
        self._emit(request, token, request.text.push(token))
        if len(request.generated) >= request.max_tokens:
            self._finish(request, Finish.LENGTH)

    def _emit(self, request: Request, token: int | None, text: str) -> None:
        logprobs = request.sampler.logprobs_of(self._pieces)
        self._news.append(TokenUpdate(self._handles[request], token, text, None, None, logprobs))

    def _finish(self, request: Request, finish: Finish, error: InferenceError | None = None) -> None:
        request.finish = finish
        self._scheduler.load.remove(request)
        if not self.tiers.arrivals.leave(request):
            self._scheduler.remove(request)
        self._news.append(TokenUpdate(self._handles.pop(request), None, request.text.flush(), finish, error))
        if request.ahead:
            self.totals["ahead_tokens"] += max(0, request.computed - request.cached_tokens)
        else:
            self._forecasts.learn(request, now_ns())

    def _fail_all(self, error: InferenceError) -> None:
        for request in [*self._scheduler.requests, *self.tiers.arrivals.requests]:
            self._finish(request, Finish.ERROR, error)
        self._news += [TokenUpdate(handle, None, "", Finish.ERROR, error) for _, handle in self._inbox]
        self._inbox.clear()
        self._publish()

    def _publish(self) -> None:
        if not self._news:
            return
        news, self._news = self._news, []
        assert self._outbox is not None
        try:
            self._outbox.publish(news)
            if self._backend.crowded and len(news) > 1:  # a single token takes no longer than waiting for it
                self._outbox.await_delivery(len(news))
        except RuntimeError:  # the event loop is closed: nobody receives the results
            self._closing = True
