"""Trees as rows of tokens, packed: each branch sees its own prefix and itself, at the positions it would have alone."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch

from training.conversations import Message, Tree

WAITING = 12  # encoded trees from which a row is filled, so that little of it stays empty
ROOM_MIN = 60  # tokens; a smaller rest of a row stays empty


@dataclass(slots=True)
class Encoded:
    """`branch` is 0 in the prefix; `learnt` is 1 at each token that the assistant writes."""

    ids: list[int] = field(default_factory=list)
    positions: list[int] = field(default_factory=list)
    branch: list[int] = field(default_factory=list)
    learnt: list[float] = field(default_factory=list)

    def add(self, ids: list[int], learnt: list[int], position: int, branch: int) -> None:
        self.ids += ids
        self.positions += range(position, position + len(ids))
        self.branch += [branch] * len(ids)
        self.learnt += learnt


@dataclass(frozen=True, slots=True)
class Batch:
    """Tensors of rows x length. `target` and `weight` are of the prediction after each token."""

    ids: torch.Tensor
    positions: torch.Tensor
    mask: torch.Tensor  # rows x 1 x length x length: 0 where a token may look, else minus infinity
    target: torch.Tensor
    weight: torch.Tensor


def encoded(tokenizer: Any, tree: Tree, length: int) -> Iterator[Encoded]:
    """As few rows' worth as hold all branches. A branch that does not fit beside its prefix is dropped."""
    prefix, _ = _tokens(tokenizer, tree, [])
    made = Encoded()
    number = 0
    for branch in tree.branches:
        ids, learnt = _tokens(tokenizer, tree, branch)
        if ids[: len(prefix)] != prefix:
            raise ValueError("the branch changes the text before it")
        ids, learnt = ids[len(prefix) :], learnt[len(prefix) :]
        if len(prefix) + len(ids) > length:
            continue
        if len(made.ids) + len(ids) > length or not made.ids:
            if made.ids:
                yield made
            made, number = Encoded(), 0
            made.add(prefix, [0] * len(prefix), 0, 0)
        number += 1
        made.add(ids, learnt, len(prefix), number)
    if made.ids:
        yield made


def _tokens(tokenizer: Any, tree: Tree, branch: list[Message]) -> tuple[list[int], list[int]]:
    """Token ids, and 1 for each that the assistant writes; 0 in answers that are marked as not learnt."""
    rendered = tokenizer.apply_chat_template(
        [tree.system, *branch],
        tools=tree.tools or None,
        return_dict=True,
        return_assistant_tokens_mask=True,
    )
    ids, learnt = rendered["input_ids"], rendered["assistant_masks"]
    if any(not message.get("learnt", True) for message in branch):  # then the last answer alone is
        end = len(learnt) - learnt[::-1].index(1)
        start = end - [*learnt[:end][::-1], 0].index(0)
        learnt = [0] * start + learnt[start:]
    return ids, learnt


class Rows:
    def __init__(self, tokenizer: Any, trees: Iterator[Tree], length: int, rows: int) -> None:
        self.length, self.rows = length, rows
        self._source = (each for tree in trees for each in encoded(tokenizer, tree, length))
        self._waiting: list[Encoded] = []

    def batch(self) -> Batch:
        shape = self.rows, self.length
        ids, positions, branch, target = (torch.zeros(shape, dtype=torch.long) for _ in range(4))
        weight = torch.zeros(shape)
        tree = torch.arange(self.length).repeat(self.rows, 1) + self.length  # what stays empty sees itself alone
        for row in range(self.rows):
            while len(self._waiting) < WAITING:
                self._waiting.append(next(self._source))
            at = 0
            for number, each in enumerate(list(self._waiting)):
                end = at + len(each.ids)
                if end > self.length:
                    continue
                self._waiting.remove(each)
                ids[row, at:end] = torch.tensor(each.ids)
                positions[row, at:end] = torch.tensor(each.positions)
                branch[row, at:end] = torch.tensor(each.branch)
                tree[row, at:end] = number
                # the first token of a branch is the user's: no prediction crosses from one branch to the next
                target[row, at : end - 1] = torch.tensor(each.ids[1:])
                weight[row, at : end - 1] = torch.tensor(each.learnt[1:], dtype=torch.float)
                at = end
                if self.length - at < ROOM_MIN:
                    break
        return Batch(ids, positions, _mask(tree, branch), target, weight)


def _mask(tree: torch.Tensor, branch: torch.Tensor) -> torch.Tensor:
    at = torch.arange(tree.shape[1])
    seen = at[None, :, None] >= at[None, None, :]
    seen = seen & (tree[:, :, None] == tree[:, None, :])
    seen = seen & ((branch[:, None, :] == 0) | (branch[:, :, None] == branch[:, None, :]))
    lowest = torch.finfo(torch.bfloat16).min
    return torch.zeros(seen.shape, dtype=torch.bfloat16).masked_fill_(~seen, lowest)[:, None]
