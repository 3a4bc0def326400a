"""How many turns of held-out conversations a model would write exactly as they stand, each token after the right ones.

An upper bound of what it writes by itself, in seconds: enough to watch a training. `evaluate` asks for real answers.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import torch
from tokenizers import Tokenizer
from torch import Tensor
from torch.nn import functional

from training.batches import LEARNT, Batch, learnt
from training.model import Model

_CITED = re.compile(r"\[\d+\]\.")


@dataclass(slots=True)
class Exact:
    """Turns by kind: how many there are, and how many are exact."""

    turns: Counter[str] = field(default_factory=Counter)
    exact: Counter[str] = field(default_factory=Counter)

    def __str__(self) -> str:
        return ", ".join(f"{kind} {self.exact[kind]}/{count}" for kind, count in sorted(self.turns.items()))

    def add(self, kind: str, *, exact: bool) -> None:
        self.turns[kind] += 1
        self.exact[kind] += exact

    @classmethod
    def total(cls, parts: Iterable[Exact]) -> Exact:
        total = cls()
        for part in parts:
            total.turns.update(part.turns)
            total.exact.update(part.exact)
        return total


@torch.no_grad()
def exact_turns(model: Model, batches: Sequence[Batch], tokenizer: Tokenizer) -> Exact:
    found = Exact()
    for batch in batches:
        right = _right(model, batch)
        for row, start, end in learnt_turns(batch):
            kind = kind_of(tokenizer.decode(batch.ids[row, start:end].tolist(), skip_special_tokens=False))
            found.add(kind, exact=bool(right[row, start - 1 : end - 1].all()))
    return found


def learnt_turns(batch: Batch) -> Iterator[tuple[int, int, int]]:
    """Row, start and end of each; the first token of a row is never predicted."""
    for row, marks in enumerate(batch.marks):
        for start, end in learnt(marks[1:]):
            yield row, start + 1, end + 1


def kind_of(text: str) -> str:
    calls = text.count("<tool_call>")
    if calls:
        return "calls" if calls > 1 else "call"
    return "cited" if _CITED.search(text) else "said"


def _right(model: Model, batch: Batch) -> Tensor:
    """[rows, length]: whether the best token is the next one. Only learnt places are looked at."""
    device = model.emb.weight.device
    ids = torch.from_numpy(batch.ids).long().to(device)
    learnt = torch.from_numpy(batch.marks[:, 1:] == LEARNT).to(device)
    with torch.autocast(device.type, torch.bfloat16):
        states = model.hidden(ids[:, :-1])[learnt.reshape(-1)]
        best = functional.linear(states, model.emb.weight).argmax(-1)
    right = torch.zeros_like(learnt)
    right[learnt] = best == ids[:, 1:][learnt]
    return right.cpu()
