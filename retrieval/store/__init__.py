"""Vector stores in Postgres: all SQL of retrieval, writing and reading in one file, searching in the other."""

from __future__ import annotations

from retrieval.store.file_queue import Claim, FileQueue
from retrieval.store.passages import PassageStore
from retrieval.store.search import SearchResult
from retrieval.store.uploads import UploadStore

__all__ = ["Claim", "FileQueue", "PassageStore", "SearchResult", "UploadStore"]
