"""What can go wrong in inference. `status` is the HTTP status that the edge answers with."""

from __future__ import annotations

from collections.abc import Sequence


class InferenceError(Exception):
    """The model could not serve the request."""

    status = 500
    code = "server_error"
    param: str | None = None


class PromptTooLong(InferenceError):
    """The prompt does not fit the model's context."""

    status = 400
    code = "context_length_exceeded"
    param = "input"


class UnknownToken(InferenceError):
    """The logit bias names a token that the model's vocabulary does not have."""

    status = 400
    code = "invalid_value"
    param = "logit_bias"


class NotDeterministic(InferenceError):
    """This device or model cannot keep the promise of deterministic answers."""

    status = 400
    code = "unsupported_value"
    param = "metadata.deterministic"


class InvalidSchema(InferenceError):
    """A JSON schema that cannot be compiled to a grammar; `path` is the position in it."""

    status = 400
    code = "invalid_json_schema"

    def __init__(self, reason: str, path: str = "") -> None:
        super().__init__(f"{path}: {reason}" if path else reason)
        self.reason = reason
        self.path = path


class GrammarFailed(InferenceError):
    """An answer cannot continue within its grammar. Only its own request ends."""


class QueueFull(InferenceError):
    """The model is busy and its queue is full: try again after `retry_after_s`."""

    status = 429
    code = "rate_limit_exceeded"

    def __init__(self, message: str, retry_after_s: float) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class ModelNotLoaded(InferenceError):
    """The model file could not be loaded."""


class UnknownEmbedder(InferenceError):
    """No embedding model of this worker has that name."""

    status = 404
    code = "model_not_found"
    param = "model"

    def __init__(self, name: str, known: Sequence[str]) -> None:
        super().__init__(f"there is no embedding model '{name}' on this worker; available: {', '.join(known)}")


class EmbedderNotLoaded(InferenceError):
    """An embedding model that this worker should have could not be loaded when it was needed; the log says why."""

    status = 503

    def __init__(self, name: str) -> None:
        super().__init__(f"the embedding model '{name}' could not be loaded")


class InvalidTemplate(InferenceError):
    """The model's chat template rejects these messages."""

    status = 400
    code = "invalid_prompt"
    param = "input"


class EngineStopped(InferenceError):
    """The engine is shutting down."""

    status = 503
    code = "server_error"
