"""A training as it is asked for; picklable, since each process of the team begins from it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from training.batches import Source
from training.bundle import bundled_vocabulary
from training.checkpoint import Checkpoint
from training.loss import Objective, distillation, likelihood
from training.model import fresh
from training.shape import Shape
from training.team import Team
from training.trainer import Plan, Trainer
from training.vocabulary import Vocabulary


@dataclass(frozen=True, slots=True)
class Job:
    """Goes on from `target` where `resumes` is set; else begins with the weights of `start`, or anew with `shape`.

    With a `teacher` the model learns to imitate it.
    """

    plan: Plan
    source: Source
    target: Path
    shape: Shape
    start: Path | None = None
    resumes: bool = False
    tokenizer: Path | None = None
    teacher: Path | None = None

    def __call__(self, team: Team) -> None:
        """Train. Raises ValueError, OSError, ChildProcessError."""
        Trainer(self.plan, self.beginning(), self.objective(), team).run(self.source, self.target, _say)

    def check(self) -> None:
        """Before processes are started: whether all that is named is there and fits. Raises ValueError, OSError."""
        if not self.resumes and self.target.exists():
            raise ValueError(f"{self.target} is there already: --resume goes on with it")
        self.source("check", "train")
        start = self.beginning()
        if start.shape.ctx < max(self.plan.lengths):
            raise ValueError(f"rows of {max(self.plan.lengths)} tokens are too long for a model of {start.shape.ctx}")
        if self.teacher is not None and Checkpoint.load(self.teacher).vocabulary != start.vocabulary:
            raise ValueError(f"{self.teacher} has another vocabulary, so it cannot teach this model")

    def beginning(self) -> Checkpoint:
        if self.resumes:
            return Checkpoint.load(self.target)
        if self.start is not None:
            return replace(Checkpoint.load(self.start), step=0, seen=0, spent_s=0.0)
        vocabulary = Vocabulary.read(self.tokenizer) if self.tokenizer else bundled_vocabulary()
        shape = replace(self.shape, vocab=len(vocabulary.tokens))
        return Checkpoint(shape, fresh(shape, self.plan.seed).state_dict(), vocabulary)

    def objective(self) -> Objective:
        compiled = self.plan.compiled
        if self.teacher is None:
            return likelihood(compiled=compiled)
        teacher = Checkpoint.load(self.teacher).model().to(self.plan.device)
        return distillation(teacher.compiled() if compiled else teacher, compiled=compiled)


def _say(text: str) -> None:
    print(text, flush=True)
