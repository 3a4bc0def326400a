"""The body of POST /v1/embeddings; and inputs that are one or several texts, or arrays of their token ids."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from typing import Annotated, Any, ClassVar, Literal, TypeAlias

from pydantic import AfterValidator, Discriminator, Field, StringConstraints, Tag

from worker.wire import limits
from worker.wire.strict import ModelName, Strict

Token: TypeAlias = Annotated[int, Field(ge=0, lt=2**31)]


def form(value: Any) -> str:
    """text, texts, ids or arrays, determined by the first entry."""
    if not isinstance(value, list):
        return "text"
    first = next(islice(value, 1), "")
    return "ids" if isinstance(first, int) else "arrays" if isinstance(first, list) else "texts"


def each_of(inputs: str | Sequence[str | int | list[int]]) -> list[str | list[int]]:
    """Each a text, or the token ids of one."""
    given = [inputs] if isinstance(inputs, str) else inputs
    ids = [each for each in given if isinstance(each, int)]
    return [ids] if ids else [each for each in given if not isinstance(each, int)]


def together(tokens_max: int) -> AfterValidator:
    """Of several arrays with at most this many tokens in total."""

    def check(arrays: list[list[int]]) -> list[list[int]]:
        if sum(map(len, arrays)) > tokens_max:
            raise ValueError(f"all token arrays together may have at most {tokens_max} tokens")
        return arrays

    return AfterValidator(check)


INPUTS_MAX = 2_048  # the limit of the public contract; a model reads the first 256 tokens of each
INPUT_CHARS_MAX = 32_768
INPUT_TOKENS_MAX = 8_192
TOKENS_MAX = 300_000  # of all token arrays together, the limit of the public contract

Input: TypeAlias = Annotated[str, StringConstraints(min_length=1, max_length=INPUT_CHARS_MAX)]
TokenIds: TypeAlias = Annotated[list[Token], Field(min_length=1, max_length=INPUT_TOKENS_MAX)]


SEVERAL = Field(min_length=1, max_length=INPUTS_MAX, fail_fast=True)  # many invalid ones would produce as many errors


class EmbeddingsRequest(Strict):
    BULK: ClassVar = "input"

    input: Annotated[
        Annotated[Input, Tag("text")]
        | Annotated[list[Input], SEVERAL, Tag("texts")]
        | Annotated[TokenIds, Tag("ids")]
        | Annotated[list[TokenIds], SEVERAL, together(TOKENS_MAX), Tag("arrays")],
        Discriminator(form),
    ]
    model: ModelName
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: int | None = None
    user: Annotated[str, StringConstraints(max_length=limits.USER_CHARS_MAX)] | None = None

    @property
    def inputs(self) -> list[str | list[int]]:
        return each_of(self.input)
