"""`firsttoken` with a simulated device whose steps take a configured time, whatever the load of the machine.

python -m benchmarks.even_worker STEP_MS ROW_MS serve ...

It sleeps instead of computing and always returns the same word. Everything else is real: sockets, database, tokenizer,
engine, scheduler and cache. This separates the effect of a policy from that of a busy machine.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from inference import model
from inference.backend import Chunk
from inference.config import EngineConfig
from inference.llama import LlamaModel
from inference.testing import ScriptedBackend
from worker.cli.main import main


@dataclass
class EvenBackend(ScriptedBackend):
    step_s: float = 0.0
    row_s: float = 0.0
    word: int = 0  # the token of every answer
    fingerprint: bytes = b"even"

    def decode(self, chunks: Sequence[Chunk]) -> NDArray[np.float32]:
        until = time.monotonic() + self.step_s + self.row_s * sum(len(chunk.tokens) for chunk in chunks)
        logits = super().decode(chunks)
        self.steps.clear()
        time.sleep(max(0.0, until - time.monotonic()))
        return logits

    def _logits(self, prefix: Sequence[int]) -> NDArray[np.float32]:
        row = np.zeros(self.vocabulary, np.float32)
        row[self.word] = 50.0
        return row


def serve_evenly(step_s: float, row_s: float) -> None:
    def backend_of(weights: LlamaModel, config: EngineConfig, context: int) -> EvenBackend:
        [word, *_] = weights.tokenize(" and", parse_special=False)
        return EvenBackend(
            config.slots,
            context,
            config.rows_max,
            vocabulary=weights.vocabulary_size,
            step_s=step_s,
            row_s=row_s,
            word=word,
        )

    model._backend_of = backend_of  # type: ignore[assignment]


if __name__ == "__main__":
    step_ms, row_ms, *arguments = sys.argv[1:]
    serve_evenly(float(step_ms) / 1e3, float(row_ms) / 1e3)
    sys.argv[1:] = arguments
    sys.exit(main(arguments))
