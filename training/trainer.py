"""The loop that trains: a batch, a step, now and then a look at held-out turns and a checkpoint."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import torch

from training.batches import Batch, Feed, Recipe, Source, packed
from training.checkpoint import Checkpoint
from training.held_out import Exact, exact_turns
from training.loss import Lesson, Loss, Objective
from training.model import Model
from training.optimizers import Optimizers
from training.pace import Pace, silent
from training.pointing import Copies
from training.sample import sample
from training.schedule import Clock, rate
from training.team import Team

LENGTHS = {512: 0.4, 1024: 0.52, 2048: 0.08}  # tokens of a row: most turns are short
REPORT_STEPS, JUDGE_STEPS = 20, 150
SAVE_S = 180.0
JUDGED_BATCHES = 3
JUDGED_LENGTH = 1024


@dataclass(frozen=True, slots=True)
class Plan:
    """`tokens` are those of a step and a process; the loss is taken at a share of their places."""

    minutes: float
    tokens: int = 4096
    lengths: Mapping[int, float] = field(default_factory=lambda: LENGTHS)
    places_share: float = 0.36
    matrix_rate: float = 0.02
    embedding_rate: float = 0.004
    device: str = "cpu"
    makers: int = 1  # processes that make batches, to each that trains
    seed: int = 1
    compiled: bool = True

    def __post_init__(self) -> None:
        """Raises ValueError."""
        if self.tokens < max(self.lengths):
            raise ValueError(f"a step of {self.tokens} tokens has no room for a row of {max(self.lengths)}")
        if min(self.matrix_rate, self.embedding_rate) <= 0 or self.makers < 1:
            raise ValueError("rates must be above 0, and something has to make batches")

    @property
    def places(self) -> int:
        return int(self.tokens * self.places_share)


class Trainer:
    def __init__(self, plan: Plan, start: Checkpoint, objective: Objective, team: Team) -> None:
        self._plan, self._start, self._objective, self._team = plan, start, objective, team
        self.model: Model = start.model().to(plan.device)
        if plan.compiled:
            self.model.compiled()
        self._optimizers = Optimizers(
            self.model, team, matrix_rate=plan.matrix_rate, embedding_rate=plan.embedding_rate
        )
        if start.adam is not None and start.momenta is not None:
            self._optimizers.restore(start.adam, start.momenta)
        self._random = np.random.default_rng((plan.seed, start.step, team.rank))
        self._copies = Copies(start.vocabulary)
        self.steps, self.seen = start.step, start.seen

    def run(self, source: Source, target: Path, say: Callable[[str], None]) -> None:
        """Until the time is over; `target` is written every few minutes and at the end, by the process that leads."""
        plan, start, team = self._plan, self._start, self._team
        recipe = Recipe(source, start.vocabulary, plan.tokens, plan.lengths)
        judged = self._judged(source)
        with Feed(recipe, [f"{plan.seed}/{start.step}/{team.rank}/{i}" for i in range(plan.makers)]) as feed:
            clock = Clock(plan.minutes, target.with_suffix(".minutes"), start.spent_s)
            pace, saved = Pace(say if team.leads else silent), time.monotonic()
            while (done := team.agree(clock.done)) < 1:
                loss = self.step(feed.take(), rate(self.steps, done))
                pace.add(loss, team.size * plan.tokens)
                if self.steps % REPORT_STEPS == 0:
                    pace.report(self.steps, self.seen, clock, feed.waited_s)
                if self.steps % JUDGE_STEPS == 0:
                    pace.say(f"  held-out turns, exact: {self._exact(judged)}")
                if team.leads and time.monotonic() - saved > SAVE_S:
                    self.checkpoint(clock.spent_s).save(target)
                    saved = time.monotonic()
        if team.leads:
            self.checkpoint(clock.spent_s).save(target)
        pace.say(f"step {self.steps}, {self.seen / 1e6:.2f} M tokens; held-out turns, exact: {self._exact(judged)}")

    def step(self, batch: Batch, share: float) -> Loss:
        """Learn from a batch at a share of the full rates; returns the loss before."""
        device = self._plan.device
        chosen, copied = sample(batch, self._plan.places, self._random), self._copies.shown(batch, self._random)
        parts = (chosen.places, chosen.targets, chosen.weights, copied.places, copied.sources, copied.ends)
        ids = torch.from_numpy(batch.ids[:, :-1]).long().to(device)
        lesson = Lesson(ids, *(torch.from_numpy(part).to(device) for part in parts))
        with torch.autocast(device, torch.bfloat16):
            loss = self._objective(self.model, lesson)
        torch.autograd.backward(loss.total)
        self._optimizers.step(share)
        self.steps += 1
        self.seen += self._team.size * self._plan.tokens
        return loss

    def checkpoint(self, spent_s: float) -> Checkpoint:
        return replace(
            self._start,
            weights={name: weight.detach().cpu() for name, weight in self.model.state_dict().items()},
            adam=self._optimizers.adam.state_dict(),
            momenta=self._optimizers.muon.momenta,
            step=self.steps,
            seen=self.seen,
            spent_s=spent_s,
        )

    def _judged(self, source: Source) -> list[Batch]:
        rows, tokenizer = source(f"judged/{self._team.rank}", "test"), self._start.vocabulary.tokenizer()
        length = min(JUDGED_LENGTH, self._start.shape.ctx, self._plan.tokens)
        return [packed(rows, tokenizer, self._plan.tokens, length) for _ in range(JUDGED_BATCHES)]

    def _exact(self, judged: list[Batch]) -> Exact:
        parts = self._team.gather(exact_turns(self.model, judged, self._start.vocabulary.tokenizer()))
        return Exact.total(parts)
