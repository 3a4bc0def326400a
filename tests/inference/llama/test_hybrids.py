"""Models with recurrent layers or sliding windows go back to a checkpoint and say there what they say computed anew."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from inference.attention import Attention
from inference.backend import Chunk
from inference.kvcache.host_cache import Entry, HostCache
from inference.llama import LlamaContext, LlamaModel
from inference.llama.library import DecodeFailed
from inference.prompt import CacheScope
from tests.inference.hybrids import ARCHITECTURES, write_hybrid
from tests.inference.modes import COVERING

SLOTS, CONTEXT, ROWS = 3, 1024, 128
OTHER = 40  # tokens
CLOSE = 0.05  # logits where rows see their cells in another order; those of another text differ by 1 and more


def text(seed: int, tokens: int) -> list[int]:
    return random.Random(seed).choices(range(300, 2000), k=tokens)


@pytest.fixture(scope="module", params=ARCHITECTURES)
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LlamaModel]:
    path: Path = tmp_path_factory.mktemp("hybrid") / f"{request.param}.gguf"
    model = LlamaModel.load(write_hybrid(path, request.param))
    yield model
    model.close()


@pytest.fixture(params=COVERING)
def context(request: pytest.FixtureRequest, model: LlamaModel) -> Iterator[LlamaContext]:
    made = LlamaContext(
        model, slots=SLOTS, context=CONTEXT, rows_max=ROWS, threads=1, attention=request.param, windowed=True
    )
    yield made
    made.close()


def lengths(context: LlamaContext) -> tuple[int, int]:
    """Tokens that are kept, and lost behind them: with windows so many that their cells are taken for others."""
    return (250, 300) if context.drops else (100, 60)


def compute(context: LlamaContext, slot: int, at: int, tokens: list[int]) -> None:
    for begin in range(0, len(tokens), ROWS):
        context.decode([Chunk(slot, at + begin, tokens[begin : begin + ROWS], outputs=0)])


def tolerance(context: LlamaContext, attention: Attention) -> float:
    """Cells of a window lie in another order, too."""
    return CLOSE if attention.unified or context.drops else 0


def goes_on(context: LlamaContext, slot: int, attention: Attention) -> None:
    """The slot says what one says that computed the same tokens anew, in the same steps."""
    kept, _ = lengths(context)
    assert context.length(slot) == kept
    went_back = context.decode([Chunk(slot, kept, text(3, OTHER))]).copy()
    context.truncate(slot, 0)
    compute(context, slot, 0, text(1, kept))
    anew = context.decode([Chunk(slot, kept, text(3, OTHER))])
    assert np.abs(went_back - anew).max() <= tolerance(context, attention)


@pytest.fixture
def attention(request: pytest.FixtureRequest) -> Attention:
    made: Attention = request.node.callspec.params["context"]
    return made


def computed(context: LlamaContext) -> np.ndarray[tuple[int], np.dtype[np.uint8]]:
    """Slot 0 holds a text; returns its checkpoint behind the first tokens."""
    kept, lost = lengths(context)
    compute(context, 0, 0, text(1, kept))
    checkpoint = context.checkpoint(0)
    compute(context, 0, kept, text(2, lost))
    return checkpoint


def test_a_slot_goes_back_to_a_checkpoint(context: LlamaContext, attention: Attention) -> None:
    checkpoint = computed(context)
    with pytest.raises(DecodeFailed, match="cannot go back"):
        context.truncate(0, lengths(context)[0])
    context.truncate(0, lengths(context)[0], checkpoint)
    goes_on(context, 0, attention)


def test_a_fork_begins_at_a_checkpoint_and_its_source_goes_on(context: LlamaContext, attention: Attention) -> None:
    checkpoint, (kept, lost) = computed(context), lengths(context)
    context.fork(0, 2, kept, checkpoint)
    before = context.decode([Chunk(0, kept + lost, [7])]).copy()
    goes_on(context, 2, attention)
    context.truncate(0, 0)
    compute(context, 0, 0, text(1, kept))
    compute(context, 0, kept, text(2, lost))
    anew = context.decode([Chunk(0, kept + lost, [7])])
    assert np.abs(before - anew).max() <= tolerance(context, attention)


def test_a_restored_conversation_goes_back_to_a_checkpoint_of_another_slot(
    context: LlamaContext, attention: Attention
) -> None:
    checkpoint = computed(context)
    state = context.save(0)
    context.truncate(0, 0)
    context.restore(1, state)
    context.truncate(1, lengths(context)[0], checkpoint)
    goes_on(context, 1, attention)


def test_windows_drop_the_tokens_of_their_last_step_and_no_others(context: LlamaContext, attention: Attention) -> None:
    computed(context)
    length, end = sum(lengths(context)), text(3, 9)
    with pytest.raises(DecodeFailed, match="cannot go back"):
        context.truncate(0, length - ROWS - 1)
    context.decode([Chunk(0, length, text(4, 9))])
    if not context.drops:
        with pytest.raises(DecodeFailed, match="cannot go back"):
            context.truncate(0, length + 4)
        return
    context.truncate(0, length + 4)
    went_back = context.decode([Chunk(0, length + 4, end)]).copy()
    context.truncate(0, 0)
    computed(context)
    context.decode([Chunk(0, length, text(4, 9)[:4], outputs=0)])
    assert np.abs(went_back - context.decode([Chunk(0, length + 4, end)])).max() <= CLOSE


def test_a_checkpoint_of_other_tokens_is_refused(context: LlamaContext) -> None:
    checkpoint = computed(context)
    with pytest.raises(DecodeFailed):
        context.truncate(0, lengths(context)[0] - 1, checkpoint)
    context.truncate(0, 0)
    assert context.length(0) == 0


def test_a_checkpoint_is_small_and_as_large_for_any_number_of_tokens(context: LlamaContext) -> None:
    checkpoint = computed(context)
    assert context.checkpoint(0).nbytes == checkpoint.nbytes < context.save(0).nbytes


def test_a_checkpoint_lies_in_pages_of_its_own_from_the_start(
    context: LlamaContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("inference.pages.MAPPED_BYTES_MIN", 1)
    compute(context, 0, 0, text(1, 9))
    assert context.checkpoint(0).base is not None, "it has to be copied to be kept"


def test_parked_conversations_store_the_keys_and_values_that_they_share_once(context: LlamaContext) -> None:
    states, (kept, lost) = [], lengths(context)
    for tail in (2, 3):
        context.truncate(0, 0)
        compute(context, 0, 0, text(1, kept))
        compute(context, 0, kept, text(tail, lost))
        states.append((tuple(text(1, kept) + text(tail, lost)), context.save(0)))
    parked = HostCache(10**9)
    for tokens, state in states:
        parked.put(Entry(tokens, CacheScope(""), state), context.regions)
    shared = context.save(0).nbytes - context.checkpoint(0).nbytes  # of all tokens
    assert parked.bytes < sum(state.nbytes for _, state in states) - 0.8 * shared * kept / (kept + lost)
    for entry, (_, state) in zip(reversed(parked.entries), states, strict=True):
        assert np.array_equal(entry.state, state)
