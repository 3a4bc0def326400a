"""`python -m tests.inference.traps N`: everything that made llama.cpp abort or read freed memory, done on purpose.

N counts the layouts of the KV cache in `inference.attention.ALL`. Each trap gets a fresh context and prints its name
and how it ended, so that a process that dies names its murderer.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np

from inference.attention import ALL, Attention
from inference.backend import Chunk
from inference.bundled import CHAT_MODEL, DRAFT_MODEL, EMBEDDER
from inference.errors import InferenceError
from inference.llama import EmbeddingContext, LlamaContext, LlamaModel, quantize

HELD = 40  # tokens in slot 0 of every context
FOREIGN_SEQUENCE = 300  # llama.cpp aborts from 256 on
FUZZED_STATES = 200

Trap = Callable[[LlamaContext], object]


def decode(*chunks: Chunk) -> Trap:
    return lambda context: context.decode(chunks)


def new_context(model: LlamaModel, context: int = 256) -> LlamaContext:
    made = LlamaContext(model, slots=2, context=context, rows_max=64, threads=1, attention=layout())
    made.decode([Chunk(0, 0, [5] * HELD)])
    return made


def layout() -> Attention:
    return ALL[int(sys.argv[1])]


def restore(change: Callable[[LlamaContext], object]) -> Trap:
    """Put a damaged state of slot 0 into slot 1, which must be refused and leave the slot empty and usable."""

    def trap(context: LlamaContext) -> None:
        state = np.asarray(change(context), np.uint8)
        try:
            context.restore(1, state)
        finally:
            assert context.length(1) == 0
            context.decode([Chunk(1, 0, [5, 6])])

    return trap


def state_of(path: Path, context: int = 256) -> object:
    model = LlamaModel.load(path)
    return new_context(model, context).save(0)


def state_too_long(context: LlamaContext) -> object:
    model = LlamaModel.load(CHAT_MODEL)
    larger = LlamaContext(model, slots=1, context=1024, rows_max=512, threads=1, attention=layout())
    larger.decode([Chunk(0, 0, [5] * 400)])
    return larger.save(0)


def fuzzed_states(context: LlamaContext) -> None:
    """Any bytes at all may come back from a disk. Not all can be told from good ones; none may kill."""
    random, state = np.random.default_rng(7), context.save(0)
    for turn in range(FUZZED_STATES):
        damaged = state.copy()
        where = random.integers(0, 400 if turn % 2 else len(state), size=8)  # half of them in the header
        damaged[where] = random.integers(0, 256, size=8)
        try:
            context.restore(1, damaged)
            context.truncate(1, 0)
        except InferenceError:
            pass
    raise InferenceError("survived")


def closed(use: Callable[[LlamaContext], object]) -> Trap:
    def trap(context: LlamaContext) -> None:
        context.close()
        context.close()
        use(context)

    return trap


def closed_model(use: Callable[[LlamaModel], object]) -> Trap:
    def trap(context: LlamaContext) -> None:
        model = LlamaModel.load(DRAFT_MODEL)
        model.close()
        use(model)

    return trap


def closed_embedder(context: LlamaContext) -> None:
    embedder = EmbeddingContext(LlamaModel.load(EMBEDDER), rows_max=64, sequences_max=4, threads=1)
    embedder.close()
    embedder.encode([[101, 102]])


TRAPS: dict[str, Trap] = {
    "more rows than a batch holds": decode(Chunk(1, 0, [5] * 65)),
    "no rows": decode(),
    "more outputs than the context allows": decode(Chunk(0, HELD, [5] * 20, 20)),
    "more outputs than tokens": decode(Chunk(0, HELD, [5], 2)),
    "a slot that is none": decode(Chunk(FOREIGN_SEQUENCE, 0, [5])),
    "a position before the first": decode(Chunk(1, -1, [5])),
    "a position beyond the context": decode(Chunk(1, 250, [5] * 20)),
    "a position that is taken": decode(Chunk(0, 3, [5])),
    "a token beyond the vocabulary": decode(Chunk(1, 0, [10**6])),
    "a negative token": decode(Chunk(1, 0, [-1])),
    "fork from a slot that is none": lambda context: context.fork(FOREIGN_SEQUENCE, 1, 10),
    "fork from a negative slot": lambda context: context.fork(-1, 1, 10),
    "fork to a slot that is none": lambda context: context.fork(0, FOREIGN_SEQUENCE, 10),
    "fork to a slot beside the last": lambda context: context.fork(0, 2, 10),
    "fork onto itself": lambda context: context.fork(0, 0, 10),
    "fork of more than there is": lambda context: context.fork(0, 1, HELD + 1),
    "fork of less than nothing": lambda context: context.fork(0, 1, -1),
    "truncate a slot that is none": lambda context: context.truncate(FOREIGN_SEQUENCE, 0),
    "truncate to less than nothing": lambda context: context.truncate(0, -1),
    "save a slot that is none": lambda context: context.save(FOREIGN_SEQUENCE),
    "save a slot beside the last": lambda context: context.save(2),
    "length of a slot that is none": lambda context: context.length(FOREIGN_SEQUENCE),
    "length of a negative slot": lambda context: context.length(-1),
    "restore to a slot that is none": lambda context: context.restore(FOREIGN_SEQUENCE, context.save(0)),
    "restore half a state": restore(lambda context: context.save(0)[:5000]),
    "restore a few bytes": restore(lambda context: context.save(0)[:4]),
    "restore nothing": restore(lambda context: []),
    "restore zeros": restore(lambda context: np.zeros_like(context.save(0))),
    "restore noise": restore(lambda context: np.full_like(context.save(0), 255)),
    "restore the state of another model": restore(lambda context: state_of(DRAFT_MODEL)),
    "restore more than the context holds": restore(state_too_long),
    "restore states with flipped bytes": fuzzed_states,
    "decode when closed": closed(decode(Chunk(1, 0, [5]))),
    "truncate when closed": closed(lambda context: context.truncate(0, 0)),
    "save when closed": closed(lambda context: context.save(0)),
    "tokenize when closed": closed_model(lambda model: model.tokenize("hello", parse_special=False)),
    "look for marks when closed": closed_model(lambda model: model._marks),
    "ask for the end of texts when closed": closed_model(lambda model: model.eos_text),
    "embed when closed": closed_embedder,
    "the text of a token that is none": lambda context: LlamaModel.load(DRAFT_MODEL).token_text(10**7),
    "write with an encoder": lambda context: new_context(LlamaModel.load(EMBEDDER)),
    "more sequences than there can be": lambda context: LlamaContext(
        LlamaModel.load(DRAFT_MODEL), slots=FOREIGN_SEQUENCE, context=256, rows_max=8, threads=1
    ),
    "compute without weights": lambda context: new_context(LlamaModel.load(CHAT_MODEL, weights=False)),
    "quantise into a folder that is none": lambda context: quantize(
        DRAFT_MODEL, Path("/nowhere/x.gguf"), "q8_0", threads=1
    ),
}


def main() -> None:
    model = LlamaModel.load(CHAT_MODEL)
    for name, trap in TRAPS.items():
        context = new_context(model)
        print(name, end="\t", flush=True)
        try:
            trap(context)
            print("accepted", flush=True)
        except InferenceError:
            print("refused", flush=True)
        context.close()


if __name__ == "__main__":
    main()
