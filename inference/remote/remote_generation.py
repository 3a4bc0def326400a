"""A generation on a remote engine: sent, received, and resumed on another engine if one is lost."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from itertools import zip_longest

import orjson

from inference.errors import (
    OVERLOADED,
    EnginesAway,
    GrammarFailed,
    InferenceError,
    InvalidSchema,
    NotDeterministic,
    PromptTooLong,
    QueueFull,
    Refused,
)
from inference.frozen import changed
from inference.generation import Delta, DeltaStream, Facts, Finish, Hop, Priority, Stamps
from inference.remote.fleet import Fleet, Upstream, session_of
from inference.remote.protocol import DONE, PATH, Ask, Events, MalformedStream, StreamUpdate, read
from inference.remote.transport import PATH as CHANNEL_PATH
from inference.remote.transport import Answer, Exchange, Transport
from inference.tokenizer import TextStream
from inference.trace import now_ns

# A faulty request fails on every engine. Any other refusal may be specific to the engine: it is shutting down, or what
# responds there is not an engine for this worker. Then another one is tried.
FAULTS = frozenset(range(400, 500)) - {401, 402, 403, 404, 405, 407, 408, 421}
RETRY_AFTER_S = 1.0  # if a full engine does not say when it will have room
REFUSAL_CHARS_MAX = 500
CODE_CHARS_MAX = 100
# How long an answer waits for an engine to come back. If an engine had accepted it, the client has received the
# response headers and sees a pause. If not, the wait only covers an engine that was just started and is not known yet;
# after that the request is refused, and the client retries.
STRANDED_S, UNSEEN_S = 15.0, 0.5
# Silence after which an engine is given up: in the middle of an answer, where it must have stalled; and after the last
# token, where it has failed to send the end.
SILENT_S, END_S = 30.0, 5.0
# A request that has taken down this many engines would take down another. An engine that wrote so many tokens of it was
# lost for another reason: a deployment replaces one after the other.
LOSSES_MAX, PROGRESS_TOKENS = 3, 100


class RemoteGeneration(DeltaStream):
    """A `Generation`, and the receiver of its own request. `left` is called once, when no engine works on it anymore.

    Raises EnginesAway, and NotDeterministic if no engine supports deterministic answers.
    """

    def __init__(
        self,
        ask: Ask,
        fleet: Fleet,
        transport: Transport,
        pieces: Sequence[bytes],
        left: Callable[[RemoteGeneration], None],
    ) -> None:
        written = ask.terms.written
        super().__init__(Facts(stamps=Stamps(submitted_ns=now_ns())), len(ask.prompt), written)
        self._written = len(written)
        self.queue_position: int | None = None  # remote engines report neither
        self.read_tokens: int | None = None
        self.upstream: Upstream | None = None
        self._ask, self._fleet, self._transport = ask, fleet, transport
        self._pieces = pieces
        self._text = TextStream(pieces)
        for token in written:
            self._text.push(token)
        self._events = Events()
        self._session = session_of(ask.prompt, ask.terms.salt)
        self._tried: list[Upstream] = []
        self.moves = 0  # how often it was resumed, on another engine or a restarted one
        self._losses = 0
        self._stranded: asyncio.TimerHandle | None = None
        self._give_up_at = float("inf")  # event-loop time; set while it makes no progress
        self._exchange: Exchange | None = None
        self._answered = asyncio.Event()
        self._ending: Finish | None = None  # finish reason, known before the stream ends
        self._heard_at = 0.0  # event-loop time of the last data
        self._timer: asyncio.TimerHandle | None = None
        self._left: Callable[[RemoteGeneration], None] | None = left
        self._begin()
        if (deadline_ns := ask.terms.deadline_ns) is not None:  # not every engine supports deadlines
            left_s = max(0, deadline_ns - now_ns()) / 1e9
            self._timer = asyncio.get_running_loop().call_later(left_s, self._late)

    # --- for the consumer ---

    async def admitted(self) -> None:
        await self._answered.wait()
        if self._error is not None and len(self.ids) == self._written:
            raise self._error

    def cancel(self) -> None:
        if self.finish is None:
            self._end(Finish.CANCELLED)
            self._changed.set()

    def end_reasoning(self) -> None:
        """An engine takes nothing more of a request that it has begun, so the request goes on with a limit that is
        spent, where its prefix is cached. Without effect on other engines than ours, and behind the thought."""
        limit = self._ask.sampling.reasoning_limit
        if limit is None or limit.tokens == 0 or self.finish is not None or not self._fleet.has_ours:
            return
        if self._ending is not None or limit.close.encode() in b"".join([self._pieces[id] for id in self.ids]):
            return
        spent = changed(self._ask.sampling, reasoning_limit=changed(limit, tokens=0))
        self._ask = changed(self._ask, sampling=spent)
        if self._exchange is not None:
            self._tried.pop()
            self._release("the answer was wanted at once")
            self._go_elsewhere(EnginesAway("the engine is gone"))

    @property
    def waits(self) -> bool:
        """Whether it waits for its first token."""
        return not self.facts.stamps.first_token_ns

    @property
    def ahead(self) -> bool:
        return self._ask.terms.priority is Priority.AHEAD

    def resume(self) -> None:
        """Resume on an engine that has become available, if this answer waits for one."""
        if self._stranded is not None:
            self._tried.clear()
            self._go_elsewhere(EnginesAway("the engine is gone"))

    def look(self) -> None:
        """Leave an engine that has gone silent. Called periodically."""
        if self._exchange is None:
            return
        silent_s = asyncio.get_running_loop().time() - self._heard_at
        if self._ending is not None and silent_s > END_S:
            self._release("it did not send the end")
            self._conclude()
            self.flush()
        elif silent_s > SILENT_S and (self._hop.tokens or self._events.is_within_one):
            self._release("it stopped responding")
            self._count_loss()
            self._go_elsewhere(EnginesAway("the engine stopped responding"))

    @property
    def received_tokens(self) -> int:
        """Tokens received, without those that were already written when it was created."""
        return len(self.ids) - self._written

    # --- for the transport ---

    def begun(self) -> None:
        self._hop.taken_ns = now_ns()
        if not self._answered.is_set():  # from now on, the longer STRANDED_S applies
            self._give_up_at = float("inf")
            self._answered.set()

    def refused(self, answer: Answer) -> None:
        error = _refusal(answer)
        self._release(f"refused with status {answer.status}")
        if answer.status in FAULTS and not (self._taken and isinstance(error, QueueFull)):
            self._fail(error)
            return
        if answer.status == 503 and not isinstance(error, QueueFull) and self.upstream is not None:
            self.upstream.away = "it accepts no requests at the moment"
        self._go_elsewhere(error)

    def received(self, data: bytes) -> None:
        exchange = self._exchange
        self._heard_at = asyncio.get_running_loop().time()
        try:
            for event in self._events.feed(data):
                if event == DONE:
                    self._conclude()
                elif event:
                    self._take(read(event, self._pieces))
                if self._exchange is not exchange:  # it has ended, or moved to another engine
                    break
        except MalformedStream as error:
            self._release("its answer was malformed")
            self._count_loss()
            self._go_elsewhere(EnginesAway(f"the engine sent a malformed answer: {error}"))
        if self._deltas or self.finish is not None or self._error is not None:
            self.flush()

    def generated(self, ids: Sequence[int]) -> None:
        if not ids or max(ids) >= len(self._pieces):
            self._fail(InferenceError("the engine sent a malformed answer: no such token"))
        elif self._is_usual(ids):
            self.facts.stamps.last_token_ns = now_ns()  # the common case: `_accept` without checks that do not apply
            self._give_up_at = float("inf")
            self.ids += ids
            self._hop.tokens += len(ids)
            self._deltas += [Delta(self._text.push(token), 1) for token in ids]
            self.flush()
        else:
            self._accept(StreamUpdate(ids))
            self.flush()

    def lost(self, reason: str, *, reached: bool) -> None:
        if self._exchange is None:  # it has left that engine already, and waits for one
            return
        self._release(f"lost: {reason}")
        if reached:
            self._count_loss()
        elif self.upstream is not None:
            self.upstream.away = reason
        self._go_elsewhere(EnginesAway(f"the engine is gone: {reason}"))

    # --- inside ---

    @property
    def _hop(self) -> Hop:
        return self.facts.hops[-1]

    @property
    def _taken(self) -> bool:
        """Whether an engine has accepted it. From then on, the client has the response headers."""
        return bool(self.ids) or self._answered.is_set()

    def _is_usual(self, ids: Sequence[int]) -> bool:
        """Whether these tokens are in the middle of the answer: neither the first, nor the last, nor beyond the end."""
        goes_on = self._ending is None and len(self.ids) + len(ids) < self._ask.sampling.max_tokens
        return bool(goes_on and self.facts.stamps.first_token_ns) and self._ask.end_tokens.isdisjoint(ids)

    def _begin(self) -> None:
        """Send the request to the next engine. Raises EnginesAway and NotDeterministic."""
        exact = self._ask.sampling.deterministic
        bound = bool(self.ids) and not self._ask.goes_on_anywhere
        upstream = self._fleet.pick(self._session, self._tried, ours=exact or bound)
        if upstream is None:
            if exact and self._fleet.up and not self._tried:
                raise NotDeterministic("none of the engines can give deterministic answers")
            raise EnginesAway("no engine is reachable: try again in a moment")
        self._tried.append(upstream)
        self.upstream = upstream
        upstream.streams += 1
        self.facts.hops.append(Hop(upstream.url, now_ns()))
        self._heard_at = asyncio.get_running_loop().time()
        self._events = Events()
        ours = upstream.facts is not None and upstream.facts.ours
        body = self._ask.body(now_ns(), self.ids, ours=ours)
        path = CHANNEL_PATH if upstream.facts is not None and upstream.facts.shares else PATH
        self._exchange = self._transport.post(upstream.url, path, body, self, self._ask.terms.traceparent)

    def _count_loss(self) -> None:
        self._losses = 1 if self._hop.tokens >= PROGRESS_TOKENS else self._losses + 1

    def _go_elsewhere(self, error: InferenceError) -> None:
        if self.finish is not None or self._error is not None:
            return
        if len(self.ids) >= self._ask.sampling.max_tokens:
            self._ending = self._ending or Finish.LENGTH
        if self._ending is not None:  # only the end of the stream was missing
            self._conclude()
            self.flush()
            return
        if self._losses > LOSSES_MAX:
            self._fail(error)
            return
        if self.ids and not (self._ask.goes_on_anywhere or self._fleet.has_ours):
            self._fail(InferenceError("the engine was lost in the middle of the answer"))
            return
        try:
            self._begin()
        except InferenceError:
            if self._taken:
                self._strand(error, STRANDED_S)
            elif isinstance(error, EnginesAway) and not self._fleet.up:
                self._strand(error, UNSEEN_S)
            else:
                self._fail(error)
        else:
            self.moves += 1
            self._unstrand()

    def _strand(self, error: InferenceError, wait_s: float) -> None:
        loop = asyncio.get_running_loop()
        self._give_up_at = min(self._give_up_at, loop.time() + wait_s)
        if self._give_up_at <= loop.time():  # a timer would lose to a health check that moves it in this very moment
            self._fail(error)
        elif self._stranded is None:
            self._stranded = loop.call_at(self._give_up_at, self._fail, error)

    def _unstrand(self) -> None:
        if self._stranded is not None:
            self._stranded.cancel()
            self._stranded = None

    def _take(self, update: StreamUpdate) -> None:
        if update.error is not None:
            message, status, kind = update.error[0][:REFUSAL_CHARS_MAX], *update.error[1:]
            self._release(f"error {status}")
            if kind == GrammarFailed.code:
                self._fail(GrammarFailed(message))
            elif status in FAULTS:  # vLLM validates most of a request after sending the response headers
                self._fail(Refused(message, status, "invalid_value", None))
            else:
                if status != 503:
                    self._count_loss()
                self._go_elsewhere(EnginesAway(message) if status == 503 else InferenceError(message))
            return
        facts = self.facts
        if (placed := update.placement) is not None:
            self._hop.queue_ms, self._hop.prefill_ms = placed.queue_ms, placed.prefill_ms
            if not facts.stamps.admitted_ns:
                facts.miss, facts.forecast = placed.miss, placed.forecast
                facts.prefill_steps = placed.prefill_steps or facts.prefill_steps
                self._stamp(placed.queue_ms, placed.prefill_ms)
        if update.cached is not None and not facts.cached_tokens and not self.moves:
            # For engines other than ours, tokens written already count as part of the prompt.
            facts.cached_tokens = min(update.cached, self.prompt_tokens)
        if update.counts is not None:
            facts.acceptance.drafted, facts.acceptance.accepted = update.counts
        if update.predicted is not None:
            facts.predicted += update.predicted
        if update.decode_steps is not None:
            facts.decode_steps = update.decode_steps
        if update.engine_ms is not None:
            self._hop.engine_ms = update.engine_ms
        if update.spent is not None:
            facts.spent += update.spent
        if update.ids:
            self._accept(update)
        if update.finish is not None:
            self._ending = update.finish
        elif update.aborted:
            self._release("aborted by the engine")
            self._go_elsewhere(EnginesAway("the engine aborted the answer"))

    def _stamp(self, queue_ms: float, prefill_ms: float) -> None:
        """Place the engine's durations on this process's clock: they end now; the remainder is the network's."""
        stamps, now = self.facts.stamps, now_ns()
        stamps.prefilled_ns = now
        stamps.admitted_ns = max(stamps.submitted_ns, now - round(prefill_ms * 1e6))
        stamps.arrived_ns = max(stamps.submitted_ns, stamps.admitted_ns - round(queue_ms * 1e6))

    def _accept(self, update: StreamUpdate) -> None:
        if self._ending is not None:  # nothing after the end belongs to the answer
            self._conclude()
            return
        stamps, most = self.facts.stamps, self._ask.sampling.max_tokens
        if not stamps.admitted_ns:  # the engine reports no durations: count all time since it accepted the request
            self._stamp(0.0, (now_ns() - (self._hop.taken_ns or stamps.submitted_ns)) / 1e6)
        stamps.last_token_ns = now_ns()
        stamps.first_token_ns = stamps.first_token_ns or stamps.last_token_ns
        self._give_up_at = float("inf")
        for token, logprob in zip_longest(update.ids, update.logprobs):
            if token is None:
                break
            if token in self._ask.end_tokens or len(self.ids) >= most:
                self._ending = Finish.STOP if token in self._ask.end_tokens else Finish.LENGTH
                break
            self.ids.append(token)
            self._hop.tokens += 1
            likely = () if logprob is None else (logprob.with_top(self._ask.sampling.top_logprobs or 0),)
            self._deltas.append(Delta(self._text.push(token), 1, likely))
        if len(self.ids) >= most and self._ending is None:
            self._ending = Finish.LENGTH

    def _conclude(self) -> None:
        """Handle the end of the stream. Without a finish reason, the engine has aborted the answer."""
        if self._ending is Finish.ERROR:
            self._fail(InferenceError("the engine failed"))
        elif self._ending is not None:
            self._end(self._ending)
        else:
            self._release("aborted by the engine")
            self._go_elsewhere(EnginesAway("the engine aborted the answer"))

    def _late(self) -> None:
        self._end(Finish.DEADLINE)
        self.flush()

    def _end(self, finish: Finish) -> None:
        if self.finish is not None:
            return
        if (text := self._text.flush()) and finish is not Finish.CANCELLED:
            self._deltas.append(Delta(text, 0))
        self.finish = finish
        self._leave()

    def _fail(self, error: InferenceError) -> None:
        if self.finish is None and self._error is None:
            self._error, self.finish = error, Finish.ERROR
            self._leave()
            self._changed.set()

    def _leave(self) -> None:
        self._release()
        self._answered.set()
        self._unstrand()
        if self._timer is not None:
            self._timer.cancel()
        left, self._left = self._left, None
        if left is not None:
            left(self)

    def _release(self, ending: str = "") -> None:
        """Close the exchange; the engine frees the sequence at its next step. `ending`: the reason, if early."""
        exchange, self._exchange = self._exchange, None
        if exchange is not None:
            exchange.close()
            self._hop.ended_ns, self._hop.ending = now_ns(), ending
            if self.upstream is not None:
                self.upstream.streams -= 1


