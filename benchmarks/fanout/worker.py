"""The worker under test: `firsttoken serve`, with a model that gives every stream a token at a fixed rate, from a
thread of its own like an engine's.

The model costs next to nothing, so this shows the cost of the path from the step to the socket. The text of each token
is the time of its creation, so that a client on the same machine knows how late it arrives.
"""

from __future__ import annotations

import asyncio
import pickle
import sys
import threading
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import asyncpg
import orjson
import uvloop
from asyncpg.connection import LoggedQuery

from inference.engine.engine import SWITCH_INTERVAL_S
from inference.engine.sampler import Sampler
from inference.generation import ANY_TERMS, Finish, Generation, Sampling, Terms
from inference.prompt import CacheScope, PromptTokens, Segment
from inference.request import Handle, Outbox, Request, TokenUpdate
from inference.tokenizer import TextStream
from inference.trace import now_ns
from migrations import pool
from tests.scripted import ScriptedModel
from worker import serve
from worker.config import Config

CONTEXT = 100_000
WRAP_US = 1_000_000_000  # texts have nine digits, so clocks are compared modulo 1,000 seconds
LATE_MAX_S = 1.0  # a longer backlog of missed steps is dropped


def stamp() -> str:
    """The time on the monotonic clock, as the text of a token."""
    return f"@{time.monotonic_ns() // 1000 % WRAP_US:09d} "


class PacedModel(ScriptedModel):
    """`rate`: tokens per second of each stream. All streams get theirs in the same step."""

    failed: str | None = None

    def __init__(self, rate: float) -> None:
        super().__init__([""], name="paced", context_length=CONTEXT)
        self._rate = rate
        self._running: dict[Handle, Request] = {}
        self._entering: list[tuple[Handle, Request]] = []
        self._outbox: Outbox | None = None
        self._steps = self._tokens = 0

    def start(self) -> None:
        sys.setswitchinterval(SWITCH_INTERVAL_S)
        self._outbox = Outbox(asyncio.get_running_loop())
        threading.Thread(target=self._run, name="engine", daemon=True).start()

    def encode(self, segments: Sequence[Segment], **_: Any) -> PromptTokens:
        """A byte is a token: the cost of tokenization is not measured here."""
        return PromptTokens("".join([segment.text for segment in segments]).encode())

    def generate(self, prompt: Sequence[int], sampling: Sampling, terms: Terms = ANY_TERMS) -> Any:
        request = Request(list(prompt), sampling.max_tokens, Sampler(sampling), TextStream([]), CacheScope(""))
        stamps = request.stamps
        stamps.submitted_ns = stamps.admitted_ns = stamps.prefilled_ns = now_ns()
        handle = Handle(request, lambda: None)
        self._entering.append((handle, request))
        return handle

    def prefill_ahead(self, *_: Any, **__: Any) -> Generation | None:  # type: ignore[override]
        return None

    def stats(self) -> dict[str, Any]:
        return {
            "model": self.name,
            "device": "none",
            "running": len(self._running),
            "waiting": 0,
            "steps_total": self._steps,
            "generated_tokens_total": self._tokens,
        }

    def _run(self) -> None:
        due = time.monotonic()
        while True:
            due = max(due + 1 / self._rate, time.monotonic() - LATE_MAX_S)
            time.sleep(max(0.0, due - time.monotonic()))
            entering, self._entering = self._entering, []
            self._running.update(entering)
            if news := self._step():
                assert self._outbox is not None
                self._outbox.publish(news)

    def _step(self) -> list[TokenUpdate]:
        text, now, news = stamp(), now_ns(), []
        for handle, request in list(self._running.items()):
            request.stamps.first_token_ns = request.stamps.first_token_ns or now
            request.stamps.last_token_ns = now
            if request.cancelled or request.computed == request.max_tokens:
                del self._running[handle]
                finish = Finish.CANCELLED if request.cancelled else Finish.LENGTH
                news.append(TokenUpdate(handle, None, "", finish))
            else:
                request.computed += 1
                news.append(TokenUpdate(handle, 1, text))
        self._steps += 1
        self._tokens += len(news)
        return news


def record_statements(file: Path) -> None:
    """Append pickles to a file: of each statement that this process executes, how to log in, and one that does nothing
    with the same values."""
    prepare, out = pool._prepare, file.open("ab", buffering=0)

    def note(query: LoggedQuery) -> None:
        login = {"host": query.conn_addr, "user": query.conn_params.user, "database": query.conn_params.database}
        values = [_text(value) for value in query.args]
        marks = [f"${place}::text{'[]' * isinstance(value, list)}" for place, value in enumerate(values, 1)]
        same = f"select where num_nulls({', '.join(marks)}) < 0" if values else f"select length($${query.query}$$)"
        pickle.dump((login, (same, values)), out)

    async def prepare_and_record(connection: asyncpg.Connection[asyncpg.Record]) -> None:
        await prepare(connection)
        connection.add_query_logger(note)

    pool._prepare = prepare_and_record


def recorded(file: Path, begin: int) -> Iterator[tuple[dict[str, Any], tuple[str, list[Any]]]]:
    """What was appended since the file had this length."""
    with file.open("rb") as records, suppress(EOFError):
        records.seek(begin)
        while True:
            yield pickle.load(records)


def _text(value: Any) -> Any:
    if isinstance(value, list):
        return [*map(_text, value)]
    return orjson.dumps(value).decode() if isinstance(value, dict) else str(value)


BUNDLED = Path("demo-chat")
PLENTY = 4000  # concurrent turns: nothing should be refused here


def run(home: Path, ready: Path, rate: float, statements: Path | None = None) -> None:
    """Serve until a signal arrives. `rate` 0: with the bundled model. `statements`: where to record them."""
    if statements:
        record_statements(statements)
    if rate:

        @asynccontextmanager
        async def open_model(*_: object) -> AsyncIterator[Any]:
            model = PacedModel(rate)
            model.start()
            yield model

        setattr(serve, "open_model", open_model)  # noqa: B010
    config = Config(
        home=home,
        port=0,
        ready_file=ready,
        turns=2 * PLENTY,  # of which a tenant may have half
        queue=PLENTY,
        docs=None,
        log_level="error",
        model=None if rate else BUNDLED,
    )
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(serve.serve(config, began=time.monotonic()))
