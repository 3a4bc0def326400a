"""Whether an exported model is the model that was trained: the same tokens and the same logits through llama.cpp."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import torch
from numpy.typing import NDArray
from tokenizers import Tokenizer

from inference.backend import Rows
from inference.bundled import FOLDER
from inference.llama import LlamaContext, LlamaModel
from training.checkpoint import Checkpoint
from training.model import Model

# Of a logit, weights in f32: llama.cpp keeps keys and values in f16, which is the most of it.
DIFFERENCE_MAX = 0.2
PROSE = FOLDER / "MODEL_CARD.md"
ROWS = 512  # tokens a step: fewer steps are no faster on a model of this size
# What cutting text into tokens gets wrong first: blanks, digits, quotes, scripts, what is not quite a letter.
ODD_TEXTS = (
    "",
    " ",
    "\n\n\n",
    "a  b\t c\n\n d   \n  e 12345 3.14 x=7%",
    "naïve café – “quotes” … 東京 😀 Ωμέγα",
    "don't I'll we've it's '' ' s 'T",
    " lead and trail \n",
    "((3 + 4) * 2) / 5 - 10 ** 2",
    '{"a": [1, 2.5, true, null], "b": {"c": "\\u00e9"}}',
    "x\r\ny\u00a0z\u3000w\u200b",
    "½ ² Ⅷ ١٢٣",
    "👩‍👩‍👧‍👦 e\u0301 ﬁ \ufeff",
    "<|im_start|>user\nWhat is 2 + 2?<|im_end|>\n<tool_call>\n{}\n</tool_call>",
    "Tallinn (Tallinn), tallinn-TALLINN_tallinn",
)


class Differs(Exception):
    """The exported model is not the trained one."""


@dataclass(frozen=True, slots=True)
class Parity:
    """Over the places that were compared: the largest difference of a logit, and how often the best token agrees."""

    places: int
    same: int
    difference: float

    def __str__(self) -> str:
        return f"largest difference of a logit {self.difference:.4f}, same token at {self.same} of {self.places} places"


def compared_with_llama(checkpoint: Checkpoint, template: str, difference_max: float = DIFFERENCE_MAX) -> Parity:
    """Tokens and logits of what an export would hold, weights unquantised. Raises Differs."""
    tokenizer, prose = checkpoint.vocabulary.tokenizer(), PROSE.read_text("utf-8")
    ids = tokenizer.encode(prose, add_special_tokens=False).ids[: checkpoint.shape.ctx]
    with TemporaryDirectory() as folder:
        path = Path(folder) / "unquantised.gguf"
        checkpoint.bundle("check", template).write(path, "f32")
        with closing(LlamaModel.load(path, weights=False)) as llama:
            if odd := list(cut_differently(tokenizer, llama, (*ODD_TEXTS, prose))):
                raise Differs(f"llama.cpp cuts {odd[0][:40]!r} into other tokens")
        parity = compare(checkpoint.model(), path, [ids])
    if parity.difference > difference_max:
        raise Differs(str(parity))
    return parity


def cut_differently(tokenizer: Tokenizer, model: LlamaModel, texts: Iterable[str] = ODD_TEXTS) -> Iterator[str]:
    """The texts that llama.cpp cuts into other tokens than training did."""
    for text in texts:
        if tokenizer.encode(text, add_special_tokens=False).ids != model.tokenize(text, parse_special=True):
            yield text


def compare(model: Model, path: Path, rows: Sequence[Sequence[int]]) -> Parity:
    """Of each row of ids, the logits after every token."""
    places, same, difference = 0, 0, 0.0
    for ids, theirs in zip(rows, llama_logits(path, rows), strict=True):
        ours = torch_logits(model, ids)
        places += len(ids)
        same += int((ours.argmax(-1) == theirs.argmax(-1)).sum())
        difference = max(difference, float(np.abs(ours - theirs).max()))
    return Parity(places, same, difference)


def torch_logits(model: Model, ids: Sequence[int]) -> NDArray[np.float32]:
    """[tokens, vocabulary]"""
    with torch.no_grad():
        logits: torch.Tensor = model(torch.tensor([list(ids)]))
    return np.asarray(logits[0].numpy())


def llama_logits(path: Path, rows: Sequence[Sequence[int]]) -> list[NDArray[np.float32]]:
    """[tokens, vocabulary] for each row.

    On a thread of its own: llama.cpp sets a thread's AMX tiles up once, and PyTorch's kernels release them. What
    llama.cpp computes in such a thread next is an illegal instruction.
    """
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(lambda: list(_llama_logits(path, rows))).result()


def _llama_logits(path: Path, rows: Sequence[Sequence[int]]) -> Iterator[NDArray[np.float32]]:
    longest = max(map(len, rows))
    model = LlamaModel.load(path)
    context = LlamaContext(model, slots=1, context=longest, rows_max=ROWS, threads=1, outputs_max=ROWS)
    try:
        for ids in rows:
            context.truncate(0, 0)
            parts = [(start, ids[start : start + ROWS]) for start in range(0, len(ids), ROWS)]
            steps = (Rows(0, start, part, outputs=len(part)) for start, part in parts)
            yield np.concatenate([context.decode([step]).copy() for step in steps])
    finally:
        context.close()
        model.close()
