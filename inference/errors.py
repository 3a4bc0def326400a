"""What can go wrong in inference. `status` is the HTTP status that the edge answers with."""

from __future__ import annotations

from collections.abc import Sequence

OVERLOADED = "overloaded"  # the code of what is refused because of everybody's requests


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


class EmptyPrompt(InferenceError):
    """The prompt has no tokens: nothing tells what comes next."""

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
    """The prompt has more bytes of text than its context can spell: it is refused before it is tokenised."""

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
    """Token ids that the embedding model's tokenizer did not make."""

    status = 400
    code = "invalid_value"
    param = "input"

    def __init__(self, model: str) -> None:
        super().__init__(f"these token ids were not made by the tokenizer of '{model}': send text instead")


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


class SchemaUnmet(InferenceError):
    """A finished text breaks a keyword of its schema that no grammar holds. The code names it: `unmet_uniqueItems`."""

    def __init__(self, keyword: str, place: str) -> None:
        super().__init__(f"the answer breaks '{keyword}' of its schema at '{place}'")
        self.code = f"unmet_{keyword}"


class QueueFull(InferenceError):
    """There is no room in the queue: try again after `retry_after_s`. `own`: because of the tenant's own requests."""

    def __init__(self, message: str, retry_after_s: float, *, own: bool = False) -> None:
        super().__init__(message)
        self.status, self.code = (429, "rate_limit_exceeded") if own else (503, OVERLOADED)
        self.retry_after_s = retry_after_s


class Late(QueueFull):
    """There is room, but the first token would come too late."""


class ModelNotLoaded(InferenceError):
    """The model file could not be loaded."""


class NoRoom(InferenceError):
    """There is no memory for a model while others are at work: try again after `retry_after_s`."""

    status = 503
    code = OVERLOADED
    retry_after_s = 5.0


class OutOfDeviceMemory(ModelNotLoaded):
    """A GPU has no room for what was to lie on it: fewer layers may fit."""


class UnknownEmbedder(InferenceError):
    """No embedding model of this worker has that name."""

    status = 404
    code = "model_not_found"
    param = "model"

    def __init__(self, name: str, known: Sequence[str]) -> None:
        super().__init__(f"There is no embedding model '{name}' on this worker. Available: {', '.join(known)}.")


class EmbedderNotLoaded(InferenceError):
    """An embedding model that this worker should have could not be loaded when it was needed; the log says why."""

    status = 503

    def __init__(self, name: str) -> None:
        super().__init__(f"the embedding model '{name}' could not be loaded")


class ModelAway(InferenceError):
    """A chat model that is loaded at first use could not be loaded; the log says why."""

    status = 503
    retry_after_s = 30.0  # somebody has to do something about it

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
    """None of the engines answers: try again after `retry_after_s`, when they have been looked for again."""

    retry_after_s = 1.0


class Refused(InferenceError):
    """What an engine says of a request that it does not take, where there is no class for it."""

    def __init__(self, message: str, status: int, code: str, param: str | None) -> None:
        super().__init__(message)
        self.status, self.code, self.param = status, code, param
