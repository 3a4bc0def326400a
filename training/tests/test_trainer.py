from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
import torch

from inference.bundled import DRAFT_MODEL
from training.batches import Batch, packed
from training.bundle import bundled_vocabulary
from training.checkpoint import Checkpoint
from training.held_out import exact_turns, kind_of, learnt_turns
from training.job import Job
from training.loss import distillation
from training.shape import DRAFT
from training.team import Team, run
from training.tests.scales import Echoes, Scales
from training.trainer import Plan, Trainer
from training.vocabulary import CONTROL, MARKS, Vocabulary

TINY = replace(DRAFT, n_layer=2, ctx=128)
PLAN = Plan(minutes=1, tokens=256, lengths={64: 1.0}, compiled=False)
SHARES = [*[1.0] * 60, *[0.2] * 20]  # of the rate, step by step: then a tiny model has learnt its scales
STEPS = len(SHARES)


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Threads that meet after every operator of a tiny model take ten times as long on cores that others use, too."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def job(target: Path, minutes: float = 1.0) -> Job:
    """With a vocabulary of single bytes, whose logits are quickly computed."""
    tokenizer = target.with_name("tokenizer.json")
    Vocabulary(bundled_vocabulary().tokens[: len(CONTROL) + len(MARKS) + 256], ()).tokenizer().save(str(tokenizer))
    return Job(replace(PLAN, minutes=minutes), Scales(), target, TINY, tokenizer=tokenizer)


def trainer(job: Job) -> Trainer:
    return Trainer(job.plan, job.beginning(), job.objective(), Team())


def batches(job: Job, count: int) -> list[Batch]:
    rows, tokenizer = Scales()("more", "train"), job.beginning().vocabulary.tokenizer()
    return [packed(rows, tokenizer, PLAN.tokens, 64) for _ in range(count)]


@pytest.mark.long
def test_a_few_steps_lower_the_loss_and_make_held_out_turns_exact(tmp_path: Path) -> None:
    anew = job(tmp_path / "it.pt")
    learner, given = trainer(anew), batches(anew, STEPS + 1)
    tokenizer = anew.beginning().vocabulary.tokenizer()
    assert exact_turns(learner.model, given[-1:], tokenizer).exact.total() == 0
    losses = [learner.step(batch, SHARES[i]).written.item() for i, batch in enumerate(given[:-1])]
    assert losses[0] > 4 and losses[-1] < 0.2 * losses[0]
    found = exact_turns(learner.model, given[-1:], tokenizer)
    assert str(found) == "said 4/4"


@pytest.mark.long
def test_heads_come_to_look_where_they_are_shown_to(tmp_path: Path) -> None:
    anew = replace(job(tmp_path / "it.pt"), source=Echoes(), shape=replace(TINY, n_layer=4))
    learner, looking = trainer(anew), []
    rows, tokenizer = anew.source("more", "train"), anew.beginning().vocabulary.tokenizer()
    for _ in range(60):
        looking.append(learner.step(packed(rows, tokenizer, PLAN.tokens, 64), 1.0).looking.item())
    assert looking[-1] < 0.5 * looking[0]


def test_a_resumed_training_steps_as_if_it_had_not_stopped(tmp_path: Path) -> None:
    anew = replace(job(tmp_path / "it.pt"), plan=replace(PLAN, places_share=1.0))  # nothing is left to chance
    first, second, third = batches(anew, 3)
    learner = trainer(anew)
    learner.step(first, 1.0)
    learner.step(second, 1.0)
    learner.checkpoint(spent_s=9.0).save(anew.target)
    resumed = trainer(replace(anew, resumes=True))
    assert (resumed.steps, resumed.seen) == (2, 512)
    assert resumed.step(third, 1.0).written.item() == pytest.approx(learner.step(third, 1.0).written.item(), abs=1e-4)


@pytest.mark.long
def test_a_student_comes_to_think_what_its_teacher_thinks(tmp_path: Path) -> None:
    taught = job(tmp_path / "teacher.pt")
    teacher = trainer(taught)
    given = batches(taught, STEPS)
    for batch in given:
        teacher.step(batch, 1.0)
    imitation = distillation(teacher.model, compiled=False)
    student = Trainer(PLAN, job(tmp_path / "student.pt").beginning(), imitation, Team())
    losses = [student.step(batch, 1.0).written.item() for batch in given]
    assert losses[-1] < 0.3 * losses[0]


def test_learnt_turns_are_found_to_their_ends() -> None:
    marks = np.array([[1, 1, 1, 0, 0, 1, 1, -1], [0, 0, 0, 1, 0, 0, 1, 1]], np.int8)
    assert list(learnt_turns(Batch(np.zeros_like(marks, np.int32), marks))) == [
        (0, 1, 3),
        (0, 5, 7),
        (1, 3, 4),
        (1, 6, 8),
    ]


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("Hello!", "said"),
        ("The port is 8080 [1].", "cited"),
        ("<tool_call>\n{}\n</tool_call>", "call"),
        ("<tool_call>\n{}\n</tool_call>\n<tool_call>\n{}\n</tool_call>", "calls"),
    ],
)
def test_turns_are_told_apart(text: str, kind: str) -> None:
    assert kind_of(text) == kind


@dataclass(frozen=True, slots=True)
class Compared:
    """A training after which all processes of the team must have the same model."""

    job: Job

    def __call__(self, team: Team) -> None:
        trained = Trainer(self.job.plan, self.job.beginning(), self.job.objective(), team)
        trained.run(self.job.source, self.job.target, print)
        sums = team.gather([weight.double().sum().item() for weight in trained.model.parameters()])
        assert all(each == sums[0] for each in sums)


def test_two_processes_train_one_model_until_the_time_is_over(tmp_path: Path) -> None:
    target = tmp_path / "it.pt"
    run(2, Compared(job(target, minutes=0.05)))
    trained = Checkpoint.load(target)
    assert trained.step >= 1 and trained.seen == trained.step * 2 * PLAN.tokens
    assert trained.spent_s >= 3


def test_a_team_with_a_member_that_fails_ends(tmp_path: Path) -> None:
    with pytest.raises(ChildProcessError, match="has failed"):
        run(2, replace(job(tmp_path / "it.pt"), source=Scales(breaks=True)))


def test_what_cannot_be_trained_is_refused_before_it_starts(tmp_path: Path) -> None:
    anew = job(tmp_path / "it.pt")
    anew.check()
    anew.target.write_bytes(b"")
    with pytest.raises(ValueError, match="--resume goes on"):
        anew.check()
    with pytest.raises(ValueError, match="too long for a model of 128"):
        replace(job(tmp_path / "other.pt"), plan=replace(PLAN, lengths={256: 1.0})).check()
    with pytest.raises(ValueError, match="another vocabulary"):
        replace(job(tmp_path / "other.pt"), teacher=DRAFT_MODEL).check()
    with pytest.raises(FileNotFoundError):
        replace(job(tmp_path / "other.pt"), start=tmp_path / "none.pt").check()
    with pytest.raises(ValueError, match="no room for a row"):
        replace(PLAN, tokens=63)
