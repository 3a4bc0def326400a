"""Files and vector stores as callers see them."""

from __future__ import annotations

from typing import Any

from retrieval.records import StoredFile, VectorStore


def file_object(file: StoredFile) -> dict[str, Any]:
    """`bytes` counts the extracted text, which is what can be read back."""
    return {
        "id": file.id,
        "object": "file",
        "bytes": len(file.content.encode()),
        "created_at": int(file.created_at.timestamp()),
        "filename": file.filename,
        "purpose": "assistants",
        "status": "processed",
        "firsttoken_title": file.title,
        "firsttoken_media_type": file.media_type,
    }


def vector_store_object(store: VectorStore) -> dict[str, Any]:
    counts = {"in_progress": 0, "completed": store.files, "failed": 0, "cancelled": 0, "total": store.files}
    return {
        "id": store.id,
        "object": "vector_store",
        "created_at": int(store.created_at.timestamp()),
        "name": store.name,
        "status": "completed",
        "file_counts": counts,
        "metadata": dict(store.metadata),
        "firsttoken_embedding_model": store.embedding_model,
    }
