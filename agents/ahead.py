"""What can be read of a prompt before all of it is known: everything in front of the newest question.

Passages go into the message of the question, so what stands before it is the same with and without them. The model
reads it while retrieval runs, and the time to first token has the longer of the two in it instead of their sum.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import takewhile
from types import TracebackType

from inference.outline import Part
from inference.sequence import Generation, LanguageModel, Segment
from inference.trace import Span, Trace, now_ns

LANE = "prefix"


def before_question(segments: Sequence[Segment]) -> list[Segment]:
    """The beginning of a rendered prompt that no question and no passage can change."""
    return list(takewhile(lambda segment: segment.trusted or segment.part is not Part.QUESTION, segments))


class Ahead:
    """Reading ahead for one turn. It ends with the block around it: the prompt is submitted then, or never will be."""

    def __init__(self, model: LanguageModel, trace: Trace) -> None:
        self._model = model
        self._trace = trace
        self._reading: Generation | None = None
        self._span: Span | None = None

    def __enter__(self) -> Ahead:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._reading is None:
            return
        self._reading.cancel()
        stamps = self._reading.stamps
        if stamps.admitted_ns:
            self._span = self._trace.add(
                "prefill_prefix", stamps.admitted_ns, stamps.prefilled_ns or now_ns(), lane=LANE, new_tokens=0
            )

    def read(self, prefix: Sequence[int], *, salt: str, exact: bool) -> None:
        self._reading = self._model.read_ahead(prefix, salt=salt, exact=exact)

    def cached(self, generation: Generation) -> int:
        """Tokens of the turn's first prompt that were cached before the turn began to read them."""
        if self._reading is None or self._span is None:
            return generation.cached_tokens
        before = min(self._reading.cached_tokens, generation.cached_tokens)
        self._span.attributes |= {"new_tokens": generation.cached_tokens - before, "cached_tokens": before}
        return before
