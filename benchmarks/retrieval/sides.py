"""The cost of each side of the hybrid search alone and of both together, measured in alternation."""

from __future__ import annotations

from collections.abc import Sequence
from time import perf_counter
from uuid import UUID

from benchmarks.retrieval.bench import Bench
from retrieval.config import RetrievalConfig
from retrieval.quality.evaluate import percentiles
from retrieval.quality.questions import Question
from retrieval.quality.report import markdown

SIDES = {"vectors alone": (True, False), "words alone": (False, True), "both": (True, True)}


async def sides(bench: Bench, questions: Sequence[Question], tenant_id: UUID, store: str) -> str:
    """A table of the durations of the SQL statement in milliseconds."""
    times: dict[str, list[float]] = {side: [] for side in SIDES}
    for question in questions:
        vector = (await bench.embedder.embed_query(question.text, salt="")).vector
        for side, (by_vectors, by_words) in SIDES.items():
            started = perf_counter()
            await bench.store.search(
                tenant_id,
                await bench.store.named(tenant_id, [store]),
                query=question.text if by_words else "",
                vector=vector if by_vectors else None,
                limit=RetrievalConfig().candidates,
            )
            times[side].append((perf_counter() - started) * 1000)
    rows = [["search by", "p50 ms", "p95 ms"]]
    for side, ms in ((side, percentiles(values)) for side, values in times.items()):
        rows.append([side, f"{ms.p50:.1f}", f"{ms.p95:.1f}"])
    return markdown(rows)
