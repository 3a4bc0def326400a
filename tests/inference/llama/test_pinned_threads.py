"""Compute threads stay on a processor each where they take all of them, and nowhere else."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from inference.backend import Chunk
from inference.bundled import DRAFT_MODEL
from inference.cores import affinity
from inference.llama import LlamaContext, LlamaModel
from inference.llama.threads import ThreadChooser

PROCESSORS = sorted(affinity())


@pytest.fixture(scope="module")
def model() -> Iterator[LlamaModel]:
    model = LlamaModel.load(DRAFT_MODEL)
    yield model
    model.close()


def context(model: LlamaModel, threads: int) -> closing[LlamaContext]:
    return closing(LlamaContext(model, slots=1, context=64, rows_max=16, threads=threads, threads_min=threads))


def held_alone() -> list[int]:
    """The processors that threads of this process do not leave."""
    threads = [os.sched_getaffinity(int(each.name)) for each in Path("/proc/self/task").iterdir()]
    return sorted(processor for processors in threads if len(processors) == 1 for processor in processors)


def test_each_thread_has_a_processor_of_its_own_until_it_rests(model: LlamaModel) -> None:
    with context(model, len(PROCESSORS)) as made:
        made.decode([Chunk(0, 0, [300], 1)])
        assert affinity() == {PROCESSORS[0]}
        others = held_alone()[1:]
        assert others == PROCESSORS[1:][: len(others)], "as many as OpenMP was allowed to start"
        made.rest()
        assert affinity() == set(PROCESSORS)
        assert len(PROCESSORS) == 1 or held_alone() == []


def test_threads_may_move_again_once_a_step_has_fewer_of_them(model: LlamaModel) -> None:
    with context(model, len(PROCESSORS)) as made:
        made.decode([Chunk(0, 0, [300], 1)])
        made._threads = ThreadChooser([1])
        made.decode([Chunk(0, 1, [300], 1)])
        assert affinity() == set(PROCESSORS)


@pytest.mark.parametrize("threads", [max(1, len(PROCESSORS) - 1), len(PROCESSORS) + 1])
def test_threads_may_move_where_there_are_fewer_or_more_of_them_than_processors(
    model: LlamaModel, threads: int
) -> None:
    with context(model, threads) as made:
        made.decode([Chunk(0, 0, [300], 1)])
        assert affinity() == set(PROCESSORS)


def test_who_closes_a_context_is_let_go(model: LlamaModel) -> None:
    with context(model, len(PROCESSORS)) as made:
        made.decode([Chunk(0, 0, [300], 1)])
    assert affinity() == set(PROCESSORS)
