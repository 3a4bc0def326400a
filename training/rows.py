"""Writes trees of conversations as rows of tokens, packed: each branch is computed as if it stood alone.

python -m training.rows --base FILE --out rows.npz --tokens 20e6 --processes 2
"""

from __future__ import annotations

import argparse
import math
import os
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import cache
from itertools import islice
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np

from training import base
from training.conversations import Conversations, Message, Split, Tree, accepted
from training.packed import Packed
from training.values import Chooser

LENGTH = 1024  # tokens of a row
WAITING = 24  # encoded trees from which a row is filled, so that little of it stays empty
ROOM_MIN = 60  # tokens; a smaller rest of a row stays empty
PART_ROWS = 500
BARE: Message = {"role": "system", "content": ""}
ACCEPTED_EVERY = 3  # trees, where there are accepted answers

Piece = tuple[list[int], list[int]]  # token ids, and 1 for each that the assistant writes


@dataclass(frozen=True, slots=True)
class Encoded:
    """A tree, or what is left of it. Branches go where there is room, each time with the stem before them."""

    stem: list[int]
    branches: list[Piece]

    def fitting(self, room: int, whole: bool) -> list[Piece]:
        """Branches for a place of so many tokens, a `whole` row or the end of one; none where most of that end were the
        stem once more."""
        free = room - len(self.stem)
        fitting: list[Piece] = []
        for branch in self.branches:
            if len(branch[0]) <= free:
                fitting.append(branch)
                free -= len(branch[0])
        worth = whole or len(fitting) == len(self.branches) or room - free > 2 * len(self.stem)
        return fitting if worth else []


def encoded(tokenizer: Any, tree: Tree, length: int = LENGTH) -> Encoded:
    """A branch that does not fit beside its stem is dropped. It is read below an empty stem, which is quicker: no token
    crosses the mark between the two. An answer that is marked as not learnt is the first."""
    stem, _ = _tokens(tokenizer, tree.system, tree.tools, [])
    bare = len(_tokens(tokenizer, BARE, [], [])[0])
    branches = []
    for branch in tree.branches:
        ids, learnt = _tokens(tokenizer, BARE, [], branch)
        if not branch[1].get("learnt", True):
            before = len(_tokens(tokenizer, BARE, [], branch[:2])[0])
            learnt = [0] * before + learnt[before:]
        if len(stem) + len(ids) - bare <= length:
            branches.append((ids[bare:], learnt[bare:]))
    return Encoded(stem, branches)


def _tokens(tokenizer: Any, system: Message, tools: list[dict[str, Any]], branch: list[Message]) -> Piece:
    rendered = tokenizer.apply_chat_template(
        [system, *branch], tools=tools or None, return_dict=True, return_assistant_tokens_mask=True
    )
    return rendered["input_ids"], rendered["assistant_masks"]


def packed(tokenizer: Any, trees: Iterator[Tree], rows: int, length: int = LENGTH) -> Packed:
    ids = np.zeros((rows, length), np.uint16)
    learnt = np.zeros((rows, length), bool)
    pieces: list[int] = []
    stems: list[bool] = []
    waiting: list[Encoded] = []
    for row in range(rows):
        waiting += [encoded(tokenizer, tree, length) for tree in islice(trees, WAITING - len(waiting))]
        at = 0
        for tree in waiting:
            if length - at < ROOM_MIN:
                break
            fitting = tree.fitting(length - at, at == 0)
            for number, piece in enumerate([(tree.stem, [0] * len(tree.stem)), *fitting] if fitting else []):
                end = at + len(piece[0])
                ids[row, at:end], learnt[row, at:end] = piece
                pieces.append(end - at)
                stems.append(number == 0)
                at = end
            for piece in fitting:
                tree.branches.remove(piece)
        waiting = [tree for tree in waiting if tree.branches]
        if at < length:
            pieces.append(length - at)
            stems.append(True)
    return Packed(ids, learnt, np.array(pieces, np.uint16), np.array(stems))


@dataclass(frozen=True, slots=True)
class Writer:
    """Writes parts of `PART_ROWS` rows, each from a seed of its own: the same, however many processes there are."""

    base: Path
    seed: str
    split: Split = "train"
    accepted: Path | None = None

    def part(self, number: int, rows: int) -> Packed:
        tokenizer, conversations = _prepared(self.base, self.split)
        conversations.choose = Chooser(f"{self.seed} {number}")
        trees = conversations.trees()
        if self.accepted is not None:
            others = accepted(self.accepted)
            trees = (next(others) if at % ACCEPTED_EVERY == 0 else tree for at, tree in enumerate(trees))
        return packed(tokenizer, trees, rows)

    def rows(self, count: int, processes: int) -> Packed:
        counts = [min(PART_ROWS, count - at) for at in range(0, count, PART_ROWS)]
        with ProcessPoolExecutor(processes, get_context("spawn")) as pool:
            parts = list((map if processes == 1 else pool.map)(self.part, range(len(counts)), counts))
        return Packed(*(np.concatenate([getattr(part, name) for part in parts]) for name in Packed.__slots__))


@cache
def _prepared(path: Path, split: Split) -> tuple[Any, Conversations]:
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    return base.tokenizer(path), Conversations("prepared", split)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--base", type=Path, required=True, help="SmolLM2-135M-Instruct as a GGUF file")
    parser.add_argument("--out", type=Path, required=True, help="the file that is written")
    parser.add_argument("--tokens", type=float, required=True, help="empty ends of rows included")
    parser.add_argument("--seed", default="adapter")
    parser.add_argument("--split", choices=("train", "test"), default="train", help="`test`: of held-out functions")
    parser.add_argument("--accepted", type=Path, help="what `firsttoken eval export` printed, mixed in")
    parser.add_argument("--processes", type=int, default=1)
    args = parser.parse_args()
    writer = Writer(args.base, args.seed, args.split, args.accepted)
    rows = writer.rows(math.ceil(args.tokens / LENGTH), args.processes)
    rows.write(args.out)
    filled, learnt = np.mean(rows.ids != 0), rows.learnt.mean()
    print(f"{args.out}: {rows.ids.size / 1e6:.2f} million tokens, {filled:.1%} of them filled, {learnt:.1%} learnt")


if __name__ == "__main__":
    main()
