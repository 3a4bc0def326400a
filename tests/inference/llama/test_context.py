"""What a slot goes on from is what was put into it, in whatever order slots are forked, saved, restored and computed:
llama.cpp leaves some copies between streams to its next step."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import pytest
from numpy.typing import NDArray

from inference.attention import ALL, CELLS_READ, Attention
from inference.backend import Chunk
from inference.bundled import DRAFT_MODEL
from inference.llama import LlamaContext, LlamaModel, build_features
from inference.llama.library import lib

SLOTS, CONTEXT = 4, 96
LONG = 60  # tokens: so many that a fork copies a stream
STREAMS = Attention(unified=False, flash=False)
CLOSE = 0.5  # logits where rows computed together share their arithmetic; those of another text differ by 5 and more
WALKS, STEPS = 24, 14
# A build for which llama.cpp computes several rows differently than one.
AVX_ALONE = "AVX" in build_features() and "FMA" not in build_features()

Logits = NDArray[np.float32]


@pytest.fixture(scope="module")
def model() -> Iterator[LlamaModel]:
    model = LlamaModel.load(DRAFT_MODEL)
    yield model
    model.close()


@pytest.fixture(params=ALL, ids=str)
def context(request: pytest.FixtureRequest, model: LlamaModel) -> Iterator[LlamaContext]:
    made = new_context(model, request.param)
    yield made
    made.close()


def new_context(model: LlamaModel, attention: Attention) -> LlamaContext:
    return LlamaContext(model, slots=SLOTS, context=CONTEXT, rows_max=CONTEXT, threads=1, attention=attention)


def test_the_rows_of_a_step_fill_cache_lines_so_that_all_tensors_behind_them_are_aligned(
    model: LlamaModel,
) -> None:
    made = LlamaContext(model, slots=2, context=256, rows_max=33, threads=1)
    rows = lib.llama_n_ubatch(made._context)
    made.close()
    assert rows >= 33 and rows * 4 % 64 == 0


def text(seed: int, tokens: int = LONG) -> list[int]:
    return random.Random(seed).choices(range(300, 2000), k=tokens)


def goes_on(context: LlamaContext, slot: int, held: Sequence[int]) -> None:
    """The slot says what one says that computed the tokens anew."""
    assert context.length(slot) == len(held)
    logits: Logits = context.decode([Chunk(slot, len(held), [7])]).copy()
    context.truncate(slot, 0)
    anew = context.decode([Chunk(slot, 0, [*held, 7])])
    assert np.abs(logits - anew).max() < tolerance(context)


def tolerance(context: LlamaContext) -> float:
    return 1e-3 if context.exact and not AVX_ALONE else CLOSE


def _source_is_restored(context: LlamaContext) -> int:
    state = context.save(1)
    context.fork(0, 2, LONG)
    context.restore(0, state)
    return 2


def _source_is_forked_over(context: LlamaContext) -> int:
    context.truncate(1, 10)  # short enough for a fork by its state
    context.fork(0, 2, LONG)
    context.fork(1, 0, 10)
    return 2


def _target_is_saved(context: LlamaContext) -> int:
    context.fork(0, 2, LONG)
    context.restore(3, context.save(2))
    return 3


def _target_is_restored(context: LlamaContext) -> int:
    state = context.save(0)
    context.fork(1, 2, LONG)
    context.restore(2, state)
    return 2


def _target_is_forked_on(context: LlamaContext) -> int:
    context.fork(0, 2, LONG)
    context.fork(2, 3, LONG)
    return 3


def _source_is_computed_anew(context: LlamaContext) -> int:
    context.fork(0, 2, LONG)
    context.truncate(0, 0)
    context.decode([Chunk(0, 0, text(3))])
    return 2


ORDERS = [
    _source_is_restored,
    _source_is_forked_over,
    _target_is_saved,
    _target_is_restored,
    _target_is_forked_on,
    _source_is_computed_anew,
]


@pytest.mark.parametrize("order", ORDERS, ids=lambda order: order.__name__[1:])
def test_a_fork_has_the_cells_of_its_source_though(order: Callable[[LlamaContext], int], context: LlamaContext) -> None:
    context.decode([Chunk(0, 0, text(1))])
    context.decode([Chunk(1, 0, text(2))])
    goes_on(context, order(context), text(1))


def test_a_fork_is_saved_where_all_slots_hold_something(context: LlamaContext) -> None:
    for slot in range(SLOTS):
        context.decode([Chunk(slot, 0, text(slot))])
    context.fork(0, 2, LONG)
    state = context.save(2)
    for slot in (0, 1, 3):
        goes_on(context, slot, text(slot))
    context.restore(1, state)
    goes_on(context, 1, text(0))


@pytest.mark.parametrize("between", [0, 10, CONTEXT], ids="between: {}".format)
def test_an_idle_slot_between_others_stays_as_it_is(between: int, context: LlamaContext) -> None:
    for slot, tokens in enumerate((LONG, between, LONG)):
        if tokens:
            context.decode([Chunk(slot, 0, text(slot, tokens))])
    together = context.decode([Chunk(0, LONG, [7]), Chunk(2, LONG, [7, 7])]).copy()
    assert len(together) == 2
    assert context.length(1) == between
    context.truncate(0, LONG)
    alone = context.decode([Chunk(0, LONG, [7])])
    assert np.abs(together[0] - alone).max() < tolerance(context)
    context.truncate(1, min(between, CONTEXT - 1))
    goes_on(context, 1, text(1, between)[: CONTEXT - 1])
    context.truncate(2, LONG)
    goes_on(context, 2, text(2))


@pytest.mark.parametrize("full", range(SLOTS))
def test_each_row_has_its_own_logits_where_one_is_computed_apart(full: int, model: LlamaModel) -> None:
    context = LlamaContext(model, slots=SLOTS, context=1024, rows_max=512, threads=1, attention=STREAMS)
    context._model_cells = CELLS_READ  # so small a model is read in no time
    alone = []
    for slot in range(SLOTS):
        held = text(slot, 500 if slot == full else LONG)
        alone.append(context.decode([Chunk(slot, 0, [*held, 7])])[0].copy())
        context.truncate(slot, len(held))
    rows = context.decode([Chunk(slot, context.length(slot), [7]) for slot in range(SLOTS)])
    assert list(context._batch.slots[:SLOTS]) != list(range(SLOTS))
    assert np.abs(rows - alone).max() < tolerance(context)
    context.close()


@pytest.mark.parametrize("walk", range(WALKS))
def test_slots_hold_what_was_put_into_them_on_any_walk(walk: int, model: LlamaModel, context: LlamaContext) -> None:
    chance = random.Random(walk)
    held: list[list[int]] = [[] for _ in range(SLOTS)]
    states: list[tuple[NDArray[np.uint8], list[int]]] = []
    for _ in range(STEPS):
        slot = chance.randrange(SLOTS)
        match chance.choice(("compute", "together", "fork", "fork", "save", "restore", "truncate")):
            case "compute" if len(held[slot]) < CONTEXT - 2:
                more = text(chance.randrange(9), min(chance.choice((1, 8, LONG)), CONTEXT - 2 - len(held[slot])))
                context.decode([Chunk(slot, len(held[slot]), more)])
                held[slot] += more
            case "together":
                some = [each for each in range(SLOTS) if chance.random() < 0.6 and len(held[each]) < CONTEXT - 2]
                rows = [Chunk(each, len(held[each]), [300 + each]) for each in some]
                if rows:
                    context.decode(rows)
                for each in some:
                    held[each].append(300 + each)
            case "fork" if held[slot]:
                target = chance.choice([each for each in range(SLOTS) if each != slot])
                kept = chance.randint(1, len(held[slot]))
                context.fork(slot, target, kept)
                held[target] = held[slot][:kept]
            case "save" if held[slot]:
                states.append((context.save(slot), list(held[slot])))
            case "restore" if states:
                state, tokens = chance.choice(states)
                context.restore(slot, state)
                held[slot] = list(tokens)
            case "truncate" if held[slot]:
                del held[slot][chance.randrange(len(held[slot])) :]
                context.truncate(slot, len(held[slot]))
    for slot in range(SLOTS):
        goes_on(context, slot, held[slot])
