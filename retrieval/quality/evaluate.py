"""Runs judged questions and measures every stage of retrieval: what it finds, and how long it takes, as tables for
people and as JSON for programs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, TypeAlias, get_args
from uuid import UUID

import numpy as np

from inference.trace import Trace
from retrieval.candidate import Hit, Scored
from retrieval.passage import Passage
from retrieval.quality.measures import RANKS_MAX, RECALL_RANKS, Judgement, Quality, judge, quality
from retrieval.quality.questions import Question
from retrieval.query import Query
from retrieval.records import SourceSpan
from retrieval.retriever import Retriever, Stages

Ranking: TypeAlias = Literal["vectors alone", "words alone", "fused", "reranked", "given to the model"]
RANKINGS: tuple[Ranking, ...] = get_args(Ranking)
STAGES = ("embed", "search", "fuse", "rerank", "read", "compress")


class Percentiles(NamedTuple):
    p50: float
    p95: float


@dataclass(slots=True)
class Evaluation:
    """The measurements so far. `judgements` and `passages` are in the order of the questions."""

    judgements: dict[Ranking, list[Judgement]] = field(default_factory=lambda: {ranking: [] for ranking in RANKINGS})
    passages: list[list[Passage]] = field(default_factory=list)
    stage_ms: dict[str, list[float]] = field(default_factory=lambda: {stage: [] for stage in STAGES})  # by question
    skipped: int = 0  # stages over their budget: the results of these questions are incomplete

    def add(self, stages: Stages, question: Question, trace: Trace) -> None:
        for ranking, spans in _rankings(stages):
            self.judgements[ranking].append(judge(spans, question.targets))
        self.passages.append(stages.passages)
        for stage, took_ms in self.stage_ms.items():
            spans_of = [span for span in trace.spans if span.name == stage]  # none where nothing relevant was found
            took_ms.append(max((span.duration_ms for span in spans_of), default=0.0))
            self.skipped += sum("skipped" in span.attributes for span in spans_of)

    @property
    def qualities(self) -> dict[Ranking, Quality]:
        return {ranking: quality(judgements) for ranking, judgements in self.judgements.items()}

    @property
    def percentiles_ms(self) -> dict[str, Percentiles]:
        return {stage: percentiles(values) for stage, values in self.stage_ms.items() if values}

    @property
    def tokens(self) -> float:
        """Mean number of passage tokens per question: what the model has to prefill."""
        return sum(p.tokens for passages in self.passages for p in passages) / max(len(self.passages), 1)

    @property
    def missed(self) -> list[int]:
        """Indices of the questions whose answer is in none of the passages for the model."""
        return [index for index, j in enumerate(self.judgements["given to the model"]) if not any(j.met)]


async def evaluate(
    questions: Sequence[Question],
    retriever: Retriever,
    *,
    tenant_id: UUID,
    store: str,
    limit: int,
    score_threshold: float,
    progress: Callable[[int], object] = lambda _: None,
) -> Evaluation:
    """Run one question after another, as a turn would with this limit and threshold; `progress` is called after each.

    Raises StoreNotFound, EmbeddingModelMissing.
    """
    evaluation = Evaluation()
    for question in questions:
        trace = Trace()
        stages = await retriever.stages(Query(tenant_id, question.text, (store,), limit, score_threshold), trace)
        evaluation.add(stages, question, trace)
        progress(1)
    return evaluation


def percentiles(values: Sequence[float]) -> Percentiles:
    return Percentiles(*np.percentile(values, (50, 95)).tolist())


def _rankings(stages: Stages) -> Iterator[tuple[Ranking, list[SourceSpan]]]:
    """The result of one side alone is the top of the combined candidates, in that side's own order.

    Candidates with equal coverage have no order in "words alone" and are sorted by key, as when nothing is embedded.
    """
    nearest = [c for c in stages.candidates if c.cosine is not None]
    worded = [c for c in stages.candidates if c.coverage > 0]
    yield "vectors alone", _spans(sorted(nearest, key=lambda c: (-(c.cosine or 0.0), c.key)))
    yield "words alone", _spans(sorted(worded, key=lambda c: (-c.coverage, c.key)))
    yield "fused", _spans(_candidates(stages.fused))
    yield "reranked", _spans(_candidates(stages.reranked))
    yield "given to the model", [SourceSpan(p.file_id, p.start_char, p.end_char) for p in stages.passages]


def _candidates(ranked: Iterable[Scored[Hit]]) -> list[Hit]:
    return [candidate for _, candidate in ranked]


def _spans(candidates: Iterable[Hit]) -> list[SourceSpan]:
    return [SourceSpan(candidate.key.file_id, candidate.start, candidate.end) for candidate in candidates]


# The stages that a ranking waits for. A search of both sides does not show the cost of one side alone.
STAGES_OF: dict[Ranking, tuple[str, ...]] = {
    "fused": ("embed", "search", "fuse"),
    "reranked": ("embed", "search", "fuse", "rerank"),
    "given to the model": ("embed", "search", "fuse", "rerank", "read", "compress"),
}


def quality_table(evaluation: Evaluation) -> str:
    """Markdown: one row per ranking."""
    recalls = (f"recall@{ranks}" for ranks in RECALL_RANKS)
    rows = [["", *recalls, f"MRR@{RANKS_MAX}", f"nDCG@{RANKS_MAX}", "p50 ms", "p95 ms"]]
    for ranking in RANKINGS:
        measured = evaluation.qualities[ranking]
        numbers = [*measured.recall.values(), measured.mrr, measured.ndcg]
        rows.append([ranking, *(f"{number:.3f}" for number in numbers), *_times(evaluation, ranking)])
    return markdown(rows)


def stage_table(evaluation: Evaluation) -> str:
    rows = [["stage", "p50 ms", "p95 ms"]]
    rows += [[name, *_shown(ms)] for name, ms in evaluation.percentiles_ms.items()]
    return markdown(rows)


def as_dict(evaluation: Evaluation) -> dict[str, Any]:
    return {
        "questions": len(evaluation.passages),
        "rankings": {
            ranking: {
                **{f"recall@{ranks}": value for ranks, value in measured.recall.items()},
                f"mrr@{RANKS_MAX}": measured.mrr,
                f"ndcg@{RANKS_MAX}": measured.ndcg,
            }
            for ranking, measured in evaluation.qualities.items()
        },
        "stages_ms": {name: ms._asdict() for name, ms in evaluation.percentiles_ms.items()},
        "stages_skipped": evaluation.skipped,
        "passage_tokens": evaluation.tokens,
    }


def markdown(rows: Sequence[Sequence[str]]) -> str:
    """Columns of equal width, readable without being rendered. The first row is the header."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    head, *body = (
        f"| {' | '.join(cell.ljust(width) for cell, width in zip(row, widths, strict=True))} |" for row in rows
    )
    return "\n".join([head, f"|{'|'.join('-' * (width + 2) for width in widths)}|", *body])


def _times(evaluation: Evaluation, ranking: Ranking) -> list[str]:
    columns = [evaluation.stage_ms[stage] for stage in STAGES_OF.get(ranking, ())]
    sums = [sum(times) for times in zip(*columns, strict=True)] if columns and not evaluation.skipped else []
    return _shown(percentiles(sums)) if sums else ["", ""]


def _shown(times_ms: Percentiles) -> list[str]:
    return [f"{ms:.1f}" for ms in times_ms]
