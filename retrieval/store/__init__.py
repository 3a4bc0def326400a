"""Vector stores in Postgres: all SQL of retrieval, writing and reading in one file, searching in the other."""

from __future__ import annotations

from retrieval.store.passages import PassageStore
from retrieval.store.search import SearchResult
from retrieval.store.shelf import Claim, Shelf
from retrieval.store.uploads import UploadStore

__all__ = ["Claim", "PassageStore", "SearchResult", "Shelf", "UploadStore"]
