"""A test that hangs on a close choice of the model is told so."""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from inference.bundled import DRAFT_MODEL
from inference.config import EngineConfig
from inference.engine.sampler import Sampler
from inference.generation import Sampling
from inference.grammar.constraint import Vocabulary
from inference.grammar.schema import json_grammar
from inference.model import ChatModel
from inference.prompt import ChatMessage
from inference.request import Request
from inference.tokenizer import TextStream
from tests.inference.machine import request
from tests.margins import FILE, MARGIN_MIN_NATS, MARKER, MIN_NATS, Draw, Margins, drawn

PIECES = [b"yes", b"no", b"", b"perhaps", b""]
ROW = np.array([1, 2, 4, 1.5, 3.75], np.float32)


def asked(grammar: str | None = None, **sampling: Any) -> Request:
    held = Vocabulary(PIECES, frozenset({2, 4})).compile(grammar).start() if grammar else None
    sampler = Sampler(Sampling(temperature=0, **sampling), held)
    return replace(request([0, 3]), sampler=sampler, text=TextStream(PIECES))


def test_a_margin_lies_between_what_is_said_and_the_best_other_text() -> None:
    draw = drawn(asked(), ROW)
    assert (draw.margin, draw.token, draw.other) == (2.0, "", "no")  # both ends of the turn are one choice
    assert draw.asked == "yesperhaps"


def test_what_is_refused_is_no_choice() -> None:
    draw = drawn(asked('start: "yes" | "perhaps"'), ROW)
    assert (draw.margin, draw.token, draw.other) == (0.5, "perhaps", "yes")
    assert drawn(asked('start: "yes"'), ROW).margin == float("inf")
    assert drawn(asked(logit_bias={0: 3.5}), ROW).token == "yes"


def noted() -> int:
    """Draws, by whomever, since these tests began."""
    return Path(os.environ[FILE]).read_text().count("\n")


@pytest.mark.parametrize("draft", [None, DRAFT_MODEL], ids=["alone", "with drafts"])
async def test_every_greedy_draw_of_a_real_model_is_noted(draft: Path | None) -> None:
    model = await asyncio.to_thread(ChatModel.load, EngineConfig(draft_path=draft, draft_min=3, draft_max=3))
    await model.start()
    prompt = model.encode(model.render([ChatMessage("user", "hello")]))
    held = model.prepare(json_grammar({"enum": [12]}))
    for sampling in (Sampling(temperature=0), Sampling(temperature=0, grammar=held), Sampling(temperature=1.0)):
        before = noted()
        generation = model.generate(prompt, sampling)
        async for _ in generation:
            pass
        draws = 0 if sampling.temperature else len(generation.ids) + 1  # the last one ends the turn
        assert noted() - before == draws
    await model.close()


@pytest.fixture(params=[MARGIN_MIN_NATS])
def limit_nats(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(MIN_NATS, str(request.param))


@pytest.fixture
def margins(limit_nats: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Margins]:
    monkeypatch.setenv(FILE, "")  # what the margins of the tests themselves are noted by is put back
    margins = Margins(tmp_path / "table")
    yield margins
    margins.pytest_sessionfinish()


def run(margins: Margins, *draws: Draw, reason: str | None = None) -> None:
    """A test that passes, while the model draws these."""
    marker = getattr(pytest.mark, MARKER)(reason).mark if reason else None
    item = cast(pytest.Item, SimpleNamespace(nodeid="test", get_closest_marker=lambda _: marker))
    hook = margins.pytest_runtest_call(item)
    next(hook)
    with margins.path.open("a") as file:
        file.writelines(json.dumps(asdict(draw)) + "\n" for draw in draws)
    with pytest.raises(StopIteration):
        next(hook)


def draw(answer: str, margin: float, submitted_ns: int | None = None) -> Draw:
    return Draw(answer, submitted_ns or time.monotonic_ns(), margin, "asked", "said", "yes", "no")


def test_a_close_choice_fails_its_test(margins: Margins) -> None:
    run(margins, draw("1", 3.0), draw("1", 0.5), draw("2", float("inf")))
    with pytest.raises(pytest.fail.Exception, match=r"0\.49 nats between 'yes' and 'no'"):
        run(margins, draw("3", 7.0), draw("3", 0.49))


def test_a_test_that_passes_whatever_is_said_may_be_marked(margins: Margins) -> None:
    run(margins, draw("1", 0.1), reason="only the format is looked at")


def test_an_answer_that_was_left_is_not_the_next_tests(margins: Margins) -> None:
    before_ns = time.monotonic_ns()
    run(margins)  # it left before the first token
    run(margins, draw("1", 0.1, before_ns))
    with pytest.raises(pytest.fail.Exception):
        run(margins, draw("2", 0.1))


@pytest.mark.parametrize("limit_nats", [0.25], indirect=True)
def test_where_tests_are_only_run_a_narrower_margin_is_enough(margins: Margins) -> None:
    run(margins, draw("1", 0.26))
    with pytest.raises(pytest.fail.Exception):
        run(margins, draw("2", 0.24))


def test_the_table_has_the_closest_choice_of_every_answer(margins: Margins, tmp_path: Path) -> None:
    run(margins, draw("1", 3.0), draw("1", 2.0), draw("2", 1.0))
    margins.pytest_sessionfinish()
    rows = [row.split("\t")[1] for row in (tmp_path / "table").read_text().splitlines()]
    assert [row.split()[0] for row in rows] == ["1.00", "2.00"]
