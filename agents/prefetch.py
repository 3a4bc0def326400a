"""What can be read of a prompt before all of it is known: everything in front of the newest question, or in front of
the first result that a tool still owes.

Passages go into the message of the question, so what stands before it is the same with and without them. The model
reads it while retrieval runs, and the time to first token has the longer of the two in it instead of their sum. Results
stand in the order of their calls: those that are there are read while the tools behind them still run.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import takewhile
from types import TracebackType

from agents.prompt import UNANSWERED
from inference.core import Generation, LanguageModel, Segment
from inference.outline import Part
from inference.trace import Span, Trace, now_ns

LANE = "prefix"


def before_question(segments: Sequence[Segment]) -> list[Segment]:
    """The beginning of a rendered prompt that no question and no passage can change."""
    return list(takewhile(lambda segment: segment.trusted or segment.part is not Part.QUESTION, segments))


def before_missing(segments: Sequence[Segment], missing: int) -> list[Segment]:
    """The beginning of a rendered prompt that the last `missing` results cannot change; empty where the template does
    not show where they stand."""
    places = [at for at, segment in enumerate(segments) if not segment.trusted and segment.text == UNANSWERED]
    return list(segments[: places[-missing]]) if len(places) >= missing else []


class Prefetch:
    """Reading ahead for one prompt, each time further than before. It ends with the block around it: the prompt is
    submitted then, or never will be."""

    def __init__(self, model: LanguageModel, trace: Trace) -> None:
        self._model = model
        self._trace = trace
        self._readings: list[Generation] = []
        self._spans: list[tuple[Span, int]] = []  # of what was read, with the tokens that were cached before

    def __enter__(self) -> Prefetch:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for reading in self._readings:
            reading.cancel()
            stamps = reading.stamps
            if stamps.admitted_ns:
                end_ns = stamps.prefilled_ns or now_ns()
                span = self._trace.add("prefill_prefix", stamps.admitted_ns, end_ns, lane=LANE, new_tokens=0)
                self._spans.append((span, reading.cached_tokens))

    def read(self, prefix: Sequence[int], *, salt: str, exact: bool) -> None:
        reading = self._model.read_ahead(prefix, salt=salt, exact=exact)
        if reading is not None:
            self._readings.append(reading)

    def cached(self, generation: Generation) -> int:
        """Tokens of the prompt that were cached before anything of it was read ahead."""
        after = generation.cached_tokens
        for span, cached in reversed(self._spans):
            before = min(cached, after)
            span.attributes |= {"new_tokens": after - before, "cached_tokens": before}
            after = before
        return after
