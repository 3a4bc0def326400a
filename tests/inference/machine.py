"""A scheduler and an executor on a scripted device, stepped by hand: the engine without its thread."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from inference.config import EngineConfig
from inference.engine.executor import Executor
from inference.engine.sampler import Sampler
from inference.engine.scheduler import Scheduler
from inference.engine.step import Plan
from inference.errors import InferenceError
from inference.generation import Finish, Priority, Sampling
from inference.kvcache.tiers import Tiers
from inference.prompt import CacheScope
from inference.request import Request
from inference.speculative.controller import SpeculationController
from inference.speculative.draft_model import CATCH_UP_TOKENS_MAX, DraftModel
from inference.tokenizer import TextStream
from tests.scripted import ScriptedBackend, scripted_token

VOCABULARY = 5  # small: prompts share beginnings by chance
CONTEXT = 400
CONFIG = EngineConfig(parallel=3, resident=2, prefill_tokens_first=4, prefill_tokens_alone=16)
DRAFTING = EngineConfig(
    parallel=3, resident=2, prefill_tokens_alone=16, draft_path=Path("scripted"), draft_min=2, draft_max=2
)
STEPS_MAX = 5000
GREEDY = Sampling(temperature=0)


def request(
    prompt: Sequence[int],
    max_tokens: int = 3,
    tenant: str = "",
    priority: Priority = Priority.STANDARD,
    *,
    exact: bool = False,
) -> Request:
    text = TextStream([b""] * VOCABULARY)
    return Request(list(prompt), max_tokens, Sampler(GREEDY), text, CacheScope(tenant, exact), priority)


def expected(r: Request) -> list[int]:
    tokens = list(r.prompt)
    for _ in range(r.max_tokens):
        tokens.append(scripted_token(tokens, VOCABULARY))
    return tokens[len(r.prompt) :]


class Hasty(ScriptedBackend):
    """Foresees the model's token two times out of three."""

    def _logits(self, prefix: Sequence[int]) -> NDArray[np.float32]:
        row = super()._logits(prefix)
        return np.roll(row, 1) if len(prefix) % 3 == 0 else row


class Machine:
    """Steps cost nothing that is measured, so what a plan holds depends on nothing but what was asked; or as much as is
    said: for itself, and for each row."""

    def __init__(
        self,
        config: EngineConfig = CONFIG,
        *,
        rewinds: bool = True,
        device: type[ScriptedBackend] = ScriptedBackend,
        step_s: float = 0.0,
        row_s: float = 0.0,
    ) -> None:
        self.scheduler = Scheduler(config, rewinds=rewinds)
        self._step_s, self._row_s = step_s, row_s
        if row_s:
            for rows in (2**exponent for exponent in range(config.rows_max.bit_length())):
                self.scheduler.cost.observe(rows, self._took_s(rows))
        self.backend = device(config.slots, CONTEXT, config.rows_max, VOCABULARY, rewinds=rewinds)
        hasty = Hasty(config.slots, CONTEXT, CATCH_UP_TOKENS_MAX, VOCABULARY)
        drafter = DraftModel(hasty) if config.draft_path and rewinds else None
        self.speculation = SpeculationController(drafter, config, self.scheduler.cost, self.backend)
        self.tiers = Tiers(self.backend, self.scheduler.slots, None, lambda: None)
        self.totals: Counter[str] = Counter()
        self._executor = Executor(
            self.backend, self.scheduler, self.speculation, self.tiers, self._accept, self._finish, self.totals
        )
        self.clock = 0  # steps
        self.seconds = 0.0

    def add(self, *requests: Request) -> None:
        for r in requests:
            self.scheduler.add(r)
            for other in self.scheduler.superseded(r):
                self.cancel(other)

    def step(self) -> list[int]:
        """Returns the rows of each request in the step."""
        self.clock += 1
        for r in self.scheduler.requests:
            if (finish := r.ending(self.clock)) is not None:
                self._finish(r, finish, None)
        plan = self.plan()
        assert plan.work or plan.placements or self.scheduler.idle, "work is waiting and nothing is done"
        rows = [len(work.tokens) for work in plan.work]
        self._executor.run(plan)
        self._executor.keep_ends()
        if self._row_s:
            self.scheduler.record_step(plan, took_s := self._took_s(sum(rows)))
            self.seconds += took_s
        return rows

    def _took_s(self, rows: int) -> float:
        return self._step_s + rows * self._row_s

    def plan(self) -> Plan:
        plan = self.scheduler.admit()
        self._executor.place(plan)
        self._executor.keep_ends()
        return self.scheduler.fill(plan)

    def finish(self, *requests: Request) -> int:
        """Step until these are done; returns the steps that it took."""
        began = self.clock
        while any(r.finish is None for r in requests):
            self.step()
            assert self.clock - began < STEPS_MAX, "it takes for ever"
        return self.clock - began

    def cancel(self, r: Request) -> None:
        r.cancelled = True
        if r.finish is None:
            self._finish(r, Finish.CANCELLED, None)

    def _accept(self, r: Request, token: int) -> None:
        r.generated.append(token)
        if len(r.generated) == r.max_tokens:
            self._finish(r, Finish.LENGTH, None)

    def _finish(self, r: Request, finish: Finish, error: InferenceError | None) -> None:
        r.finish = finish
        self.scheduler.remove(r)
