"""Prefill of a prompt before all of it is known: of everything before the newest question, or before the first result
that is still missing.

Passages are part of the message of the question, so the prefix before it is the same with and without them. It is
prefilled while retrieval runs, so the time to first token contains the longer of the two instead of their sum. Results
are in the order of their calls: the available ones are prefilled while the tools of later calls still run.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import takewhile

from agents.prompt import UNANSWERED
from inference.generation import Generation, Spent
from inference.language_model import LanguageModel
from inference.prompt import Part, Segment
from inference.trace import Span, Trace, now_ns

LANE = "prefix"


def before_question(segments: Sequence[Segment]) -> list[Segment]:
    """The prefix of a rendered prompt that does not depend on the question and the passages."""
    return list(takewhile(lambda segment: segment.trusted or segment.part is not Part.QUESTION, segments))


def before_missing(segments: Sequence[Segment], missing: int) -> list[Segment]:
    """The prefix of a rendered prompt that does not depend on the last `missing` results; empty if the template hides
    their positions.
    """
    places = [at for at, segment in enumerate(segments) if not segment.trusted and segment.text == UNANSWERED]
    return list(segments[: places[-missing]]) if len(places) >= missing else []


class Prefetch:
    """Prefetches for one prompt, each longer than the one before. They end with the `with` block: then the prompt is
    submitted, or never will be.
    """

    def __init__(self, model: LanguageModel, trace: Trace) -> None:
        self._model = model
        self._trace = trace
        self._readings: list[Generation] = []
        self._spans: list[tuple[Span, int]] = []  # of the prefetches, with the tokens that were cached before each

    def __enter__(self) -> Prefetch:
        return self

    def __exit__(self, *_: object) -> None:
        for reading in self._readings:
            reading.cancel()
            stamps = reading.facts.stamps
            if stamps.admitted_ns:
                end_ns = stamps.prefilled_ns or now_ns()
                span = self._trace.add("prefill_prefix", stamps.admitted_ns, end_ns, lane=LANE, new_tokens=0)
                self._spans.append((span, reading.facts.cached_tokens))

    def read(self, prefix: Sequence[int], *, salt: str, exact: bool) -> None:
        reading = self._model.prefill_ahead(prefix, salt=salt, exact=exact)
        if reading is not None:
            self._readings.append(reading)

    @property
    def spent(self) -> Spent:
        """The engine time of all of them."""
        return sum((reading.facts.spent for reading in self._readings), Spent())

    def cached(self, generation: Generation) -> int:
        """Tokens of the prompt that were cached before its first prefetch."""
        after = generation.facts.cached_tokens
        for span, cached in reversed(self._spans):
            before = min(cached, after)
            span.attributes |= {"new_tokens": after - before, "cached_tokens": before}
            after = before
        return after
