"""The same questions in a large store, under filters, and for small tenants next to large ones.

Stores of any size are filled with real text from this machine and synthetic vectors. Embedding a hundred thousand
chunks would take hours: instead, each chunk gets a mixture of two vectors of other texts, which is as close to its
neighbors as real vectors are. Searches are compared with the exact search of the same chunks.
"""

from __future__ import annotations

import sysconfig
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from statistics import mean
from time import perf_counter
from uuid import UUID

import asyncpg
import numpy as np
from tqdm import tqdm

from benchmarks.retrieval.bench import TENANT, Bench
from benchmarks.retrieval.corpora import Corpus
from inference.embedding.windows import PassageVectors, unit
from retrieval.candidate import ChunkKey
from retrieval.chunking import Chunk, fitted, pieces
from retrieval.config import RetrievalConfig
from retrieval.errors import UnreadableFile
from retrieval.filter import Comparison
from retrieval.loaders import formats
from retrieval.quality.evaluate import markdown, percentiles
from retrieval.records import CountedStore, NewFile
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


FILE_CHUNKS_MAX = 50  # the usual size of a document; filters select by file
SHARES = {"half": 2, "hundredth": 100, "thousandth": 1000}  # attributes, each of one file in this many

_VECTORS = """
select embedding::real[] as vector, windows, window_scales from chunks
 where tenant_id = $1 and vector_store_id = $2 limit $3
"""


async def vectors(bench: Bench, store: str, count: int) -> list[PassageVectors]:
    """The vectors of a store of the benchmark's tenant."""
    tenant_id = await bench.tenant(TENANT)
    stored = await bench.store.get(tenant_id, store)
    async with bench.database.tenant(tenant_id) as connection:
        rows = await connection.fetch(_VECTORS, tenant_id, stored.id, count)
    return [_vectors(row) for row in rows]


async def fill(bench: Bench, name: str, chunks: int, real: Sequence[PassageVectors]) -> None:
    """Fill the store of this name, of the tenant of the same name, to about `chunks` chunks."""
    tenant_id = await bench.tenant(name)
    opened = await bench.store.open(
        tenant_id, name, embedding_model=bench.embedder.name, dimensions=bench.embedder.dimensions
    )
    held = opened.chunks
    random = np.random.default_rng(0)
    with tqdm(desc=f"{name}: fill", total=chunks, initial=held, unit=" chunks", disable=None) as bar:
        for number, (path, title, content, part) in enumerate(_documents()):
            if held >= chunks:
                return
            file = NewFile(
                path=path,
                filename=path,
                title=title,
                media_type="text/plain",
                size=len(content),
                sha256=path.encode(),
                content=content,
                chunks=[(chunk, _mixed(real, random)) for chunk in part],
                attributes={name: True for name, one_in in SHARES.items() if number % one_in == 0},
            )
            if await bench.store.put(tenant_id, opened.id, file):
                held += len(part)
                bar.update(len(part))


async def settle(owner_dsn: str) -> None:
    """Do what the server does by itself some minutes after so many new rows: vacuum and analyze."""
    connection = await asyncpg.connect(owner_dsn)
    await connection.execute("vacuum analyze chunks")
    await connection.execute("vacuum analyze lexeme_counts")
    await connection.close()


def _documents() -> Iterator[tuple[str, str, str, list[Chunk]]]:
    """Files of this machine in parts of at most FILE_CHUNKS_MAX chunks: path, title, text and chunks of each part."""
    for path in _files():
        try:
            document = formats.load(path, path.read_bytes())
        except (UnreadableFile, OSError):
            continue
        chunks = iter(fitted(document, pieces(document), _tokens))
        while part := list(islice(chunks, FILE_CHUNKS_MAX)):
            first, last = part[0].start, part[-1].end
            moved = [replace(chunk, start=chunk.start - first, end=chunk.end - first) for chunk in part]
            yield f"{path}#{first}", document.title, document.text[first:last], moved


def _tokens(text: str) -> int:
    """An estimate of the tokens, precise enough for text that is not embedded."""
    return len(text) // 4


def _files() -> Iterator[Path]:
    roots = [Path(sysconfig.get_paths()[name]) for name in ("purelib", "stdlib")]
    for root in (Path("/usr/share/doc"), *roots):
        for path in sorted(root.rglob("*")):
            if path.suffix in (".md", ".txt", ".rst", ".html", ".py") and path.is_file():
                yield path


def _mixed(real: Sequence[PassageVectors], random: np.random.Generator) -> PassageVectors:
    one, other = random.integers(0, len(real), 2)
    mixture = real[one].vector + np.float32(random.uniform(0.3, 1.0)) * real[other].vector
    return PassageVectors(unit(mixture), real[one].windows, real[one].scales)


def _vectors(row: asyncpg.Record) -> PassageVectors:
    scales = np.frombuffer(row["window_scales"], "<f2")
    windows = np.frombuffer(row["windows"], np.int8).reshape(len(scales), -1)
    return PassageVectors(np.array(row["vector"], np.float32), windows, scales)


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
