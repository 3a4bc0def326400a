"""Searches that find the same on every machine."""

from __future__ import annotations

from typing import Any

from retrieval.config import RetrievalConfig

BUDGETS = ("open_ms", "embed_ms", "search_ms", "rerank_ms", "reread_ms", "read_ms", "join_ms")


def patient(**changes: Any) -> RetrievalConfig:
    """Settings under which no stage is skipped on a machine that does much else."""
    return RetrievalConfig(**{**dict.fromkeys(BUDGETS, 60_000.0), **changes})
