"""The rows of a step, as llama.cpp gets them; what would make it abort is refused."""

from __future__ import annotations

import pytest

from inference.backend import Chunk
from inference.llama import DecodeFailed
from inference.llama.context import Batch

SLOTS, CONTEXT = 4, 10


def filled(*parts: Chunk) -> list[tuple[int, int, int, int]]:
    """Token, position, slot and whether logits are wanted, row by row."""
    batch = Batch(8)
    batch.outputs[:] = 1  # as an earlier step left it
    outputs = batch.fill(parts, SLOTS, CONTEXT)
    rows = [
        (int(batch.tokens[row]), int(batch.positions[row]), int(batch.slots[row]), int(batch.outputs[row]))
        for row in range(batch.raw.n_tokens)
    ]
    assert outputs == sum(row[-1] for row in rows)
    return rows


def test_streams_of_one_row_each() -> None:
    assert filled(Chunk(0, 3, (7,)), Chunk(2, 9, (8,)), Chunk(3, 0, (9,), outputs=0)) == [
        (7, 3, 0, 1),
        (8, 9, 2, 1),
        (9, 0, 3, 0),
    ]


def test_a_prompt_beside_a_stream_and_a_draft() -> None:
    assert filled(Chunk(0, 3, (7,)), Chunk(1, 0, (1, 2, 3)), Chunk(3, 4, (5, 6), outputs=2)) == [
        (7, 3, 0, 1),
        (1, 0, 1, 0),
        (2, 1, 1, 0),
        (3, 2, 1, 1),
        (5, 4, 3, 1),
        (6, 5, 3, 1),
    ]


@pytest.mark.parametrize(
    "wrong",
    [
        Chunk(-1, 0, (1,)),
        Chunk(SLOTS, 0, (1,)),
        Chunk(1, -1, (1,)),
        Chunk(1, CONTEXT, (1,)),
        Chunk(1, 0, (1,), outputs=2),
        Chunk(1, 0, (1,), outputs=-1),
        Chunk(1, 0, ()),
        Chunk(1, CONTEXT - 1, (1, 2)),
        Chunk(SLOTS, 0, (1, 2)),
        Chunk(1, 0, (1, 2), outputs=3),
        Chunk(1, 0, (1,) * 9),
    ],
)
@pytest.mark.parametrize("beside", [Chunk(0, 0, (1,)), Chunk(0, 0, (1, 2))])
def test_what_would_make_llama_cpp_abort_is_refused(beside: Chunk, wrong: Chunk) -> None:
    with pytest.raises(DecodeFailed):
        Batch(8).fill([beside, wrong], SLOTS, CONTEXT)


def test_a_step_without_rows_is_refused() -> None:
    with pytest.raises(DecodeFailed):
        Batch(8).fill([], SLOTS, CONTEXT)
