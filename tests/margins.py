"""How sure the model is of what tests ask it.

A margin is how much likelier the token of a greedy draw is than the best other one that was allowed, in nats. What
llama.cpp computes differs in the second digit between CPUs, builds and numbers of threads, so a test may hang on what
the model says only where every margin of the answer is larger than that by far.

Nor may a prompt hang on how fast the machine is: `python -m tests.margins` is the command `firsttoken` as a patient
worker (`tests/patient_worker.py`), with its draws noted.

`note_draws` has a process write down the greedy draws of its real models; `Margins` tells which test they belong to,
and fails one whose answers were close.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator, Sequence
from copy import copy
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.patient_worker import be_patient
from tests.serving import run_command

if TYPE_CHECKING:
    from inference.engine.sampler import Sampler
    from inference.engine.step import Work
    from inference.grammar.constraint import Constraint
    from inference.request import Request

FILE = "TEST_MARGINS_FILE"  # environment variable: where draws are written down
MIN_NATS = "TEST_MARGIN_MIN_NATS"  # environment variable: a limit for machines on which tests are run, not written
MARGIN_MIN_NATS = 0.5
MARKER = "any_answer"
VOCABULARY_MIN = 1000  # tokens of a real model; those of scripted devices have less
CANDIDATES = 256  # tokens among which the second best is looked for: under a grammar most are refused
SHOWN_TOKENS = 16  # of the question and of the answer before a draw
SHOWN_MAX_NATS = 2.0  # of a surer draw, only the margin is noted: most are, and each has its texts decoded


@dataclass(frozen=True, slots=True)
class Draw:
    answer: str  # the same for all draws of one answer
    submitted_ns: int  # by the clock that all processes of a machine share
    margin: float  # infinite where only one token was allowed
    asked: str = ""  # the end of the prompt
    said: str = ""  # the end of the answer before it
    token: str = ""
    other: str = ""

    def __str__(self) -> str:
        between = f"{self.margin:.2f} nats between {self.token!r} and {self.other!r}"
        return f"{between} after {self.said!r} for {self.asked!r}"


# --- in the process that draws ---


def note_draws(path: Path) -> None:
    """From now on this process appends its greedy draws to `path`, a line of JSON each."""
    from inference.engine.executor import Executor

    draw, likeliest = Executor._draw, Executor._most_likely
    file = os.open(path, os.O_WRONLY | os.O_APPEND)

    def note(request: Request, logits: NDArray[np.float32]) -> None:
        if len(logits) >= VOCABULARY_MIN and request.sampler._sampling.temperature <= 0:
            os.write(file, json.dumps(asdict(drawn(request, logits))).encode() + b"\n")

    def noted(self: Executor, request: Request, logits: NDArray[np.float32]) -> None:
        note(request, logits)
        draw(self, request, logits)

    def all_noted(work: Sequence[Work], logits: NDArray[np.float32]) -> list[int] | None:
        tokens = likeliest(work, logits)
        if tokens is not None:
            for each, row in zip((each for each in work if each.outputs), logits, strict=True):
                note(each.request, row)
        return tokens

    Executor._draw = noted  # type: ignore[method-assign]
    Executor._most_likely = staticmethod(all_noted)  # type: ignore[method-assign]


def drawn(request: Request, logits: NDArray[np.float32]) -> Draw:
    pieces, best, other = request.text._pieces, None, None
    for token, logit in _likeliest(request.sampler, logits):
        best = best or (token, logit)
        if pieces[token] != pieces[best[0]]:  # all ends of a turn are one choice
            other = token, logit
            break
    margin = best[1] - other[1] if best and other else float("inf")
    answer = f"{os.getpid()}-{request.stamps.submitted_ns}-{id(request)}"
    if not best or not other or margin > SHOWN_MAX_NATS:  # nobody will read it
        return Draw(answer, request.stamps.submitted_ns, margin)
    shown = request.prompt[-SHOWN_TOKENS:], request.generated[-SHOWN_TOKENS:], best[:1], other[:1]
    texts = (b"".join(pieces[t] for t in tokens if t < len(pieces)).decode(errors="replace") for tokens in shown)
    return Draw(answer, request.stamps.submitted_ns, margin, *texts)


def _likeliest(sampler: Sampler, logits: NDArray[np.float32]) -> Iterator[tuple[int, float]]:
    """Tokens that are allowed with their logits, the likeliest first: nearly always, two are looked at."""
    from inference.engine.sampler import largest

    row = np.array(sampler._adjusted(logits))
    if sampler._constraint is not None:
        tokens = largest(row, min(CANDIDATES, len(row)))
        yield from ((int(token), float(row[token])) for token in tokens[_allowed(sampler._constraint, tokens)])
        return
    for _ in range(CANDIDATES):
        token = int(row.argmax())
        yield token, float(row[token])
        row[token] = -np.inf


def _allowed(constraint: Constraint, tokens: NDArray[np.intp]) -> NDArray[np.bool_]:
    """Asks a copy: looking is work, which is limited."""
    from inference.errors import GrammarFailed

    if not getattr(constraint, "_follows", True):
        return np.ones(len(tokens), np.bool_)
    copied = copy(constraint)
    copied._matcher = constraint._matcher.deep_copy()
    try:
        return copied.allowed(tokens)
    except GrammarFailed:
        return np.zeros(len(tokens), np.bool_)


# --- in the process of the tests ---


class Margins:
    """A plugin of pytest. Fails a test that passed on a margin below MARGIN_MIN_NATS, unless it is marked
    `any_answer` with the reason why it passes whatever the model says. A margin that was just wide enough where its
    test was written is narrower on another CPU: who only runs tests lowers the limit by MIN_NATS."""

    def __init__(self, table: Path | None) -> None:
        self._folder = TemporaryDirectory(prefix="margins-")
        self.path = Path(self._folder.name) / "draws.jsonl"
        self.path.touch()
        self._read_bytes = 0
        self._last_test_ns = 0
        self._limit_nats = float(os.environ.get(MIN_NATS, MARGIN_MIN_NATS))
        self._table = table
        self._rows: list[tuple[float, str, str, str]] = []
        os.environ[FILE] = str(self.path)

    def pytest_collection_finish(self) -> None:
        if "inference.engine.executor" in sys.modules:  # else no test of these draws in this process
            note_draws(self.path)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Iterator[None]:
        try:
            yield
        finally:
            # An answer that an earlier test left goes on for some tokens: it is not this test's.
            draws = [draw for draw in self._taken() if draw.submitted_ns > self._last_test_ns]
            self._last_test_ns = time.monotonic_ns()
        closest = {draw.answer: draw for draw in sorted(draws, key=lambda draw: -draw.margin)}.values()
        marker = item.get_closest_marker(MARKER)
        note = str(marker.args[0]) if marker else ""
        self._rows += [(draw.margin, item.nodeid, str(draw), note) for draw in closest]
        close = [str(draw) for draw in closest if draw.margin < self._limit_nats]
        if close and not marker:
            pytest.fail("\n".join(["another build of llama.cpp may answer otherwise:", *close]), pytrace=False)

    def pytest_sessionfinish(self) -> None:
        self._folder.cleanup()
        if self._table:
            self._table.write_text("".join("\t".join(row) + "\n" for _, *row in sorted(self._rows)))

    def _taken(self) -> list[Draw]:
        """What was drawn since this was asked last."""
        with self.path.open("rb") as file:
            file.seek(self._read_bytes)
            written = file.read()
        self._read_bytes += len(written)
        return [Draw(**json.loads(line)) for line in written.splitlines()]


def prepare() -> None:
    be_patient()
    note_draws(Path(os.environ[FILE]))


if __name__ == "__main__":
    sys.exit(run_command(prepare))
