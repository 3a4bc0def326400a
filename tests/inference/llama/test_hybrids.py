"""Models that mix attention with recurrent layers go back to a checkpoint and say there what they say computed anew."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from inference.attention import ALL, Attention
from inference.backend import Rows
from inference.kvcache.host_cache import Entry, HostCache
from inference.llama import LlamaContext, LlamaModel
from inference.llama.library import DecodeFailed
from inference.prompt_cache import CacheScope
from tests.inference.hybrids import ARCHITECTURES, write_hybrid

SLOTS, CONTEXT = 3, 256
KEPT, LOST, OTHER = 100, 60, 40  # tokens
CLOSE = 0.05  # logits where rows see their cells in another order; those of another text differ by 1 and more


def text(seed: int, tokens: int) -> list[int]:
    return random.Random(seed).choices(range(300, 2000), k=tokens)


@pytest.fixture(scope="module", params=ARCHITECTURES)
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LlamaModel]:
    path: Path = tmp_path_factory.mktemp("hybrid") / f"{request.param}.gguf"
    model = LlamaModel.load(write_hybrid(path, request.param))
    yield model
    model.close()


@pytest.fixture(params=ALL, ids=str)
def context(request: pytest.FixtureRequest, model: LlamaModel) -> Iterator[LlamaContext]:
    made = LlamaContext(model, slots=SLOTS, context=CONTEXT, rows_max=CONTEXT, threads=1, attention=request.param)
    yield made
    made.close()


def goes_on(context: LlamaContext, slot: int, attention: Attention) -> None:
    """The slot says what one says that computed the same tokens anew, in the same steps."""
    assert context.length(slot) == KEPT
    went_back = context.decode([Rows(slot, KEPT, text(3, OTHER))]).copy()
    context.truncate(slot, 0)
    context.decode([Rows(slot, 0, text(1, KEPT), outputs=0)])
    anew = context.decode([Rows(slot, KEPT, text(3, OTHER))])
    assert np.abs(went_back - anew).max() <= (CLOSE if attention.unified else 0)


@pytest.fixture
def attention(request: pytest.FixtureRequest) -> Attention:
    made: Attention = request.node.callspec.params["context"]
    return made


def computed(context: LlamaContext) -> np.ndarray[tuple[int], np.dtype[np.uint8]]:
    """Slot 0 holds a text; returns its checkpoint behind the first tokens."""
    context.decode([Rows(0, 0, text(1, KEPT), outputs=0)])
    checkpoint = context.checkpoint(0)
    context.decode([Rows(0, KEPT, text(2, LOST))])
    return checkpoint


def test_a_slot_goes_back_to_a_checkpoint(context: LlamaContext, attention: Attention) -> None:
    checkpoint = computed(context)
    with pytest.raises(DecodeFailed, match="cannot go back"):
        context.truncate(0, KEPT)
    context.truncate(0, KEPT, checkpoint)
    goes_on(context, 0, attention)


def test_a_fork_begins_at_a_checkpoint_and_its_source_goes_on(context: LlamaContext, attention: Attention) -> None:
    checkpoint = computed(context)
    context.fork(0, 2, KEPT, checkpoint)
    before = context.decode([Rows(0, KEPT + LOST, [7])]).copy()
    goes_on(context, 2, attention)
    context.truncate(0, 0)
    context.decode([Rows(0, 0, text(1, KEPT), outputs=0)])
    context.decode([Rows(0, KEPT, text(2, LOST))])
    assert np.abs(before - context.decode([Rows(0, KEPT + LOST, [7])])).max() <= (CLOSE if attention.unified else 0)


def test_a_restored_conversation_goes_back_to_a_checkpoint_of_another_slot(
    context: LlamaContext, attention: Attention
) -> None:
    checkpoint = computed(context)
    state = context.save(0)
    context.truncate(0, 0)
    context.restore(1, state)
    context.truncate(1, KEPT, checkpoint)
    goes_on(context, 1, attention)


def test_a_checkpoint_of_other_tokens_is_refused(context: LlamaContext) -> None:
    checkpoint = computed(context)
    with pytest.raises(DecodeFailed):
        context.truncate(0, KEPT - 1, checkpoint)
    context.truncate(0, 0)
    assert context.length(0) == 0


def test_a_checkpoint_is_small_and_as_large_for_any_number_of_tokens(context: LlamaContext) -> None:
    checkpoint = computed(context)
    assert context.checkpoint(0).nbytes == checkpoint.nbytes < context.save(0).nbytes


def test_parked_conversations_store_the_keys_and_values_that_they_share_once(context: LlamaContext) -> None:
    states = []
    for tail in (2, 3):
        context.truncate(0, 0)
        context.decode([Rows(0, 0, text(1, KEPT), outputs=0)])
        context.decode([Rows(0, KEPT, text(tail, LOST), outputs=0)])
        states.append((tuple(text(1, KEPT) + text(tail, LOST)), context.save(0)))
    parked = HostCache(10**9)
    for tokens, state in states:
        parked.put(Entry(tokens, CacheScope(""), state), context.regions)
    shared = context.save(0).nbytes - context.checkpoint(0).nbytes  # of all tokens
    assert parked.bytes < sum(state.nbytes for _, state in states) - 0.8 * shared * KEPT / (KEPT + LOST)
    for entry, (_, state) in zip(reversed(parked.entries), states, strict=True):
        assert np.array_equal(entry.state, state)
