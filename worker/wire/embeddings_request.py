"""The body of POST /v1/embeddings."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal, TypeAlias

from pydantic import Discriminator, Field, StringConstraints, Tag

from worker.wire import limits
from worker.wire.strict import Strict
from worker.wire.token_arrays import Token, form, together

INPUTS_MAX = 2_048  # the limit of the public contract; a model reads the first 256 tokens of each
INPUT_CHARS_MAX = 32_768
INPUT_TOKENS_MAX = 8_192
TOKENS_MAX = 300_000  # of all token arrays together, the limit of the public contract

Input: TypeAlias = Annotated[str, StringConstraints(min_length=1, max_length=INPUT_CHARS_MAX)]
TokenIds: TypeAlias = Annotated[list[Token], Field(min_length=1, max_length=INPUT_TOKENS_MAX)]


SEVERAL = Field(min_length=1, max_length=INPUTS_MAX, fail_fast=True)  # many invalid ones would produce as many errors


class EmbeddingsRequest(Strict):
    input: Annotated[
        Annotated[Input, Tag("text")]
        | Annotated[list[Input], SEVERAL, Tag("texts")]
        | Annotated[TokenIds, Tag("ids")]
        | Annotated[list[TokenIds], SEVERAL, together(TOKENS_MAX), Tag("arrays")],
        Discriminator(form),
    ]
    model: str
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: int | None = None
    user: Annotated[str, StringConstraints(max_length=limits.USER_CHARS_MAX)] | None = None

    @property
    def inputs(self) -> list[str | list[int]]:
        """Each a text, or the token ids of one."""
        given: Sequence[str | int | list[int]] = [self.input] if isinstance(self.input, str) else self.input
        ids = [each for each in given if isinstance(each, int)]
        return [ids] if ids else [each for each in given if not isinstance(each, int)]
