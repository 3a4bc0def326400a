"""Measures what quantisation did to a model, or to its keys and values; in a process of its own, as the library may
abort.

Both models read the same text side by side. It is cut into windows, each a sequence of its own, and a step computes one
token of every window: so the logits of all rows are produced by the kernels used for decoding, and none need to be
stored.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path
from time import monotonic

import numpy as np
from numpy.typing import NDArray

from inference.attention import AUTO, F16
from inference.attention import attention as usual
from inference.backend import Chunk
from inference.errors import InferenceError
from inference.llama import LlamaContext, LlamaModel

WINDOWS_MAX, WINDOW_TOKENS = 16, 256  # a few thousand tokens distinguish two quantisations; 16 rows suit the kernels
LEAD_TOKENS = 16  # at the start of a window, not counted: their context is too short to predict them
TEXT_CHARS_MAX = 60_000  # enough for these tokens in any language
BUDGET_S = 120.0  # a large model on a small machine is judged by fewer tokens


@dataclass(frozen=True, slots=True)
class Comparison:
    """Over `tokens` predictions of the next token of a text."""

    tokens: int
    perplexity_before: float
    perplexity_after: float
    divergence: float  # mean Kullback-Leibler divergence of the predictions after from those before, in nats
    agreement: float  # share of predictions whose most probable token stayed the same


class _Tally:
    def __init__(self) -> None:
        self.tokens = self.agreed = 0
        self.surprise = np.zeros(2)  # negative log-likelihood of the text, before and after, in nats
        self.divergence = 0.0

    def add(self, before: NDArray[np.float64], after: NDArray[np.float64], targets: Sequence[int]) -> None:
        """Log-probabilities [rows, vocabulary] of both models, and the tokens that follow in the text."""
        rows = np.arange(len(targets))
        self.tokens += len(targets)
        self.surprise -= before[rows, targets].sum(), after[rows, targets].sum()
        self.divergence += float((np.exp(before) * (before - after)).sum())
        self.agreed += int((before.argmax(axis=1) == after.argmax(axis=1)).sum())

    def comparison(self) -> Comparison:
        before, after = (float(value) for value in np.exp(self.surprise / self.tokens))
        return Comparison(self.tokens, before, after, self.divergence / self.tokens, self.agreed / self.tokens)


def compare(
    before: Path, after: Path, text: str, *, threads: int, gpu_layers: int, kv_type: str | None = None
) -> Comparison:
    """`kv_type` is the type of the second model's keys and values, instead of f16; both then use flash attention.
    Blocks for seconds, or minutes with large models, both of which must fit in memory. Raises InferenceError."""
    with ExitStack() as stack:
        models = [
            stack.enter_context(closing(LlamaModel.load(path, gpu_layers=gpu_layers))) for path in (before, after)
        ]
        windows = cut(models[0], text)
        if windows != cut(models[1], text) or models[0].vocabulary_size != models[1].vocabulary_size:
            raise InferenceError("the two models have different vocabularies and cannot be compared")
        contexts = [
            stack.enter_context(
                closing(
                    LlamaContext(
                        model,
                        slots=len(windows),
                        context=WINDOW_TOKENS,
                        rows_max=len(windows),
                        threads=threads,
                        attention=None if kv_type is None else usual(AUTO, "on", gpu=model.on_gpu),
                        kv_type=side,
                    )
                )
            )
            for model, side in zip(models, (F16, kv_type or F16), strict=True)
        ]
        return _read(contexts, windows)


def cut(model: LlamaModel, text: str) -> list[list[int]]:
    """Windows of equal length, each starting with the token that begins a text. Raises InferenceError."""
    tokens = model.tokenize(text[:TEXT_CHARS_MAX], parse_special=False)
    opening = [] if model.bos is None else [model.bos]
    count = min(WINDOWS_MAX, max(1, len(tokens) // WINDOW_TOKENS))
    length = min(WINDOW_TOKENS - len(opening), len(tokens) // count)
    if length < 2 * LEAD_TOKENS:
        raise InferenceError(f"the text has {len(tokens)} tokens: give one of {2 * LEAD_TOKENS} or more")
    return [opening + tokens[start * length : (start + 1) * length] for start in range(count)]


def _read(contexts: Sequence[LlamaContext], windows: Sequence[Sequence[int]]) -> Comparison:
    tally, give_up_at = _Tally(), monotonic() + BUDGET_S
    for position, chunks in enumerate(_steps(windows)):
        before, after = (_log_probabilities(context.decode(chunks)) for context in contexts)
        if position >= LEAD_TOKENS:
            tally.add(before, after, [window[position + 1] for window in windows])
            if monotonic() > give_up_at:
                break
    return tally.comparison()


def _steps(windows: Sequence[Sequence[int]]) -> Iterator[list[Chunk]]:
    """One token of every window per step; the last token is only predicted."""
    for position in range(len(windows[0]) - 1):
        yield [Chunk(slot, position, [window[position]]) for slot, window in enumerate(windows)]


def _log_probabilities(logits: NDArray[np.float32]) -> NDArray[np.float64]:
    shifted: NDArray[np.float64] = logits.astype(np.float64) - logits.max(axis=1, keepdims=True)
    shifted -= np.log(np.exp(shifted).sum(axis=1, keepdims=True))
    return shifted
