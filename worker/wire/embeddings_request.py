"""The body of POST /v1/embeddings."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import AfterValidator, Discriminator, Field, StringConstraints, Tag

from worker.wire import limits
from worker.wire.strict import Strict

INPUTS_MAX = 2_048  # as the public contract has it; a model reads the first 256 tokens of each
INPUT_CHARS_MAX = 32_768
INPUT_TOKENS_MAX = 8_192
TOKENS_MAX = 300_000  # of all token arrays together, as the public contract has it

Input: TypeAlias = Annotated[str, StringConstraints(min_length=1, max_length=INPUT_CHARS_MAX)]
TokenIds: TypeAlias = Annotated[
    list[Annotated[int, Field(ge=0, lt=2**31)]], Field(min_length=1, max_length=INPUT_TOKENS_MAX)
]


def _bounded(arrays: list[TokenIds]) -> list[TokenIds]:
    if sum(map(len, arrays)) > TOKENS_MAX:
        raise ValueError(f"all token arrays together may have at most {TOKENS_MAX} tokens")
    return arrays


def _form(value: Any) -> str:
    """Told by the first entry."""
    if not isinstance(value, list):
        return "text"
    first = next(islice(value, 1), "")
    return "ids" if isinstance(first, int) else "arrays" if isinstance(first, list) else "texts"


SEVERAL = Field(min_length=1, max_length=INPUTS_MAX, fail_fast=True)  # many wrong ones would be many complaints


class EmbeddingsRequest(Strict):
    input: Annotated[
        Annotated[Input, Tag("text")]
        | Annotated[list[Input], SEVERAL, Tag("texts")]
        | Annotated[TokenIds, Tag("ids")]
        | Annotated[list[TokenIds], SEVERAL, AfterValidator(_bounded), Tag("arrays")],
        Discriminator(_form),
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
