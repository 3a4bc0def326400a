"""Tails: whatever the regions are, both parts together are the state, byte for byte; and so on the real device."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from inference.attention import ALL, Attention
from inference.bundled import CHAT_MODEL
from inference.kvcache.tail import Region, Root, Tail
from inference.llama import LlamaContext, LlamaModel
from inference.llama.state import regions
from inference.provisioning.rows import Rows

SHARED, SLOTS, CONTEXT = 100, 3, 512
FUZZED = 300


@st.composite
def cut_states(draw: st.DrawFn) -> tuple[NDArray[np.uint8], list[Region]]:
    at, found = 0, []
    for _ in range(draw(st.integers(1, 4))):
        at += draw(st.integers(0, 5))
        rows, row_bytes = draw(st.integers(1, 4)), draw(st.integers(1, 6))
        found.append(Region(at, rows, row_bytes, draw(st.integers(1, row_bytes))))
        at = found[-1].end
    size = at + draw(st.integers(0, 5))
    return np.frombuffer(draw(st.binary(min_size=size, max_size=size)), np.uint8), found


@given(cut_states())
def test_a_root_and_its_tail_are_the_state(cut: tuple[NDArray[np.uint8], list[Region]]) -> None:
    state, places = cut
    root = Root.of(state, places, 1)
    tail = Tail.of(state, places, root)
    assert tail is not None and np.array_equal(tail.whole(), state)
    assert tail.rest.nbytes + root.content.nbytes == state.nbytes == tail.size


@given(cut_states(), st.data())
def test_a_state_that_begins_otherwise_has_no_tail_behind_a_root(
    cut: tuple[NDArray[np.uint8], list[Region]], data: st.DataObject
) -> None:
    state, places = cut
    root = Root.of(state, places, 1)
    root.content[data.draw(st.integers(0, root.content.size - 1))] ^= 1
    assert Tail.of(state, places, root) is None
    assert Tail.of(state, (), root) is None


@pytest.fixture(scope="module")
def model() -> LlamaModel:
    return LlamaModel.load(CHAT_MODEL)


def talking(model: LlamaModel, mode: Attention) -> LlamaContext:
    """Slots 0 and 1 hold conversations of one beginning."""
    context = LlamaContext(model, slots=SLOTS, context=CONTEXT, rows_max=256, threads=1, attention=mode)
    context.decode([Rows(0, 0, [*range(300, 300 + SHARED), *[5] * 37])])
    context.fork(0, 1, SHARED)
    context.decode([Rows(1, SHARED, [9] * 50)])
    return context


@pytest.mark.parametrize("mode", ALL, ids=str)
def test_a_conversation_comes_back_from_its_tail_bit_by_bit(model: LlamaModel, mode: Attention) -> None:
    context = talking(model, mode)
    first, second = context.save(0), context.save(1)
    root = Root.of(first, regions(first, SHARED), SHARED)
    tail = Tail.of(second, regions(second, SHARED), root)
    assert tail is not None and np.array_equal(tail.whole(), second)
    assert tail.rest.nbytes < 0.36 * second.nbytes  # 50 tokens of 150, and what is told of each cell
    kept = context.decode([Rows(1, SHARED + 50, [7, 8])]).copy()
    context.truncate(0, 0)
    context.truncate(1, 0)
    context.restore(1, tail.whole())
    assert np.array_equal(context.save(1), second)
    assert np.array_equal(context.decode([Rows(1, SHARED + 50, [7, 8])]), kept)
    context.close()


def test_a_state_of_another_kind_is_cut_nowhere(model: LlamaModel) -> None:
    context = talking(model, ALL[0])
    state = context.save(0)
    assert regions(state, SHARED) and not regions(state, 138)  # it has 137 tokens
    assert not regions(state[:-1], SHARED) and not regions(state[:9], SHARED)
    context.close()


def test_whatever_the_bytes_are_nothing_is_lost(model: LlamaModel) -> None:
    context = talking(model, ALL[0])
    random, state = np.random.default_rng(3), context.save(0)
    context.close()
    for _ in range(FUZZED):
        damaged = state.copy()
        damaged[random.integers(0, 3000, size=4)] = random.integers(0, 256, size=4)
        if places := regions(damaged, SHARED):
            tail = Tail.of(damaged, places, Root.of(damaged, places, SHARED))
            assert tail is not None and np.array_equal(tail.whole(), damaged)
