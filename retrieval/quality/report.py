"""An evaluation as a table for display and as JSON for programs. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from retrieval.quality.evaluate import RANKINGS, Evaluation, Ranking, percentiles
from retrieval.quality.measures import RANKS_MAX, RECALL_RANKS

# The stages that a ranking waits for. A search of both sides does not show the cost of one side alone.
STAGES_OF: dict[Ranking, tuple[str, ...]] = {
    "fused": ("embed", "search", "fuse"),
    "reranked": ("embed", "search", "fuse", "rerank"),
    "given to the model": ("embed", "search", "fuse", "rerank", "read", "compress"),
}


def quality_table(evaluation: Evaluation) -> str:
    """Markdown: one row per ranking."""
    rows = [
        [
            "",
            *(f"recall@{ranks}" for ranks in RECALL_RANKS),
            f"MRR@{RANKS_MAX}",
            f"nDCG@{RANKS_MAX}",
            "p50 ms",
            "p95 ms",
        ]
    ]
    for ranking in RANKINGS:
        measured = evaluation.qualities[ranking]
        numbers = [*measured.recall.values(), measured.mrr, measured.ndcg]
        rows.append([ranking, *(f"{number:.3f}" for number in numbers), *_times(evaluation, ranking)])
    return markdown(rows)


def stage_table(evaluation: Evaluation) -> str:
    rows = [["stage", "p50 ms", "p95 ms"]]
    rows += [[name, f"{ms.p50:.1f}", f"{ms.p95:.1f}"] for name, ms in evaluation.percentiles_ms.items()]
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
        "stages_ms": {name: {"p50": ms.p50, "p95": ms.p95} for name, ms in evaluation.percentiles_ms.items()},
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


def _times(evaluation: Evaluation, ranking: Ranking) -> tuple[str, str]:
    columns = [evaluation.stage_ms[stage] for stage in STAGES_OF.get(ranking, ())]
    sums = [sum(times) for times in zip(*columns, strict=True)] if columns and not evaluation.skipped else []
    if not sums:
        return "", ""
    ms = percentiles(sums)
    return f"{ms.p50:.1f}", f"{ms.p95:.1f}"