def _refusal(answer: Answer) -> InferenceError:
    """The error for an engine's refusal."""
    message, code, param = _reason(answer.body)
    if answer.status == 429 or code == OVERLOADED:
        retry_after_s = RETRY_AFTER_S if answer.retry_after_s is None else answer.retry_after_s
        return QueueFull(message, retry_after_s, own=answer.status == 429)
    if answer.status not in FAULTS:
        return EnginesAway(f"the engine refused the request with status {answer.status}: {message}")
    for kind in (PromptTooLong, NotDeterministic, InvalidSchema):
        if code == kind.code and (kind is not NotDeterministic or param == kind.param):
            return kind(message)
    return Refused(message, answer.status, code, param)


def _reason(body: bytes) -> tuple[str, str, str | None]:
    """Message, code and parameter, as far as the body has them."""
    try:
        error = orjson.loads(body)["error"]
        message, code, param = error.get("message"), error.get("code"), error.get("param")
    except (ValueError, TypeError, KeyError, AttributeError):
        message, code, param = body.decode("utf-8", "replace"), None, None
    return (
        str(message)[:REFUSAL_CHARS_MAX],
        code[:CODE_CHARS_MAX] if isinstance(code, str) else "invalid_value",
        param[:CODE_CHARS_MAX] if isinstance(param, str) else None,
    )
