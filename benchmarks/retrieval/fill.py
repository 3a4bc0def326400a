"""Fills stores of any size with real text from this machine, documentation and source code, and synthetic vectors.

Embedding a hundred thousand chunks would take hours. Instead, each chunk gets a mixture of two vectors of other texts,
which is as close to its neighbors as real vectors are.
"""

from __future__ import annotations

import sysconfig
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path

import asyncpg
import numpy as np
from tqdm import tqdm

from benchmarks.retrieval.bench import TENANT, Bench
from inference.embedding.windows import PassageVectors, unit
from retrieval.chunking import Chunk, split
from retrieval.errors import UnreadableFile
from retrieval.loaders import formats
from retrieval.records import NewFile

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
        chunks = iter(split(document, _tokens))
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
