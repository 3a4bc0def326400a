"""Errors of retrieval. `status` is the HTTP status that the edge responds with."""

from __future__ import annotations

from collections.abc import Sequence


class RetrievalError(Exception):
    """Retrieval could not serve the request."""

    status = 500
    code = "server_error"
    param: str | None = None


class StoreNotFound(RetrievalError):
    """No vector store of this tenant has that id or name."""

    status = 404
    code = "not_found"
    param = "vector_store_ids"

    def __init__(self, store: str) -> None:
        super().__init__(f"There is no vector store '{store}'.")
        self.store = store


class FileNotFound(RetrievalError):
    """No file of this tenant has that id; a file that was ingested again has a new one."""

    status = 404
    code = "not_found"
    param = "file_id"

    def __init__(self, file_id: str) -> None:
        super().__init__(f"There is no file '{file_id}'.")
        self.file_id = file_id


class BatchNotFound(RetrievalError):
    """No batch of files of this store has that id."""

    status = 404
    code = "not_found"

    def __init__(self, batch_id: str) -> None:
        super().__init__(f"There is no batch '{batch_id}'.")


class TooManyFiles(RetrievalError):
    """The tenant's files have reached the storage limit."""

    status = 413
    code = "storage_limit_exceeded"
    param = "file"

    def __init__(self, used: int, limit: int) -> None:
        super().__init__(
            f"your files take {used / 2**20:.0f} of {limit / 2**20:.0f} MB, and this file does not fit: "
            "delete some files"
        )


class EmbeddingModelMissing(RetrievalError):
    """This worker does not have the embedding model that the store was created with, and no other one can read it."""

    status = 409
    code = "embedding_model_missing"
    param = "vector_store_ids"

    def __init__(self, store: str, model: str, dimensions: int, known: Sequence[str]) -> None:
        super().__init__(
            f"vector store '{store}' was made with the embedding model {model} of {dimensions} dimensions, which this "
            f"worker does not have (it has {', '.join(known)}): start the worker with that model in --embedders, or "
            "put the files into a new store"
        )


class EmbeddingModelChanged(RetrievalError):
    """Another model now has the name of the one that the store was created with."""

    status = 409
    code = "embedding_model_changed"
    param = "vector_store_ids"

    def __init__(self, store: str, model: str) -> None:
        super().__init__(
            f"vector store '{store}' was created with a different model of the same name, {model}: start the "
            "worker with that model, or put the files into a new store"
        )


class OtherEmbeddingModel(RetrievalError):
    """The store was created with another embedding model than the requested one."""

    status = 409
    code = "conflict"
    param = "firsttoken_embedding_model"

    def __init__(self, store: str, stored: str, asked: str) -> None:
        super().__init__(
            f"vector store '{store}' was made with the embedding model {stored}, not {asked}: name a new store"
        )


class UnreadableFile(RetrievalError):
    """A file that cannot become passages; the message says why, without the file's name and without the final full stop
    that the reasons of other libraries may have."""

    status = 400
    code = "unsupported_file"
    param = "file"

    def __init__(self, why: str) -> None:
        super().__init__(why.rstrip("."))


class ReadersUnavailable(RetrievalError):
    """No process could be started to read a file; the file may be fine."""

    status = 503

    def __init__(self) -> None:
        super().__init__("files cannot be read right now, because no process could be started for them: try again")
