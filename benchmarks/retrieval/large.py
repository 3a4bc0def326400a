"""The same questions in a large store, under filters, and for small tenants next to large ones."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice

from benchmarks.retrieval.bench import Bench
from benchmarks.retrieval.corpora import Corpus
from benchmarks.retrieval.fill import SHARES, fill, settle, vectors
from benchmarks.retrieval.recall import HEAD, Scope, compare
from retrieval.quality.report import markdown
from retrieval.records import CountedStore

VECTORS_MAX = 2000  # per source
LARGE = "large"
OTHERS = {"middle": 10_000, "small": 1000}  # chunks of other tenants; each has a store of the same name
QUESTIONS = 60  # 600 neighbors to find


async def build(bench: Bench, corpus: Corpus, chunks: int, sources: Sequence[str]) -> CountedStore:
    """Build a store with `chunks` chunks that holds the corpus, and the stores of other tenants.

    Their vectors are mixed from those of the benchmark's other stores, the sources.
    """
    tenant_id = await bench.tenant(LARGE)
    await bench.ingest(bench.folder / corpus.name, tenant_id, LARGE)
    real = [vector for source in sources for vector in await vectors(bench, source, VECTORS_MAX)]
    for name, size in {LARGE: chunks, **OTHERS}.items():
        await fill(bench, name, size, real)
    await settle(bench.owner_dsn)
    return await bench.store.counted(tenant_id, LARGE)


async def table(bench: Bench, corpus: Corpus) -> str:
    large = await bench.tenant(LARGE)
    scopes = [
        Scope("all of a large store", large, LARGE),
        *(Scope(f"files of it, one in {one_in}", large, LARGE, name) for name, one_in in SHARES.items()),
        *[Scope(f"all of a {name} tenant's", await bench.tenant(name), name) for name in OTHERS],
    ]
    questions = [line.question for line in islice(corpus.lines, QUESTIONS)]
    return markdown([HEAD, *[(await compare(bench, scope, questions)).row(scope.name) for scope in scopes]])
