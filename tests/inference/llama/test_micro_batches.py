"""What is computed together: rows of neighbouring slots, unless they would read the many cells of one of them."""

from __future__ import annotations

from collections.abc import Sequence

from inference.attention import CELLS_READ
from inference.backend import Chunk
from inference.llama.micro_batches import GAP_MAX, micro_batches

MODEL_CELLS = 10 * CELLS_READ
CONTEXT = 20 * CELLS_READ
SHORT, LONG = 100, 15 * CELLS_READ


def row(slot: int, position: int = SHORT, tokens: int = 1) -> Chunk:
    return Chunk(slot, position, [1] * tokens)


def ordered(*chunks: Chunk, idle: int = 0) -> Sequence[Chunk]:
    """`idle`: tokens in all other slots."""
    return micro_batches(chunks, lambda slot: idle, context=CONTEXT, model_cells=MODEL_CELLS)


def slots(*chunks: Chunk, idle: int = 0) -> list[int]:
    return [chunk.slot for chunk in ordered(*chunks, idle=idle)]


def rows(count: int, **longer: int) -> list[Chunk]:
    """A row in each of the first slots; `slot3` of so many tokens."""
    return [row(slot, longer.get(f"slot{slot}", SHORT)) for slot in range(count)]


def test_rows_of_neighbouring_slots_are_computed_together() -> None:
    assert slots(*rows(8)) == list(range(8))


def test_a_row_that_reads_much_is_computed_apart_from_others() -> None:
    assert slots(*rows(8, slot7=LONG)) == [7, 0, 1, 2, 3, 4, 5, 6]
    assert slots(*rows(8, slot3=LONG)) == [4, 5, 6, 7, 3, 0, 1, 2]


def test_rows_that_read_much_are_computed_together() -> None:
    assert slots(*rows(8, slot6=LONG, slot7=LONG // 2 + CELLS_READ)) == [6, 7, 0, 1, 2, 3, 4, 5]


def test_what_another_micro_batch_would_cost_more_than_it_saves_is_computed_together() -> None:
    assert slots(*rows(8, slot7=CELLS_READ)) == list(range(8))
    assert slots(row(0), row(1, MODEL_CELLS)) == [0, 1]


def test_the_rows_of_a_long_prompt_are_computed_apart_from_those_of_answers() -> None:
    beside = ordered(*rows(4), row(4, LONG, tokens=64))
    assert [(chunk.slot, len(chunk.tokens)) for chunk in beside] == [(4, 64), (0, 1), (1, 1), (2, 1), (3, 1)]


def test_the_rows_of_a_short_prompt_do_not_read_the_cells_of_a_long_one() -> None:
    assert slots(row(0, tokens=64), row(1, LONG, tokens=64)) == [1, 0]


def test_short_gaps_are_filled_with_rows_of_idle_slots() -> None:
    assert slots(row(0), row(1), row(3), row(6)) == [0, 1, 2, 3, 4, 5, 6]
    assert [chunk.slot for chunk in ordered(row(0), row(2), idle=7) if not chunk.outputs and chunk.position == 7] == [1]


def test_a_long_gap_is_left() -> None:
    assert slots(row(0), row(GAP_MAX + 2)) == [0, GAP_MAX + 2]


def test_a_gap_is_left_if_the_idle_slot_is_full() -> None:
    assert slots(row(0), row(2), idle=CONTEXT) == [0, 2]


def test_a_gap_is_left_if_all_would_read_the_cells_of_the_idle_slot() -> None:
    assert slots(*rows(4), *(row(slot) for slot in range(5, 9)), idle=LONG) == [0, 1, 2, 3, 5, 6, 7, 8]
    assert slots(row(0), row(2), idle=2 * CELLS_READ) == [0, 1, 2]
