"""The recall and duration of a search, compared with the exact search of the same chunks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import mean
from time import perf_counter
from uuid import UUID

from benchmarks.retrieval.bench import Bench
from retrieval.candidate import ChunkKey
from retrieval.config import RetrievalConfig
from retrieval.filter import Comparison
from retrieval.quality.evaluate import percentiles
from retrieval.store import PassageStore, SearchResult

NEAREST = 10
CHUNKS_MAX = 10**9  # chunks of an exact search: all


@dataclass(frozen=True, slots=True)
class Scope:
    """The scope of a search: a whole store, or its files with an attribute."""

    name: str
    tenant_id: UUID
    store: str
    attribute: str | None = None


@dataclass(slots=True)
class Compared:
    method: str = ""
    chunks: int = 0
    recalls: list[float] = field(default_factory=list)
    ms: list[float] = field(default_factory=list)
    exact_ms: list[float] = field(default_factory=list)

    def row(self, name: str) -> list[str]:
        ours, exact = percentiles(self.ms), percentiles(self.exact_ms)
        times = [f"{ms.p50:.1f} / {ms.p95:.1f}" for ms in (ours, exact)]
        return [name, str(self.chunks), self.method, f"{mean(self.recalls):.3f}", *times]


HEAD = ["searched", "chunks", "method", f"recall@{NEAREST} of exact", "p50 / p95 ms", "exact p50 / p95 ms"]


async def compare(bench: Bench, scope: Scope, questions: Sequence[str]) -> Compared:
    """Run both searches question by question, alternating which one runs first."""
    exact = PassageStore(bench.database, exact_chunks_max=CHUNKS_MAX)
    compared = Compared()
    for number, question in enumerate(questions):
        found: dict[bool, SearchResult] = {}
        for is_exact in (False, True) if number % 2 else (True, False):
            started = perf_counter()
            found[is_exact] = await _search(bench, exact if is_exact else bench.store, scope, question)
            (compared.exact_ms if is_exact else compared.ms).append((perf_counter() - started) * 1000)
        wanted, got = _nearest(found[True]), _nearest(found[False])
        compared.recalls.append(len(wanted & got) / max(len(wanted), 1))
        compared.method = "index" if found[False].by_index else "exact"
        compared.chunks = found[False].chunks
    return compared


async def _search(bench: Bench, store: PassageStore, scope: Scope, question: str) -> SearchResult:
    return await store.search(
        scope.tenant_id,
        await store.named(scope.tenant_id, [scope.store]),
        query=question,
        vector=(await bench.embedder.embed_query(question, salt="")).vector,
        limit=RetrievalConfig().candidates,
        filters=Comparison(type="eq", key=scope.attribute, value=True) if scope.attribute else None,
    )


def _nearest(result: SearchResult) -> set[ChunkKey]:
    best = sorted(result.candidates, key=lambda candidate: -(candidate.cosine or 0.0))
    return {candidate.key for candidate in best[:NEAREST]}
