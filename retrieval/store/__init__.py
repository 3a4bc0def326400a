"""Vector stores in Postgres: all SQL of retrieval."""

from __future__ import annotations

from retrieval.store.file_queue import Claim, FileQueue
from retrieval.store.passages import PassageStore
from retrieval.store.search import SearchResult
from retrieval.store.uploads import UploadStore

__all__ = ["Claim", "FileQueue", "PassageStore", "SearchResult", "UploadStore"]
