"""Errors of inference. `status` is the HTTP status that the edge responds with."""

from __future__ import annotations

from collections.abc import Sequence

OVERLOADED = "overloaded"  # the code of refusals caused by the load of all tenants


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


class UnseenPicture(InferenceError):
    """An image in the prompt that the model cannot see."""

    status = 400
    code = "unsupported_image"
    param = "input"


class EmptyPrompt(InferenceError):
    """The prompt has no tokens, so there is nothing to continue."""

    status = 400
    code = "invalid_value"
    param = "input"

    def __init__(self) -> None:
        super().__init__("The prompt is empty, and this model has no token to begin with: send some text.")


class TooManyTokens(PromptTooLong):
    """The prompt leaves no room for an answer."""

    def __init__(self, tokens: int, context_length: int) -> None:
        super().__init__(
            f"The prompt has {tokens} tokens. This model's maximum context length is {context_length} tokens, of which "
            f"a prompt may have 1 to {context_length - 1}: shorten it, or leave earlier messages out."
        )


class TextTooLong(PromptTooLong):
    """The prompt has more bytes of text than fit the context in any tokens: it is refused before tokenisation."""

    def __init__(self, excess_bytes: int, room_bytes: int, context_length: int) -> None:
        super().__init__(
            f"The prompt has {room_bytes + excess_bytes:,} bytes of text. This model's maximum context length is "
            f"{context_length} tokens, which is far less: shorten the prompt, or leave earlier messages out."
        )
        self.excess_bytes = excess_bytes
        self.room_bytes = room_bytes


class UnknownToken(InferenceError):
    """The logit bias names a token that the model's vocabulary does not have."""

    status = 400
    code = "invalid_value"
    param = "logit_bias"


class ForeignTokens(InferenceError):
    """Token ids that the embedding model's tokenizer did not produce."""

    status = 400
    code = "invalid_value"
    param = "input"

    def __init__(self, model: str) -> None:
        super().__init__(f"these token ids were not made by the tokenizer of '{model}': send text instead")


class NotDeterministic(InferenceError):
    """This device or model cannot give deterministic answers."""

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
    """An answer cannot continue within its grammar. Only its own request ends, whose schema is at fault: it would end
    the next answer as well."""

    status = 400
    code = "invalid_prompt"  # the one of those that a failed response may have which says whose mistake it is


class SchemaUnmet(InferenceError):
    """A finished text violates a schema keyword that no grammar enforces. The code names it: `unmet_uniqueItems`."""

    def __init__(self, keyword: str, place: str) -> None:
        super().__init__(f"the answer breaks '{keyword}' of its schema at '{place}'")
        self.code = f"unmet_{keyword}"


class QueueFull(InferenceError):
    """The queue is full: retry after `retry_after_s`. `own`: because of the tenant's own requests."""

    def __init__(self, message: str, retry_after_s: float, *, own: bool = False) -> None:
        super().__init__(message)
        self.status, self.code = (429, "rate_limit_exceeded") if own else (503, OVERLOADED)
        self.retry_after_s = retry_after_s


class Late(QueueFull):
    """There is room, but the first token would come too late."""


class ModelNotLoaded(InferenceError):
    """The model file could not be loaded."""


class AdapterNotLoaded(ModelNotLoaded):
    """One of its LoRA adapters could not be loaded."""


class NoRoom(InferenceError):
    """No memory for a model while others are in use: retry after `retry_after_s`."""

    status = 503
    code = OVERLOADED
    retry_after_s = 5.0


class OutOfDeviceMemory(ModelNotLoaded):
    """A GPU has too little memory for what was placed on it: fewer layers may fit."""


class UnknownEmbedder(InferenceError):
    """This worker has no embedding model of that name."""

    status = 404
    code = "model_not_found"
    param = "model"

    def __init__(self, name: str, known: Sequence[str]) -> None:
        super().__init__(f"There is no embedding model '{name}' on this worker. Available: {', '.join(known)}.")


class EmbedderNotLoaded(InferenceError):
    """An embedding model of this worker could not be loaded when it was needed; the log says why."""

    status = 503

    def __init__(self, name: str) -> None:
        super().__init__(f"the embedding model '{name}' could not be loaded")


class ModelAway(InferenceError):
    """A chat model that is loaded on first use could not be loaded; the log says why."""

    status = 503
    retry_after_s = 30.0  # an operator has to act

    def __init__(self, name: str) -> None:
        super().__init__(f"the model '{name}' could not be loaded")


class InvalidTemplate(InferenceError):
    """The model's chat template rejects these messages."""

    status = 400
    code = "invalid_prompt"
    param = "input"


class EngineStopped(InferenceError):
    """The engine is shutting down."""

    status = 503
    code = "server_error"


class EnginesAway(EngineStopped):
    """None of the engines responds: retry after `retry_after_s`, when they have been probed again."""

    retry_after_s = 1.0


class Refused(InferenceError):
    """A remote engine's refusal of a request for which there is no class of its own."""

    def __init__(self, message: str, status: int, code: str, param: str | None) -> None:
        super().__init__(message)
        self.status, self.code, self.param = status, code, param
